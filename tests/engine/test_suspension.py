"""Suspension: a wait gives its slot and lease back, and is over when it should be."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.engine.house import House

from outlast import TaskContext
from outlast.errors import InvalidRequest


async def test_a_long_sleep_holds_no_slot_and_no_lease(house: House) -> None:
    began: list[str] = []

    @house.app.agent
    async def sleeper(task: TaskContext, seconds: float) -> int:
        began.append(task.id)
        await task.sleep(seconds)
        return task.attempt

    house.start(slots=1)
    handles = [await house.submit(sleeper, seconds=0.3) for _ in range(5)]
    for handle in handles:
        await house.waits(handle, "timer")
    # All five sleep at once, though there is one slot.
    dump = await house.store.dump()
    assert len(dump["leases"]) <= 1
    views = [await house.ended(handle) for handle in handles]
    assert [view.result for view in views] == [2] * 5
    assert sorted(began) == sorted([handle.id for handle in handles] * 2)
    assert await house.violations() == []


async def test_a_short_wait_stays_in_memory(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> int:
        for _ in range(3):
            await task.sleep(0.01)
        return task.attempt

    house.start(linger_s=5.0)
    view = await house.run(agent)
    assert view.result == 1


async def test_a_timer_is_due_by_its_first_record_however_often_the_task_wakes(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None:
        async def short() -> None:
            for _ in range(4):
                await task.sleep(0.05)

        async def long() -> None:
            await task.sleep(0.4)

        await task.gather(short(), long())

    started = time.monotonic()
    view = await house.run(agent)
    seconds = time.monotonic() - started
    (long,) = [one for key, one in (await house.operations(view)).items() if key == "gather#1/1/sleep#1"]
    assert long.ended_at is not None
    # The wait is measured by two clocks, ours and the database's; they may differ by what asking takes.
    assert long.ended_at - long.created_at >= timedelta(seconds=0.39)
    assert seconds < 5
    assert view.attempts >= 4


async def test_sleep_until_takes_an_instant(house: House) -> None:
    until = datetime.now(UTC) + timedelta(seconds=0.3)

    @house.app.agent
    async def agent(task: TaskContext, until: datetime) -> None:
        await task.sleep_until(until)

    view = await house.run(agent, until=until)
    assert view.ended_at is not None
    assert view.ended_at >= until - timedelta(milliseconds=5)

    @house.app.agent(name="past")
    async def past(task: TaskContext) -> int:
        await task.sleep_until(datetime(2020, 1, 1, tzinfo=UTC))
        await task.sleep(0)
        with pytest.raises(InvalidRequest):
            task.sleep_until(datetime(2020, 1, 1))
        return task.attempt

    await house.stop()
    assert (await house.run(past)).state == "succeeded"


async def test_a_task_that_computes_does_not_suspend_under_its_own_feet(house: House) -> None:
    ran: list[str] = []

    async def compute() -> str:
        ran.append("step")
        await asyncio.sleep(0.3)
        return "done"

    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        async def waiting() -> int:
            await task.sleep(0.6)
            return task.attempt

        return await task.gather(task.step(compute), waiting())

    view = await house.run(agent)
    assert ran == ["step"]
    assert view.result[0] == "done"
    assert await house.violations() == []


async def test_cleanup_of_a_suspended_agent_writes_nothing(house: House) -> None:
    async def work() -> str:
        return "cleanup"

    @house.app.agent
    async def agent(task: TaskContext) -> int:
        try:
            await task.sleep(0.05)
        finally:
            if task.attempt == 1:
                await task.emit("progress", {"stage": "cleanup"})
        return task.attempt

    @house.app.agent
    async def swallowing(task: TaskContext) -> int:
        try:
            await task.sleep(0.05)
        except asyncio.CancelledError:
            return -1
        return task.attempt

    for one in (agent, swallowing):
        handle = await house.submit(one)
        if not house.workers:
            house.start()
        assert (await house.ended(handle)).result == 2
        assert [event for event in await house.events(handle) if event.kind == "progress"] == []
    assert await house.violations() == []


async def test_run_at_lies_ahead(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None:
        return None

    at = datetime.now(UTC) + timedelta(seconds=0.3)
    handle = await house.app.submit(agent, run_at=at)
    assert (await handle.get()).state == "waiting"
    house.start()
    view = await house.ended(handle)
    (attempt,) = await house.app.attempts(handle.id)
    assert attempt.started_at >= at - timedelta(milliseconds=1)
    assert view.state == "succeeded"
