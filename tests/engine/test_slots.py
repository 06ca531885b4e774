"""How many agents run at once, and what holds a slot."""

from __future__ import annotations

import asyncio

from tests.engine.house import PATIENCE_S, House

from outlast import Request, TaskContext
from outlast.store.entries import Batch, EndAttempt, Flushed


async def test_never_more_agents_run_than_there_are_slots(house: House) -> None:
    running = most = 0

    @house.app.agent
    async def busy(task: TaskContext) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            await task.step(asyncio.sleep, 0)
        running -= 1

    handles = await house.app.submit_many([Request(agent="busy") for _ in range(40)])
    house.start(slots=3)
    for handle in handles:
        assert (await house.ended(handle)).state == "succeeded"
    assert most == 3


async def test_a_task_whose_ending_is_on_its_way_holds_no_slot(house: House) -> None:
    held = asyncio.Event()
    second_began = asyncio.Event()
    flush = house.store.flush

    async def slow_flush(batch: Batch, **options: int | None) -> list[Flushed]:
        if any(isinstance(entry, EndAttempt) for write in batch.writes for entry in write.entries):
            # The first ending stays on its way until the second task has begun.
            held.set()
            await second_began.wait()
        return await flush(batch, **options)

    house.store.flush = slow_flush  # type: ignore[method-assign, assignment]

    @house.app.agent
    async def quick(task: TaskContext, number: int) -> int:
        if held.is_set():
            second_began.set()
        return number

    handles = [await house.submit(quick, number=number) for number in (1, 2)]
    house.start(slots=1)
    async with asyncio.timeout(PATIENCE_S):
        await second_began.wait()
    assert [(await house.ended(handle)).result for handle in handles] == [1, 2]
