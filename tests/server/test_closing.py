"""A service that stops wakes whoever waits in it."""

from __future__ import annotations

import asyncio

import pytest

from outlast.server.closing import Closing, Stopping


async def test_what_comes_in_time_is_answered() -> None:
    closing = Closing()
    assert await closing.unless_closed(asyncio.sleep(0, "it came")) == "it came"
    with pytest.raises(ZeroDivisionError):
        await closing.unless_closed(divide())


async def test_waits_end_when_it_begins_to_stop_however_often_that_is_said() -> None:
    closing = Closing()
    never = [asyncio.get_running_loop().create_future() for _ in range(3)]
    waits = [asyncio.create_task(closing.unless_closed(future)) for future in never]
    await asyncio.sleep(0)
    closing.begin()
    closing.begin()
    async with asyncio.timeout(5):
        ends = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(end) for end in ends] == [Stopping] * 3
    assert all(future.cancelled() for future in never)
    closing.begin()


async def test_nothing_is_waited_for_afterwards() -> None:
    closing = Closing()
    closing.begin()
    with pytest.raises(Stopping):
        await closing.unless_closed(asyncio.get_running_loop().create_future())


async def test_a_timeout_of_what_is_waited_for_stays_one() -> None:
    async def slow() -> None:
        async with asyncio.timeout(0):
            await asyncio.get_running_loop().create_future()

    with pytest.raises(TimeoutError):
        await Closing().unless_closed(slow())


async def divide() -> float:
    return 1 / 0
