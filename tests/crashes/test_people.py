"""Processes die and freeze around waits, children and cancels; what was said stands."""

from __future__ import annotations

import asyncio

from tests.crashes.scene import Scene

from outlast.testing.probes import Trigger

FINAL = ("task.succeeded", "task.failed", "task.cancelled")


async def test_a_cancel_around_a_worker_that_stands_still_is_what_the_answer_said(scene: Scene) -> None:
    """Scenario O16, its tenth: frozen between the last step and the completion, before and after it is on
    disk."""
    for point, answer in (("worker.before_end", "requested"), ("worker.after_end", "ended succeeded")):
        pool = point.replace(".", "-")
        worker = scene.worker(
            pool, Trigger(point=point, action="freeze"), pools=[pool], calm=True, lease_s=60
        )
        handle = await scene.submit("stepwise", {"invoice": pool, "steps": 2}, pool=pool)
        await worker.says(point)
        await worker.stopped()
        reply = await asyncio.gather(handle.cancel("race", by="kim"), return_exceptions=True)
        said = getattr(reply[0], "kind", None) or f"ended {getattr(reply[0], 'state', '')}"
        assert said == answer
        worker.thaw()
        (view,) = await scene.ended(handle)
        assert view.state == ("cancelled" if answer == "requested" else "succeeded")
        final = [event.kind for event in await scene.app.stored_events(handle.id) if event.kind in FINAL]
        assert final == [f"task.{view.state}"]
        assert await worker.stop() == 0
    assert await scene.violations() == []


async def test_a_worker_that_dies_with_a_cancel_outstanding_leaves_a_cancelled_task(scene: Scene) -> None:
    worker = scene.worker("victim", Trigger(point="worker.before_end", action="freeze"), calm=True)
    handle = await scene.submit("stepwise", {"invoice": "INV-102", "steps": 2})
    await worker.says("worker.before_end")
    await worker.stopped()
    assert (await handle.cancel("stop", by="kim")).kind == "requested"
    worker.kill()
    assert await worker.exited() == -9
    survivor = scene.worker("survivor")
    (view,) = await scene.ended(handle)
    assert (view.state, view.error and view.error["message"]) == ("cancelled", "stop")
    assert await scene.ends(handle) == ["cancelled"]
    assert await survivor.stop() == 0
    assert await scene.violations() == []


async def test_a_signal_before_during_and_after_a_death_is_taken_once(scene: Scene) -> None:
    """The worker dies when it has read the signal and not taken it on record; the next one takes it."""
    handles = [await scene.submit("waits", {"invoice": f"INV-{number}"}) for number in range(3)]
    await handles[0].signal("go", "1")
    victim = scene.worker("victim", Trigger(point="waits.before_take", action="kill"))
    assert await victim.exited() == -9
    await handles[1].signal("go", "2")
    survivor = scene.worker("survivor")
    async for event in handles[2].events():
        if event.kind == "operation.started":
            break
    await handles[2].signal("go", "3")
    views = await scene.ended(*handles)
    assert [view.result["note"] for view in views] == ["1", "2", "3"]
    assert [len(calls) for calls in (await scene.posts()).values()] == [1, 1, 1]
    assert await survivor.stop() == 0
    assert await scene.violations() == []


async def test_a_worker_that_runs_parent_and_child_dies_around_the_childs_end(scene: Scene) -> None:
    """Before the end is on disk; as it tells the parent; when that has it on record in memory only."""
    points = {"worker.before_end": 0, "waits.before_take": 1, "worker.after_end": 1}
    handles = []
    for point, ended in points.items():
        pool = point.replace(".", "-")
        handle = await scene.submit("journey", {"invoice": pool, "pool": pool}, pool=pool)
        handles.append(handle)
        victim = scene.worker(
            pool, Trigger(point=point, action="kill"), pools=[pool], linger_s=60.0, sweep_s=60.0
        )
        assert await victim.exited() == -9
        dump = await scene.app.store.dump()
        [child] = [row for row in dump["operations"] if (row["task"], row["kind"]) == (handle.id, "child")]
        assert child["state"] == "running"
        # What the end has left lies there for whoever comes next.
        assert len([row for row in dump["posts"] if row["task"] == handle.id]) == ended
    survivor = scene.worker("survivor", pools=[point.replace(".", "-") for point in points])
    views = await scene.ended(*handles)
    assert [view.state for view in views] == ["succeeded"] * 3
    assert [len(calls) for calls in (await scene.posts()).values()] == [1, 1, 1]
    assert await survivor.stop() == 0
    assert (await scene.app.store.dump())["posts"] == []
    assert await scene.violations() == []
