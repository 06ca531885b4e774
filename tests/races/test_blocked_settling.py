"""The blocked twins of settling, and of evidence that comes late, on PostgreSQL."""

from dataclasses import replace

from tests.races.blocking import (
    ON_POSTGRES,
    Blocked,
    Place,
    deferred_then,
    flushing,
    into,
    late,
    told,
    unknown,
)
from tests.races.holding import ended, rival, start

from outlast.store.entries import (
    TakeTurn,
)
from outlast.store.records import (
    Claimed,
    Evidence,
    Settled,
)
from outlast.testing.store_suite.believing import sent_twice
from outlast.testing.store_suite.scene import Scene

pytestmark = ON_POSTGRES

BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)


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


def passing(claimed: Claimed, key: str) -> Evidence:
    """Make the note of a request that is about to leave."""
    return Evidence(tenant=claimed.tenant, task=claimed.task, key=key, attempt=1, source="gateway", data="{}")


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


test_a_blocked_twin_tells_the_truth = told(BLOCKED)
