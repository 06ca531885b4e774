"""The blocked twin of everything fenced, on PostgreSQL: it began while another backend held what it needs.

What was held is then changed and committed, or committed as it was. A statement that waited sees the new row
and the old everything else; what it answers must be true of what is there in the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal

from tests.races.blocking import ON_POSTGRES, Blocked, Place, deferred_then, flushing, into, told
from tests.races.holding import Rival, ended, rival, start
from tests.races.twins import BUILD, ENTRIES, TOUCHES, begun

from outlast.store.approving import ApprovalFilter
from outlast.store.contract import Store
from outlast.store.entries import (
    AskApproval,
    BusinessKey,
    CommitIntent,
    EndAttempt,
    Entry,
    RecordOperation,
    TakeTurn,
)
from outlast.store.reconciling import OpenItem, OpenRequest, Postponement
from outlast.store.records import (
    Claimed,
    Evidence,
    Held,
    Serves,
    SessionRenewal,
    Settled,
    Submission,
    Submitted,
    TaskRef,
)
from outlast.store.rows import (
    EventCursor,
    OperationFilter,
    Publication,
    TaskFilter,
)
from outlast.store.scheduling import Fired, PutSchedule, Schedule, SchedulePut, ScheduleSet
from outlast.testing.store_suite import scheduling
from outlast.testing.store_suite.believing import sent_twice
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene, changed

pytestmark = ON_POSTGRES

BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)


# ── flush: each kind of entry ────────────────────────────────────────────────────────────────────


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


# ── settle ───────────────────────────────────────────────────────────────────────────────────────


async def unknown(scene: Scene) -> tuple[Claimed, str]:
    """Have an unknown operation of a running task."""
    claimed = await scene.running()
    return claimed, await scene.called(claimed, "unknown")


@blocked("settle", "head", "changed")
async def _(place: Place) -> None:
    """The worker records an outcome first: the settlement finds what is recorded."""
    scene = place.scene
    claimed, key = await unknown(scene)
    outcome = await scene.outcome(claimed, key, "failed")
    async with rival(place.url) as other:
        await other.flush(scene.batch(scene.writes(claimed, outcome)), scene.now)
        answer = await other.commits_first(
            scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        )
        assert answer == [Settled(kind="conflict", state="failed")]
    assert (await scene.operation(claimed, key)).error == outcome.error


@blocked("settle", "head", "changed")
async def _(place: Place) -> None:
    """The task suspends first: the settlement wakes it."""
    scene = place.scene
    claimed, key = await unknown(scene)
    async with rival(place.url) as other:
        await other.flush(scene.batch(scene.writes(claimed, scene.suspension("reconciliation"))), scene.now)
        [settled] = await other.commits_first(
            scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        )
        assert settled.kind == "settled"
    assert (await scene.task(claimed)).state == "queued"


@blocked("settle", "head", "changed")
async def _(place: Place) -> None:
    """The task ends first: the ledger is settled, and the final event stays the last."""
    scene = place.scene
    claimed, key = await unknown(scene)
    async with rival(place.url) as other:
        await other.flush(scene.batch(scene.writes(claimed, scene.success())), scene.now)
        [settled] = await other.commits_first(
            scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        )
        assert settled.kind == "settled"
    assert (await scene.kinds(claimed))[-1] == "task.succeeded"


@blocked("settle", "head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    claimed, key = await unknown(scene)
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        [settled] = await other.commits_first(
            scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        )
        assert settled.kind == "settled"
    assert (await scene.operation(claimed, key)).state == "succeeded"


@blocked("settle", "operation", "changed")
async def _(place: Place) -> None:
    scene = place.scene
    claimed, key = await unknown(scene)
    async with rival(place.url) as other:
        await other.run("update outlast.operations set turn = turn + 1 where key = $1", key)
        answer = await other.commits_first(
            scene.store.settle([scene.settlement(claimed, key, turn=2, forced=True)], now=scene.now)
        )
        assert answer == [Settled(kind="conflict", state="unknown")]
    assert (await scene.operation(claimed, key)).state == "unknown"


@blocked("settle", "operation", "held")
async def _(place: Place) -> None:
    scene = place.scene
    claimed, key = await unknown(scene)
    async with rival(place.url) as other:
        await other.hold("operations", tenant=claimed.tenant, task=claimed.task, key=key)
        [settled] = await other.commits_first(
            scene.store.settle([scene.settlement(claimed, key)], now=scene.now)
        )
        assert settled.kind == "settled"


@blocked("settle", "count", "changed")
async def _(place: Place) -> None:
    """Another task's unknown of the same tool is settled first, by a person or by its worker: both count."""
    scene = place.scene
    mine, key = await of_one_tool(scene)
    for by_worker in (False, True):
        theirs, other_key = await of_one_tool(scene)
        async with rival(place.url) as other:
            if by_worker:
                outcome = await scene.outcome(theirs, other_key, "failed", settled_by="worker")
                await other.flush(scene.batch(scene.writes(theirs, outcome)), scene.now)
            else:
                store = await other.about_to_commit("control")
                await store.settle([scene.settlement(theirs, other_key)], now=scene.now)
            [settled] = await other.commits_first(
                scene.store.settle([scene.settlement(mine, key)], now=scene.now)
            )
            assert settled.kind == "settled"
        mine, key = await of_one_tool(scene)
    [row] = (await scene.store.dump())["settled_counts"]
    assert (row["happened"], row["did_not_happen"], row["sent_again"]) == (3, 1, 0)


@blocked("flush", "count", "changed")
async def _(place: Place) -> None:
    """A person settles another task's unknown of the same tool first: the worker's own counts as well."""
    scene = place.scene
    mine, key = await of_one_tool(scene)
    theirs, other_key = await of_one_tool(scene)
    outcome = await scene.outcome(mine, key, "failed", settled_by="worker")
    async with rival(place.url) as other:
        store = await other.about_to_commit("control")
        await store.settle([scene.settlement(theirs, other_key)], now=scene.now)
        assert (await other.commits_first(flushing(scene, mine, outcome)))[0].kind == "accepted"
    [row] = (await scene.store.dump())["settled_counts"]
    assert (row["happened"], row["did_not_happen"]) == (1, 1)


async def of_one_tool(scene: Scene) -> tuple[Claimed, str]:
    """Have an unknown operation of a running task, of a tool that has others."""
    claimed = await scene.running()
    return claimed, await scene.called(claimed, "unknown", name="look")


# ── note, and what nobody works on ───────────────────────────────────────────────────────────────


def passing(claimed: Claimed, key: str) -> Evidence:
    """Make the note of a request that is about to leave."""
    return Evidence(tenant=claimed.tenant, task=claimed.task, key=key, attempt=1, source="gateway", data="{}")


def late(claimed: Claimed, key: str, says: Literal["happened", "over"] = "happened") -> Evidence:
    """Make evidence of the first attempt: that a failed operation happened, unless it says otherwise."""
    return Evidence(
        tenant=claimed.tenant,
        task=claimed.task,
        key=key,
        attempt=1,
        source="late",
        data="{}",
        says=says,
    )


@blocked("note", "head", "changed")
async def _(place: Place) -> None:
    """The worker opens it again first: the evidence finds what is to be sent again, and stops it."""
    scene = place.scene
    claimed = await scene.running()
    intent = scene.intent()
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, intent.key, "failed"))
    end = scene.failure(attempt_end="released", task_state="queued", error=None, reopen=(intent.key,))
    async with rival(place.url) as other:
        await other.flush(scene.batch(scene.writes(claimed, end)), scene.now)
        await other.commits_first(scene.store.note([late(claimed, intent.key)], now=scene.now))
    row = await scene.operation(claimed, intent.key)
    assert (row.state, row.error) == ("unknown", None)
    assert len(await scene.rows("unsettled", claimed)) == 1


@blocked("note", "head", "changed")
async def _(place: Place) -> None:
    """The worker sends again first: nobody knows what will come of that, and the evidence is kept."""
    scene = place.scene
    claimed = await scene.running()
    intent = scene.intent()
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
    again = replace(intent, attempt=1, turn=2)
    async with rival(place.url) as other:
        await other.flush(scene.batch(scene.writes(claimed, again)), scene.now)
        await other.commits_first(scene.store.note([late(claimed, intent.key)], now=scene.now))
    assert (await scene.operation(claimed, intent.key)).state == "running"
    assert await scene.rows("unsettled", claimed) == []
    # It has not failed, whatever this attempt says.
    outcome = await scene.outcome(claimed, intent.key, "failed")
    assert (await scene.flush(claimed, outcome)).refusals == ((0, "turn_passed"),)


@blocked("flush", "head", "changed")
async def _(place: Place) -> None:
    """The evidence that it happened is kept first: it is not sent again."""
    scene = place.scene
    claimed = await scene.running()
    intent = scene.intent()
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
    again = replace(intent, attempt=1, turn=2)
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.note([late(claimed, intent.key)], now=scene.now)
        assert (await deferred_then(scene, other, claimed, again)).refusals == ((0, "not_planned"),)
    assert (await scene.operation(claimed, intent.key)).state == "unknown"


@blocked("flush", "head", "changed")
async def _(place: Place) -> None:
    """The evidence that an earlier attempt happened is kept first: the next one has not failed."""
    scene = place.scene
    claimed = await scene.running()
    key = await sent_twice(scene, claimed)
    outcome = await scene.outcome(claimed, key, "failed")
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.note([late(claimed, key)], now=scene.now)
        assert (await deferred_then(scene, other, claimed, outcome)).refusals == ((0, "turn_passed"),)
    assert (await scene.operation(claimed, key)).state == "running"


@blocked("settle", "head", "changed")
async def _(place: Place) -> None:
    """The evidence that it happened is kept first: nobody but a person settles it otherwise."""
    scene = place.scene
    claimed = await scene.running()
    key = await scene.called(claimed, "unknown")
    turn = (await scene.operation(claimed, key)).turn
    settlement = scene.settlement(claimed, key, "did_not_happen", by="settler", forced=True, turn=turn)
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.note([late(claimed, key)], now=scene.now)
        [settled] = await other.commits_first(scene.store.settle([settlement], now=scene.now))
    assert (settled.kind, settled.state) == ("conflict", "unknown")


@blocked("note", "head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    claimed = await scene.running()
    key = await scene.called(claimed, "failed")
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        await other.commits_first(scene.store.note([late(claimed, key)], now=scene.now))
    assert (await scene.operation(claimed, key)).state == "unknown"
    assert (await scene.kinds(claimed))[-1] == "operation.contradicted"


@blocked("note", "head", "changed")
async def _(place: Place) -> None:
    """The call becomes unknown first: that its sender is gone is put down where it now stands."""
    scene = place.scene
    claimed = await scene.running()
    key = await scene.called(claimed)
    async with rival(place.url) as other:
        turn = TakeTurn(key=key, attempt=1, turn=1)
        await other.flush(scene.batch(scene.writes(claimed, turn)), scene.now)
        await other.commits_first(scene.store.note([late(claimed, key, "over")], now=scene.now))
    [row] = await scene.rows("unsettled", claimed)
    assert row["sender_gone"]


@blocked("flush", "head", "changed")
async def _(place: Place) -> None:
    """Its sender says first that it is gone: the call comes into the queue with that."""
    scene = place.scene
    claimed = await scene.running()
    key = await scene.called(claimed)
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.note([late(claimed, key, "over")], now=scene.now)
        turn = TakeTurn(key=key, attempt=1, turn=1)
        assert (await deferred_then(scene, other, claimed, turn)).kind == "accepted"
    [row] = await scene.rows("unsettled", claimed)
    assert row["sender_gone"]


@blocked("admit", "head", "changed")
async def _(place: Place) -> None:
    """Somebody takes the operation's next turn first: the request that waited sees it."""
    scene = place.scene
    claimed = await scene.running()
    key = await scene.called(claimed)
    unknown = await scene.outcome(claimed, key, "unknown")
    async with rival(place.url) as other:
        await other.flush(scene.batch(scene.writes(claimed, unknown)), scene.now)
        [found] = await other.commits_first(scene.store.admit([passing(claimed, key)], now=scene.now))
    assert found is not None
    assert found.state == "unknown"
    assert len(found.notes) == 1


@blocked("admit", "head", "held")
async def _(place: Place) -> None:
    """What was noted meanwhile is there in its order."""
    scene = place.scene
    claimed = await scene.running()
    key = await scene.called(claimed)
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        twins = [start(scene.store.admit([passing(claimed, key)], now=scene.now)) for _ in range(2)]
        assert await other.see_blocked(twins[0])
        await other.commit()
        found = [one for twin in twins for one in await ended(twin)]
    assert sorted(len(one.notes) for one in found if one is not None) == [1, 2]
    assert {one.state for one in found if one is not None} == {"running"}


@blocked("note", "operation", "changed")
async def _(place: Place) -> None:
    """Whoever changes the operation did not ask for the head: what is there in the end is compared."""
    scene = place.scene
    claimed = await scene.running()
    key = await scene.called(claimed, "failed")
    async with rival(place.url) as other:
        await other.run(
            "update outlast.operations set state = 'planned', error = null, ended_at = null where key = $1",
            key,
        )
        await other.commits_first(scene.store.note([late(claimed, key)], now=scene.now))
    row = await scene.operation(claimed, key)
    assert (row.state, row.error) == ("unknown", None)


async def left(scene: Scene) -> tuple[Claimed, str]:
    """Have an unknown operation that nobody works on."""
    claimed = await scene.running()
    key = await scene.called(claimed, "unknown", name="look")
    await scene.write(claimed, scene.release())
    return claimed, key


def looking(scene: Scene, session: str) -> Any:
    """Begin to take what is open."""
    request = OpenRequest(session=session, tools=("look",), limit=9, lease_us=20 * SECOND)
    return start(scene.store.claim_open(request, now=scene.now))


def back(item: OpenItem) -> Postponement:
    """Put an item back."""
    operation = item.operation
    return Postponement(
        tenant=operation.tenant,
        task=operation.task,
        key=operation.key,
        turn=operation.turn,
        ask_in_us=SECOND,
        unusable=True,
        why="no answer",
    )


@blocked("claim_open", "session", "changed")
async def _(place: Place) -> None:
    """The sweeper was first: nothing is taken for a session that it has ended."""
    scene = place.scene
    session = await scene.session()
    claimed, key = await left(scene)
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.sweep(scene.now)
        assert await other.commits_first(looking(scene, session)) == []
    assert (await scene.operation(claimed, key)).turn == 2


@blocked("claim_open", "session", "held")
async def _(place: Place) -> None:
    scene = place.scene
    session = await scene.session()
    _, key = await left(scene)
    async with rival(place.url) as other:
        await other.hold("sessions", id=session)
        assert [item.operation.key for item in await other.commits_first(looking(scene, session))] == [key]


@blocked("claim_open", "head", "changed")
async def _(place: Place) -> None:
    """A worker claims the task: its operation is left alone, before that is committed and after."""
    scene = place.scene
    session, worker = await scene.session(), await scene.session()
    record = await scene.submit()
    claimed = await scene.claim_task(record, version="v")
    key = await scene.called(claimed, "unknown", name="look")
    await scene.write(claimed, scene.release())
    async with rival(place.url) as other:
        await claim_within(other, scene, worker, record)
        assert await ended(looking(scene, session)) == []
        await other.commit()
    assert await ended(looking(scene, session)) == []
    assert (await scene.operation(claimed, key)).turn == 2


@blocked("claim_open", "head", "held")
async def _(place: Place) -> None:
    """A head that somebody holds is left for later, and stands before nobody."""
    scene = place.scene
    session = await scene.session()
    claimed, key = await left(scene)
    _, after = await left(scene)
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        assert [item.operation.key for item in await ended(looking(scene, session))] == [after]
        await other.commit()
    assert [item.operation.key for item in await ended(looking(scene, session))] == [key]


@blocked("claim_open", "operation", "changed")
async def _(place: Place) -> None:
    """Whoever settles the operation did not ask for the head: what is there in the end is compared."""
    scene = place.scene
    session = await scene.session()
    claimed, key = await left(scene)
    async with rival(place.url) as other:
        await other.run(
            "with gone as (delete from outlast.unsettled where key = $1)"
            " update outlast.operations set state = 'succeeded', turn = turn + 1, ended_at = $2"
            " where key = $1",
            key,
            scene.now,
        )
        assert await other.commits_first(looking(scene, session)) == []
    assert (await scene.operation(claimed, key)).turn == 3


@blocked("postpone", "head", "changed")
async def _(place: Place) -> None:
    """A person settles it first."""
    scene = place.scene
    session = await scene.session()
    claimed, key = await left(scene)
    [item] = await ended(looking(scene, session))
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.settle([scene.settlement(claimed, key)], now=scene.now)
        assert await other.commits_first(scene.store.postpone([back(item)], now=scene.now)) == [False]
    assert await scene.rows("unsettled", claimed) == []


@blocked("postpone", "head", "changed")
async def _(place: Place) -> None:
    """An answer comes late, while it is left to a person: it is looked at, however the two interleave."""
    scene = place.scene
    session = await scene.session()
    claimed, key = await left(scene)
    [item] = await ended(looking(scene, session))
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.note([late(claimed, key)], now=scene.now)
        answer = await other.commits_first(
            scene.store.postpone([replace(back(item), ask_in_us=None)], now=scene.now)
        )
        assert answer == [True]
    [row] = await scene.rows("unsettled", claimed)
    assert (row["asked"], row["ask_at"]) == (1, scene.now)


@blocked("postpone", "head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    session = await scene.session()
    claimed, _ = await left(scene)
    [item] = await ended(looking(scene, session))
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        assert await other.commits_first(scene.store.postpone([back(item)], now=scene.now)) == [True]
    [row] = await scene.rows("unsettled", claimed)
    assert row["asked"] == 1


@blocked("postpone", "operation", "changed")
async def _(place: Place) -> None:
    scene = place.scene
    session = await scene.session()
    claimed, key = await left(scene)
    [item] = await ended(looking(scene, session))
    async with rival(place.url) as other:
        await other.run("update outlast.operations set turn = turn + 1 where key = $1", key)
        assert await other.commits_first(scene.store.postpone([back(item)], now=scene.now)) == [False]
    [row] = await scene.rows("unsettled", claimed)
    assert row["asked"] == 0


# ── business keys ────────────────────────────────────────────────────────────────────────────────

INVOICE = BusinessKey(tool="refund", value="invoice-1", mode="lock")


async def key_holders(scene: Scene) -> list[str]:
    """Answer the tasks that hold business keys."""
    return [row["task"] for row in (await scene.store.dump())["business_keys"]]


@blocked("flush", "business-key", "changed")
async def _(place: Place) -> None:
    """Another batch is about to take the key: it is waited for, and the key is held."""
    scene = place.scene
    first, second = await scene.running(), await scene.running()
    async with rival(place.url) as other:
        theirs = scene.batch(scene.writes(first, scene.intent(business=INVOICE)), writer="wr_other")
        await other.flush(theirs, scene.now)
        [verdict] = await other.commits_first(flushing(scene, second, scene.intent(business=INVOICE)))
        assert verdict.refusals == ((0, "key_held"),)
    assert await key_holders(scene) == [first.task]
    assert await scene.rows("operations", second) == []


@blocked("flush", "business-key", "held")
async def _(place: Place) -> None:
    """Another batch fails after all: the key is free."""
    scene = place.scene
    first, second = await scene.running(), await scene.running()
    async with rival(place.url) as other:
        theirs = scene.batch(scene.writes(first, scene.intent(business=INVOICE)), writer="wr_other")
        await other.flush(theirs, scene.now)
        [verdict] = await other.fails_first(flushing(scene, second, scene.intent(business=INVOICE)))
        assert verdict.refusals == ()
    assert await key_holders(scene) == [second.task]


@blocked("flush", "business-key", "held")
async def _(place: Place) -> None:
    """Another batch is about to give the key up: nobody waits for that, since until then it is held."""
    scene = place.scene
    first, second = await scene.running(), await scene.running()
    key = await scene.called(first, business=INVOICE)
    outcome = await scene.outcome(first, key, "succeeded")
    intent = scene.intent(business=INVOICE)
    async with rival(place.url) as other:
        await other.flush(scene.batch(scene.writes(first, outcome), writer="wr_other"), scene.now)
        [verdict] = await ended(flushing(scene, second, intent))
        assert verdict.refusals == ((0, "key_held"),)
        await other.commit()
    await scene.write(second, intent)
    assert await key_holders(scene) == [second.task]


async def settled_wrongly(scene: Scene) -> tuple[Claimed, str]:
    """Have a call that failed, and whose business key is free."""
    claimed = await scene.running()
    return claimed, await scene.called(claimed, "failed", business=INVOICE)


@blocked("note", "business-key", "changed")
async def _(place: Place) -> None:
    """Another batch is about to take the key: it is waited for, and whoever settles is told who has it."""
    scene = place.scene
    claimed, key = await settled_wrongly(scene)
    second = await scene.running()
    intent = scene.intent(business=INVOICE)
    async with rival(place.url) as other:
        await other.flush(scene.batch(scene.writes(second, intent), writer="wr_other"), scene.now)
        await other.commits_first(scene.store.note([late(claimed, key)], now=scene.now))
    [row] = await scene.rows("unsettled", claimed)
    assert row["why"].endswith(f"; {second.task}:{intent.key} has its business key")
    assert sorted(await key_holders(scene)) == sorted([claimed.task, second.task])


@blocked("note", "business-key", "held")
async def _(place: Place) -> None:
    """Another batch fails after all: nobody else has the key."""
    scene = place.scene
    claimed, key = await settled_wrongly(scene)
    second = await scene.running()
    async with rival(place.url) as other:
        theirs = scene.batch(scene.writes(second, scene.intent(business=INVOICE)), writer="wr_other")
        await other.flush(theirs, scene.now)
        await other.fails_first(scene.store.note([late(claimed, key)], now=scene.now))
    [row] = await scene.rows("unsettled", claimed)
    assert row["why"] == "late evidence contradicts what was settled"
    assert await key_holders(scene) == [claimed.task]


@blocked("flush", "key-in-doubt", "changed")
async def _(place: Place) -> None:
    """Evidence is about to bring the key in doubt: it is waited for, and the key is held."""
    scene = place.scene
    claimed, key = await settled_wrongly(scene)
    second = await scene.running()
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.note([late(claimed, key)], now=scene.now)
        [verdict] = await other.commits_first(flushing(scene, second, scene.intent(business=INVOICE)))
        assert verdict.refusals == ((0, "key_held"),)
    assert await key_holders(scene) == [claimed.task]


@blocked("flush", "key-in-doubt", "held")
async def _(place: Place) -> None:
    """The evidence is not kept after all: the key is free."""
    scene = place.scene
    claimed, key = await settled_wrongly(scene)
    second = await scene.running()
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.note([late(claimed, key)], now=scene.now)
        [verdict] = await other.fails_first(flushing(scene, second, scene.intent(business=INVOICE)))
        assert verdict.refusals == ()
    assert await key_holders(scene) == [second.task]


async def a_window_is_over(scene: Scene) -> tuple[Claimed, Claimed]:
    """Let the window of a key that was used pass; answer two tasks that want it."""
    done = replace(INVOICE, mode="once", window_us=1)
    used, first, second = [await scene.running() for _ in range(3)]
    await scene.called(used, "succeeded", business=done)
    scene.pass_time(SECOND)
    return first, second


@blocked("flush", "done-key", "changed")
async def _(place: Place) -> None:
    """Two batches want the key whose window is over: the one that waited finds it held."""
    scene = place.scene
    first, second = await a_window_is_over(scene)
    async with rival(place.url) as other:
        theirs = scene.batch(scene.writes(first, scene.intent(business=INVOICE)), writer="wr_other")
        await other.flush(theirs, scene.now)
        [verdict] = await other.commits_first(flushing(scene, second, scene.intent(business=INVOICE)))
        assert verdict.refusals == ((0, "key_held"),)
    assert await key_holders(scene) == [first.task]


@blocked("flush", "done-key", "held")
async def _(place: Place) -> None:
    """The one that was first fails after all."""
    scene = place.scene
    first, second = await a_window_is_over(scene)
    async with rival(place.url) as other:
        theirs = scene.batch(scene.writes(first, scene.intent(business=INVOICE)), writer="wr_other")
        await other.flush(theirs, scene.now)
        [verdict] = await other.fails_first(flushing(scene, second, scene.intent(business=INVOICE)))
        assert verdict.refusals == ()
    assert await key_holders(scene) == [second.task]


@blocked("flush", "provider-wait", "changed")
async def _(place: Place) -> None:
    """Two outcomes bring a wait for one provider: the longer one is kept, whoever comes last."""
    scene = place.scene
    tasks = [await scene.running() for _ in range(2)]
    outcomes = [
        await scene.outcome(task, await scene.called(task), "planned", wait=("mail", seconds * SECOND))
        for task, seconds in zip(tasks, (9, 3), strict=True)
    ]
    async with rival(place.url) as other:
        await other.flush(scene.batch(scene.writes(tasks[0], outcomes[0]), writer="wr_other"), scene.now)
        [verdict] = await other.commits_first(flushing(scene, tasks[1], outcomes[1]))
        assert verdict.refusals == ()
    [row] = (await scene.store.dump())["provider_waits"]
    assert row["until_at"] == scene.now + 9 * SECOND


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────


@blocked("renew", "session", "changed")
async def _(place: Place) -> None:
    """The sweeper was first: the session is not revived."""
    scene = place.scene
    session = await scene.session()
    claimed = await scene.running(session=session)
    renewal = SessionRenewal(session=session, name="late", ttl_us=HOUR)
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.sweep(scene.now)
        assert (await other.commits_first(scene.store.renew(renewal, now=scene.now))).alive is False
    assert (await scene.task(claimed)).state == "queued"


@blocked("renew", "session", "held")
async def _(place: Place) -> None:
    scene = place.scene
    session = await scene.session()
    async with rival(place.url) as other:
        await other.hold("sessions", id=session)
        answer = await other.commits_first(
            scene.store.renew(SessionRenewal(session=session, name="n", ttl_us=HOUR), now=scene.now)
        )
        assert answer.alive is True


@blocked("renew", "new-session", "changed")
async def _(place: Place) -> None:
    """Two openings of one new session at once: one row, both alive."""
    scene = place.scene
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.renew(SessionRenewal(session="ses_new", name="first", ttl_us=60 * SECOND), now=scene.now)
        twin = start(
            scene.store.renew(SessionRenewal(session="ses_new", name="second", ttl_us=HOUR), now=scene.now)
        )
        assert await other.see_blocked(twin)
        await other.commit()
        renewed = await ended(twin)
        assert (renewed.alive, renewed.expires_at) == (True, scene.now + HOUR)
    assert len((await scene.store.dump())["sessions"]) == 1


async def claim_within(other: Rival, scene: Scene, session: str, record: Any) -> None:
    """Claim, and not commit yet."""
    theirs = replace(scene, store=await other.about_to_commit("claim"))
    serves = [Serves(agent=record.agent, version="v")]
    reply = await theirs.claim(session, pools=[record.pool], serves=serves, limit=9)
    assert [claimed.task for claimed in reply.claims] == [record.task]


def claiming(scene: Scene, session: str, record: Any) -> Any:
    """Begin to claim."""
    serves = [Serves(agent=record.agent, version="v")]
    return start(scene.claim(session, pools=[record.pool], serves=serves, limit=9))


@blocked("retire", "session", "changed")
async def _(place: Place) -> None:
    """A claim is under way for the session: it is not retired under its lease."""
    scene = place.scene
    record = await scene.submit()
    session = await scene.session()
    async with rival(place.url) as other:
        await claim_within(other, scene, session, record)
        await other.commits_first(scene.store.retire(session))
    assert [row["id"] for row in (await scene.store.dump())["sessions"]] == [session]
    assert (await scene.task(record)).state == "running"


@blocked("retire", "session", "held")
async def _(place: Place) -> None:
    scene = place.scene
    session = await scene.session()
    async with rival(place.url) as other:
        await other.hold("sessions", id=session)
        await other.commits_first(scene.store.retire(session))
    assert (await scene.store.dump())["sessions"] == []


@blocked("claim", "session", "changed")
async def _(place: Place) -> None:
    """The sweeper was first: no lease is made for a session that it has passed by."""
    scene = place.scene
    record = await scene.submit()
    session = await scene.session()
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.sweep(scene.now)
        reply = await other.commits_first(claiming(scene, session, record))
        assert (reply.refused, reply.claims) == (True, ())
    assert (await scene.task(record)).state == "queued"


@blocked("claim", "session", "changed")
async def _(place: Place) -> None:
    """The session retires first."""
    scene = place.scene
    record = await scene.submit()
    session = await scene.session()
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.retire(session)
        reply = await other.commits_first(claiming(scene, session, record))
        assert (reply.refused, reply.claims) == (True, ())
    assert (await scene.task(record)).state == "queued"


@blocked("claim", "session", "held")
async def _(place: Place) -> None:
    scene = place.scene
    record = await scene.submit()
    session = await scene.session()
    async with rival(place.url) as other:
        await other.hold("sessions", id=session)
        answer = await other.commits_first(claiming(scene, session, record))
        assert [claimed.task for claimed in answer.claims] == [record.task]


@blocked("claim", "claimer", "changed")
async def _(place: Place) -> None:
    """Another claimer takes the task: it is not taken twice."""
    scene = place.scene
    record = await scene.submit()
    first, second = await scene.session(), await scene.session()
    async with rival(place.url) as other:
        await claim_within(other, scene, first, record)
        reply = await other.commits_first(claiming(scene, second, record))
        assert (reply.refused, reply.claims) == (False, ())
    [lease] = await scene.rows("leases", record)
    assert (lease["session"], lease["epoch"]) == (first, 1)


@blocked("claim", "claimer", "held")
async def _(place: Place) -> None:
    """Another claimer fails: its task is still there."""
    scene = place.scene
    record = await scene.submit()
    first, second = await scene.session(), await scene.session()
    async with rival(place.url) as other:
        await claim_within(other, scene, first, record)
        answer = await other.fails_first(claiming(scene, second, record))
        assert [claimed.epoch for claimed in answer.claims] == [1]


@blocked("claim", "head", "changed")
async def _(place: Place) -> None:
    """The deadline is being judged: the claim leaves the task alone, and later does not find it."""
    scene = place.scene
    record = await scene.submit(deadline_us=30 * SECOND)
    session = await scene.session(ttl_us=HOUR)
    async with rival(place.url) as other:
        scene.now = ((await scene.task(record)).deadline_at or 0) + 1
        await other.sweep(scene.now)
        assert (await ended(claiming(scene, session, record))).claims == ()
        await other.commit()
    assert (await ended(claiming(scene, session, record))).claims == ()
    assert (await scene.task(record)).state == "failed"


@blocked("claim", "head", "held")
async def _(place: Place) -> None:
    """A head that somebody holds is left for later, and stands before nobody."""
    scene = place.scene
    record = await scene.submit()
    after = await scene.submit(agent=record.agent, pool=record.pool)
    session = await scene.session()
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=record.tenant, id=record.task)
        reply = await ended(claiming(scene, session, record))
        assert [claimed.task for claimed in reply.claims] == [after.task]
        await other.commit()
    reply = await ended(claiming(scene, session, record))
    assert [claimed.task for claimed in reply.claims] == [record.task]


@blocked("reconcile", "session", "changed")
async def _(place: Place) -> None:
    """A claim whose client is gone commits after all: its lease is found and given back."""
    scene = place.scene
    session = await scene.session()
    known = await scene.running(session=session)
    record = await scene.submit()
    async with rival(place.url) as other:
        await claim_within(other, scene, session, record)
        held = [Held(tenant=known.tenant, task=known.task, epoch=known.epoch)]
        answer = await other.commits_first(scene.store.reconcile(session, held, fence=1, now=scene.now))
        assert answer == [TaskRef(tenant=record.tenant, task=record.task)]
    assert (await scene.task(record)).state == "queued"
    assert (await scene.flush(known, scene.step())).kind == "accepted"


@blocked("claim", "session", "changed")
async def _(place: Place) -> None:
    """The worker gives up on a claim that has not begun: it is refused by the fence."""
    scene = place.scene
    record = await scene.submit()
    session = await scene.session()
    async with rival(place.url) as other:
        theirs = await other.about_to_commit("control")
        await theirs.reconcile(session, [], fence=1, now=scene.now)
        assert (await other.commits_first(claiming(scene, session, record))).claims == ()
    assert (await scene.task(record)).state == "queued"


@blocked("reconcile", "session", "held")
async def _(place: Place) -> None:
    """A claim whose client is gone fails: there is nothing to give back."""
    scene = place.scene
    session = await scene.session()
    record = await scene.submit()
    async with rival(place.url) as other:
        await claim_within(other, scene, session, record)
        assert await other.fails_first(scene.store.reconcile(session, [], fence=1, now=scene.now)) == []
    assert ((await scene.task(record)).state, (await scene.task(record)).epoch) == ("queued", 0)


# ── sweep ────────────────────────────────────────────────────────────────────────────────────────


@blocked("sweep", "session", "changed")
async def _(place: Place) -> None:
    """A renewal is under way: a session that it has renewed is not ended, however old the sweeper's view."""
    scene = place.scene
    session = await scene.session()
    claimed = await scene.running(session=session)
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        theirs = await other.about_to_commit("control")
        await theirs.renew(SessionRenewal(session=session, name="n", ttl_us=HOUR), now=scene.now)
        twin = start(scene.sweep())
        # Whoever holds something, for however long, does not keep the sweeper from everything else.
        assert not await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).sessions == ()
    assert (await scene.sweep()).lost == ()
    assert (await scene.task(claimed)).state == "running"


@blocked("sweep", "session", "held")
async def _(place: Place) -> None:
    """What somebody holds is swept later."""
    scene = place.scene
    session = await scene.session()
    claimed = await scene.running(session=session)
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.hold("sessions", id=session)
        twin = start(scene.sweep())
        assert not await other.see_blocked(twin)
        await other.commit()
        await ended(twin)
    await scene.sweep()
    assert (await scene.task(claimed)).state == "queued"


@blocked("sweep", "head", "changed")
async def _(place: Place) -> None:
    """The task ends while its session is swept: its end stands."""
    scene = place.scene
    claimed = await scene.running(announce=True)
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.flush(scene.batch(scene.writes(claimed, scene.success())), scene.now)
        twin = start(scene.sweep())
        assert not await other.see_blocked(twin)
        await other.commit()
        assert (await ended(twin)).lost == ()
    assert (await scene.sweep()).lost == ()
    assert (await scene.task(claimed)).state == "succeeded"
    assert [row["end"] for row in await scene.rows("attempts", claimed)] == ["succeeded"]


@blocked("sweep", "head", "held")
async def _(place: Place) -> None:
    """A head that somebody holds when its session is ended is taken by a later sweep."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        twin = start(scene.sweep())
        assert not await other.see_blocked(twin)
        await other.commit()
        await ended(twin)
    await scene.sweep()
    assert (await scene.task(claimed)).state == "queued"
    assert [row["end"] for row in await scene.rows("attempts", claimed)] == ["lost"]


@blocked("sweep", "waiting-head", "changed")
async def _(place: Place) -> None:
    """A settlement wakes the task while its timer is due: it is queued once."""
    scene = place.scene
    claimed, key = await unknown(scene)
    await scene.write(claimed, scene.suspension("timer", wake_in_us=5 * SECOND))
    async with rival(place.url) as other:
        scene.pass_time(6 * SECOND)
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        settling = start(scene.store.settle([scene.settlement(claimed, key)], now=scene.now))
        assert await other.see_blocked(settling)
        await ended(start(scene.sweep()))
        await other.commit()
        await ended(settling)
    await scene.sweep()
    assert (await scene.task(claimed)).state == "queued"
    again = await scene.claim_task(claimed)
    assert again.epoch == 2


@blocked("sweep", "waiting-head", "held")
async def _(place: Place) -> None:
    scene = place.scene
    claimed = await scene.running()
    await scene.write(claimed, scene.suspension("timer", wake_in_us=5 * SECOND))
    async with rival(place.url) as other:
        scene.pass_time(6 * SECOND)
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        await ended(start(scene.sweep()))
        assert (await scene.task(claimed)).state == "waiting"
        await other.commit()
    assert len((await scene.sweep()).woken) == 1


@blocked("sweep", "head-of-a-deadline", "held")
async def _(place: Place) -> None:
    scene = place.scene
    record, bystander = [await scene.submit(deadline_us=30 * SECOND) for _ in range(2)]
    async with rival(place.url) as other:
        scene.now = ((await scene.task(bystander)).deadline_at or 0) + 1
        await other.hold("tasks", tenant=record.tenant, id=record.task)
        twin = start(scene.sweep())
        assert not await other.see_blocked(twin)
        assert [one.task for one in (await ended(twin)).expired] == [bystander.task]
        await other.commit()
    assert [one.task for one in (await scene.sweep()).expired] == [record.task]


@blocked("sweep", "sweeper", "changed")
async def _(place: Place) -> None:
    """Two sweepers at once: each loss is judged once."""
    scene = place.scene
    claimed = await scene.running()
    async with rival(place.url) as other:
        scene.pass_time(61 * SECOND)
        await other.sweep(scene.now)
        twin = start(scene.sweep())
        assert not await other.see_blocked(twin)
        await other.commit()
        await ended(twin)
    await scene.sweep()
    assert [row["end"] for row in await scene.rows("attempts", claimed)] == ["lost"]
    assert (await scene.kinds(claimed)).count("attempt.lost") == 1


# ── submit ───────────────────────────────────────────────────────────────────────────────────────


@blocked("submit", "key", "changed")
async def _(place: Place) -> None:
    """A twin commits: this one is its replay, or in conflict with it."""
    scene = place.scene
    first = scene.submission()
    same = scene.submission(key=first.key, request_digest=first.request_digest)
    other_content = scene.submission(key=first.key)
    async with rival(place.url) as other:
        await scene.store.submit([first], connection=other.connection)
        assert await other.commits_first(scene.store.submit([same, other_content])) == [
            Submitted(kind="replayed", task=first.task),
            Submitted(kind="conflict", task=first.task),
        ]
    assert len((await scene.store.dump())["tasks"]) == 1


@blocked("submit", "key", "held")
async def _(place: Place) -> None:
    """A twin rolls back: the key is free."""
    scene = place.scene
    first = scene.submission()
    same = scene.submission(key=first.key, request_digest=first.request_digest)
    async with rival(place.url) as other:
        await scene.store.submit([first], connection=other.connection)
        answer = await other.fails_first(scene.store.submit([same]))
        assert answer == [Submitted(kind="accepted", task=same.task)]
    assert [row["id"] for row in (await scene.store.dump())["tasks"]] == [same.task]


@blocked("submit", "key", "held")
async def _(place: Place) -> None:
    """A twin stays open: waiting is bounded, and nobody else in the batch suffers."""
    scene = place.scene
    first, bystander = scene.submission(), scene.submission()
    same = scene.submission(key=first.key, request_digest=first.request_digest)
    async with rival(place.url) as other:
        await scene.store.submit([first], connection=other.connection)
        verdicts = await ended(start(scene.store.submit([same, bystander])))
        assert verdicts == [
            Submitted(kind="busy", task=same.task),
            Submitted(kind="accepted", task=bystander.task),
        ]
        await other.commit()
    assert await scene.store.submit([same]) == [Submitted(kind="replayed", task=first.task)]


def _large(scene: Scene, first: Submission) -> list[Submission]:
    """Answer a batch with a twin of a submission, behind some that are put in before it is met."""
    batch = [scene.submission() for _ in range(24)]
    batch[17] = scene.submission(key=first.key, request_digest=first.request_digest)
    return batch


@blocked("submit", "key", "changed")
async def _(place: Place) -> None:
    """A twin of one in a large batch commits."""
    scene = place.scene
    first = scene.submission()
    batch = _large(scene, first)
    async with rival(place.url) as other:
        await scene.store.submit([first], connection=other.connection)
        verdicts = await other.commits_first(scene.store.submit(batch))
    expected = [Submitted(kind="accepted", task=record.task) for record in batch]
    expected[17] = Submitted(kind="replayed", task=first.task)
    assert verdicts == expected
    assert len((await scene.store.dump())["tasks"]) == 24


@blocked("submit", "key", "held")
async def _(place: Place) -> None:
    """A twin of one in a large batch rolls back: all of it is accepted."""
    scene = place.scene
    first = scene.submission()
    batch = _large(scene, first)
    async with rival(place.url) as other:
        await scene.store.submit([first], connection=other.connection)
        verdicts = await other.fails_first(scene.store.submit(batch))
    assert verdicts == [Submitted(kind="accepted", task=record.task) for record in batch]
    assert {row["id"] for row in (await scene.store.dump())["tasks"]} == {record.task for record in batch}


@blocked("submit", "task", "changed")
async def _(place: Place) -> None:
    """The very same record, sent again while its first sending has not committed yet."""
    scene = place.scene
    record = scene.submission(key=None)
    async with rival(place.url) as other:
        await scene.store.submit([record], connection=other.connection)
        answer = await other.commits_first(scene.store.submit([record]))
        assert answer == [Submitted(kind="accepted", task=record.task)]
    assert len(await scene.events(record)) == 1


# ── outbox ───────────────────────────────────────────────────────────────────────────────────────


@blocked("confirm_messages", "message", "changed")
async def _(place: Place) -> None:
    scene = place.scene
    record = await scene.submit(announce=True)
    [message] = await scene.store.take_messages(9, now=scene.now)
    done = Publication(tenant=record.tenant, task=record.task, number=message.number)
    async with rival(place.url) as other:
        await other.run("delete from outlast.outbox where task = $1", record.task)
        await other.commits_first(scene.store.confirm_messages([replace(done, parked="late")]))
    assert await scene.rows("outbox", record) == []


@blocked("confirm_messages", "message", "held")
async def _(place: Place) -> None:
    scene = place.scene
    record = await scene.submit(announce=True)
    [message] = await scene.store.take_messages(9, now=scene.now)
    done = Publication(tenant=record.tenant, task=record.task, number=message.number)
    async with rival(place.url) as other:
        await other.hold("outbox", tenant=record.tenant, task=record.task)
        await other.commits_first(scene.store.confirm_messages([done]))
    assert await scene.rows("outbox", record) == []


# ── the tests ────────────────────────────────────────────────────────────────────────────────────


# -- schedules -───────────────────────────────────────────────────────────────────────────────────

MOVED = "update outlast.schedules set next_at = next_at + 3600000000 where id = $1"
REVISED = "update outlast.schedules set revision = revision + 1 where id = $1"


def putting(scene: Scene, made: Schedule, revision: int | None) -> Any:
    """Begin to put a schedule."""
    asked = PutSchedule(schedule=made, next_at=scene.now, by="ann", revision=revision)
    return start(scene.store.put_schedule(asked, now=scene.now))


@blocked("put_schedule", "schedule", "changed")
async def _(place: Place) -> None:
    """Somebody else was first: what was seen is not what is there."""
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.run(REVISED, row.schedule.id)
        answer = await other.commits_first(putting(scene, scheduling.schedule(scene, id=row.schedule.id), 1))
        assert answer == SchedulePut(kind="conflict", revision=2)
    assert (await scheduling.stored(scene, row.schedule)).schedule == row.schedule


@blocked("put_schedule", "schedule", "held")
async def _(place: Place) -> None:
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.hold("schedules", tenant=scene.tenant, id=row.schedule.id)
        made = scheduling.schedule(scene, id=row.schedule.id)
        assert await other.commits_first(putting(scene, made, 1)) == SchedulePut(kind="replaced", revision=2)
    assert (await scheduling.stored(scene, made)).schedule == made


@blocked("put_schedule", "id", "changed")
async def _(place: Place) -> None:
    """Two make the same schedule: the second waits for the first's row, and finds it."""
    scene = place.scene
    row = await scheduling.put(scene)
    await scene.store.set_schedule(scheduling.set_(row, "delete"), now=scene.now)
    async with rival(place.url) as other:
        store = await other.about_to_commit("control")
        first = PutSchedule(schedule=row.schedule, next_at=scene.now, by="bob", revision=0)
        assert (await store.put_schedule(first, now=scene.now)).kind == "created"
        made = scheduling.schedule(scene, id=row.schedule.id)
        twins = [putting(scene, made, 0), putting(scene, made, None)]
        assert await other.see_blocked(twins[0])
        await other.commit()
        assert await ended(twins[0]) == SchedulePut(kind="conflict", revision=1)
        assert await ended(twins[1]) == SchedulePut(kind="replaced", revision=2)
    assert (await scheduling.stored(scene, made)).schedule == made


@blocked("set_schedule", "schedule", "changed")
async def _(place: Place) -> None:
    """What it saw was changed meanwhile."""
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.run(REVISED, row.schedule.id)
        asked = scheduling.set_(row, "delete", revision=1)
        answer = await other.commits_first(scene.store.set_schedule(asked, now=scene.now))
        assert answer == ScheduleSet(kind="conflict", revision=2)
    assert (await scheduling.stored(scene, row.schedule)).paused is None


@blocked("set_schedule", "schedule", "held")
async def _(place: Place) -> None:
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.hold("schedules", tenant=scene.tenant, id=row.schedule.id)
        answer = await other.commits_first(
            scene.store.set_schedule(scheduling.set_(row, "pause"), now=scene.now)
        )
        assert answer.kind == "done"
    assert (await scheduling.stored(scene, row.schedule)).paused == "the auditors"


@blocked("due_schedules", "schedule", "changed")
async def _(place: Place) -> None:
    """One that is being fired is left alone, and is not due afterwards."""
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.run(MOVED, row.schedule.id)
        assert await scheduling.names(scene) == []
        await other.commit()
    assert await scheduling.names(scene) == []


@blocked("due_schedules", "schedule", "held")
async def _(place: Place) -> None:
    """One that somebody holds stands before nobody."""
    scene = place.scene
    held, after = await scheduling.put(scene, in_us=-SECOND), await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.hold("schedules", tenant=scene.tenant, id=held.schedule.id)
        assert await scheduling.names(scene) == [after.schedule.id]
        await other.commit()
    assert await scheduling.names(scene) == [held.schedule.id]


@blocked("fire_schedules", "schedule", "changed")
async def _(place: Place) -> None:
    """Its twin fires the same instant: it sees that in the row that it waited for, and submits nothing."""
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.run(MOVED, row.schedule.id)
        answer = await other.commits_first(scheduling.fire(scene, scheduling.firing(scene, row)))
        assert answer == [Fired(kind="passed")]
    assert (await scene.store.dump())["tasks"] == []


@blocked("fire_schedules", "schedule", "held")
async def _(place: Place) -> None:
    scene = place.scene
    row = await scheduling.put(scene)
    async with rival(place.url) as other:
        await other.hold("schedules", tenant=scene.tenant, id=row.schedule.id)
        answer = await other.commits_first(scheduling.fire(scene, scheduling.firing(scene, row)))
        assert [each.kind for each in answer] == ["fired"]
    assert len((await scene.store.dump())["tasks"]) == 1


@blocked("fire_schedules", "key", "held")
async def _(place: Place) -> None:
    """A key that an open transaction has costs its own firing, after a bound, and no other."""
    scene = place.scene
    row, neighbour = await scheduling.put(scene), await scheduling.put(scene)
    shot = scheduling.firing(scene, row)
    assert shot.submission is not None
    async with rival(place.url) as other:
        theirs = scene.submission(key=shot.submission.key)
        assert (await scene.store.submit([theirs], connection=other.connection))[0].kind == "accepted"
        shots = (shot, scheduling.firing(scene, neighbour))
        assert [each.kind for each in await scheduling.fire(scene, *shots)] == ["busy", "fired"]
        await other.rollback()
    assert [each.kind for each in await scheduling.fire(scene, shot)] == ["fired"]


test_a_blocked_twin_tells_the_truth = told(BLOCKED)


async def test_nobody_who_only_reads_waits(place: Place) -> None:
    scene, store = place.scene, place.scene.store
    claimed, key = await unknown(scene)
    ref = TaskRef(tenant=claimed.tenant, task=claimed.task)
    await scene.submit(announce=True)
    await scene.called(claimed, business=INVOICE)
    asked = await scene.asked(claimed, scene.ask(quorum=2))
    await scene.decide(asked)
    await scene.post(scene.signal(claimed))
    await store.put_rule(scene.rule("pay"), now=scene.now)
    async with rival(place.url) as other:
        for table in (
            "tasks",
            "inputs",
            "leases",
            "operations",
            "events",
            "sessions",
            "outbox",
            "queue",
            "unsettled",
            "business_keys",
            "pauses",
            "held_tasks",
            "audit",
            "inbox",
            "posts",
            "approvals",
            "votes",
            "rules",
        ):
            await other.run(f"select from outlast.{table} for update")
        for reading in (
            store.load([claimed]),
            store.read_tasks([ref]),
            store.list_tasks(TaskFilter(tenant=claimed.tenant)),
            store.read_events([EventCursor(tenant=claimed.tenant, task=claimed.task)]),
            store.read_ends([ref]),
            store.read_attempts(ref),
            store.list_operations(OperationFilter(tenant=claimed.tenant, task=claimed.task)),
            store.list_operations(OperationFilter(tenant=claimed.tenant, state="unknown")),
            store.read_evidence(claimed.tenant, claimed.task, key),
            store.read_open(claimed.tenant, claimed.task, key),
            store.list_pauses(claimed.tenant),
            store.read_business_key(claimed.tenant, INVOICE.tool, INVOICE.value),
            store.read_audit(claimed.tenant),
            store.read_inbox(claimed.tenant, claimed.task),
            store.read_approvals(claimed.tenant, claimed.task),
            store.read_approval(claimed.tenant, asked.id),
            store.list_approvals(ApprovalFilter(tenant=claimed.tenant)),
            store.read_votes(claimed.tenant, asked.id),
            store.read_rules(claimed.tenant, "pay"),
            store.list_rules(claimed.tenant),
            store.take_messages(9),
            store.health(),
            store.dump(),
        ):
            twin = start(reading)
            assert not await other.see_blocked(twin)
            assert await ended(twin) is not None


async def test_evidence_is_numbered_behind_whoever_writes_it_at_the_same_time(place: Place) -> None:
    scene = place.scene
    claimed, key = await unknown(scene)
    note = Evidence(tenant=claimed.tenant, task=claimed.task, key=key, attempt=1, source="late", data="{}")
    async with rival(place.url) as other:
        await other.hold("tasks", tenant=claimed.tenant, id=claimed.task)
        twins = [start(scene.store.note([note])) for _ in range(3)]
        assert await other.see_blocked(twins[0])
        await other.commit()
        for twin in twins:
            await ended(twin)
    rows = await scene.store.read_evidence(claimed.tenant, claimed.task, key)
    assert [row.number for row in rows] == [1, 2, 3]


async def test_schema_race(place: Place, bare_postgres_url: str) -> None:
    """Several processes migrate one new database at once: each migration is applied by one of them."""
    from tests.stores import new_store

    stores: list[Store] = [new_store(bare_postgres_url) for _ in range(4)]
    try:
        applied = [await ended(task) for task in [start(store.migrate()) for store in stores]]
        assert sorted(len(names) for names in applied)[:-1] == [0, 0, 0]
        assert len({name for names in applied for name in names}) == sum(len(names) for names in applied) > 0
        await stores[0].open()
        assert await stores[0].migrate() == []
    finally:
        for store in stores:
            await store.close()
