"""Whoever follows a task comes to its end, wherever he began, and is kept waiting by nobody else's events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import Outlast, TaskContext
from outlast.errors import SchemaOutdated, StoreUnavailable
from outlast.handle import TaskHandle
from outlast.store.contract import Store
from outlast.store.records import TaskRef
from outlast.store.rows import EndRow, EventCursor, EventRow
from outlast.streams.tail import Tail

MEGABYTE = 1 << 20
LARGE = 1_000_000
"""Characters in a large event."""


def agents(app: Outlast) -> None:
    @app.agent
    async def patient(task: TaskContext) -> Any:
        return await task.wait("go")

    @app.agent
    async def talk(task: TaskContext, lines: int, width: int = 1) -> None:
        for number in range(lines):
            await task.emit("artifact", {"number": number, "text": "x" * width})

    @app.agent
    async def broken(task: TaskContext) -> None:
        raise ValueError("no such day")


class Watched:
    """A store that notes what was read of events, read by read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads: list[list[EventRow]] = []
        self.fault: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read_ends(self, refs: Sequence[TaskRef]) -> list[EndRow]:
        if self.fault is not None:
            raise self.fault
        return await self._store.read_ends(refs)

    async def read_events(self, cursors: Sequence[EventCursor], *bounds: Any, **more: Any) -> list[EventRow]:
        if self.fault is not None:
            raise self.fault
        rows = await self._store.read_events(cursors, *bounds, **more)
        self.reads.append(rows)
        return rows


@pytest.fixture
async def watched(store: Store) -> Watched:
    """The store, watched."""
    return Watched(store)


@pytest.fixture
async def watching(watched: Watched) -> Any:
    """An open app over the watched store, with a worker."""
    made = House(watched)  # type: ignore[arg-type]
    agents(made.app)
    async with made:
        made.start()
        reader = made.app._following()
        yield made
        await reader.close()


async def until(holds: Callable[[], bool]) -> None:
    """Return once a condition holds that nobody announces."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


def followed(house: House) -> bool:
    """Whether anybody follows a task."""
    return bool(house.app._following()._followers)


async def numbers(house: House, handle: TaskHandle, after: int) -> list[int]:
    """Follow a task to its end; answer the numbers of its events."""
    async with asyncio.timeout(PATIENCE_S):
        return [event.number async for event in house.app.events(handle.id, after=after)]


class TestAPlaceThatTheStreamHasNotReached:
    """Such as one that was seen in the stream of another task."""

    @pytest.mark.parametrize("beyond", [1, 2, 3, 4, 2**53, 2**63 - 1])
    async def test_is_followed_from_there_to_the_end(self, watching: House, beyond: int) -> None:
        handle = await watching.app.submit("patient")
        reached = (await watching.waits(handle, "signal")).last_event
        after = min(reached + beyond, 2**63 - 1)
        following = asyncio.create_task(numbers(watching, handle, after))
        # It has begun before the task goes on.
        await until(lambda: followed(watching))
        await handle.signal("go", 1)
        last = (await watching.ended(handle)).last_event
        assert await following == list(range(after + 1, last + 1))

    async def test_is_followed_into_the_next_round(self, watching: House) -> None:
        handle = await watching.app.submit("broken")
        first = (await watching.ended(handle)).last_event
        await watching.stop()
        await watching.app.retry(handle.id, reason="again")
        following = asyncio.create_task(numbers(watching, handle, first + 2))
        await until(lambda: followed(watching))
        watching.start()
        last = (await watching.ended(handle)).last_event
        assert await following == list(range(first + 3, last + 1))

    async def test_costs_no_look_of_its_own_while_nothing_happens(
        self, watching: House, watched: Watched
    ) -> None:
        handle = await watching.app.submit("patient")
        await watching.waits(handle, "signal")
        reader = Tail(watched, poll_s=3600.0)  # type: ignore[arg-type]

        async def follow() -> list[int]:
            found = reader.follow("default", handle.id, 50, beyond=True)
            return [event.number async for event in found]

        following = asyncio.create_task(follow())
        await until(lambda: bool(reader._followers))
        watched.reads.clear()
        await asyncio.sleep(0.3)
        assert len(watched.reads) <= 2
        await handle.signal("go", 1)
        async with asyncio.timeout(PATIENCE_S):
            assert await following == []
        await reader.close()


class TestManyFollowers:
    async def test_a_long_history_keeps_nobody_waiting(self, watching: House, watched: Watched) -> None:
        long, short = sorted(
            [await watching.app.submit("talk", {"lines": 40}) for _ in range(2)], key=lambda one: one.id
        )
        for handle in (long, short):
            await watching.ended(handle)
        watched.reads.clear()
        reader = Tail(watched, limit=4)  # type: ignore[arg-type]

        async def follow(handle: TaskHandle) -> list[int]:
            return [event.number async for event in reader.follow("default", handle.id, ended=True)]

        async with asyncio.timeout(PATIENCE_S):
            streams = await asyncio.gather(follow(long), follow(short))
        last = (await long.get()).last_event
        assert streams == [list(range(1, last + 1))] * 2
        turns = [rows[0].task for rows in watched.reads if rows]
        assert set(turns[:2]) == {long.id, short.id}
        assert all(one != other for one, other in pairwise(turns[:16]))
        await reader.close()


class TestLargeEvents:
    async def test_are_read_and_kept_within_bounds(self, watching: House, watched: Watched) -> None:
        handle = await watching.app.submit("talk", {"lines": 40, "width": LARGE})
        last = (await watching.ended(handle)).last_event
        watched.reads.clear()
        reader = Tail(watched)  # type: ignore[arg-type]
        stream = reader.follow("default", handle.id, ended=True)
        async with asyncio.timeout(PATIENCE_S):
            assert (await anext(stream)).number == 1
            # It reads on until it has kept enough for one who does not read.
            (follower,) = reader._followers
            await until(lambda: follower.full_since is not None)
            kept = sum(len(event.data) for event in follower.events)
            assert kept <= 25 * MEGABYTE
            rest = [event.number async for event in stream]
        assert rest == list(range(2, last + 1))
        read = [sum(len(row.data) for row in rows) for rows in watched.reads]
        assert max(read) <= 9 * MEGABYTE
        await reader.close()

    async def test_come_in_pages_that_are_within_bounds(self, watching: House) -> None:
        handle = await watching.app.submit("talk", {"lines": 12, "width": LARGE})
        last = (await watching.ended(handle)).last_event
        found: list[int] = []
        while page := await watching.app.stored_events(handle.id, after=found[-1] if found else 0):
            assert sum(len(str(event.data)) for event in page) <= 9 * MEGABYTE
            found += [event.number for event in page]
        assert found == list(range(1, last + 1))


class TestWhenNothingMoreIsRead:
    """Nobody is left to wait for ever."""

    @pytest.mark.parametrize("asked", ["events", "end"])
    async def test_for_a_fault_it_is_told_and_the_next_one_is_read_for(
        self, watching: House, watched: Watched, asked: str
    ) -> None:
        handle = await watching.app.submit("patient")
        await watching.waits(handle, "signal")
        seen: list[int] = []

        async def follow() -> None:
            async for event in handle.events():
                seen.append(event.number)

        waiting = asyncio.create_task(follow() if asked == "events" else handle.result(PATIENCE_S))
        await until(lambda: bool(seen) if asked == "events" else bool(watching.app._following()._ends))
        # Anything but a store that is away, which is waited for.
        watched.fault = SchemaOutdated("the schema is not the one that this code knows")
        watching.store.wakes.hint("events")
        with pytest.raises(SchemaOutdated):
            await asyncio.wait_for(waiting, PATIENCE_S)
        watched.fault = None
        await handle.signal("go", 1)
        assert await handle.result(PATIENCE_S) == 1
        assert [event.number async for event in handle.events(after=seen[-1] if seen else 0)]

    @pytest.mark.parametrize("asked", ["events", "end"])
    async def test_since_the_app_is_closed_it_is_told(self, watching: House, asked: str) -> None:
        handle = await watching.app.submit("patient")
        await watching.waits(handle, "signal")
        await watching.stop()
        waiting = asyncio.create_task(
            numbers(watching, handle, 1) if asked == "events" else handle.result(PATIENCE_S)
        )
        reader = watching.app._following()
        await until(lambda: bool(reader._followers or reader._ends))
        await watching.app.close()
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(waiting, PATIENCE_S)
