"""Hints: who is woken by what, and by nobody else's."""

from __future__ import annotations

import asyncio

import pytest

from outlast.testing.store_suite.scene import HOUR, Reopen, Scene


class TestWakes:
    """Hints: losing one costs time, never correctness, and most are not lost."""

    async def test_a_hint_ends_a_wait(self, scene: Scene) -> None:
        waiting = asyncio.ensure_future(scene.store.wakes.wait("queue", 30))
        await asyncio.sleep(0)
        scene.store.wakes.hint("queue")
        assert await asyncio.wait_for(waiting, 20)

    async def test_without_a_hint_a_wait_ends_by_its_time(self, scene: Scene) -> None:
        # Connecting may count as a hint.
        async with asyncio.timeout(20):
            while await scene.store.wakes.wait("queue", 0.01):
                pass

    async def test_submitting_hints_the_queue(self, scene: Scene) -> None:
        while await scene.store.wakes.wait("queue", 0.01):
            pass
        waiting = asyncio.ensure_future(scene.store.wakes.wait("queue", 30))
        await asyncio.sleep(0)
        await scene.submit()
        assert await asyncio.wait_for(waiting, 20)

    async def test_writing_events_hints_their_readers(self, scene: Scene) -> None:
        claimed = await scene.running()
        while await scene.store.wakes.wait("events", 0.01):
            pass
        waiting = asyncio.ensure_future(scene.store.wakes.wait("events", 30))
        await asyncio.sleep(0)
        await scene.write(claimed, scene.step(events=(scene.event(),)))
        assert await asyncio.wait_for(waiting, 20)

    @pytest.mark.parametrize(
        "how", ["success", "failure", "cancel", "mark", "expiry", "loss", "doubt", "family", "runs below"]
    )
    async def test_ending_hints_those_who_wait_for_ends(self, scene: Scene, how: str) -> None:
        session = await scene.session(ttl_us=9 * HOUR)
        claimed = await scene.running(session=session, deadline_us=HOUR)
        child = await scene.child(claimed) if how in ("family", "runs below") else None
        below = await scene.claim_task(child) if child is not None and how == "runs below" else None
        queued = await scene.submit()
        if how in ("mark", "loss", "doubt"):
            await scene.cancel(claimed)
        if child is not None:
            await scene.write(claimed, scene.success())
            if below is not None:
                await scene.deliver_all()
        while await scene.store.wakes.wait("ends", 0.01):
            pass
        waiting = asyncio.ensure_future(scene.store.wakes.wait("ends", 30))
        await asyncio.sleep(0)
        match how:
            case "success" | "mark":
                await scene.write(claimed, scene.success())
            case "failure":
                await scene.write(claimed, scene.failure())
            case "cancel":
                await scene.cancel(queued)
            case "expiry":
                scene.pass_time(2 * HOUR)
                await scene.sweep(grace_us=0)
            case "loss":
                scene.pass_time(10 * HOUR)
                await scene.sweep()
            case "doubt":
                await scene.store.reconcile(session, [], 1, now=scene.now)
            case "family":
                await scene.deliver_all()
            case "runs below":
                assert below is not None
                await scene.write(below, scene.success())
        assert await asyncio.wait_for(waiting, 20)

    async def test_what_goes_on_does_not(self, scene: Scene) -> None:
        """Whoever waits for ends would look for nothing, at each step of each task."""
        while await scene.store.wakes.wait("ends", 0.01):
            pass
        claimed = await scene.running()
        await scene.write(claimed, scene.step(events=(scene.event(),)))
        await scene.write(claimed, scene.timer(), scene.suspension("timer"))
        assert not await scene.store.wakes.wait("ends", 0.05)

    async def test_nobody_takes_the_hints_of_another(self, scene: Scene) -> None:
        """Two that wait again and again, of which one is busy when the hint comes."""
        busy, seen = asyncio.Event(), asyncio.Event()

        async def wait_twice() -> bool:
            while await scene.store.wakes.wait("queue", 0.01):
                pass
            busy.set()
            await seen.wait()
            return await scene.store.wakes.wait("queue", 20)

        other = asyncio.create_task(wait_twice())
        await busy.wait()
        waiting = asyncio.ensure_future(scene.store.wakes.wait("queue", 30))
        await asyncio.sleep(0)
        scene.store.wakes.hint("queue")
        assert await asyncio.wait_for(waiting, 20)
        seen.set()
        assert await asyncio.wait_for(other, 10)

    async def test_every_process_is_told(self, scene: Scene, reopen: Reopen) -> None:
        other = await reopen()
        while await other.wakes.wait("queue", 0.01):
            pass
        waiting = asyncio.ensure_future(other.wakes.wait("queue", 30))
        await asyncio.sleep(0)
        await scene.submit()
        assert await asyncio.wait_for(waiting, 20)
