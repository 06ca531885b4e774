"""Waits: what comes before, during or after the wait is found, in order, once, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import Outlast, TaskContext
from outlast.errors import (
    InvalidKey,
    InvalidRequest,
    SignalConflict,
    TaskEnded,
    TaskNotFound,
    ValueTooLarge,
    WaitTimeout,
)
from outlast.store.contract import Store
from outlast.store.entries import Batch, EndAttempt, Flushed, RecordOperation
from outlast.store.posting import Heard, News
from outlast.store.records import SweepRequest
from outlast.testing.store_suite.scene import HOUR, Backdoor


def waiter(app: Outlast, **options: Any) -> Any:
    @app.agent
    async def waits(task: TaskContext) -> Any:
        return await task.wait("paid", **options)

    return waits


async def test_a_signal_that_came_before_the_wait_is_found(house: House) -> None:
    handle = await house.submit(waiter(house.app))
    await handle.signal("paid", {"amount": "118.50"})
    house.start()
    view = await house.ended(handle)
    assert view.result == {"amount": "118.50"}
    # It lay there when the task began: one attempt, one record.
    assert view.attempts == 1
    (wait,) = (await house.operations(handle)).values()
    assert (wait.key, wait.kind, wait.state) == ("paid#1", "signal", "succeeded")
    assert await house.violations() == []


async def test_a_task_that_waits_holds_nothing_and_is_woken(house: House) -> None:
    handle = await house.submit(waiter(house.app))
    house.start()
    await house.waits(handle, "signal")
    dump = await house.store.dump()
    assert (dump["leases"], dump["queue"], dump["timers"]) == ([], [], [])
    await handle.signal("paid", 1)
    view = await house.ended(handle)
    assert (view.result, view.attempts) == (1, 2)
    assert await house.violations() == []


async def test_a_running_task_hears_a_signal_without_giving_up_its_lease(house: House) -> None:
    handle = await house.submit(waiter(house.app))
    house.start(linger_s=60.0)
    await house.reached(handle, "operation.started")
    await handle.signal("paid", 2)
    view = await house.ended(handle)
    assert (view.result, view.attempts) == (2, 1)
    assert await house.violations() == []


async def test_a_signal_in_the_very_moment_of_suspending_is_not_lost(house: House) -> None:
    handle = await house.submit(waiter(house.app))
    flush, sent = house.store.flush, []

    async def flush_after_a_signal(batch: Batch, **options: int | None) -> list[Flushed]:
        if not sent and any(
            isinstance(entry, EndAttempt) for write in batch.writes for entry in write.entries
        ):
            # The run has decided to suspend, and has not heard of this.
            sent.append(await handle.signal("paid", 3))
        return await flush(batch, **options)

    house.store.flush = flush_after_a_signal  # type: ignore[method-assign, assignment]
    house.start()
    view = await house.ended(handle)
    assert (view.result, view.attempts) == (3, 2)
    assert sent != []


async def test_a_signal_is_not_lost_between_news_and_inbox(house: House) -> None:
    """The run hears of one fact, and another one is posted while it reads."""
    handle = await house.submit(waiter(house.app, key="second"))
    read, sent = house.store.read_inbox, []

    async def read_after_a_signal(*args: Any) -> Any:
        rows = await read(*args)
        if not sent:
            sent.append(await handle.signal("paid", 4))
        return rows

    house.store.read_inbox = read_after_a_signal  # type: ignore[method-assign]
    house.start(linger_s=0.2)
    await house.reached(handle, "operation.started")
    await handle.signal("something-else", 0)
    assert (await house.ended(handle)).result == 4
    assert sent != []


async def test_a_fact_counts_as_heard_only_after_it_was_read(house: House) -> None:
    """The run suspends while it reads what it was told of: it has not seen that yet."""
    handle = await house.submit(waiter(house.app))
    read, flush = house.store.read_inbox, house.store.flush
    reading, suspended = asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any) -> Any:
        if not suspended.is_set():
            reading.set()
            await suspended.wait()
        return await read(*args)

    async def flushed(batch: Batch, **options: int | None) -> list[Flushed]:
        ends = any(isinstance(entry, EndAttempt) for write in batch.writes for entry in write.entries)
        if ends:
            await reading.wait()
        verdicts = await flush(batch, **options)
        if ends:
            suspended.set()
        return verdicts

    house.store.read_inbox = slowly  # type: ignore[method-assign]
    house.store.flush = flushed  # type: ignore[method-assign, assignment]
    house.start(linger_s=0.2)
    await house.reached(handle, "operation.started")
    await handle.signal("paid", 6)
    view = await house.ended(handle)
    assert (view.result, view.attempts) == (6, 2)


async def test_a_post_between_two_questions_for_news_is_told(house: House, store: Store) -> None:
    """What was heard is told by compare-and-set: a post that came since is answered again."""
    handle = await house.submit(waiter(house.app))
    news, seen = store.news, []

    async def news_after_a_signal(session: str, heard: Any, **options: Any) -> list[News]:
        if heard and not seen:
            seen.extend(heard)
            await handle.signal("paid", 5)
        return await news(session, heard, **options)

    store.news = news_after_a_signal  # type: ignore[method-assign]
    house.start(linger_s=60.0)
    await house.reached(handle, "operation.started")
    await handle.signal("something-else", 0)
    assert (await house.ended(handle)).result == 5
    assert isinstance(seen[0], Heard)


async def test_signals_are_taken_in_order_and_each_once(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> list[int]:
        return [await task.wait("n") for _ in range(5)]

    handle = await house.submit(agent)
    for number in (0, 1):
        await handle.signal("n", number)
    house.start()
    await house.waits(handle, "signal")
    for number in (2, 3, 4):
        await handle.signal("n", number)
    view = await house.ended(handle)
    assert view.result == [0, 1, 2, 3, 4]
    dump = await house.store.dump()
    assert sorted(row["number"] for row in dump["inbox"] if row["taken_by"]) == sorted(
        row["number"] for row in dump["inbox"]
    )
    assert await house.violations() == []


async def test_waits_of_one_name_side_by_side_take_rows_in_the_order_of_their_keys(house: House) -> None:
    """Also when a later replay comes to them in another order, since a step before the first is run again."""
    slow = asyncio.Event()

    async def prepare(branch: int) -> None:
        if slow.is_set() and branch == 0:
            await asyncio.sleep(0.05)

    @house.app.agent
    async def agent(task: TaskContext) -> list[Any]:
        async def branch(number: int) -> Any:
            # Not a step: it is run again at every replay, and takes its time.
            await prepare(number)
            return await task.wait("n")

        return await task.gather(*(branch(number) for number in range(3)))

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "signal")
    slow.set()
    await house.stop()
    for number in range(3):
        await handle.signal("n", number)
    house.start()
    assert (await house.ended(handle)).result == [0, 1, 2]
    assert await house.violations() == []


async def test_a_wait_that_is_never_made_again_does_not_keep_others_waiting(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        if task.attempt == 1:
            # Code that is not repeatable: this wait is on record, and no later attempt comes to it.
            await task.gather(task.wait("n", key="first"), task.wait("n", key="second"))
        return await task.wait("n", key="second")

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "signal")
    await handle.signal("n", "mine")
    assert (await house.ended(handle)).result == "mine"


async def test_a_timeout_is_recorded_and_raised_the_same_on_replay(house: House) -> None:
    seen: list[str] = []

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        try:
            await task.wait("never", timeout=0.2)
        except WaitTimeout as error:
            seen.append(f"{error.operation.removeprefix(task.id)} {error.code}")
        await task.sleep(0.05)
        return await task.wait("after")

    handle = await house.submit(agent)
    house.start()
    (started,) = [await house.reached(handle, "operation.started")]
    await house.reached(handle, "operation.failed")
    # It came too late: nobody takes it any more.
    await handle.signal("never", 1)
    await handle.signal("after", "after")
    assert (await house.ended(handle)).result == "after"
    assert set(seen) == {":never#1 wait_timeout"}
    assert len(seen) >= 2
    never = (await house.operations(handle))["never#1"]
    assert never.state == "failed"
    assert never.ended_at is not None
    assert never.ended_at - started.at >= timedelta(seconds=0.2)
    assert await house.violations() == []


async def test_what_was_posted_in_time_counts_however_late_it_is_looked_at(
    house: House, backdoor: Backdoor
) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> list[Any]:
        found = []
        for _ in range(2):
            try:
                found.append(await task.wait("paid", timeout="10m"))
            except WaitTimeout:
                found.append("none in time")
        return found

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "signal")
    await house.stop()
    await handle.signal("paid", "in time")
    await handle.signal("paid", "too late")
    # An hour passes without a worker: the first was posted before the wait was over, the second after it.
    hour, minute = 3_600_000_000, 60_000_000
    await backdoor.run(f"update operations set due_at = due_at - {hour}, created_at = created_at - {hour}")
    await backdoor.run(f"update timers set due_at = due_at - {hour}")
    await backdoor.run(f"update inbox set at = at - {hour - 9 * minute} where data like '%in time%'")
    await backdoor.run(f"update inbox set at = at - {hour - 11 * minute} where data like '%too late%'")
    house.start()
    assert (await house.ended(handle)).result == ["in time", "too late"]


async def test_what_was_posted_too_late_is_left_to_the_next_wait(house: House, backdoor: Backdoor) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> list[Any]:
        try:
            return [await task.wait("paid", timeout="10m")]
        except WaitTimeout:
            return ["none in time", await task.wait("paid")]

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "signal")
    await house.stop()
    await handle.signal("paid", "too late")
    await backdoor.run("update operations set due_at = due_at - 3600000000")
    house.start()
    assert (await house.ended(handle)).result == ["none in time", "too late"]


async def test_a_timeout_of_zero_looks_once(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> list[Any]:
        found = []
        for _ in range(2):
            try:
                found.append(await task.wait("n", timeout=0))
            except WaitTimeout:
                found.append("none")
        return found

    handle = await house.submit(agent)
    await handle.signal("n", 1)
    house.start(linger_s=60.0)
    view = await house.ended(handle)
    assert (view.result, view.attempts) == ([1, "none"], 1)


@pytest.mark.parametrize("timeout", [-1, "300y", "109575d", float("nan"), "soon", True])
async def test_a_timeout_that_is_none_is_refused_where_it_is_asked_for(house: House, timeout: Any) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> str:
        with pytest.raises(InvalidRequest) as caught:
            task.wait("n", timeout=timeout)
        return caught.value.code

    assert (await house.run(agent)).result == "invalid_request"


async def test_signals_that_cannot_be_are_refused_by_name(house: House) -> None:
    handle = await house.submit(waiter(house.app))
    with pytest.raises(TaskNotFound):
        await house.app.signal("task_00000000000000000000000000", "paid", 1)
    with pytest.raises(TaskNotFound):
        await house.app.signal(handle.id, "paid", 1, tenant="another")
    with pytest.raises(InvalidKey):
        await handle.signal("no spaces", 1)
    with pytest.raises(InvalidKey):
        await handle.signal("callback:paid", 1)
    with pytest.raises(ValueTooLarge):
        await handle.signal("paid", "x" * 1_048_576)
    with pytest.raises(InvalidRequest):
        await handle.signal("paid", float("nan"))
    assert (await house.store.dump())["inbox"] == []


async def test_a_key_makes_a_signal_safe_to_repeat(house: House) -> None:
    handle = await house.submit(waiter(house.app))
    first = await handle.signal("paid", {"a": 1, "b": 2}, key="k")
    again = await handle.signal("paid", {"b": 2, "a": 1}, key="k")
    assert (first.kind, again.kind, again.number) == ("accepted", "replayed", first.number)
    with pytest.raises(SignalConflict):
        await handle.signal("paid", {"a": 3}, key="k")
    house.start()
    assert (await house.ended(handle)).result == {"a": 1, "b": 2}
    # After the end it is still known that this was said before, and nothing new is taken.
    assert (await handle.signal("paid", {"a": 1, "b": 2}, key="k")).kind == "replayed"
    with pytest.raises(TaskEnded) as caught:
        await handle.signal("paid", 1)
    assert caught.value.state == "succeeded"


async def test_a_take_that_is_not_on_disk_is_taken_again_by_the_same_wait(house: House) -> None:
    """The worker loses its lease between reading the signal and recording it."""
    flush, lost = house.store.flush, asyncio.Event()

    async def lose_the_take(batch: Batch, **options: int | None) -> list[Flushed]:
        takes = [
            entry
            for write in batch.writes
            for entry in write.entries
            if isinstance(entry, RecordOperation) and entry.takes
        ]
        if takes and not lost.is_set():
            lost.set()
            at = (await house.store.health()).now
            assert (await house.store.sweep(SweepRequest(), now=at + HOUR)).lost
        return await flush(batch, **options)

    house.store.flush = lose_the_take  # type: ignore[method-assign, assignment]
    handle = await house.submit(waiter(house.app))
    await handle.signal("paid", 6)
    house.start()
    async with asyncio.timeout(PATIENCE_S):
        await lost.wait()
    view = await house.ended(handle)
    assert (view.result, view.attempts) == (6, 2)
    assert await house.violations() == []
