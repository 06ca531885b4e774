"""The verb ``submit``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlast.store.records import Parent, Submission, Submitted
from outlast.store.sqlite.heads import Head, json_text
from outlast.store.sqlite.transaction import Row, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """A parent's head, and how many parents its children have."""

    head: Head
    depth: int


def submit(tx: Transaction, batch: Sequence[Submission]) -> list[Submitted]:
    """Accept tasks; see ``Store.submit``. Keys are claimed by the unique index, in the order of the batch."""
    now = tx.now()
    verdicts: list[Submitted] = []
    heads: list[Row] = []
    entries: list[tuple[int, str, str]] = []
    parents: dict[tuple[str, str], _Family | None] = {}
    for one in batch:
        parent = one.parent
        family = None
        if parent is not None:
            family = _family(tx, parents, one, parent, now)
            if family is None and tx.row("read_digest", (one.tenant, one.task)) is None:
                verdicts.append(Submitted(kind="stale", task=one.task))
                continue
        claimed = tx.run(
            "claim_key",
            (
                one.tenant,
                one.task,
                one.key,
                one.request_digest,
                one.agent,
                one.version,
                one.pool,
                one.priority,
                one.input,
                one.user,
                one.trace,
                int(one.announce),
                now,
                *((None, None, False) if parent is None else (parent.task, parent.key, parent.detached)),
                0 if family is None else family.depth,
                one.budget,
            ),
        )
        if not claimed:
            verdicts.append(_read_winner(tx, one))
            continue
        verdicts.append(Submitted(kind="accepted", task=one.task))
        if parent is not None and family is not None:
            _put_on_record(tx, family.head, one, parent)
        lane = tx.lane((one.pool, one.agent, one.version, one.tenant, one.priority))
        deadline_at = None if one.deadline_us is None else now + one.deadline_us
        if deadline_at is not None:
            tx.run("set_timer", (one.tenant, one.task, "deadline", deadline_at))
        if one.run_at is not None and one.run_at > now:
            heads.append((one.tenant, one.task, "waiting", "timer", lane, deadline_at))
            tx.run("set_timer", (one.tenant, one.task, "wake", one.run_at))
        else:
            heads.append((one.tenant, one.task, "queued", None, lane, deadline_at))
            entries.append((lane, one.tenant, one.task))
        data = json_text({"agent": one.agent, "pool": one.pool})
        if one.origin is not None:
            data = f"{data[:-1]},{one.origin[1:]}"
        tx.append_event((one.tenant, one.task, 1, "task.submitted", 0, data, now))
        if one.announce:
            tx.run("announce", (one.tenant, one.task, 1, "task.submitted", data, now))
    tx.run_many("make_heads", heads)
    for family in parents.values():
        if family is not None:
            family.head.save_children()
    tx.enqueue(entries)
    tx.write_events()
    return verdicts


def _family(
    tx: Transaction,
    parents: dict[tuple[str, str], _Family | None],
    one: Submission,
    parent: Parent,
    now: int,
) -> _Family | None:
    """Answer what a new child is born into; None where its parent may not have it: it has to run under that
    lease, and no cancel may stand."""
    name = (one.tenant, parent.task)
    if name not in parents:
        head = Head.read(tx, *name, now)
        row = tx.row("read_depth", name)
        parents[name] = None if head is None or row is None else _Family(head=head, depth=row[0] + 1)
    family = parents[name]
    if family is None or (family.head.state, family.head.epoch, family.head.cancelling) != (
        "running",
        parent.epoch,
        0,
    ):
        return None
    return family


def _put_on_record(tx: Transaction, head: Head, one: Submission, parent: Parent) -> None:
    """Count a new child at its parent, and put it on record there."""
    head.children += 1
    record = (parent.key, parent.position, one.agent, parent.request, head.epoch, one.input, head.at)
    tx.run("begin_child", (head.tenant, head.task, *record))
    said = {"operation": parent.key, "kind": "child", "name": one.agent, "child": one.task}
    head.append("operation.started", json_text(said), epoch=head.epoch)


def _read_winner(tx: Transaction, one: Submission) -> Submitted:
    """Say who holds the task's id or the key that could not be claimed."""
    stored = tx.row("read_digest", (one.tenant, one.task))
    if stored is not None:
        return Submitted(kind="accepted" if stored[0] == one.request_digest else "conflict", task=one.task)
    holder = tx.row("read_key_holder", (one.tenant, one.key))
    assert holder is not None, "an insert that found no rival changes a row"
    return Submitted(kind="replayed" if holder[1] == one.request_digest else "conflict", task=holder[0])
