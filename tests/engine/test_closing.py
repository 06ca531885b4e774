"""What an app leaves behind when it is closed: nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.house import House

from outlast import Outlast, TaskContext
from outlast.errors import StoreUnavailable


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


def test_what_was_closed_is_opened_again_in_another_loop_too(
    store_kind: str, request: pytest.FixtureRequest
) -> None:
    """As a script does that keeps its app, or a test that runs loops of its own."""
    fixture = {"sqlite-file": "sqlite_url", "postgres": "postgres_url"}[store_kind]
    app = Outlast("tests", database_url=str(request.getfixturevalue(fixture)))

    @app.agent
    async def quick(task: TaskContext, number: int) -> int:
        return number

    async def use(number: int) -> Any:
        for again in range(2):
            await app.open(migrate=True)
            async with app:
                worker = app.worker()
                running = asyncio.create_task(worker.run())
                handles = await asyncio.gather(*(app.submit(quick, {"number": number}) for _ in range(20)))
                # More at once than there are connections to read with.
                await asyncio.gather(*(handle.get() for handle in handles))
                assert {await handle.result(timeout=20) for handle in handles} == {number}, again
                worker.stop()
                await running
            with pytest.raises(StoreUnavailable):
                await app.get(handles[0].id)

    for number in range(2):
        asyncio.run(use(number))
