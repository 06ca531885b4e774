"""Gates that share a transaction: what one look has found must not hide what a neighbour did since."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import apsw
import pytest
from tests.contract.sqlite_only.test_groups import gathered

from outlast.store.contract import BatchRejected
from outlast.store.entries import Batch, CommitIntent
from outlast.store.sqlite import SqliteStore
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.effects import holder, lock, switch
from outlast.testing.store_suite.scene import Refused, Scene


@pytest.fixture
async def scene(store: SqliteStore) -> Scene:
    """A scene on the store."""
    return Scene(store=store, now=(await store.health()).now)


async def test_a_switch_counts_from_the_next_batch_of_its_own_group_on(
    scene: Scene, store: SqliteStore
) -> None:
    claimed = await scene.running()
    pause = switch(claimed.tenant)

    def intents(writer: str) -> Batch:
        return scene.batch(scene.writes(claimed, scene.intent()), writer=writer)

    async with gathered(store):
        tasks = [
            asyncio.ensure_future(work)
            for work in (
                store.flush(intents("wr_1"), now=scene.now),
                store.pause(pause, now=scene.now),
                store.flush(intents("wr_2"), now=scene.now),
                store.resume(pause, now=scene.now),
                store.flush(intents("wr_3"), now=scene.now),
            )
        ]
    [first], _, [second], stood, [third] = await asyncio.gather(*tasks)
    assert (first.refusals, second.refusals, stood, third.refusals) == ((), ((0, "paused"),), True, ())


async def test_the_first_rule_of_a_group_counts_from_the_next_batch_on(
    scene: Scene, store: SqliteStore
) -> None:
    """Whoever looked before it came saw none."""
    claimed = await scene.running()

    def intents(writer: str) -> Batch:
        return scene.batch(scene.writes(claimed, scene.intent(name="pay")), writer=writer)

    async with gathered(store):
        tasks = [
            asyncio.ensure_future(work)
            for work in (
                store.flush(intents("wr_1"), now=scene.now),
                store.put_rule(scene.rule("pay"), now=scene.now),
                store.flush(intents("wr_2"), now=scene.now),
                store.withdraw_rule(claimed.tenant, 1, "person:ann", "enough", now=scene.now),
                store.flush(intents("wr_3"), now=scene.now),
            )
        ]
    [first], number, [second], stood, [third] = await asyncio.gather(*tasks)
    assert (first.refusals, number, second.refusals) == ((), 1, ((0, "rules_changed"),))
    assert (stood, third.refusals) == (True, ())


async def test_the_first_business_key_of_a_group_follows_its_outcome_in_it(
    scene: Scene, store: SqliteStore
) -> None:
    """Whoever looked before it came saw none."""
    claimed = await scene.running()
    plain = await scene.called(claimed)
    first = await scene.outcome(claimed, plain, "succeeded")
    intent = scene.intent(business=lock())
    done = replace(first, key=intent.key)
    following = scene.intent(business=lock())
    async with gathered(store):
        tasks = [
            asyncio.ensure_future(store.flush(scene.batch(scene.writes(claimed, entry)), now=scene.now))
            for entry in (first, intent, done, following)
        ]
    for [verdict] in await asyncio.gather(*tasks):
        assert (verdict.kind, verdict.refusals) == ("accepted", ())
    held = await holder(scene, lock())
    assert held is not None
    assert held.key == following.key
    assert check_all(await store.dump()) == []


async def test_a_gate_that_is_undone_leaves_no_key(scene: Scene, store: SqliteStore) -> None:
    claimed, other = await scene.running(), await scene.running()
    intent: CommitIntent = scene.intent(business=lock())
    # What comes after the end of an attempt is what the batch is rejected for.
    broken = scene.batch(scene.writes(claimed, intent, scene.success(), scene.step()), writer="wr_1")
    right = scene.intent(business=lock())
    async with gathered(store):
        rejected = asyncio.ensure_future(store.flush(broken, now=scene.now))
        admitted = asyncio.ensure_future(
            store.flush(scene.batch(scene.writes(other, right), writer="wr_2"), now=scene.now)
        )
    with pytest.raises(BatchRejected):
        await rejected
    [verdict] = await admitted
    assert verdict.refusals == ()
    held = await holder(scene, lock())
    assert held is not None
    assert held.key == right.key
    assert check_all(await store.dump()) == []


async def test_a_key_that_is_held_changes_hands_for_no_statement(
    scene: Scene, beside: apsw.Connection
) -> None:
    claimed = await scene.running()
    key = await scene.called(claimed, business=lock())
    for column in ("tenant", "task", "key"):
        async with Refused(f"another {column}"):
            beside.execute(f"update business_keys set {column} = 'other'")
    held = await holder(scene, lock())
    assert held is not None
    assert held.key == key


@pytest.mark.parametrize("state", ["succeeded", "failed"])
async def test_what_ends_without_a_call_gives_up_what_an_earlier_attempt_held(
    scene: Scene, state: str
) -> None:
    claimed = await scene.running()
    intent = scene.intent(business=lock())
    await scene.write(claimed, intent)
    await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
    await scene.write(claimed, scene.planned(intent))
    assert await holder(scene, lock()) is not None
    await scene.write(claimed, scene.planned(intent, state=state, error=scene.text("error")))
    assert await holder(scene, lock()) is None
    assert check_all(await scene.store.dump()) == []


async def test_a_later_attempt_under_another_key_gives_up_the_earlier_one(scene: Scene) -> None:
    claimed = await scene.running()
    intent = scene.intent(business=lock("one"))
    await scene.write(claimed, intent)
    for business in (lock("two"), None):
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
        row = await scene.operation(claimed, intent.key)
        later = scene.intent(intent.key, attempt=row.attempt, turn=row.turn, business=business)
        await scene.write(claimed, later)
        kept = [(one["value"], one["key"]) for one in (await scene.store.dump())["business_keys"]]
        assert kept == ([] if business is None else [(business.value, intent.key)])
