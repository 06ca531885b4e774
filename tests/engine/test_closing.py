"""What an app leaves behind when it is closed: nothing."""

from __future__ import annotations

import asyncio

from tests.engine.house import House

from outlast import TaskContext


async def test_a_closed_app_leaves_no_asyncio_task_behind(house: House) -> None:
    """Also where followers wait: their reader is cut in the middle of its own waiting."""
    before = asyncio.all_tasks()

    @house.app.agent
    async def quick(task: TaskContext) -> int:
        return 1

    worker = house.start()
    handle = await house.submit(quick)
    assert (await house.ended(handle)).result == 1
    worker.stop()
    await house.stop()
    # No worker is left, so that its follower waits for as long as anybody wants.
    asleep = await house.submit(quick)
    seen = asyncio.Event()

    async def follow() -> None:
        async for _ in asleep.events():
            seen.set()

    following = asyncio.create_task(follow())
    async with asyncio.timeout(10):
        await seen.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await house.app.close()
    for _ in range(3):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert {task.get_coro() for task in left} == set()
