"""The blocked twins of taking unknown calls to settle, and of putting them back, on PostgreSQL."""

from dataclasses import replace
from typing import Any

from tests.races.blocking import ON_POSTGRES, Blocked, Place, claim, into, late, told
from tests.races.holding import ended, rival, start

from outlast.store.reconciling import OpenItem, OpenRequest, Postponement
from outlast.store.records import (
    Claimed,
)
from outlast.testing.store_suite.scene import SECOND, Scene

pytestmark = ON_POSTGRES

BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)


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
        await claim(other, scene, worker, record)
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


@blocked("postpone", "provider-wait", "changed")
async def _(place: Place) -> None:
    """A send was told to wait for longer, in this very moment: that wait is kept."""
    scene = place.scene
    session = await scene.session()
    await left(scene)
    [item] = await ended(looking(scene, session))
    sends = await scene.running()
    outcome = await scene.outcome(sends, await scene.called(sends), "planned", wait=("mail", 9 * SECOND))
    async with rival(place.url) as other:
        await other.flush(scene.batch(scene.writes(sends, outcome), writer="wr_other"), scene.now)
        told_less = replace(back(item), wait=("mail", 3 * SECOND))
        assert await other.commits_first(scene.store.postpone([told_less], now=scene.now)) == [True]
    [row] = (await scene.store.dump())["provider_waits"]
    assert row["until_at"] == scene.now + 9 * SECOND


test_a_blocked_twin_tells_the_truth = told(BLOCKED)
