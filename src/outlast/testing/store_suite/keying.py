"""Business keys: what one operation at a time holds, and what stands for a while."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from outlast.store.entries import BusinessKey, EndAttempt
from outlast.store.reconciling import KeyHolder
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.effects import (
    again,
    held_by,
    holder,
    key_rows,
    lock,
    once,
    refusal,
    switch,
)
from outlast.testing.store_suite.guards import literal, refuses, where
from outlast.testing.store_suite.scene import HOUR, SECOND, Backdoor, Reopen, Scene
from outlast.testing.store_suite.submitting import BAD_KEYS, NO_WHITE_SPACE, WHITE_SPACE

__all__ = ["TestBusinessKeyRaces", "TestBusinessKeys"]


class TestBusinessKeys:
    """What a call is about, in the business's own words."""

    @pytest.mark.parametrize("business", [lock(), once()], ids=["lock", "once"])
    async def test_an_admitted_intent_holds_its_key(self, scene: Scene, business: BusinessKey) -> None:
        claimed = await scene.running()
        intent = scene.intent(business=business)
        assert await holder(scene, business) is None
        assert await refusal(scene, claimed, intent) is None
        assert await holder(scene, business) == held_by(claimed, intent.key)
        [row] = await key_rows(scene)
        assert row == {
            "tenant": claimed.tenant,
            "tool": business.tool,
            "value": business.value,
            "mode": business.mode,
            "task": claimed.task,
            "key": intent.key,
            "state": "held",
            "until_at": None,
            "window_us": business.window_us,
        }

    async def test_every_view_shows_the_key(self, scene: Scene) -> None:
        claimed = await scene.running()
        intent, plain = scene.intent(business=lock("invoice-77")), scene.intent()
        await scene.write(claimed, intent, plain)
        assert (await scene.operation(claimed, intent.key)).business_key == "invoice-77"
        assert (await scene.operation(claimed, plain.key)).business_key is None
        [loaded] = await scene.store.load([claimed])
        assert {row.key: row.business_key for row in loaded.operations} == {
            intent.key: "invoice-77",
            plain.key: None,
        }
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "unknown"))
        assert (await scene.operation(claimed, intent.key)).business_key == "invoice-77"

    @pytest.mark.parametrize("state", ["running", "unknown", "planned"])
    async def test_a_key_that_another_operation_holds_refuses(self, scene: Scene, state: Any) -> None:
        first, second = await scene.running(), await scene.running()
        key = await scene.called(first, state, business=once())
        for repeat in (False, True):
            intent = scene.intent(business=once(), repeat=repeat)
            assert await refusal(scene, second, intent) == "key_held"
            assert await refusal(scene, first, intent) == "key_held"
        assert await holder(scene, once()) == held_by(first, key)

    async def test_another_tool_value_or_tenant_is_another_key(self, scene: Scene) -> None:
        first, stranger = await scene.running(), await scene.running(tenant="tenant-blue")
        await scene.called(first, business=lock())
        assert await refusal(scene, first, scene.intent(business=lock("invoice-2"))) is None
        assert await refusal(scene, first, scene.intent(business=lock(tool="remind"))) is None
        assert await refusal(scene, stranger, scene.intent(business=lock())) is None
        assert len(await key_rows(scene)) == 4

    @pytest.mark.parametrize("business", [lock(), once()], ids=["lock", "once"])
    async def test_its_own_operation_sends_again_under_it(self, scene: Scene, business: BusinessKey) -> None:
        claimed = await scene.running()
        intent = scene.intent(business=business)
        await scene.write(claimed, intent)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
        assert await refusal(scene, claimed, await again(scene, claimed, intent)) is None
        assert await holder(scene, business) == held_by(claimed, intent.key)

    async def test_a_lock_goes_with_the_success(self, scene: Scene) -> None:
        first, second = await scene.running(), await scene.running()
        await scene.called(first, "succeeded", business=lock())
        assert await key_rows(scene) == []
        assert await refusal(scene, second, scene.intent(business=lock())) is None

    @pytest.mark.parametrize("business", [lock(), once()], ids=["lock", "once"])
    async def test_a_failure_gives_the_key_up(self, scene: Scene, business: BusinessKey) -> None:
        first, second = await scene.running(), await scene.running()
        await scene.called(first, "failed", business=business)
        assert await key_rows(scene) == []
        assert await refusal(scene, second, scene.intent(business=business)) is None

    async def test_once_stands_for_its_window_after_a_success(self, scene: Scene) -> None:
        first, second = await scene.running(ttl_us=9 * HOUR), await scene.running(ttl_us=9 * HOUR)
        key = await scene.called(first, business=once(window_us=HOUR))
        scene.pass_time(SECOND)
        await scene.write(first, await scene.outcome(first, key, "succeeded"))
        until = scene.now + HOUR
        assert await holder(scene, once()) == KeyHolder(task=first.task, key=key, state="done", until=until)
        intent = scene.intent(business=once())
        scene.pass_time(HOUR - 1)
        assert await refusal(scene, second, intent) == "key_done"
        assert await refusal(scene, first, intent) == "key_done"
        scene.pass_time(1)
        assert await refusal(scene, second, intent) is None
        assert await holder(scene, once()) == held_by(second, intent.key)
        assert len(await key_rows(scene)) == 1

    async def test_once_without_a_window_stands_for_good(self, scene: Scene) -> None:
        first, second = await scene.running(), await scene.running(ttl_us=99_999 * HOUR)
        business = replace(once(), window_us=None)
        await scene.called(first, "succeeded", business=business)
        scene.pass_time(9_999 * HOUR)
        assert await refusal(scene, second, scene.intent(business=business)) == "key_done"
        assert await refusal(scene, second, scene.intent(business=business, repeat=True)) is None

    async def test_a_person_may_go_ahead_although_it_is_done(self, scene: Scene) -> None:
        first, second = await scene.running(), await scene.running()
        await scene.called(first, "succeeded", business=once())
        intent = scene.intent(business=once(window_us=2 * HOUR), repeat=True)
        assert await refusal(scene, second, intent) is None
        assert await holder(scene, once()) == held_by(second, intent.key)
        await scene.write(second, await scene.outcome(second, intent.key, "succeeded"))
        done = await holder(scene, once())
        assert done == KeyHolder(task=second.task, key=intent.key, state="done", until=scene.now + 2 * HOUR)

    async def test_a_done_key_that_is_over_is_nobodys(self, scene: Scene) -> None:
        """The view goes by the database's own clock, which is not behind the scene's here."""
        claimed = await scene.running()
        await scene.called(claimed, "succeeded", business=once(window_us=1))
        await scene.store.health()
        assert await holder(scene, once()) is None

    async def test_a_locking_call_takes_over_a_done_key_that_is_over(self, scene: Scene) -> None:
        first, second = await scene.running(), await scene.running()
        await scene.called(first, "succeeded", business=once(window_us=SECOND))
        assert await refusal(scene, second, scene.intent(business=lock())) == "key_done"
        scene.pass_time(SECOND)
        key = await scene.called(second, "succeeded", business=lock())
        assert (await scene.operation(second, key)).state == "succeeded"
        assert await key_rows(scene) == []

    @pytest.mark.parametrize("state", ["failed", "succeeded"])
    async def test_an_end_without_a_call_gives_the_key_up(self, scene: Scene, state: Any) -> None:
        claimed = await scene.running()
        intent = scene.intent(business=once())
        await scene.write(claimed, intent)
        # Of a call that is under way a record says nothing.
        await scene.write(claimed, scene.planned(intent, state=state))
        assert await holder(scene, once()) == held_by(claimed, intent.key)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
        await scene.write(claimed, scene.planned(intent, state=state))
        assert (await scene.operation(claimed, intent.key)).state == state
        assert await key_rows(scene) == []

    @pytest.mark.parametrize("business", [None, lock("invoice-2"), lock(tool="remind")])
    async def test_an_attempt_under_another_key_gives_the_first_up(
        self, scene: Scene, business: BusinessKey | None
    ) -> None:
        claimed, other = await scene.running(), await scene.running()
        intent = scene.intent(business=lock())
        await scene.write(claimed, intent)
        await scene.write(claimed, await scene.outcome(claimed, intent.key, "planned"))
        await scene.called(claimed, business=lock("invoice-3"))
        await scene.write(claimed, replace(await again(scene, claimed, intent), business=business))
        if business is not None:
            assert await holder(scene, business) == held_by(claimed, intent.key)
        assert await refusal(scene, other, scene.intent(business=lock())) is None
        assert await refusal(scene, other, scene.intent(business=lock("invoice-3"))) == "key_held"

    async def test_the_next_call_of_a_task_follows_in_the_batch_of_the_outcome(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, business=lock())
        following = scene.intent(business=lock())
        await scene.write(claimed, await scene.outcome(claimed, key, "succeeded"), following)
        assert await holder(scene, lock()) == held_by(claimed, following.key)

    async def test_of_two_in_one_batch_the_first_place_wins(self, scene: Scene) -> None:
        """Whatever the order of the tasks' names."""
        tasks = [await scene.running() for _ in range(4)]
        values = ["invoice-b", "invoice-a", "invoice-c"]
        order = [tasks[2], tasks[0], tasks[3], tasks[1]]
        intents = {task.task: [scene.intent(business=lock(value)) for value in values] for task in order}
        batch = scene.batch(*(scene.writes(task, *intents[task.task]) for task in order))
        verdicts = await scene.store.flush(batch, now=scene.now)
        assert verdicts[0].refusals == ()
        for verdict in verdicts[1:]:
            assert verdict.refusals == ((0, "key_held"), (1, "key_held"), (2, "key_held"))
        assert {row["task"] for row in await key_rows(scene)} == {order[0].task}
        for loser in order[1:]:
            assert await scene.rows("operations", loser) == []

    async def test_of_two_of_one_task_the_first_wins(self, scene: Scene) -> None:
        claimed = await scene.running()
        one, two = scene.intent("b", business=lock()), scene.intent("a", business=lock())
        assert (await scene.flush(claimed, one, two)).refusals == ((1, "key_held"),)
        assert await holder(scene, lock()) == held_by(claimed, "b")

    async def test_a_first_place_that_is_refused_for_another_reason_does_not_take_the_key(
        self, scene: Scene
    ) -> None:
        first, second = await scene.running(), await scene.running()
        wrong = scene.intent(business=lock(), attempt=3, turn=3)
        right = scene.intent(business=lock())
        batch = scene.batch(scene.writes(first, wrong), scene.writes(second, right))
        verdicts = await scene.store.flush(batch, now=scene.now)
        assert [verdict.refusals for verdict in verdicts] == [((0, "not_planned"),), ()]
        assert await holder(scene, lock()) == held_by(second, right.key)

    async def test_a_refused_intent_leaves_no_key(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.store.pause(switch(claimed.tenant), now=scene.now)
        assert await refusal(scene, claimed, scene.intent(business=lock())) == "paused"
        assert await key_rows(scene) == []

    async def test_of_a_stale_lease_takes_no_key(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.lose(claimed)
        assert (await scene.flush(claimed, scene.intent(business=lock()))).kind == "stale"
        assert await key_rows(scene) == []

    @pytest.mark.parametrize("state", ["planned", "running", "unknown"])
    async def test_a_final_end_gives_up_keys_of_what_was_not_sent(self, scene: Scene, state: Any) -> None:
        claimed, other = await scene.running(), await scene.running()
        await scene.called(claimed, state, business=once("mine"))
        await scene.called(other, "planned", business=once("theirs"))
        await scene.called(claimed, "succeeded", business=once("done"))
        await scene.write(claimed, scene.failure())
        kept = {row["value"] for row in await key_rows(scene)}
        assert kept == {"theirs", "done"} | ({"mine"} if state != "planned" else set())

    @pytest.mark.parametrize("how", ["suspended", "released"])
    async def test_another_end_gives_up_none(self, scene: Scene, how: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "planned", business=lock())
        end: EndAttempt = scene.release() if how == "released" else scene.suspension("operator")
        await scene.write(claimed, end)
        assert await holder(scene, lock()) == held_by(claimed, key)

    async def test_a_deadline_gives_up_keys_of_what_was_not_sent(self, scene: Scene) -> None:
        claimed = await scene.running(deadline_us=30 * SECOND, ttl_us=9 * HOUR)
        await scene.called(claimed, "planned", business=lock("planned"))
        await scene.called(claimed, business=lock("running"))
        scene.now = (claimed.deadline_at or 0) + 6 * SECOND
        assert len((await scene.sweep(grace_us=5 * SECOND)).expired) == 1
        assert [row["value"] for row in await key_rows(scene)] == ["running"]

    async def test_parking_gives_up_keys_of_what_was_not_sent(self, scene: Scene) -> None:
        claimed = await scene.running()
        await scene.called(claimed, "planned", business=lock("planned"))
        await scene.called(claimed, "unknown", business=lock("unknown"))
        assert len((await scene.lose(claimed, max_deaths=1)).parked) == 1
        assert [row["value"] for row in await key_rows(scene)] == ["unknown"]

    async def test_a_lost_worker_gives_up_none(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "planned", business=lock())
        await scene.lose(claimed)
        assert await holder(scene, lock()) == held_by(claimed, key)

    @pytest.mark.parametrize("ended", [False, True])
    @pytest.mark.parametrize("verdict", ["happened", "did_not_happen", "send_again"])
    @pytest.mark.parametrize("business", [lock(), once(window_us=3 * HOUR)], ids=["lock", "once"])
    async def test_a_settlement_is_an_outcome_too(
        self, scene: Scene, business: BusinessKey, verdict: str, ended: bool
    ) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "unknown", business=business)
        if ended:
            await scene.write(claimed, scene.failure())
        scene.pass_time(12 * SECOND)
        [settled] = await scene.store.settle([scene.settlement(claimed, key, verdict)], now=scene.now)
        assert settled.kind == "settled"
        seen = await holder(scene, business)
        if verdict == "send_again":
            assert seen == held_by(claimed, key)
        elif verdict == "happened" and business.mode == "once":
            assert seen == KeyHolder(task=claimed.task, key=key, state="done", until=scene.now + 3 * HOUR)
        else:
            assert await key_rows(scene) == []

    @pytest.mark.parametrize("value", [*BAD_KEYS.values(), *WHITE_SPACE])
    async def test_a_value_that_breaks_the_rules_is_refused(
        self, scene: Scene, backdoor: Backdoor, value: str
    ) -> None:
        claimed = await scene.running()
        await scene.called(claimed, business=lock("é" * 255))
        [row] = await key_rows(scene)
        await refuses(scene, backdoor, _insert("business_keys", {**row, "value": value}))

    @pytest.mark.parametrize("value", NO_WHITE_SPACE)
    async def test_a_value_that_only_looks_like_white_space_is_held(self, scene: Scene, value: str) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, business=lock(value))
        assert await holder(scene, lock(value)) == held_by(claimed, key)

    async def test_modes_and_states_are_those_of_the_contract(self, scene: Scene, backdoor: Backdoor) -> None:
        claimed = await scene.running()
        await scene.called(claimed, business=lock())
        [row] = await key_rows(scene)
        here = where(row, "tenant", "tool", "value")
        await refuses(
            scene,
            backdoor,
            f"update business_keys set mode = 'twice' where {here}",
            f"update business_keys set state = 'free' where {here}",
            _insert("business_keys", row),
        )


class TestBusinessKeyRaces:
    """Two gates for one business key, on two connections."""

    async def test_exactly_one_is_admitted(self, scene: Scene, reopen: Reopen) -> None:
        stores = [scene.store, await reopen()]
        for turn in range(12):
            tasks = [await scene.running(), await scene.running()]
            # Opposite orders: whoever waits for the other in the order of its entries would wait for ever.
            values = [f"key-{turn}-{n}" for n in range(6)]
            orders = [values, values[::-1]]
            batches = [
                scene.batch(
                    scene.writes(task, *(scene.intent(business=lock(value)) for value in order)),
                    writer=f"wr_{place}",
                )
                for place, (task, order) in enumerate(zip(tasks, orders, strict=True))
            ]
            verdicts = await asyncio.gather(
                *(store.flush(batch, now=scene.now) for store, batch in zip(stores, batches, strict=True))
            )
            admitted: list[str] = []
            for [verdict], order in zip(verdicts, orders, strict=True):
                assert {name for _, name in verdict.refusals} <= {"key_held"}
                refused = {index for index, _ in verdict.refusals}
                admitted += [value for index, value in enumerate(order) if index not in refused]
            assert sorted(admitted) == values
        assert check_all(await scene.store.dump()) == []

    async def test_takeovers_and_releases_cross(self, scene: Scene, reopen: Reopen) -> None:
        """Each gives up what the other wants, and both want what has just run out."""
        stores = [scene.store, await reopen()]
        for turn in range(12):
            tasks = [await scene.running(), await scene.running()]
            mine = [f"mine-{turn}-{n}" for n in range(2)]
            over = [f"over-{turn}-{n}" for n in range(4)]
            for value in over:
                await scene.called(tasks[0], "succeeded", business=once(value, window_us=1))
            keys = [
                await scene.called(task, business=lock(value))
                for task, value in zip(tasks, mine, strict=True)
            ]
            scene.pass_time(SECOND)
            batches = []
            for place, task in enumerate(tasks):
                wanted = [mine[1 - place], *(over if place else over[::-1])]
                outcome = await scene.outcome(task, keys[place], "succeeded")
                intents = [scene.intent(business=lock(value)) for value in wanted]
                batches.append(scene.batch(scene.writes(task, outcome, *intents), writer=f"wr_{place}"))
            verdicts = await asyncio.gather(
                *(store.flush(batch, now=scene.now) for store, batch in zip(stores, batches, strict=True))
            )
            names = {name for [verdict] in verdicts for _, name in verdict.refusals}
            assert names <= {"key_held"}
            rows = {row["value"]: row for row in await key_rows(scene)}
            for value in over:
                assert rows[value]["state"] == "held"
            for [verdict], task in zip(verdicts, tasks, strict=True):
                assert verdict.kind == "accepted"
                # The outcome and each admitted intent: one operation for each key that it has.
                running = [row for row in await scene.rows("operations", task) if row["state"] == "running"]
                held = [row for row in rows.values() if (row["task"], row["state"]) == (task.task, "held")]
                assert {row["key"] for row in running} == {row["key"] for row in held}
        assert check_all(await scene.store.dump()) == []


def _insert(table: str, row: dict[str, Any]) -> str:
    return (
        f"insert into {table} ({', '.join(row)}) values ({', '.join(literal(one) for one in row.values())})"
    )
