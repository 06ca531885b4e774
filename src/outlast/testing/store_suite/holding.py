"""Tasks whose calls a switch holds back: kept with the refusal, told when it is taken back, and forgotten."""

from __future__ import annotations

import asyncio

import pytest

from outlast.store.posting import Delivered
from outlast.store.reconciling import EVERY_TENANT
from outlast.store.records import Claimed, TaskRef
from outlast.testing.store_suite.effects import refusal, switch
from outlast.testing.store_suite.scene import HOUR, Scene, changed

__all__ = ["TestHeldTasks"]


async def held(scene: Scene, tool: str = "refund", *, wait: bool = True) -> Claimed:
    """Have a task whose call was refused by a switch; it waits for an operator, unless it is to run on."""
    claimed = await scene.running(ttl_us=HOUR)
    assert await refusal(scene, claimed, scene.intent(name=tool)) == "paused"
    if wait:
        assert (await scene.write(claimed, scene.suspension("operator"))).state == "waiting"
    return claimed


async def by(scene: Scene) -> list[tuple[str, str, str]]:
    """Read by which switches which tasks are held back."""
    rows = (await scene.store.dump())["held_tasks"]
    return sorted((row["by_tenant"], row["scope"], row["task"]) for row in rows)


async def deliver(scene: Scene, limit: int = 500) -> Delivered:
    """Deliver once."""
    return await scene.store.deliver(limit, now=scene.now)


async def resume(scene: Scene, tenant: str, scope: str = "all") -> None:
    """Take a switch back."""
    assert await scene.store.resume(switch(tenant, scope), now=scene.now)


class TestHeldTasks:
    """A switch that is taken back wakes whom it held."""

    @pytest.mark.parametrize("scope", ["all", "tool:refund"])
    @pytest.mark.parametrize("everybody", [False, True])
    async def test_are_woken_when_it_is_taken_back(self, scene: Scene, scope: str, everybody: bool) -> None:
        tenant = EVERY_TENANT if everybody else scene.tenant
        await scene.store.pause(switch(tenant, scope), now=scene.now)
        claimed = await held(scene)
        assert await by(scene) == [(tenant, scope, claimed.task)]
        assert await deliver(scene) == Delivered()
        await resume(scene, tenant, scope)
        assert (await scene.task(claimed)).state == "waiting"
        delivered = await deliver(scene)
        assert delivered == Delivered(told=(TaskRef(tenant=claimed.tenant, task=claimed.task),))
        assert (await scene.task(claimed)).state == "queued"
        assert (await scene.kinds(claimed))[-1] == "task.woken"
        assert await by(scene) == []
        again = await scene.claim_task(claimed)
        assert again.facts == 1
        assert await refusal(scene, again, scene.intent(name="refund")) is None

    async def test_that_run_are_told(self, scene: Scene) -> None:
        await scene.store.pause(switch(scene.tenant), now=scene.now)
        session = await scene.session()
        record = await scene.submit()
        claimed = await scene.claim_task(record, session=session)
        assert await refusal(scene, claimed, scene.intent()) == "paused"
        await resume(scene, scene.tenant)
        assert [one.task for one in (await deliver(scene)).told] == [claimed.task]
        assert [(one.task, one.facts) for one in await scene.news(session)] == [(claimed.task, 1)]

    async def test_are_not_lost_in_the_moment_of_suspending(self, scene: Scene) -> None:
        await scene.store.pause(switch(scene.tenant), now=scene.now)
        claimed = await held(scene, wait=False)
        await resume(scene, scene.tenant)
        await deliver(scene)
        assert (await scene.write(claimed, scene.suspension("operator"))).state == "queued"

    async def test_of_two_switches_the_first_by_name_keeps_them(self, scene: Scene) -> None:
        for tenant, scope in (
            (scene.tenant, "tool:refund"),
            (EVERY_TENANT, "tool:refund"),
            (scene.tenant, "all"),
        ):
            await scene.store.pause(switch(tenant, scope), now=scene.now)
        claimed = await held(scene)
        assert await by(scene) == [(EVERY_TENANT, "tool:refund", claimed.task)]
        # One that did not keep it tells it nothing, and need not: the other stands.
        await resume(scene, scene.tenant)
        assert await deliver(scene) == Delivered()
        await resume(scene, EVERY_TENANT, "tool:refund")
        assert [one.task for one in (await deliver(scene)).told] == [claimed.task]
        again = await scene.claim_task(claimed)
        assert await refusal(scene, again, scene.intent(name="refund")) == "paused"
        assert await by(scene) == [(scene.tenant, "tool:refund", claimed.task)]

    async def test_with_several_calls_are_kept_once_and_told_once(self, scene: Scene) -> None:
        await scene.store.pause(switch(scene.tenant), now=scene.now)
        claimed = await held(scene, wait=False)
        batch = scene.batch(scene.writes(claimed, scene.intent(name="one"), scene.intent(name="two")))
        [verdict] = await scene.store.flush(batch, now=scene.now)
        assert verdict.refusals == ((0, "paused"), (1, "paused"))
        assert len(await by(scene)) == 1
        await resume(scene, scene.tenant)
        await deliver(scene)
        assert [row["facts"] for row in (await scene.store.dump())["tasks"]] == [1]

    async def test_of_several_switches_are_told_by_one_fact(self, scene: Scene) -> None:
        scopes = ("tool:one", "tool:two")
        for scope in scopes:
            await scene.store.pause(switch(scene.tenant, scope), now=scene.now)
        claimed = await scene.running()
        await scene.flush(claimed, scene.intent(name="one"), scene.intent(name="two"))
        assert [scope for _, scope, _ in await by(scene)] == list(scopes)
        for scope in scopes:
            await resume(scene, scene.tenant, scope)
        assert len((await deliver(scene)).told) == 1
        assert ([row["facts"] for row in (await scene.store.dump())["tasks"]], await by(scene)) == ([1], [])

    async def test_of_switches_that_stand_are_left_alone(self, scene: Scene) -> None:
        for scope in ("tool:a", "tool:b", "tool:c"):
            await scene.store.pause(switch(scene.tenant, scope), now=scene.now)
        kept = [await held(scene, tool) for tool in ("a", "b", "b", "c")]
        await resume(scene, scene.tenant, "tool:b")
        told = {one.task for one in (await deliver(scene)).told}
        assert told == {kept[1].task, kept[2].task}
        assert [scope for _, scope, _ in await by(scene)] == ["tool:a", "tool:c"]

    async def test_are_told_in_portions(self, scene: Scene) -> None:
        await scene.store.pause(switch(EVERY_TENANT), now=scene.now)
        all_of_them = {(await held(scene)).task for _ in range(5)}
        await resume(scene, EVERY_TENANT)
        portions = []
        told = set()
        while (delivered := await deliver(scene, 2)).told:
            portions.append(len(delivered.told))
            told |= {one.task for one in delivered.told}
            assert len(await by(scene)) == 5 - len(told)
        assert (portions, told) == ([2, 2, 1], all_of_them)

    async def test_come_behind_ends_that_are_delivered_and_share_the_portion(self, scene: Scene) -> None:
        await scene.store.pause(switch(scene.tenant), now=scene.now)
        claimed = await held(scene)
        parent = await scene.running()
        for _ in range(2):
            await scene.write(await scene.claim_task(await scene.child(parent)), scene.success())
        await resume(scene, scene.tenant)
        delivered = await deliver(scene, 2)
        assert ([one.task for one in delivered.told], delivered.more) == ([parent.task], True)
        assert [one.task for one in (await deliver(scene, 2)).told] == [claimed.task]

    async def test_a_parent_hears_of_a_child_and_of_the_switch_together(self, scene: Scene) -> None:
        await scene.store.pause(switch(scene.tenant), now=scene.now)
        parent = await held(scene, wait=False)
        await scene.write(await scene.claim_task(await scene.child(parent)), scene.success())
        await scene.write(parent, scene.suspension("operator"))
        await resume(scene, scene.tenant)
        assert [one.task for one in (await deliver(scene)).told] == [parent.task]
        again = await scene.claim_task(parent)
        assert again.facts == 2
        assert [row.number for row in await scene.store.read_inbox(parent.tenant, parent.task)] == [1]

    async def test_a_switch_that_stands_again_tells_nobody(self, scene: Scene) -> None:
        await scene.store.pause(switch(scene.tenant), now=scene.now)
        claimed = await held(scene)
        await resume(scene, scene.tenant)
        await scene.store.pause(switch(scene.tenant), now=scene.now)
        assert await deliver(scene) == Delivered()
        await resume(scene, scene.tenant)
        assert [one.task for one in (await deliver(scene)).told] == [claimed.task]

    @pytest.mark.parametrize("end", ["succeeds", "is cancelled", "runs out of time"])
    async def test_one_that_is_over_is_forgotten(self, scene: Scene, end: str) -> None:
        await scene.store.pause(switch(scene.tenant), now=scene.now)
        other = await held(scene)
        if end == "runs out of time":
            record = await scene.submit(deadline_us=HOUR // 60)
            claimed = await scene.claim_task(record)
            assert await refusal(scene, claimed, scene.intent()) == "paused"
            await scene.write(claimed, scene.suspension("operator"))
            scene.pass_time(HOUR // 30)
            await scene.sweep()
        else:
            claimed = await held(scene, wait=end == "is cancelled")
            if end == "is cancelled":
                await scene.cancel(claimed)
            else:
                await scene.write(claimed, scene.success())
        assert (await scene.task(claimed)).state in ("succeeded", "cancelled", "failed")
        assert [task for _, _, task in await by(scene)] == [other.task]

    async def test_an_admitted_call_leaves_nothing(self, scene: Scene) -> None:
        await scene.store.pause(switch(scene.tenant, "tool:other"), now=scene.now)
        assert await refusal(scene, await scene.running(), scene.intent(name="refund")) is None
        assert await by(scene) == []

    async def test_one_that_somebody_else_has_settled_leaves_nothing(self, scene: Scene) -> None:
        claimed = await scene.running()
        key = await scene.called(claimed, "succeeded")
        await scene.store.pause(switch(scene.tenant), now=scene.now)
        assert await refusal(scene, claimed, scene.intent(key)) == "not_planned"
        assert await by(scene) == []

    async def test_says_that_there_is_something_to_deliver(self, scene: Scene) -> None:
        await scene.store.pause(switch(scene.tenant), now=scene.now)
        await held(scene)
        while await scene.store.wakes.wait("posts", 0.05):
            pass
        waiting = asyncio.ensure_future(scene.store.wakes.wait("posts", 30))
        await asyncio.sleep(0)
        await resume(scene, scene.tenant)
        assert await asyncio.wait_for(waiting, 20)

    async def test_delivering_again_changes_nothing(self, scene: Scene) -> None:
        await scene.store.pause(switch(scene.tenant), now=scene.now)
        await held(scene)
        await resume(scene, scene.tenant)
        await deliver(scene)
        before = await scene.store.dump()
        assert await deliver(scene) == Delivered()
        assert changed(before, await scene.store.dump()) == {}
