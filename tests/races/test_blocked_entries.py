"""The blocked twins of each kind of journal entry, on PostgreSQL: it is written while another backend holds
what it needs.

What was held is then changed and committed, or committed as it was. A statement that waited sees the new row
and the old everything else; what it answers must be true of what is there in the end. So it is in the other
modules of blocked twins.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from tests.races.blocking import ON_POSTGRES, Blocked, Place, flushing, into, told
from tests.races.holding import ended, rival, start
from tests.races.twins import BUILD, ENTRIES, TOUCHES, begun

from outlast.store.entries import (
    AskApproval,
    CommitIntent,
    EndAttempt,
    Entry,
    RecordOperation,
)
from outlast.store.records import (
    Claimed,
)
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene, changed

pytestmark = ON_POSTGRES

BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)


def of_each_entry(row: str, then: str, *, touching: bool = False) -> Callable[[Any], None]:
    """Register a blocked twin of flush for each kind of entry (that writes an operation already there)."""

    def register(play: Callable[[Place, type], Awaitable[None]]) -> None:
        for kind in ENTRIES:
            if not touching or kind in TOUCHES:
                name = f"{row}-{kind.__name__}"
                blocked("flush", name, then)(lambda place, kind=kind: play(place, kind))  # type: ignore[misc]

    return register


async def prepared(scene: Scene, kind: type) -> tuple[Claimed, Entry]:
    """Have a running task and an entry for it."""
    claimed = await begun(scene, kind.__name__, deadline_us=HOUR)
    return claimed, await BUILD[kind](scene, claimed)


@of_each_entry("head", "changed")
async def _(place: Place, kind: type) -> None:
    """The sweeper has the head and takes the task away: deferred, since nobody knows yet, then stale."""
    scene = place.scene
    claimed, entry = await prepared(scene, kind)
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.sweep(scene.now)
        before = await scene.store.dump()
        [verdict] = await ended(flushing(scene, claimed, entry))
        assert verdict.kind == "deferred"
        assert changed(before, await scene.store.dump()) == {}
        await other.commit()
    before = await scene.store.dump()
    assert (await scene.flush(claimed, entry)).kind == "stale"
    assert changed(before, await scene.store.dump()) == {}
    assert (await scene.task(claimed)).state == "queued"


@of_each_entry("head", "held")
async def _(place: Place, kind: type) -> None:
    """Somebody else has the head and lets go of it: deferred, then accepted; the others are not held up."""
    scene = place.scene
    claimed, entry = await prepared(scene, kind)
    neighbour, theirs = await prepared(scene, kind)
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        batch = scene.batch(scene.writes(claimed, entry), scene.writes(neighbour, theirs))
        verdicts = await ended(start(scene.store.flush(batch, now=scene.now)))
        assert [verdict.kind for verdict in verdicts] == ["deferred", "accepted"]
        await other.commit()
    await scene.write(claimed, entry)


@of_each_entry("stale-head", "held")
async def _(place: Place, kind: type) -> None:
    """The head is held, and what can be seen of it says already that the lease is lost."""
    scene = place.scene
    claimed, entry = await prepared(scene, kind)
    await scene.lose(claimed)
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        before = await scene.store.dump()
        [verdict] = await ended(flushing(scene, claimed, entry))
        assert verdict.kind == "stale"
        assert changed(before, await scene.store.dump()) == {}


@of_each_entry("writer", "changed")
async def _(place: Place, kind: type) -> None:
    """The old backend commits the very batch after all: the twin waits for it and answers its verdicts."""
    scene = place.scene
    claimed, entry = await prepared(scene, kind)
    batch = scene.batch(scene.writes(claimed, entry))
    async with rival(place.url) as other:
        await other.flush(batch, scene.now)
        [verdict] = await other.commits_first(scene.store.flush(batch, now=scene.now))
    assert (verdict.kind, verdict.refusals) == ("accepted", ())
    kinds = await scene.kinds(claimed)
    assert kinds.count("mine") == (1 if hasattr(entry, "events") else 0)
    assert len(await scene.rows("evidence", claimed)) == (1 if kind.__name__ == "Note" else 0)


@of_each_entry("writer", "held")
async def _(place: Place, kind: type) -> None:
    """The old backend fails: the twin waits for it and is applied now, once."""
    scene = place.scene
    claimed, entry = await prepared(scene, kind)
    batch = scene.batch(scene.writes(claimed, entry))
    async with rival(place.url) as other:
        await other.flush(batch, scene.now)
        [verdict] = await other.fails_first(scene.store.flush(batch, now=scene.now))
    assert (verdict.kind, verdict.refusals) == ("accepted", ())
    assert (await scene.kinds(claimed)).count("mine") == (1 if hasattr(entry, "events") else 0)


@of_each_entry("session", "changed")
async def _(place: Place, kind: type) -> None:
    """A session that is ended while we write is not our fence: the epoch is, and it is still ours."""
    scene = place.scene
    claimed, entry = await prepared(scene, kind)
    [lease] = await scene.rows("leases", claimed)
    async with rival(place.url) as other:
        await other.run("update outlast.sessions set lost_at = $1 where id = $2", scene.now, lease["session"])
        [verdict] = await ended(flushing(scene, claimed, entry))
        assert (verdict.kind, verdict.refusals) == ("accepted", ())
        await other.commit()
    # The sweep that follows takes what is still leased.
    await scene.sweep()
    assert await scene.rows("leases", claimed) == []


@of_each_entry("session", "held")
async def _(place: Place, kind: type) -> None:
    """A renewal that takes its time holds up nobody's journal."""
    scene = place.scene
    claimed, entry = await prepared(scene, kind)
    [lease] = await scene.rows("leases", claimed)
    async with rival(place.url) as other:
        await other.hold("sessions", id=lease["session"])
        [verdict] = await ended(flushing(scene, claimed, entry))
        assert (verdict.kind, verdict.refusals) == ("accepted", ())
        await other.commit()


@of_each_entry("operation", "changed", touching=True)
async def _(place: Place, kind: type) -> None:
    """Whoever changes the operation did not ask for the head: a compare-and-set compares what is there."""
    scene = place.scene
    claimed, entry = await prepared(scene, kind)
    async with rival(place.url) as other:
        await other.run(
            "update outlast.operations set state = 'succeeded', result = '{}', turn = turn + 1, ended_at = $4"
            " where tenant = $1 and task = $2 and key = $3",
            claimed.tenant,
            claimed.task,
            TOUCHES[kind],
            scene.now,
        )
        [verdict] = await other.commits_first(flushing(scene, claimed, entry))
    records = {RecordOperation: None, AskApproval: None, EndAttempt: None}
    refused = {CommitIntent: "not_planned", **records}.get(kind, "turn_passed")
    assert verdict.kind == "accepted"
    assert verdict.refusals == (() if refused is None else ((0, refused),))
    row = await scene.operation(claimed, TOUCHES[kind])
    assert (row.state, row.result) == ("succeeded", "{}")
    assert await scene.rows("unsettled", claimed) == []
    if refused is not None:
        assert "mine" not in await scene.kinds(claimed)


@of_each_entry("operation", "held", touching=True)
async def _(place: Place, kind: type) -> None:
    scene = place.scene
    claimed, entry = await prepared(scene, kind)
    async with rival(place.url) as other:
        await other.hold("operations", tenant=claimed.tenant, task=claimed.task, key=TOUCHES[kind])
        [verdict] = await other.commits_first(flushing(scene, claimed, entry))
    assert (verdict.kind, verdict.refusals) == ("accepted", ())


@blocked("flush", "head", "changed")
async def _(place: Place) -> None:
    """A fact is posted while the task suspends: it must not be lost, whoever comes first."""
    scene = place.scene
    claimed = await scene.running()
    key = await scene.called(claimed, "unknown")
    await scene.called(claimed, "unknown")
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        settling = start(scene.store.settle([scene.settlement(claimed, key)], now=scene.now))
        assert await other.see_blocked(settling)
        end = scene.suspension("reconciliation", facts=claimed.facts)
        assert (await ended(flushing(scene, claimed, end)))[0].kind == "deferred"
        await other.commit()
        [settled] = await ended(settling)
        assert settled.kind == "settled"
    assert (await scene.write(claimed, end)).state == "queued"


test_a_blocked_twin_tells_the_truth = told(BLOCKED)
