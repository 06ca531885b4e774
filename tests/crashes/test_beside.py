"""A process that submits and works dies around the transaction in which it does both."""

from __future__ import annotations

from tests.crashes.scene import Scene

from outlast.testing.probes import Trigger

LEFT = {
    "submit.before_commit": None,
    "submit.after_commit": "running",
    "worker.claimed": "running",
    "worker.loaded": "running",
}
"""What each death leaves of the second task that its process submits."""


async def test_a_task_that_is_accepted_and_claimed_at_once_is_done_once(scene: Scene) -> None:
    handles = []
    for point, left in LEFT.items():
        pool = point.replace(".", "-")
        # The first task sleeps and is claimed again, where it is claimed at all.
        nth = 2 if point.startswith("submit.") else 3
        victim = scene.beside(
            pool, Trigger(point=point, action="kill", nth=nth), key=f"key-{pool}", pool=pool, invoice=pool
        )
        assert await victim.exited() == -9
        found = [view for view in await scene.app.list(limit=200) if view.pool == pool]
        views = [await scene.app.get(view.id) for view in found if view.state != "succeeded"]
        assert [(view.state, view.epoch) for view in views] == ([] if left is None else [(left, 1)])
        handle = await scene.submit("journey", {"invoice": pool}, key=f"key-{pool}", pool=pool)
        assert handle.replayed is (left is not None)
        handles.append(handle)
    survivor = scene.worker("survivor", pools=[point.replace(".", "-") for point in LEFT], lease_s=30.0)
    views = await scene.ended(*handles)
    assert [view.state for view in views] == ["succeeded"] * len(LEFT)
    assert await survivor.stop() == 0
    # The other side is the judge.
    posts = await scene.posts()
    assert [len(posts[f"{handle.id}:create_ticket#1"]) for handle in handles] == [1] * len(LEFT)
    assert await scene.violations() == []
