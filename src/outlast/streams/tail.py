"""One reader of the store per process feeds every follower of a task's stream.

Purpose: a follower gets every event of its task above its cursor once, in order, first what is kept, then
what comes.

State: each follower has a cursor of its own; there is no global one. The reader asks the store for (task,
after) pairs of its followers, when a hint comes and every ``poll_s`` without one.

Failure by failure: a follower that does not read is cut when its bounded buffer is full, with its last
number; nothing is dropped in the middle. The store is away: reading goes on when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from outlast import telemetry
from outlast.errors import StoreUnavailable, Unavailable
from outlast.store.contract import Store
from outlast.store.records import EventCursor, EventRow

FINAL = frozenset({"task.succeeded", "task.failed", "task.cancelled"})
BUFFER = 2_000
"""Events kept for one follower that does not read."""


class Overrun(Unavailable):
    """A follower fell too far behind and was cut; it resumes after ``last``."""

    code = "stream_overrun"

    def __init__(self, last: int) -> None:
        super().__init__(
            f"the stream was cut because it was not read; resume after event {last}", retry_after=0
        )
        self.last = last


@dataclass(slots=True, eq=False)
class _Follower:
    cursor: EventCursor
    events: list[EventRow] = field(default_factory=list)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    cut: bool = False


class Tail:
    """Follow tasks. ``poll_s``: seconds between looks where no hint comes."""

    def __init__(self, store: Store, *, poll_s: float = 0.5, limit: int = 1_000) -> None:
        self._store = store
        self._poll_s = poll_s
        self._limit = limit
        self._followers: set[_Follower] = set()
        self._reader: asyncio.Task[None] | None = None
        self._again = asyncio.Event()

    async def follow(self, tenant: str, task: str, after: int = 0) -> AsyncIterator[EventRow]:
        """Yield events with numbers above ``after`` until the task's final event.

        Raises Overrun when the follower did not keep up. The end of a round is the end of the stream.
        """
        follower = _Follower(EventCursor(tenant=tenant, task=task, after=after))
        self._followers.add(follower)
        self._wake()
        last = after
        try:
            while True:
                await follower.ready.wait()
                follower.ready.clear()
                events, follower.events = follower.events, []
                for event in events:
                    last = event.number
                    yield event
                    if event.kind in FINAL:
                        return
                if follower.cut:
                    raise Overrun(last)
        finally:
            self._followers.discard(follower)

    async def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None

    def _wake(self) -> None:
        self._again.set()
        if self._reader is None or self._reader.done():
            self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        hint = asyncio.ensure_future(self._store.wakes.wait("events", self._poll_s))
        try:
            while self._followers:
                self._again.clear()
                more = await self._once()
                if more:
                    continue
                again = asyncio.ensure_future(self._again.wait())
                await asyncio.wait({hint, again}, timeout=self._poll_s, return_when=asyncio.FIRST_COMPLETED)
                again.cancel()
                if hint.done():
                    hint = asyncio.ensure_future(self._store.wakes.wait("events", self._poll_s))
        finally:
            hint.cancel()

    async def _once(self) -> bool:
        """Read once for all followers; answer whether there may be more at once."""
        followers = [follower for follower in self._followers if not follower.cut]
        try:
            rows = await self._store.read_events([follower.cursor for follower in followers], self._limit)
        except StoreUnavailable as error:
            telemetry.emit(telemetry.StoreAway(duty="tail", detail=str(error)))
            await asyncio.sleep(0.25)
            return False
        if not rows:
            return False
        by_task: dict[tuple[str, str], list[EventRow]] = {}
        for row in rows:
            by_task.setdefault((row.tenant, row.task), []).append(row)
        for follower in followers:
            cursor = follower.cursor
            fresh = [
                row for row in by_task.get((cursor.tenant, cursor.task), ()) if row.number > cursor.after
            ]
            if not fresh:
                continue
            if len(follower.events) + len(fresh) > BUFFER:
                follower.cut = True
            else:
                follower.events.extend(fresh)
                follower.cursor = EventCursor(tenant=cursor.tenant, task=cursor.task, after=fresh[-1].number)
            follower.ready.set()
        return len(rows) >= self._limit
