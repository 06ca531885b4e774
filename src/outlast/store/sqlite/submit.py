"""The verb ``submit``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from outlast.store.records import Parent, Submission, Submitted
from outlast.store.sqlite.heads import json_text
from outlast.store.sqlite.transaction import Row, Transaction


def submit(tx: Transaction, batch: Sequence[Submission]) -> list[Submitted]:
    """Accept tasks; see ``Store.submit``. Keys are claimed by the unique index, in the order of the batch."""
    now = tx.now()
    verdicts: list[Submitted] = []
    heads: list[Row] = []
    entries: list[tuple[int, str, str]] = []
    children: Counter[tuple[str, str, int]] = Counter()
    for one in batch:
        parent = one.parent
        depth: int | None = 0
        if parent is not None:
            depth = _depth(tx, one, parent)
            if depth is None:
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
                depth,
                one.budget,
            ),
        )
        if not claimed:
            verdicts.append(_read_winner(tx, one))
            continue
        verdicts.append(Submitted(kind="accepted", task=one.task))
        if parent is not None:
            children[one.tenant, parent.task, parent.epoch] += 1
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
    tx.run_many("count_children", [(count, *name) for name, count in children.items()])
    tx.enqueue(entries)
    tx.write_events()
    return verdicts


def _depth(tx: Transaction, one: Submission, parent: Parent) -> int | None:
    """Answer how many parents a child has; None where its parent may not have it: it has to run under that
    lease, and no cancel may stand, unless the child is there already."""
    state, epoch, cancelling, depth = tx.row("read_parent", (one.tenant, parent.task)) or ("", 0, 0, 0)
    if (state, epoch, cancelling) != ("running", parent.epoch, 0) and (
        tx.row("read_digest", (one.tenant, one.task)) is None
    ):
        return None
    return int(depth) + 1


def _read_winner(tx: Transaction, one: Submission) -> Submitted:
    """Say who holds the task's id or the key that could not be claimed."""
    stored = tx.row("read_digest", (one.tenant, one.task))
    if stored is not None:
        return Submitted(kind="accepted" if stored[0] == one.request_digest else "conflict", task=one.task)
    holder = tx.row("read_key_holder", (one.tenant, one.key))
    assert holder is not None, "an insert that found no rival changes a row"
    return Submitted(kind="replayed" if holder[1] == one.request_digest else "conflict", task=holder[0])
