"""Deliberate faults, by name: each breaks one rule that the product keeps, from outside, one at a time.

Purpose: a judge that finds nothing is believed only if it finds what was put there. Functions are replaced
and SQL statements changed in memory; the product has no switch for any of it.

``world`` is what a schedule of the world's own mixture is narrowed to, where a fault shows in a corner only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from outlast import clock
from outlast.core import settle as settle_rules
from outlast.engine import effects, outcomes, settling, undoing
from outlast.engine.journal import Journal
from outlast.engine.run import Run
from outlast.engine.session import Session
from outlast.engine.worker import Worker
from outlast.store.entries import CommitIntent, RecordOutcome
from outlast.store.records import Submitted
from outlast.store.sqlite import (
    approving,
    claim,
    counts,
    flush,
    gate,
    keys,
    settle,
    submit,
    sweep,
    switches,
)
from outlast.store.sqlite.heads import Head
from outlast.store.sqlite.transaction import SQL
from outlast.testing.simulation import Faults
from outlast.testing.simulation.node import NodeStore

__all__ = ["DEFECTS", "NOT_CAUGHT", "Defect"]


class Patch:
    """Breaks things until it is undone. It is a pytest.MonkeyPatch that knows statements."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace a function or a value, which has to be there."""
        self._monkeypatch.setattr(owner, name, value)

    def sql(self, name: str, old: str, new: str) -> None:
        """Change a part of a statement, which has to be in it; parameters must stay."""
        text = SQL[name]
        assert old in text, f"{name} does not say {old!r}"
        self._monkeypatch.setitem(SQL, name, text.replace(old, new))


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A deliberate fault. says: what it does. apply: how. world: arguments of its schedules.

    quick: whether it falls within a few schedules, so that every run of the tests can show it. reason: why
    the simulation does not find it, for those that are listed as not caught.
    """

    name: str
    says: str
    apply: Callable[[Patch], None]
    world: dict[str, Any] = field(default_factory=dict)
    quick: bool = False
    reason: str = ""


DEFECTS: dict[str, Defect] = {}
"""Every deliberate fault by its name."""


def defect(
    says: str, *, quick: bool = False, reason: str = "", **world: Any
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a fault under its function's name."""

    def register(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name = apply.__name__
        DEFECTS[name] = Defect(name=name, says=says, apply=apply, world=world, quick=quick, reason=reason)
        return apply

    return register


def _nothing(*_: Any, **__: Any) -> None:
    return None


# ── fences and leases ────────────────────────────────────────────────────────────────────────────


@defect("entries are written whatever their epoch is")
def epoch_not_compared(patch: Patch) -> None:
    write = flush._write_task

    def unfenced(tx: Any, writes: Any, at: int) -> Any:
        head = Head.read(tx, writes.tenant, writes.task, at)
        return write(tx, dataclasses.replace(writes, epoch=head.epoch if head else writes.epoch), at)

    patch.set(flush, "_write_task", unfenced)


@defect("a claim leaves the epoch as it was", quick=True)
def epoch_not_raised(patch: Patch) -> None:
    patch.sql("claim_head", "epoch = epoch + 1", "epoch = max(epoch, 1)")


@defect("a session that was swept may claim")
def dead_session_claims(patch: Patch) -> None:
    def anybody(tx: Any, request: Any) -> Any:
        row = tx.row("read_session", (request.session,))
        return None if row is None or row[3] > request.fence else row[0]

    patch.set(claim, "_session_name", anybody)


@defect("what a claim took whose answer was lost is given back by nobody")
def lost_claim_forgotten(patch: Patch) -> None:
    patch.set(claim, "reconcile", lambda *_: [])


@defect("a worker that is told that its lease is gone goes on as if it had been written")
def stale_verdict_ignored(patch: Patch) -> None:
    def believe(journal: Any, lease: Any, waiting: Any) -> None:
        for _, future, told, _ in waiting:
            if told is not None:
                told(None, None)
            elif future is not None and not future.done():
                future.set_result(None)

    patch.set(Journal, "_refuse", believe)


@defect("nobody looks at the lease before a call is sent")
def lease_not_looked_at(patch: Patch) -> None:
    patch.set(Run, "guard", _nothing)
    patch.set(Session, "trust", _trusting)


async def _trusting(_: Any) -> None:
    return None


@defect("a lease that ended stays")
def lease_kept(patch: Patch) -> None:
    patch.sql("drop_lease", "delete from leases\nwhere ", "delete from leases\nwhere 0 and ")


@defect(
    "the lease is given back while calls are under way, and nobody waits for them",
    agents=("fan", "booker"),
    faults=Faults(drains=3, cancels=2),
)
def lease_released_before_draining(patch: Patch) -> None:
    async def at_once(run: Run) -> None:
        run.sealed = True
        for key, task in list(run.open.items()):
            if key not in run.critical:
                task.cancel()

    patch.set(Run, "_drain_calls", at_once)


@defect("workers judge time by their own wall clocks")
def wall_clock_judges(patch: Patch) -> None:
    swept, flushed = NodeStore.sweep, NodeStore.flush

    async def sweep_by_own(self: Any, request: Any, *, now: int | None = None) -> Any:
        return await swept(self, request, now=clock.unix_us())

    async def flush_by_own(self: Any, batch: Any, *, now: int | None = None) -> Any:
        return await flushed(self, batch, now=clock.unix_us())

    patch.set(NodeStore, "sweep", sweep_by_own)
    patch.set(NodeStore, "flush", flush_by_own)


# ── the queue, timers and facts ──────────────────────────────────────────────────────────────────


@defect("a timer that is due wakes nobody", quick=True)
def timers_wake_nobody(patch: Patch) -> None:
    patch.set(sweep, "_wake", lambda *_: [])


@defect("the timers of a task that has ended stay")
def timers_kept(patch: Patch) -> None:
    patch.sql("clear_timers", "where ", "where 0 and ")


@defect("a suspension does not look whether what it waits for is there already")
def suspension_looks_away(patch: Patch) -> None:
    patch.set(flush, "_is_over", lambda tx, head, entry, due_at: due_at is not None and due_at <= head.at)


@defect("the number of facts is not raised for a signal, a decision or a child's end", quick=True)
def facts_not_raised(patch: Patch) -> None:
    patch.sql("write_head", "facts = :facts", "facts = facts + 0 * :facts")


@defect(
    "a worker counts facts as heard before it has read the inbox",
    agents=("family",),
    faults=Faults(freezes=1, store=0.3),
)
def facts_before_inbox(patch: Patch) -> None:
    hear = Run.hear

    async def early(run: Run, news: Any) -> None:
        if news.facts > run.facts and not news.cancelling:
            run.facts = news.facts
            await run.read_inbox()
            for posted in run._posted:
                posted.set()
            return
        await hear(run, news)

    patch.set(Run, "hear", early)


@defect(
    "news that came in between is cleared with what was heard",
    reason="it costs time and no promise: a suspension compares facts, and the task is claimed again",
)
def news_cleared_unseen(patch: Patch) -> None:
    patch.sql("clear_news", "news between 1 and :facts", "news >= 1 and :facts >= 0")


@defect("a signal that a wait has taken stays in the inbox")
def signals_not_taken(patch: Patch) -> None:
    patch.sql("take_inbox", "set taken_by = :key", "set taken_by = nullif(:key, :key)")


@defect("a signal that comes again under its key is another signal", quick=True)
def signal_keys_ignored(patch: Patch) -> None:
    patch.sql("read_signal", "where ", "where 0 and ")


# ── the journal ──────────────────────────────────────────────────────────────────────────────────


@defect("the call does not wait for its intent to be on disk", quick=True)
def barrier_forgotten(patch: Patch) -> None:
    commit = Run.commit

    async def hasty(run: Run, entry: Any) -> str | None:
        if isinstance(entry, CommitIntent):
            run.append(entry)
            return None
        return await commit(run, entry)

    patch.set(Run, "commit", hasty)


@defect("the intent is written after the call", quick=True)
def intent_after_call(patch: Patch) -> None:
    intend, record = effects._intend, outcomes.record
    consents: dict[int, Any] = {}

    async def later(run: Run, operation: Any, consent: Any) -> None:
        consents[id(operation)] = consent

    async def both(run: Run, operation: Any, outcome: Any, wait: Any) -> Any:
        await intend(run, operation, consents.pop(id(operation), None))
        return await record(run, operation, outcome, wait)

    patch.set(effects, "_intend", later)
    patch.set(outcomes, "record", both)


@defect("an outcome is taken whatever its attempt and turn")
def stale_turn_accepted(patch: Patch) -> None:
    patch.sql("record_outcome", "attempt = :attempt and turn = :turn", ":attempt >= 0 and :turn >= 0")
    patch.sql("record_outcome", "(state = 'running' or ", "(state <> 'failed' or ")


@defect("a question to the other side takes no turn of its own", quick=True)
def turn_not_compared(patch: Patch) -> None:
    patch.sql("take_turn", "attempt = :attempt and turn = :turn", ":attempt >= 0 and :turn >= 0")
    patch.sql("settle_operation", "turn = :turn and state = 'unknown'", ":turn >= 0")
    one_by_one = settle._settle_one

    def any_turn(tx: Any, one: Any, at: int) -> Any:
        return one_by_one(tx, dataclasses.replace(one, turn=None), at)

    patch.set(settle, "_settle_one", any_turn)


@defect("a batch that is sent again is applied again")
def batch_applied_twice(patch: Patch) -> None:
    patch.sql("read_writer", "where ", "where 0 and ")


@defect("numbers of events are given out twice")
def event_numbers_reused(patch: Patch) -> None:
    patch.sql("count_events", "set last_event = :last_event", "set last_event = last_event + 0 * :last_event")
    patch.sql("append_events", "insert into events", "insert or replace into events")


@defect("calls that are under way when their task ends are left as running")
def open_calls_forgotten(patch: Patch) -> None:
    patch.sql("open_effects", "where ", "where 0 and ")


@defect(
    "a resend leaves the reconciliation queue before its intent is on disk",
    agents=("fan", "racer"),
    faults=Faults(crashes=3, tools=0.5, cancels=3),
)
def resend_taken_out_early(patch: Patch) -> None:
    patch.sql(
        "record_outcome", "(state = 'unknown' and :state <> 'planned')", "(state = 'unknown' or :state = '')"
    )
    settled = settling.settle

    async def early(run: Run, operation: Any, *, pause_us: int | None) -> Any:
        answer = await settled(run, operation, pause_us=pause_us)
        if answer is settling.SEND and not operation.undoes:
            operation.resend = None
            await settling._outcome(
                run,
                operation,
                RecordOutcome(
                    key=operation.key, attempt=operation.attempt, turn=operation.turn, state="planned"
                ),
            )
        return answer

    patch.set(settling, "settle", early)


@defect("how an unknown was settled is not counted", quick=True)
def settlements_not_counted(patch: Patch) -> None:
    patch.set(counts, "count", _nothing)


# ── evidence ─────────────────────────────────────────────────────────────────────────────────────


@defect("absence is believed before the effect would have to be visible", agents=("booker",))
def absence_believed_at_once(patch: Patch) -> None:
    of_absence = settle_rules._of_absence

    def at_once(operation: Any, asked: Any) -> Any:
        return of_absence(dataclasses.replace(operation, deadline_at=0, visible_within_us=0), asked)

    patch.set(settle_rules, "_of_absence", at_once)
    patch.set(settle, "_settle_one", _forcing(settle._settle_one))


def _forcing(settle_one: Any) -> Any:
    return lambda tx, one, at: settle_one(tx, dataclasses.replace(one, forced=True), at)


@defect("what became of a call is guessed", quick=True)
def outcome_guessed(patch: Patch) -> None:
    async def guess(run: Any, operation: Any, **_: Any) -> Any:
        return await settling._happened(run, operation, {"ticket": "R-1"})

    patch.set(settling, "settle", guess)


@defect("every unknown call is made again", agents=("booker", "transfer"))
def unknown_sent_again(patch: Patch) -> None:
    async def again(run: Any, operation: Any, *, pause_us: int | None) -> Any:
        if operation.state == "running":
            await settling._take_turn(run, operation)
        operation.resend = "why not"
        return settling.SEND

    patch.set(settling, "settle", again)


@defect(
    "answers that come too late are thrown away",
    reason="evidence that is missing costs a question to the other side, and no promise",
)
def late_evidence_ignored(patch: Patch) -> None:
    patch.set(Worker, "keep_evidence", _nothing)


@defect("a second attempt is sent under a key of its own")
def another_key_for_a_resend(patch: Patch) -> None:
    body = effects._body

    async def careless(run: Run, operation: Any) -> Any:
        operation.idempotency_key = f"{run.task}:{operation.key}/{operation.attempt}"
        return await body(run, operation)

    patch.set(effects, "_body", careless)


# ── people ───────────────────────────────────────────────────────────────────────────────────────


@defect("a decision is not used up by the intent that it allowed", agents=("asker",))
def decision_not_used_up(patch: Patch) -> None:
    patch.set(approving, "use", _nothing)


@defect("a call needs no decision at the gate", agents=("asker",))
def decision_not_needed(patch: Patch) -> None:
    intend = effects._intend

    async def anyway(run: Run, operation: Any, consent: Any) -> Any:
        return await intend(run, operation, None)

    patch.set(effects, "_intend", anyway)


@defect(
    "people may decide when the time of a question is over",
    agents=("asker",),
    faults=Faults(crashes=4, freezes=2),
)
def expiry_ignored(patch: Patch) -> None:
    decide = approving._decide_one
    read = approving.read_approval

    def timeless(tx: Any, tenant: str, approval: str) -> Any:
        row = read(tx, tenant, approval)
        return row and dataclasses.replace(row, expires_at=None)

    def decide_one(tx: Any, one: Any, at: int) -> Any:
        approving.read_approval = timeless
        try:
            return decide(tx, one, at)
        finally:
            approving.read_approval = read

    patch.set(approving, "_decide_one", decide_one)


@defect(
    "what people decide on is not compared with what they saw",
    agents=("asker",),
    faults=Faults.calm(),
)
def fingerprint_not_compared(patch: Patch) -> None:
    decide = approving._decide_one

    def blind(tx: Any, one: Any, at: int) -> Any:
        row = approving.read_approval(tx, one.tenant, one.approval)
        return decide(tx, dataclasses.replace(one, fingerprint=row.fingerprint) if row else one, at)

    patch.set(approving, "_decide_one", blind)


@defect("an edit keeps the fingerprint of what was asked", agents=("asker",))
def edit_keeps_fingerprint(patch: Patch) -> None:
    patch.sql(
        "edit_approval",
        "set fingerprint = :fingerprint",
        "set fingerprint = coalesce(fingerprint, :fingerprint)",
    )


@defect("one person's word is enough, however many have to agree", agents=("asker",))
def quorum_ignored(patch: Patch) -> None:
    count = approving._count

    def alone(tx: Any, head: Any, row: Any, one: Any, edit: Any) -> Any:
        return count(tx, head, dataclasses.replace(row, quorum=1), one, edit)

    patch.set(approving, "_count", alone)


@defect("a person who says the same again counts twice", agents=("asker",))
def person_counted_twice(patch: Patch) -> None:
    patch.set(approving, "_stands", lambda *_: False)


@defect("the questions of a task that has ended stay open", agents=("asker",))
def questions_left_open(patch: Patch) -> None:
    patch.set(Head, "withdraw_approvals", _nothing)


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────


@defect("the gate admits intents although a cancel stands")
def gate_ignores_cancel(patch: Patch) -> None:
    admit = gate.admit

    def blind(tx: Any, head: Any, entry: Any) -> Any:
        mark, head.cancelling = head.cancelling, 0
        try:
            return admit(tx, head, entry)
        finally:
            head.cancelling = mark

    patch.set(gate, "admit", blind)


@defect("the end of an attempt does not look at the cancel")
def ending_ignores_cancel(patch: Patch) -> None:
    patch.set(Head, "cut", property(lambda _: False))


@defect("who cancelled is not written down")
def cancel_not_audited(patch: Patch) -> None:
    audit = switches.audit

    def forgetful(tx: Any, tenant: str, **said: Any) -> None:
        if said["what"] != "cancel":
            audit(tx, tenant, **said)

    patch.set(switches, "audit", forgetful)


# ── families ─────────────────────────────────────────────────────────────────────────────────────


@defect("a child's end is posted to nobody", agents=("family",), quick=True)
def child_end_posted_to_nobody(patch: Patch) -> None:
    patch.sql(
        "leave_post",
        "values (:tenant, :task, :kind, :name, :data)",
        "select :tenant, :task, :kind, :name, :data where 0",
    )


@defect("what was delivered is delivered again", agents=("family",), quick=True)
def delivered_again(patch: Patch) -> None:
    patch.sql("drop_post", "where ", "where 0 and ")


@defect("children go on when their parent has ended", agents=("family",))
def children_go_on(patch: Patch) -> None:
    patch.sql("leave_cancels", "where ", "where 0 and ")


# ── undo, retry, fork ────────────────────────────────────────────────────────────────────────────


@defect("effects are undone in the order in which they were made", agents=("undone",))
def undone_in_order_of_success(patch: Patch) -> None:
    read = undoing.read_history

    def backwards(rows: Any) -> Any:
        history = read(rows)
        order = {key: -number for key, number in history.succeeded.items()}
        return dataclasses.replace(history, succeeded=order)

    patch.set(undoing, "read_history", backwards)


@defect("what is undone was not decided on record", agents=("undone",))
def undone_without_decision(patch: Patch) -> None:
    async def unwritten(self: Any, error: Any) -> None:
        self._error = error

    patch.set(undoing.Undoing, "_decide", unwritten)


@defect("an undo that nobody knows of counts as done", agents=("undone",))
def unknown_undo_is_done(patch: Patch) -> None:
    undo = undoing.Undoing._undo

    async def surely(self: Any, row: Any) -> bool:
        await undo(self, row)
        return True

    patch.set(undoing.Undoing, "_undo", surely)


@defect("a task that is tried again stays in its round")
def retry_opens_no_round(patch: Patch) -> None:
    patch.sql("write_head", "round = :round", "round = round + 0 * :round")


@defect("a fork does not know what was made behind it")
def fork_without_issued(patch: Patch) -> None:
    patch.sql("fork_issued", "where ", "where 0 and ")


@defect("a fork goes on under keys of its own")
def fork_under_own_keys(patch: Patch) -> None:
    patch.sql(
        "fork_operations",
        "coalesce(idempotency_key, case when attempt > 0 then task || ':' || key end), usage",
        "null, usage",
    )


@defect("a fork may begin with what has not ended")
def fork_of_unsettled(patch: Patch) -> None:
    patch.sql("unsettled_prefix", "where tenant = :tenant", "where 0 and tenant = :tenant")


# ── submitting, business keys ────────────────────────────────────────────────────────────────────


@defect(
    "a submit that is repeated is told of a task that was never stored", faults=Faults(store=0.3), tasks=3
)
def repeat_gets_another_task(patch: Patch) -> None:
    patch.set(submit, "_read_winner", lambda _, one: Submitted(kind="accepted", task=one.task))


@defect("a business key is given to whoever asks", agents=("exclusive",), tasks=3)
def business_key_not_looked_at(patch: Patch) -> None:
    patch.set(keys, "refusal", _nothing)


@defect("a business key is kept when its call has ended", agents=("exclusive",), tasks=3)
def business_key_kept(patch: Patch) -> None:
    patch.set(keys, "end", _nothing)


NOT_CAUGHT = {
    "read a limit, then write": "there are no limits in the store yet; the nearest rule, business keys, is"
    " broken above",
    "remember the highest outbox number": "SQLite has one writer, so that numbers are committed in their"
    " order: that fault needs PostgreSQL",
    "look before the lock is taken": "SQLite has one writer: that fault needs PostgreSQL",
}
"""Faults that cannot be put into this world, and why."""
