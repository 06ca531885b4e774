"""Workers die while a task undoes what it has done; whoever goes on undoes the rest, each effect once."""

from __future__ import annotations

from tests.crashes.scene import Scene, gathered

from outlast.handle import TaskHandle
from outlast.testing.probes import Trigger

# The first three passes are of the tickets, the next three of their withdrawals.
POINTS = [
    ("undo.before_decision", 1),
    ("undo.after_decision", 1),
    ("worker.after_end", 1),
    ("effects.before_intent", 4),
    ("effects.after_intent", 4),
    ("http.before_send", 5),
    ("http.after_answer", 4),
    ("http.after_answer", 6),
    ("effects.before_outcome", 5),
    ("effects.after_outcome", 4),
    ("worker.before_end", 2),
]
AT_ONCE = 6


def pool_of(point: str, nth: int) -> str:
    return f"{point.replace('.', '-')}-{nth}"


async def worker_dies(scene: Scene, point: str, nth: int) -> TaskHandle:
    """Let a worker die while its task undoes; answer the task."""
    pool = pool_of(point, nth)
    handle = await scene.submit("regrets", {"invoice": pool}, pool=pool)
    worker = scene.worker(pool, Trigger(point=point, action="kill", nth=nth), pools=[pool], slots=1)
    await worker.says(point)
    assert await worker.exited() == -9
    return handle


async def undone(scene: Scene, handle: TaskHandle) -> list[str]:
    """Answer the numbers of a task's tickets in the order in which they were withdrawn."""
    filed = {ticket["id"]: ticket["invoice"][-1] for ticket in await scene.recorder.tickets()}
    return [
        filed[str(call.ticket)]
        for call in await scene.recorder.log()
        if call.effect == "withdrawn" and str(call.key).startswith(f"{handle.id}:")
    ]


async def test_whatever_point_a_worker_dies_at_everything_is_undone_once_and_in_order(scene: Scene) -> None:
    handles = await gathered([worker_dies(scene, point, nth) for point, nth in POINTS], AT_ONCE)
    survivor = scene.worker("survivor", pools=[pool_of(*one) for one in POINTS])
    for view, handle in zip(await scene.ended(*handles), handles, strict=True):
        assert view.state == "failed"
        assert view.error is not None
        assert view.error["message"] == f"LookupError: {view.pool}"
        assert view.error["compensation"] == {
            "state": "complete",
            "undone": ["file_ticket#3", "file_ticket#2", "file_ticket#1"],
            "left": [],
        }, view.pool
        assert await undone(scene, handle) == ["2", "1", "0"], view.pool
    assert await survivor.stop() == 0
    assert await scene.violations() == []


async def test_a_cancel_with_undo_outlives_the_worker_that_undoes(scene: Scene) -> None:
    handle = await scene.submit("regrets", {"invoice": "INV-102", "waits": True})
    victim = scene.worker("victim", Trigger(point="http.after_answer", action="kill", nth=5), slots=1)
    async for event in handle.events():
        if event.kind == "task.waiting":
            break
    assert (await handle.cancel("not needed", by="kim", undo=True)).kind == "requested"
    assert await victim.exited() == -9
    survivor = scene.worker("survivor")
    (view,) = await scene.ended(handle)
    assert view.state == "cancelled"
    assert view.error is not None
    assert (view.error["message"], view.error["compensation"]["state"]) == ("not needed", "complete")
    assert await undone(scene, handle) == ["2", "1", "0"]
    assert await survivor.stop() == 0
    assert await scene.violations() == []
