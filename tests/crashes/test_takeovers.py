"""Who may work on a task, and for how long: leases, drains, deaths in a row, names."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta

from tests.crashes.scene import PATIENCE_S, Scene

from outlast.handle import TaskHandle
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Rule


async def test_work_longer_than_any_lease_is_done_once(scene: Scene) -> None:
    workers = [scene.worker(f"worker-{number}", lease_s=1.0) for number in range(2)]
    await asyncio.gather(*(worker.says("ready") for worker in workers))
    handles = [
        await scene.submit("long", {"invoice": f"INV-{number}", "seconds": 2.5}) for number in range(3)
    ]
    views = await scene.ended(*handles)
    # Renewed all the while: nobody else took them, although two workers looked ten times a second.
    assert [view.epoch for view in views] == [1, 1, 1]
    assert [len(calls) for calls in (await scene.posts()).values()] == [1, 1, 1]
    assert await scene.violations() == []


async def test_a_stopped_worker_hands_its_tasks_on_before_their_lease_runs_out(scene: Scene) -> None:
    first = scene.worker("first", lease_s=120.0)
    await first.says("ready")
    handles = [
        await scene.submit("stepwise", {"invoice": f"INV-{number}", "steps": 40}) for number in range(3)
    ]
    # All of them are held in their call, so that none can end before the worker is stopped.
    await scene.recorder.hold("slow", Rule(times=3))
    await scene.recorder.wait_for(calls=3, held="slow", timeout=PATIENCE_S)
    second = scene.worker("second", lease_s=120.0)
    await second.says("ready")
    first.send(signal.SIGTERM)
    # A call that is under way is let end, and its outcome recorded.
    await scene.recorder.release("slow")
    assert await first.exited() == 0
    views = await scene.ended(*handles)
    for view, handle in zip(views, handles, strict=True):
        assert view.result == 40
        attempts = await scene.app.attempts(handle.id)
        assert [one.end for one in attempts] == ["released", "succeeded"]
        assert attempts[0].worker == "first"
        assert attempts[1].worker == "second"
        assert attempts[0].ended_at is not None
        assert attempts[1].started_at - attempts[0].ended_at < timedelta(seconds=10)
    assert [len(calls) for calls in (await scene.posts()).values()] == [1, 1, 1]
    assert await second.stop() == 0
    assert await scene.violations() == []
    assert (await scene.app.store.dump())["sessions"] == []


async def test_a_task_that_takes_its_workers_down_is_parked_after_three(scene: Scene) -> None:
    poison = await scene.submit("poison", {})
    others = [await scene.submit("stepwise", {"invoice": f"INV-{n}", "steps": 2}) for n in range(3)]
    for number in range(3):
        worker = scene.worker(f"victim-{number}", slots=10)
        assert await worker.exited() == -9
    survivor = scene.worker("survivor")
    (parked, *views) = await scene.ended(poison, *others)
    assert parked.state == "failed"
    assert parked.error is not None
    assert parked.error["code"] == "crash_loop"
    assert await scene.ends(poison) == ["lost", "lost", "lost"]
    # Its neighbours died with it, as often as they were there; they are parked too, or they are done.
    for view in views:
        assert view.state == "succeeded" or (view.error or {})["code"] == "crash_loop"
    assert await survivor.stop() == 0
    assert await scene.violations() == []


async def test_two_workers_of_one_name_never_share_a_lease(scene: Scene) -> None:
    victim = scene.worker("twin", Trigger(point="effects.before_outcome", action="kill"), pools=["left"])
    # Long enough that a busy machine does not take its lease from the living one.
    other = scene.worker("twin", pools=["right"], lease_s=15.0)
    await asyncio.gather(victim.says("ready"), other.says("ready"))
    busy = await scene.submit("stepwise", {"invoice": "INV-busy", "steps": 60}, pool="right")
    handle = await scene.submit("journey", {"invoice": "INV-left"}, pool="left")
    assert await victim.exited() == -9
    # The other one of that name renews all the time; the dead one's task moves on all the same.
    heir = scene.worker("twin", pools=["left"])
    (view, done) = await scene.ended(handle, busy)
    assert (view.state, done.state) == ("succeeded", "succeeded")
    attempts = await scene.app.attempts(handle.id)
    assert attempts[0].end == "lost"
    assert {one.worker for one in attempts} == {"twin"}
    assert len({attempts[0].session, attempts[-1].session}) == 2
    assert [one.epoch for one in await scene.app.attempts(busy.id)] == [1]
    # Asked for by its key; on a machine too busy to answer the question, sent again under it.
    calls = (await scene.posts())[f"{handle.id}:create_ticket#1"]
    assert [call.effect for call in calls].count("created") == 1
    await asyncio.gather(other.stop(), heir.stop())
    assert await scene.violations() == []


async def test_a_worker_that_is_only_slow_to_stop_leaves_no_lease_for_its_grace_time(scene: Scene) -> None:
    """A call that never answers: the worker leaves after its grace time, and the call is left open."""
    await scene.recorder.plan(Rule.hang())
    worker = scene.worker("worker", lease_s=120.0, grace_s=0.5)
    await worker.says("ready")
    handle = await scene.submit("stepwise", {"invoice": "INV-1", "steps": 1})
    await scene.recorder.wait_for(method="POST")
    assert await worker.stop() == 0
    dump = await scene.app.store.dump()
    assert dump["leases"] == []
    assert [row["state"] for row in dump["operations"] if row["kind"] == "tool"] == ["unknown"]
    heir = scene.worker("heir")
    (view,) = await scene.ended(handle)
    assert view.state == "succeeded"
    # Asked first, found nothing, sent again with the same key.
    assert len((await scene.posts())[f"{handle.id}:create_ticket#1"]) == 2
    assert len(await scene.recorder.tickets()) == 1
    assert await heir.stop() == 0
    assert await scene.violations() == []


async def dies_in_a_call(scene: Scene, point: str, tool: str) -> TaskHandle:
    """Let a worker die around the one call of a task; answer the task."""
    pool = point.replace(".", "-")
    handle = await scene.submit("files", {"invoice": pool, "tool": tool}, pool=pool)
    victim = scene.worker(pool, Trigger(point=point, action="kill"), pools=[pool])
    assert await victim.exited() == -9
    return handle


async def waits_for_a_person(handle: TaskHandle) -> None:
    async with asyncio.timeout(20):
        async for event in handle.events():
            if event.kind == "task.waiting" and event.data["reason"] == "reconciliation":
                return


SENT, UNSENT = "http.after_answer", "http.before_send"
POOLS = ["http-after_answer", "http-before_send"]


async def test_what_cannot_be_sent_again_waits_for_a_person_after_a_death(scene: Scene) -> None:
    """Sent or not, nobody knows: one call at most, and a person says which."""
    await scene.recorder.configure(dedupe=False)
    sent, unsent = await asyncio.gather(
        dies_in_a_call(scene, SENT, "file_manual"), dies_in_a_call(scene, UNSENT, "file_manual")
    )
    heir = scene.worker("heir", pools=POOLS)
    await asyncio.gather(waits_for_a_person(sent), waits_for_a_person(unsent))
    keys = [f"{handle.id}:file_manual#1" for handle in (sent, unsent)]
    assert [call.key for call in await scene.recorder.log()] == keys[:1]
    assert [one.id for one in await scene.app.operations.list(state="unknown")] == sorted(keys)
    assert await scene.violations() == []
    (ticket,) = await scene.recorder.tickets()
    settle = scene.app.operations.settle
    await settle(keys[0], "happened", reason="seen there", by="kim", result=ticket["id"])
    await settle(keys[1], "send_again", reason="not there", by="kim", forced=True)
    views = await scene.ended(sent, unsent)
    assert [view.result for view in views] == [one["id"] for one in await scene.recorder.tickets()]
    assert [call.key for call in await scene.recorder.log()] == keys
    assert await heir.stop() == 0
    assert await scene.violations() == []


async def test_what_can_be_asked_is_asked_after_a_death_and_never_sent_on_absence(scene: Scene) -> None:
    await scene.recorder.configure(dedupe=False)
    sent, unsent = await asyncio.gather(
        dies_in_a_call(scene, SENT, "file_queryable"), dies_in_a_call(scene, UNSENT, "file_queryable")
    )
    heir = scene.worker("heir", pools=POOLS)
    (view,) = await scene.ended(sent)
    assert [view.result] == [ticket["id"] for ticket in await scene.recorder.tickets()]
    await waits_for_a_person(unsent)
    posts = [call for call in await scene.recorder.log() if call.method == "POST"]
    assert [call.key for call in posts] == [f"{sent.id}:file_queryable#1"]
    assert await heir.stop() == 0
    assert await scene.violations() == []
