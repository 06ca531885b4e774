"""Children: who may have them, how their ends reach their parent, and how a parent's end reaches them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from outlast.store.changing import Retry
from outlast.store.records import Claimed, InboxRow, Submission, Submitted, TaskRef
from outlast.store.rows import TaskFilter
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.posting import head, inbox, quiet, session_of
from outlast.testing.store_suite.scene import HOUR, SECOND, Reopen, Scene, changed

__all__ = ["TestChildEnds", "TestParentEnds", "TestSpawn"]


def ref(of: Any) -> TaskRef:
    """Name a task."""
    return TaskRef(tenant=of.tenant, task=of.task)


def child_of(scene: Scene, claimed: Claimed, **changes: Any) -> Submission:
    """Make the record of a child."""
    return scene.submission(key=None, parent=replace(scene.parent(claimed), **changes))


class TestSpawn:
    """``submit`` of a child."""

    async def test_stores_every_value_in_its_place(self, scene: Scene) -> None:
        parent = await scene.running()
        before = await head(scene, parent)
        kids = [await scene.child(parent, "one"), await scene.child(parent, "two", detached=True)]
        for kid, key, detached in zip(kids, ("one", "two"), (False, True), strict=True):
            [row] = await scene.rows("inputs", kid)
            assert (row["parent"], row["parent_key"], bool(row["detached"])) == (parent.task, key, detached)
            task = await scene.task(kid)
            assert (task.state, task.parent, task.children) == ("queued", parent.task, 0)
        # An event each puts them on their parent's record.
        last = before["last_event"] + 2
        assert await head(scene, parent) == {**before, "children": 2, "last_event": last}
        task = await scene.task(parent)
        assert (task.parent, task.children) == (None, 2)
        [row] = await scene.rows("inputs", parent)
        assert (row["parent"], row["parent_key"], bool(row["detached"])) == (None, None, False)

    async def test_puts_a_child_on_its_parents_record(self, scene: Scene) -> None:
        parent = await scene.running()
        last = (await scene.task(parent)).last_event
        kids = [child_of(scene, parent, key=key) for key in ("one", "two")]
        await scene.accept(kids)
        events = await scene.events(parent, after=last)
        for kid, event in zip(kids, events, strict=True):
            assert kid.parent is not None
            row = await scene.operation(parent, kid.parent.key)
            begun = (row.kind, row.name, row.state, row.epoch)
            assert begun == ("child", kid.agent, "running", parent.epoch)
            sent = (row.position, row.request, row.arguments, row.attempt, row.turn)
            assert sent == (kid.parent.position, kid.parent.request, kid.input, 0, 0)
            assert (row.result, row.error, row.due_at, row.ended_at) == (None, None, None, None)
            [submitted] = await scene.events(kid)
            assert row.created_at == event.at == submitted.at
            assert (event.kind, event.epoch) == ("operation.started", parent.epoch)
            assert json.loads(event.data) == {
                "operation": kid.parent.key,
                "kind": "child",
                "name": kid.agent,
                "child": kid.task,
            }
        # Its worker goes on from there.
        await scene.write(parent, scene.step("three"))
        assert check_all(await scene.store.dump()) == []

    async def test_what_is_on_record_stands(self, scene: Scene) -> None:
        """Under the key that a child comes with; its parent's code would have been told."""
        parent = await scene.running()
        await scene.write(parent, scene.step("taken"))
        before = await scene.operation(parent, "taken")
        await scene.child(parent, "taken")
        assert await scene.operation(parent, "taken") == before

    async def test_many_at_once_of_several_parents(self, scene: Scene) -> None:
        parents = [await scene.running() for _ in range(3)]
        kids = [child_of(scene, parents[n % 3]) for n in range(12)]
        await scene.accept([*kids, scene.submission()])
        assert [(await scene.task(parent)).children for parent in parents] == [4, 4, 4]
        listed = await scene.store.list_tasks(TaskFilter(tenant=scene.tenant, parent=parents[1].task))
        assert {row.task for row in listed} == {kid.task for kid in kids[1::3]}
        for n, parent in enumerate(parents):
            said = [json.loads(event.data) for event in await scene.events(parent)]
            assert [one["child"] for one in said if "child" in one] == [kid.task for kid in kids[n::3]]
        assert check_all(await scene.store.dump()) == []

    async def test_a_repeat_is_accepted_and_counted_once(self, scene: Scene) -> None:
        parent = await scene.running()
        kid = await scene.child(parent)
        before = await scene.store.dump()
        verdict = Submitted(kind="accepted", task=kid.task)
        assert await scene.store.submit([kid]) == [verdict]
        assert await scene.store.submit([kid, kid]) == [verdict] * 2
        assert changed(before, await scene.store.dump()) == {}

    @pytest.mark.parametrize("how", ["released", "suspended", "ended", "lost", "claimed-again", "cancelling"])
    async def test_of_a_parent_that_runs_no_more_is_stale(self, scene: Scene, how: str) -> None:
        parent = await scene.running()
        first = await scene.child(parent)
        if how == "lost":
            await scene.lose(parent)
        elif how == "cancelling":
            await scene.cancel(parent)
        else:
            end = {"suspended": scene.suspension("child"), "ended": scene.success()}.get(how)
            await scene.write(parent, end or scene.release())
        if how == "claimed-again":
            await scene.claim_task(parent)
        late = child_of(scene, parent)
        alone = scene.submission()
        before = await scene.store.dump()
        assert await scene.store.submit([late]) == [Submitted(kind="stale", task=late.task)]
        # One that exists already is accepted whatever became of its parent.
        assert await scene.store.submit([first]) == [Submitted(kind="accepted", task=first.task)]
        assert changed(before, await scene.store.dump()) == {}
        # Nobody else is held back.
        assert [one.kind for one in await scene.store.submit([late, alone, first])] == [
            "stale",
            "accepted",
            "accepted",
        ]
        assert await scene.store.read_tasks([ref(late)]) == []

    async def test_of_an_epoch_to_come_is_stale(self, scene: Scene) -> None:
        parent = await scene.running()
        for wrong in (parent.epoch - 1, parent.epoch + 1):
            [verdict] = await scene.store.submit([child_of(scene, parent, epoch=wrong)])
            assert verdict.kind == "stale"
        assert (await scene.task(parent)).children == 0

    async def test_of_nobody_is_stale(self, scene: Scene) -> None:
        parent = await scene.running()
        wrong = [
            child_of(scene, parent, task=scene.submission().task),
            replace(child_of(scene, parent), tenant="tenant-blue"),
            child_of(scene, replace(parent, task=(await scene.submit()).task), epoch=0),
        ]
        before = await scene.store.dump()
        assert [one.kind for one in await scene.store.submit(wrong)] == ["stale"] * 3
        assert changed(before, await scene.store.dump()) == {}

    async def test_a_successor_has_children_too(self, scene: Scene) -> None:
        parent = await scene.running()
        kid = await scene.child(parent)
        await scene.write(parent, scene.release())
        again = await scene.claim_task(parent)
        await scene.child(again)
        # What the one before had spawned is found under its own id.
        assert [one.kind for one in await scene.store.submit([kid])] == ["accepted"]
        assert (await scene.task(parent)).children == 2


# -- the ends of children --------------------------------------------------------------------------------


async def succeeded(scene: Scene, kid: Submission) -> None:
    await scene.write(await scene.claim_task(kid), scene.success())


async def failed(scene: Scene, kid: Submission) -> None:
    await scene.write(await scene.claim_task(kid), scene.failure())


async def cancelled(scene: Scene, kid: Submission) -> None:
    claimed = await scene.claim_task(kid)
    await scene.write(claimed, scene.failure(attempt_end="cancelled", task_state="cancelled"))


async def cancelled_while_queued(scene: Scene, kid: Submission) -> None:
    assert (await scene.cancel(kid)).kind == "cancelled"


async def cancelled_while_running(scene: Scene, kid: Submission) -> None:
    claimed = await scene.claim_task(kid)
    await scene.cancel(kid)
    await scene.write(claimed, scene.success())


async def _living(scene: Scene) -> None:
    for row in (await scene.store.dump())["sessions"]:
        await scene.session(ttl_us=99 * HOUR, session=row["id"])


async def expired(scene: Scene, kid: Submission) -> None:
    await _living(scene)
    scene.now = ((await scene.task(kid)).deadline_at or 0) + 1
    assert (await scene.sweep(grace_us=0)).expired == (ref(kid),)


async def parked(scene: Scene, kid: Submission) -> None:
    await _living(scene)
    await scene.claim_task(kid)
    scene.pass_time(61 * SECOND)
    assert (await scene.sweep(max_deaths=1)).parked == (ref(kid),)


ENDS: dict[str, tuple[str, Callable[[Scene, Submission], Awaitable[None]]]] = {
    "succeeded": ("succeeded", succeeded),
    "failed": ("failed", failed),
    "cancelled": ("cancelled", cancelled),
    "cancelled-while-queued": ("cancelled", cancelled_while_queued),
    "cancelled-while-running": ("cancelled", cancelled_while_running),
    "expired": ("failed", expired),
    "parked": ("failed", parked),
}


class TestChildEnds:
    """The verb ``deliver``, from child to parent."""

    @pytest.mark.parametrize("how", ENDS)
    async def test_every_end_reaches_the_parent_once(self, scene: Scene, how: str) -> None:
        state, drive = ENDS[how]
        parent = await scene.running(ttl_us=99 * HOUR)
        kid = await scene.child(parent, "kid", deadline_us=HOUR)
        await drive(scene, kid)
        assert (await scene.task(kid)).state == state
        assert await inbox(scene, parent) == []
        last = (await scene.task(parent)).last_event
        scene.pass_time(3 * SECOND)
        delivered = await scene.store.deliver(500, now=scene.now)
        assert (delivered.told, delivered.cancelled) == ((ref(parent),), ())
        [row] = await inbox(scene, parent)
        assert row == InboxRow(
            tenant=parent.tenant,
            task=parent.task,
            number=parent.facts + 1,
            kind="child",
            name="kid",
            data=row.data,
            at=scene.now,
        )
        assert json.loads(row.data) == {"task": kid.task, "state": state}
        assert [(one.task, one.facts) for one in await scene.news(await session_of(scene, parent))] == [
            (parent.task, row.number)
        ]
        assert await scene.kinds(parent, after=last) == []
        before = await scene.store.dump()
        again = await scene.store.deliver(500, now=scene.now)
        assert (again.told, again.cancelled, again.more) == ((), (), False)
        assert changed(before, await scene.store.dump()) == {}
        assert before["posts"] == []

    @pytest.mark.parametrize("reason", ["child", "signal", "timer", "operator"])
    async def test_wakes_a_parent_that_waits(self, scene: Scene, reason: str) -> None:
        parent = await scene.running()
        kid = await scene.child(parent)
        wake_in_us = 2 * HOUR if reason == "timer" else None
        await scene.write(parent, scene.suspension(reason, wake_in_us=wake_in_us))
        await succeeded(scene, kid)
        last = (await scene.task(parent)).last_event
        await scene.store.deliver(500, now=scene.now)
        assert (await scene.task(parent)).state == "queued"
        [event] = await scene.events(parent, after=last)
        assert (event.kind, json.loads(event.data)) == ("task.woken", {"reason": reason})
        assert await scene.rows("timers", parent) == []
        assert (await scene.claim_task(parent)).facts == 1

    async def test_a_suspension_that_has_not_seen_it_is_queued_at_once(self, scene: Scene) -> None:
        parent = await scene.running()
        await succeeded(scene, await scene.child(parent))
        await scene.store.deliver(500, now=scene.now)
        verdict = await scene.write(parent, scene.suspension("child", facts=parent.facts))
        assert verdict.state == "queued"

    async def test_in_the_order_of_their_ends(self, scene: Scene) -> None:
        parent = await scene.running(ttl_us=9 * HOUR)
        kids = [await scene.child(parent, f"kid-{n}") for n in range(5)]
        for place in (3, 0, 4, 1, 2):
            await succeeded(scene, kids[place])
        portions: list[int] = []
        seen: list[str] = []
        while (await scene.store.deliver(2, now=scene.now)).told:
            seen = [row.name for row in await inbox(scene, parent)]
            portions.append(len(seen))
        assert portions == [2, 4, 5]
        assert seen == ["kid-3", "kid-0", "kid-4", "kid-1", "kid-2"]
        assert [row.number for row in await inbox(scene, parent)] == [1, 2, 3, 4, 5]

    async def test_says_that_there_is_something_to_deliver(self, scene: Scene) -> None:
        parent = await scene.running()
        claimed = await scene.claim_task(await scene.child(parent))
        await quiet(scene, "posts")
        waiting = asyncio.ensure_future(scene.store.wakes.wait("posts", 30))
        await asyncio.sleep(0)
        await scene.write(claimed, scene.success())
        assert await asyncio.wait_for(waiting, 20)

    async def test_of_a_detached_child_too(self, scene: Scene) -> None:
        parent = await scene.running()
        await failed(scene, await scene.child(parent, detached=True))
        await scene.deliver_all()
        assert [row.kind for row in await inbox(scene, parent)] == ["child"]

    async def test_is_taken_on_record(self, scene: Scene) -> None:
        parent = await scene.running()
        await succeeded(scene, await scene.child(parent))
        await scene.deliver_all()
        await scene.write(parent, scene.step("awaited", kind="child", takes=(1,)))
        assert await inbox(scene, parent) == []

    async def test_a_parent_that_has_ended_is_told_nothing(self, scene: Scene) -> None:
        parent = await scene.running()
        kid = await scene.child(parent, detached=True)
        await scene.write(parent, scene.success())
        await succeeded(scene, kid)
        before = await scene.store.dump()
        delivered = await scene.store.deliver(500, now=scene.now)
        assert (delivered.told, delivered.cancelled) == ((), ())
        assert set(changed(before, await scene.store.dump())) == {"posts"}

    async def test_a_task_without_parent_or_children_leaves_nothing(self, scene: Scene) -> None:
        await scene.write(await scene.running(), scene.success())
        assert (await scene.store.dump())["posts"] == []
        delivered = await scene.store.deliver(500, now=scene.now)
        assert (delivered.told, delivered.cancelled, delivered.more) == ((), (), False)

    async def test_of_another_tenants_twin_reaches_its_own_parent(self, scene: Scene) -> None:
        parent = await scene.running()
        record = replace(scene.submission(tenant="tenant-blue"), task=parent.task)
        await scene.accept([record])
        twin = await scene.claim_task(record)
        kids = [await scene.child(parent, "green"), await scene.child(twin, "blue")]
        for kid in kids:
            await succeeded(scene, kid)
        await scene.deliver_all()
        assert [row.name for row in await inbox(scene, parent)] == ["green"]
        assert [row.name for row in await inbox(scene, twin)] == ["blue"]

    async def test_several_deliver_at_once(self, scene: Scene, reopen: Reopen) -> None:
        stores = [scene.store, await reopen()]
        parents = [await scene.running(ttl_us=9 * HOUR) for _ in range(2)]
        for n in range(24):
            await succeeded(scene, await scene.child(parents[n % 2], f"kid-{n}"))
        for _ in range(24):
            await asyncio.gather(*(store.deliver(3, now=scene.now) for store in stores))
            if not (await scene.store.dump())["posts"]:
                break
        for parent in parents:
            rows = await inbox(scene, parent)
            assert len({row.name for row in rows}) == len(rows) == 12
        assert check_all(await scene.store.dump()) == []


# -- the ends of parents ---------------------------------------------------------------------------------


class TestParentEnds:
    """The verb ``deliver``, from parent to children."""

    async def test_a_child_that_has_ended_in_the_same_batch_stays_as_it_is(self, scene: Scene) -> None:
        parent = await scene.running()
        over, runs = [await scene.claim_task(await scene.child(parent, name)) for name in ("over", "runs")]
        batch = scene.batch(scene.writes(over, scene.success()), scene.writes(parent, scene.success()))
        await scene.store.flush(batch, now=scene.now)
        last = (await scene.task(over)).last_event
        await scene.deliver_all()
        assert ((await scene.task(over)).state, (await scene.task(over)).last_event) == ("succeeded", last)
        assert (await scene.task(runs)).cancelling

    @pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
    async def test_cancels_its_children(self, scene: Scene, state: str) -> None:
        parent = await scene.running(ttl_us=9 * HOUR)
        kids = {name: await scene.child(parent, name) for name in ("queued", "running", "waiting", "over")}
        kids["free"] = await scene.child(parent, "free", detached=True)
        running = await scene.claim_task(kids["running"])
        await scene.write(await scene.claim_task(kids["waiting"]), scene.suspension("signal"))
        await succeeded(scene, kids["over"])
        end = scene.success() if state == "succeeded" else scene.failure(attempt_end=state, task_state=state)
        await scene.write(parent, end)
        assert (await scene.task(kids["queued"])).state == "queued"
        delivered = await scene.store.deliver(500, now=scene.now)
        assert {one.task for one in delivered.cancelled} == {
            kids[name].task for name in ("queued", "running", "waiting")
        }
        states = {name: (await scene.task(kid)).state for name, kid in kids.items()}
        assert states == {
            "queued": "cancelled",
            "running": "running",
            "waiting": "cancelled",
            "over": "succeeded",
            "free": "queued",
        }
        assert (await scene.task(running)).cancelling
        final = (await scene.events(kids["queued"]))[-1]
        assert json.loads(final.data) == {
            "by": "parent",
            "reason": "its parent ended",
            "effects_open": 0,
        }
        error = (await scene.task(kids["waiting"])).error
        assert json.loads(error or "") == {"code": "cancelled", "message": "its parent ended"}
        await scene.write(running, scene.success())
        assert (await scene.task(running)).state == "cancelled"
        await scene.deliver_all()
        # Those that may be tried again know how their children ended.
        heard = {json.loads(row.data)["task"] for row in await inbox(scene, parent)}
        over = {kids[name].task for name in ("queued", "running", "waiting", "over")}
        assert heard == (set() if state == "succeeded" else over)

    @pytest.mark.parametrize("state", ["failed", "cancelled"])
    async def test_one_that_is_tried_again_hears_how_its_children_have_ended_meanwhile(
        self, scene: Scene, state: str
    ) -> None:
        parent = await scene.running(ttl_us=9 * HOUR)
        kid = await scene.child(parent, "kid")
        await scene.write(parent, scene.failure(attempt_end=state, task_state=state))
        before = await scene.task(parent)
        delivered = await scene.store.deliver(500, now=scene.now)
        assert [one.task for one in delivered.cancelled] == [kid.task]
        await scene.deliver_all()
        task = await scene.task(parent)
        assert (task.state, task.last_event) == (state, before.last_event)
        asked = Retry(tenant=parent.tenant, task=parent.task, by="person:ria", reason="once more")
        [retried] = await scene.store.retry([asked], now=scene.now)
        assert retried.kind == "retried"
        again = await scene.claim_task(parent)
        [row] = await inbox(scene, parent)
        assert (row.kind, row.name, json.loads(row.data)) == (
            "child",
            "kid",
            {"task": kid.task, "state": "cancelled"},
        )
        # What was there before the claim is no news to the worker.
        assert again.facts == 1
        assert check_all(await scene.store.dump()) == []

    async def test_by_a_cancel_of_a_parent_that_waits(self, scene: Scene) -> None:
        parent = await scene.running()
        kid = await scene.child(parent)
        await scene.write(parent, scene.suspension("child"))
        await scene.cancel(parent)
        await scene.deliver_all()
        assert (await scene.task(kid)).state == "cancelled"

    @pytest.mark.parametrize("how", ["expired", "parked"])
    async def test_by_the_sweeper(self, scene: Scene, how: str) -> None:
        record = await scene.submit(deadline_us=HOUR)
        kid = await scene.child(await scene.claim_task(record))
        if how == "parked":
            scene.pass_time(61 * SECOND)
            assert (await scene.sweep(max_deaths=1)).parked == (ref(record),)
        else:
            await expired(scene, record)
        await scene.deliver_all()
        assert (await scene.task(kid)).state == "cancelled"

    async def test_goes_down_to_grandchildren(self, scene: Scene) -> None:
        family = [await scene.running(ttl_us=9 * HOUR)]
        for _ in range(3):
            family.append(await scene.claim_task(await scene.child(family[-1]), ttl_us=9 * HOUR))
        free = await scene.child(family[1], detached=True)
        for parent in family[1:]:
            await scene.write(parent, scene.suspension("child"))
        await scene.write(family[0], scene.failure())
        await scene.deliver_all()
        states = [(await scene.task(one)).state for one in family]
        assert states == ["failed", "cancelled", "cancelled", "cancelled"]
        assert (await scene.task(free)).state == "queued"
        for one in family[1:]:
            assert (await scene.kinds(one)).count("task.cancelled") == 1
        assert check_all(await scene.store.dump()) == []

    async def test_what_runs_below_ends_when_its_worker_does(self, scene: Scene) -> None:
        top = await scene.running(ttl_us=9 * HOUR)
        middle = await scene.claim_task(await scene.child(top), ttl_us=9 * HOUR)
        bottom = await scene.child(middle)
        await scene.write(top, scene.success())
        await scene.deliver_all()
        # The mark is not the end: until that, its own children go on.
        assert (await scene.task(bottom)).state == "queued"
        await scene.write(middle, scene.suspension("child"))
        await scene.deliver_all()
        assert (await scene.task(bottom)).state == "cancelled"

    async def test_in_portions(self, scene: Scene) -> None:
        parent = await scene.running()
        kids = [await scene.child(parent) for _ in range(5)]
        await scene.write(parent, scene.success())
        first = await scene.store.deliver(2, now=scene.now)
        assert (len(first.cancelled), first.more) == (2, True)
        await scene.deliver_all()
        assert {(await scene.task(kid)).state for kid in kids} == {"cancelled"}
