"""The verb ``fork``, and the calls that a fork takes over from the task which it was made from."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.core.transitions import OPERATION
from outlast.store.changing import Fork, Forked
from outlast.store.contract import BatchRejected
from outlast.store.entries import AdoptIssued
from outlast.store.sqlite import switches
from outlast.store.sqlite.heads import Head, json_text
from outlast.store.sqlite.transaction import Row, Transaction


def fork(tx: Transaction, requests: Sequence[Fork], now: int | None) -> list[Forked]:
    """Make new tasks from prefixes of journals; see ``Store.fork``."""
    at = tx.now(now)
    verdicts = [_fork_one(tx, one, at) for one in requests]
    tx.write_events()
    return verdicts


def _fork_one(tx: Transaction, one: Fork, at: int) -> Forked:
    made = tx.row("read_fork", (one.tenant, one.new))
    if made is not None:
        if made[0] != one.task:
            raise BatchRejected(f"task {one.new} is there, and is no fork of {one.task}")
        return Forked(kind="forked")
    # Nobody else writes meanwhile, so that what is not claimed now can be.
    holder = None if one.key is None else tx.row("read_key_holder", (one.tenant, one.key))
    if holder is not None:
        return Forked(kind="replayed" if holder[1] == one.digest else "conflict", task=holder[0])
    source = {"tenant": one.tenant, "task": one.task}
    lane = tx.row("read_lane", source)
    if lane is None:
        return Forked(kind="not_found")
    before = None
    if one.before is not None:
        found = tx.row("read_position", {**source, "key": one.before})
        if found is None:
            return Forked(kind="no_operation")
        before = found[0]
    unsettled = tx.rows("unsettled_prefix", {**source, "before": before})
    if unsettled:
        return Forked(kind="unsettled", keys=tuple(key for (key,) in unsettled))
    _make(tx, one, lane, before, at)
    return Forked(kind="forked")


def _make(tx: Transaction, one: Fork, lane: Row, before: int | None, at: int) -> None:
    """Make the fork of a task whose prefix ends before a place, None for all of its journal."""
    pool, agent, bound, tenant, priority = lane
    version = bound if one.version is None else one.version
    copied = {"tenant": one.tenant, "task": one.task, "new": one.new}
    announced = tx.row(
        "fork_input",
        {
            **copied,
            "key": one.key,
            "digest": one.digest or f"fork:{one.task}",
            "version": version,
            "input": one.input,
            "now": at,
        },
    )
    assert announced is not None, "a head has an input"
    tx.run("fork_operations", {**copied, "before": before})
    if before is not None:
        tx.run("fork_issued", {**copied, "before": before})
    tx.run("fork_issued_again", copied)
    to = tx.lane((pool, agent, version, tenant, priority))
    deadline_at = None if one.deadline_us is None else at + one.deadline_us
    if deadline_at is not None:
        tx.run("set_timer", (one.tenant, one.new, "deadline", deadline_at))
    tx.run_many("make_heads", [(one.tenant, one.new, "queued", None, to, deadline_at)])
    tx.enqueue([(to, one.tenant, one.new)])
    data = json_text({"agent": agent, "pool": pool, "forked_from": one.task})
    tx.append_event((one.tenant, one.new, 1, "task.submitted", 0, data, at))
    if announced[0]:
        tx.run("announce", (one.tenant, one.new, 1, "task.submitted", data, at))
    for subject, said in ((one.task, {"fork": one.new}), (one.new, {"forked_from": one.task})):
        switches.audit(
            tx,
            one.tenant,
            who=one.by,
            what="fork",
            subject=subject,
            reason=one.reason,
            at=at,
            data=json_text({**said, "before": one.before}),
        )


def adopt_issued(tx: Transaction, head: Head, entry: AdoptIssued) -> None:
    """Take a call over that was made behind the fork, unless there is none or the ledger has the key."""
    name = (head.tenant, head.task, entry.key)
    if tx.run("adopt_issued", (entry.position, head.epoch, head.at, *name)):
        issued = tx.row("issued_state", name)
        assert issued is not None, "it was copied"
        head.unsettle(entry.key, sender_gone=issued[0] in OPERATION.final)
        head.say(entry.events)
