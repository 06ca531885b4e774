"""The blocked twins of business keys and of waits that a provider asks for, on PostgreSQL."""

from dataclasses import replace

from tests.races.blocking import INVOICE, ON_POSTGRES, Blocked, Place, flushing, into, late, told
from tests.races.holding import ended, rival

from outlast.store.records import (
    Claimed,
)
from outlast.testing.store_suite.scene import SECOND, Scene

pytestmark = ON_POSTGRES

BLOCKED: list[Blocked] = []
blocked = into(BLOCKED)


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


test_a_blocked_twin_tells_the_truth = told(BLOCKED)
