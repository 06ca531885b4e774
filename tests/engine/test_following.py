"""Whoever follows a task is kept waiting by nobody else's events, and what is kept for him is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import Outlast, TaskContext
from outlast.handle import TaskHandle
from outlast.store.contract import Store
from outlast.store.rows import EventCursor, EventRow
from outlast.streams.tail import Tail

MEGABYTE = 1 << 20
LARGE = 1_000_000
"""Characters in a large event."""


def agents(app: Outlast) -> None:
    @app.agent
    async def talk(task: TaskContext, lines: int, width: int = 1) -> None:
        for number in range(lines):
            await task.emit("artifact", {"number": number, "text": "x" * width})


class Watched:
    """A store that notes what was read of events, read by read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads: list[list[EventRow]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read_events(self, cursors: Sequence[EventCursor], *bounds: Any, **more: Any) -> list[EventRow]:
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
        yield made
        await made.app._following().close()


async def until(holds: Callable[[], bool]) -> None:
    """Return once a condition holds that nobody announces."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


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
