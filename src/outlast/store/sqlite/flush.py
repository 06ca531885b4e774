"""The verb ``flush``: entries of many tasks, each task fenced by its epoch, each entry with its own verdict.

The whole file has one writer, so no head is ever held by somebody else and nobody is ever ``deferred``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import orjson

from outlast.core.transitions import OPERATION, TASK
from outlast.store.contract import BatchRejected
from outlast.store.entries import (
    AdoptIssued,
    AppendEvents,
    AskApproval,
    AttachSession,
    Batch,
    CommitIntent,
    EndAttempt,
    Entry,
    ExpireApproval,
    Flushed,
    Note,
    RecordOperation,
    RecordOutcome,
    TakeTurn,
    TaskWrites,
)
from outlast.store.sqlite import approving, changing, counts, forking, gate, keys, outside
from outlast.store.sqlite.heads import Head, Writes, any_unsettled, json_text
from outlast.store.sqlite.transaction import Row, Transaction

MANY: Final = 4
"""From how many operations on they are put on record at once; for fewer that costs more than it saves."""


def flush(tx: Transaction, batch: Batch, now: int | None) -> list[Flushed]:
    """Write a batch; see ``Store.flush``."""
    at = tx.now(now)
    last = tx.row("read_writer", (batch.writer,))
    if last is not None and last[0] != batch.number - 1:
        if last[0] == batch.number:
            return [_recall(verdict) for verdict in orjson.loads(last[1])]
        raise BatchRejected(
            f"writer {batch.writer} is at batch {last[0]}; batch {batch.number} is not the one after it"
        )
    verdicts: list[Flushed] = []
    for part in _parts(batch.writes):
        verdicts += _write_part(tx, part, at)
    tx.write_events()
    kept = json_text([(verdict.kind, verdict.refusals, verdict.state) for verdict in verdicts])
    tx.run("keep_writer", (batch.writer, batch.number, kept, at))
    return verdicts


def _recall(kept: list[Any]) -> Flushed:
    kind, refusals, state = kept
    return Flushed(kind=kind, refusals=tuple((index, name) for index, name in refusals), state=state)


def _parts(writes: Sequence[TaskWrites]) -> Iterator[list[TaskWrites]]:
    """Part a batch so that each task is in a part once: heads are read in its beginning and written in its
    end."""
    part: dict[tuple[str, str], TaskWrites] = {}
    for one in writes:
        name = (one.tenant, one.task)
        if name in part:
            yield list(part.values())
            part = {}
        part[name] = one
    yield list(part.values())


def _write_part(tx: Transaction, part: list[TaskWrites], at: int) -> list[Flushed]:
    """Write what there is of different tasks; a verdict for each."""
    put_off = Writes(tx, at_once=False)
    heads = Head.read_all(tx, [(writes.tenant, writes.task) for writes in part], at, put_off)
    fenced = [head if _holds(head, writes) else None for head, writes in zip(heads, part, strict=True)]
    passing = [(head, writes) for head, writes in zip(fenced, part, strict=True) if head]
    begun = _record_first(tx, passing)
    Head.read_leavings(tx, [head for head, writes in passing if _only_ends(writes, begun.get(head, 0))])
    verdicts = []
    for head, passed, writes in zip(heads, fenced, part, strict=True):
        if passed is None:
            verdicts.append(Flushed(kind="stale", state="running" if head is None else _state(head)))
        else:
            verdicts.append(_write_task(tx, passed, writes, begun.get(passed, 0)))
    put_off.write()
    return verdicts


def _holds(head: Head | None, writes: TaskWrites) -> bool:
    """The fence: a task's entries are written only under the epoch that is current now."""
    return head is not None and head.epoch == writes.epoch and head.state == "running"


def _record_first(tx: Transaction, part: list[tuple[Head, TaskWrites]]) -> dict[Head, int]:
    """Put the operations on record that the entries of each task begin with, all at once; answer how many of
    the entries are written with that.

    Where one of them is on record already, none is: each goes by itself then.
    """
    firsts = {head: _records(writes.entries) for head, writes in part}
    rows = [_row(head, entry) for head, entries in firsts.items() for entry in entries]
    if len(rows) < MANY:
        return {}
    tx.execute("savepoint first")
    recorded = tx.run_many("record_operations", rows)
    if recorded < len(rows):
        tx.execute("rollback to first")
        firsts = {}
    tx.execute("release first")
    for head, entries in firsts.items():
        for entry in entries:
            head.say(entry.events)
    return {head: len(entries) for head, entries in firsts.items()}


def _only_ends(writes: TaskWrites, begun: int) -> bool:
    """Say whether nothing is left to be written of a task but its end."""
    last = writes.entries[-1]
    return begun == len(writes.entries) - 1 and isinstance(last, EndAttempt) and last.task_state in TASK.final


def _records(entries: Sequence[Entry]) -> list[RecordOperation]:
    """Answer the first entries, as far as they do nothing but put operations on record that mostly are
    new."""
    found: list[RecordOperation] = []
    for entry in entries:
        if not isinstance(entry, RecordOperation) or entry.kind == "child":
            break
        if entry.takes or entry.takes_end or entry.closes:
            break
        found.append(entry)
    return found


def _write_task(tx: Transaction, head: Head, writes: TaskWrites, begun: int) -> Flushed:
    """Write the entries of a task behind those that are written; its fence was looked at."""
    refusals: list[tuple[int, str]] = []
    for index, entry in enumerate(writes.entries[begun:], start=begun):
        if head.state != "running":
            raise BatchRejected(f"task {writes.task}: entry {index} comes after the end of its attempt")
        refusal = _WRITERS[type(entry)](tx, head, entry)
        if refusal is not None:
            refusals.append((index, refusal))
    if head.state != "running":
        head.save()
    else:
        head.save_events()
    return Flushed(kind="accepted", refusals=tuple(refusals), state=_state(head))


def _state(head: Head) -> Any:
    return head.state


# -- entries, each answering None or the name of its refusal -------------------------------------------------


def _record_operation(tx: Transaction, head: Head, entry: RecordOperation) -> str | None:
    # A child is on record since it was accepted; nearly everything else is new. A record is never refused;
    # where something was sent or has ended, what is stored stands.
    ways = (_replace, _add) if entry.kind == "child" else (_add, _replace)
    recorded = any(way(tx, head, entry) for way in ways)
    if entry.takes and recorded:
        tx.run_many("take_inbox", [(entry.key, head.tenant, head.task, number) for number in entry.takes])
    if entry.takes_end:
        name = (head.tenant, head.task, entry.key)
        if not tx.run("take_post", name):
            tx.run("take_end", (entry.key, *name))
    head.say(entry.events)
    if entry.closes:
        head.withdraw_approvals(entry.key, epoch=head.epoch)
    return None


def _due_at(head: Head, entry: RecordOperation) -> int | None:
    if entry.due_at is None and entry.due_in_us is not None:
        return head.at + entry.due_in_us
    return entry.due_at


def _ended_at(head: Head, entry: RecordOperation) -> int | None:
    return head.at if entry.state in OPERATION.final else None


def _row(head: Head, entry: RecordOperation) -> Row:
    """Make the row of an operation that is not on record."""
    return (
        head.tenant,
        head.task,
        entry.key,
        entry.position,
        entry.kind,
        entry.name,
        entry.state,
        entry.request,
        head.epoch,
        entry.arguments,
        entry.result,
        entry.error,
        head.at,
        _due_at(head, entry),
        _ended_at(head, entry),
        entry.lost,
    )


def _add(tx: Transaction, head: Head, entry: RecordOperation) -> bool:
    """Put an operation on record that is not there."""
    return bool(tx.run("record_operations", _row(head, entry)))


def _replace(tx: Transaction, head: Head, entry: RecordOperation) -> bool:
    """Replace the record of an operation that nothing was sent for."""
    ended_at = _ended_at(head, entry)
    name = (head.tenant, head.task, entry.key)
    row = (
        entry.kind,
        entry.name,
        entry.state,
        entry.request,
        head.epoch,
        entry.arguments,
        entry.result,
        entry.error,
        _due_at(head, entry),
        ended_at,
        entry.lost,
        *name,
    )
    replaced = bool(tx.run("replace_operation", row))
    if replaced and ended_at is not None:
        # It ends without a call; what an earlier attempt held is nobody's any more.
        keys.give_up_others(tx, name, None)
    return replaced


def _ask_approval(tx: Transaction, head: Head, entry: AskApproval) -> str | None:
    approving.ask(tx, head, entry)
    return None


def _expire_approval(tx: Transaction, head: Head, entry: ExpireApproval) -> str | None:
    return approving.expire(tx, head, entry)


def _adopt_issued(tx: Transaction, head: Head, entry: AdoptIssued) -> str | None:
    forking.adopt_issued(tx, head, entry)
    return None


def _attach_session(tx: Transaction, head: Head, entry: AttachSession) -> str | None:
    return outside.attach(tx, head, entry)


def _commit_intent(tx: Transaction, head: Head, entry: CommitIntent) -> str | None:
    refusal = gate.admit(tx, head, entry)
    if refusal is None:
        head.say(entry.events)
    return refusal


def _record_outcome(tx: Transaction, head: Head, entry: RecordOutcome) -> str | None:
    if entry.state in ("failed", "planned") and tx.row("word_stands", (head.tenant, head.task, entry.key)):
        # Evidence has it that it happened.
        return "turn_passed"
    recorded = tx.run(
        "record_outcome",
        (
            entry.state,
            entry.result,
            entry.error,
            head.at if entry.state in OPERATION.final else None,
            entry.settled_by,
            entry.usage,
            head.tenant,
            head.task,
            entry.key,
            entry.attempt,
            entry.turn,
        ),
    )
    if not recorded:
        return "turn_passed"
    if entry.settled_by is not None:
        counts.count(tx, (head.tenant, head.task, entry.key), entry.state)
    name = (head.tenant, head.task, entry.key)
    if entry.state == "unknown":
        head.unsettle(entry.key, sender_gone=entry.sender_gone)
    else:
        if any_unsettled(tx):
            tx.run("drop_unsettled", name)
        if entry.state in OPERATION.final:
            keys.end(tx, name, entry.state, head.at)
    if entry.wait is not None:
        provider, wait_us = entry.wait
        tx.run("keep_wait", (head.tenant, provider, head.at + wait_us))
        tx.waits = True
    head.say(entry.events)
    return None


def _take_turn(tx: Transaction, head: Head, entry: TakeTurn) -> str | None:
    if not tx.run("take_turn", (head.tenant, head.task, entry.key, entry.attempt, entry.turn)):
        return "turn_passed"
    head.unsettle(entry.key, why=entry.reason)
    head.say(entry.events)
    return None


def _append_events(tx: Transaction, head: Head, entry: AppendEvents) -> str | None:
    head.say(entry.events)
    return None


def _note(tx: Transaction, head: Head, entry: Note) -> str | None:
    tx.run(
        "add_evidence",
        (head.tenant, head.task, entry.key, entry.attempt, entry.source, entry.data, head.at, None),
    )
    return None


def _end_attempt(tx: Transaction, head: Head, entry: EndAttempt) -> str | None:
    name, epoch = (head.tenant, head.task), head.epoch
    if head.cut or (head.undoing and entry.task_state in TASK.final):
        head.say(entry.events)
        head.end_attempt("cancelled")
        head.append("attempt.cancelled", epoch=epoch)
        error, undone = _undone(head, entry)
        head.end_cancelled(epoch=epoch, error=error, undone=undone)
        return None
    for key in entry.reopen:
        tx.run("reopen_operation", (*name, key))
    head.say(entry.events)
    head.end_attempt(entry.attempt_end)
    head.append(f"attempt.{entry.attempt_end}", epoch=epoch)
    if entry.task_state in TASK.final:
        if entry.judged is not None and entry.task_state == "succeeded":
            # Before the end itself, so that whoever reads up to the end has read it.
            changing.judge(tx, head, 1, entry.judged, epoch=epoch)
        head.finish(entry.task_state, result=entry.result, error=entry.error, epoch=epoch, heard=entry.heard)
    elif entry.task_state == "waiting" and entry.reason is not None:
        due_at = _wake_at(tx, head, entry)
        if _is_over(tx, head, entry, due_at):
            head.enqueue()
            head.append("task.queued", epoch=epoch)
        else:
            head.wait(entry.reason, due_at)
            head.append("task.waiting", json_text({"reason": entry.reason}), epoch=epoch)
    elif entry.task_state == "queued":
        head.enqueue()
        head.append("task.queued", epoch=epoch)
    else:
        raise BatchRejected(f"task {head.task}: an attempt cannot end with its task {entry.task_state}")
    return None


def _undone(head: Head, entry: EndAttempt) -> tuple[str | None, Any]:
    """Answer a worker's error where it says how a cancel went, also where the cancel came while it undid for
    another reason; and what it has undone where it had not heard of the cancel."""
    said = None if entry.error is None else orjson.loads(entry.error)
    if not isinstance(said, dict):
        return None, None
    undone = said.get("compensation")
    if said.get("code") != "cancelled":
        return None, undone
    return (None if undone is None and not head.undoing else entry.error), None


def _wake_at(tx: Transaction, head: Head, entry: EndAttempt) -> int | None:
    """Answer when a suspended task is to be woken, None for never by time."""
    own = None if entry.wake_in_us is None else head.at + entry.wake_in_us
    if own is not None and not entry.at_latest:
        return own
    earliest = tx.row("earliest_wait", (head.tenant, head.task))
    if earliest is not None and earliest[0] is not None:
        return int(earliest[0]) if own is None else min(own, earliest[0])
    # A wait for a timer that does not exist would never end.
    return head.at if own is None and entry.reason == "timer" else own


def _is_over(tx: Transaction, head: Head, entry: EndAttempt, due_at: int | None) -> bool:
    """Say whether what a suspension waits for is already there, so that no wake-up is lost."""
    if head.facts > entry.facts or (due_at is not None and due_at <= head.at):
        return True
    if entry.reason != "reconciliation":
        return False
    counted = tx.row("count_unsettled", (head.tenant, head.task))
    return counted is not None and counted[0] == 0


_WRITERS: dict[type[Entry], Callable[[Transaction, Head, Any], str | None]] = {
    RecordOperation: _record_operation,
    AskApproval: _ask_approval,
    ExpireApproval: _expire_approval,
    AdoptIssued: _adopt_issued,
    AttachSession: _attach_session,
    CommitIntent: _commit_intent,
    RecordOutcome: _record_outcome,
    TakeTurn: _take_turn,
    AppendEvents: _append_events,
    Note: _note,
    EndAttempt: _end_attempt,
}
