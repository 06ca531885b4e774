"""In development, what works only by luck is told, once a place, and never without reason."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.engine.house import House

from outlast import TaskContext, telemetry


@pytest.fixture
def warned() -> Iterator[list[str]]:
    """What was warned of."""
    heard: list[str] = []
    stop = telemetry.subscribe(
        lambda signal: heard.append(signal.about) if isinstance(signal, telemetry.Warned) else None
    )
    yield heard
    stop()


async def test_a_timeout_of_asyncio_around_an_operation_is_told_once(house: House, warned: list[str]) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> int:
        for number in range(3):
            try:
                async with asyncio.timeout(0.01):
                    await task.wait("never", key=f"n{number}")
            except TimeoutError:
                continue
        return 1

    house.start(dev=True, linger_s=60.0)
    assert (await house.run(agent)).result == 1
    assert warned == ["agent: never was cut by the agent's own code, as by asyncio.timeout"]


async def test_an_unrecorded_race_is_told(house: House, warned: list[str]) -> None:
    async def noop(number: int) -> int:
        return number

    @house.app.agent
    async def agent(task: TaskContext) -> int:
        tasks = [asyncio.create_task(task.step(noop, number)) for number in range(2)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return sum([await one for one in tasks])

    house.start(dev=True)
    assert (await house.run(agent)).result == 1
    assert warned == ["agent: noop was awaited by asyncio.wait, which does not record what was first"]


@pytest.mark.parametrize("dev", [True, False])
async def test_what_is_repeatable_is_not_told(house: House, warned: list[str], dev: bool) -> None:
    async def noop(number: int) -> int:
        return number

    @house.app.agent
    async def agent(task: TaskContext) -> int:
        await asyncio.gather(task.step(noop, 1), task.step(noop, 2))
        await task.gather(task.step(noop, 3), task.sleep(0.01))
        async with asyncio.TaskGroup() as group:
            group.create_task(task.step(noop, 4))
        await task.first(task.wait("never"), task.sleep(0.01))
        async with asyncio.timeout(60):
            await task.step(noop, 5)
        if not dev:
            try:
                async with asyncio.timeout(0.01):
                    await task.wait("never", key="n")
            except TimeoutError:
                pass
        return 1

    house.start(dev=dev, linger_s=60.0)
    assert (await house.run(agent)).result == 1
    assert warned == []
