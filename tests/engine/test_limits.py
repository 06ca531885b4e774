"""The one timer behind the time limits of all tool calls."""

from __future__ import annotations

import asyncio

import pytest

from outlast.engine.limits import Limits


async def forever() -> None:
    await asyncio.Event().wait()


async def bounded(limits: Limits, seconds: float) -> float:
    with pytest.raises(TimeoutError), limits.within(seconds):
        await forever()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    return seconds


async def test_what_takes_too_long_is_cut_the_shortest_limit_first() -> None:
    limits = Limits()
    waiting = [asyncio.create_task(bounded(limits, seconds)) for seconds in (0.03, 0.01, 0.02, 0.0, -1.0)]
    ended = [await next_ended for next_ended in asyncio.as_completed(waiting, timeout=10)]
    assert sorted(ended[:2]) == [-1.0, 0.0]
    assert ended[2:] == [0.01, 0.02, 0.03]


async def test_a_limit_that_is_over_cuts_nothing_later() -> None:
    limits = Limits()
    with limits.within(0.01) as limit:
        pass
    # The timer of the first rings while the second is open, and is set anew for it.
    with pytest.raises(TimeoutError), limits.within(0.02):
        await forever()
    assert not limit.expired


async def test_a_cancellation_by_somebody_else_goes_on() -> None:
    limits = Limits()

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        with limits.within(3600) as limit:
            limit.expire()
            task.cancel()
            await asyncio.sleep(0)

    working = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await working
    assert working.cancelled()
    limits.close()


async def test_an_error_of_the_work_itself_is_what_is_raised() -> None:
    limits = Limits()
    with pytest.raises(ValueError, match="its own"), limits.within(10):
        raise ValueError("its own")


async def test_a_limit_may_be_refused_by_work_that_swallows_it() -> None:
    limits = Limits()
    with limits.within(0.0) as limit:
        try:
            await forever()
        except asyncio.CancelledError:
            answer = "done all the same"
    assert answer == "done all the same"
    assert limit.expired
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_closed_one_leaves_no_timer() -> None:
    scheduled: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    before = list(scheduled)
    limits = Limits()
    with limits.within(3600):
        pass
    limits.close()
    assert not [handle for handle in scheduled if handle not in before and not handle.cancelled()]
