"""One reader of the store per process feeds every follower of a task's stream.

Purpose: a follower gets every event of its task above its cursor once, in order, first what is kept, then
what comes.

State: each follower has a cursor of its own; there is no global one. The reader asks the store for (task,
after) pairs of its followers, when a hint comes and every ``poll_s`` without one. Who waits for nothing
but a task's end reads no events: the same reader asks how those tasks have ended, at hints of ends alone; and
a worker of this process that has brought a success to disk tells it, so that nobody looks for it. A read is
bounded, in events and in bytes; where one was full, the next one begins with the tasks behind it.

End: an event that ends a round does not say that there is no other one, nor that nothing was said of the task
since. A follower that has come to such an event is at its end when the task itself says that it has ended and
that this was the last of its events; else it goes on. One whose place the stream has not reached may never
see such an event, and is told of the end like those that wait for nothing else.

Failure by failure: nothing is read for a follower whose bounded buffer is full, and one that leaves it
full for ``PATIENCE_S`` is cut, with its last number; nothing is dropped in the middle. The store is away:
reading goes on when it is back; but whoever asks for an end for the first time is told. Any other fault
ends the reading, and so does ``close``: all who follow or wait are told, and whoever comes next is read
for again. A hint is lost: the next look comes ``poll_s`` later.

Not covered: a follower that has come to its end is not told of a round that is opened later, nor of what is
said of the task after that; it may follow again from its last number on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from outlast import clock, telemetry
from outlast.core.transitions import TASK
from outlast.errors import StoreUnavailable, Unavailable
from outlast.store.contract import Store
from outlast.store.records import TaskRef
from outlast.store.rows import EVENTS_ROOM, EndRow, EventCursor, EventRow, TaskRow, may_be_more

FINAL = frozenset({"task.succeeded", "task.failed", "task.cancelled"})
"""Events that end a round."""
LOOK = 100
"""Tasks that are looked at together; each may have a result of a megabyte."""
ENDS = 500
"""Tasks whose ends are asked for together; of those that live nothing comes but their state."""
BUFFER = 2_000
"""Events kept for one follower that does not read; about, since a whole read is taken."""
BUFFER_BYTES = 16 << 20
"""How much of their data is kept for it; about, as above."""
NEW_S = 0.02
"""For how long nobody looks whether a task that was just accepted here has ended, unless there is a hint."""
PATIENCE_S = 10.0
"""Seconds for which a follower may leave its buffer full."""


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
    beyond: bool = False
    """Whether its place is one that the stream had not reached: what ends the round may lie before it."""
    events: list[EventRow] = field(default_factory=list)
    size: int = 0
    """Characters of data in these."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    full_since: float | None = None
    cut: bool = False
    fault: Exception | None = None
    """Why nothing more is read for it."""
    look_at: int | None = None
    """From which number on to ask whether the task is over."""
    over: bool = False

    @property
    def ref(self) -> TaskRef:
        """Its task."""
        return TaskRef(tenant=self.cursor.tenant, task=self.cursor.task)

    def looks(self) -> bool:
        """Whether it may have come to its end."""
        return not self.over and self.look_at is not None and self.cursor.after >= self.look_at

    def saw(self, row: TaskRow | None) -> None:
        """Take in how its task stands. None: it is gone."""
        if row is not None and row.ended_at is None:
            # Its next round has begun.
            self.look_at = None
        elif row is not None and row.last_event > self.cursor.after:
            self.look_at = row.last_event
        else:
            self.over = True
            self.ready.set()

    def take(self, event: EventRow) -> None:
        """Keep the next event for it."""
        self.events.append(event)
        self.size += len(event.data)
        if event.kind in FINAL:
            self.look_at = event.number

    def taken(self) -> list[EventRow]:
        """Hand over what is kept for it."""
        events, self.events, self.size = self.events, [], 0
        return events

    def takes_more(self) -> bool:
        """Whether more is to be read for it; cuts it when it was patience enough."""
        if self.over or self.cut or (len(self.events) < BUFFER and self.size < BUFFER_BYTES):
            return not self.over and not self.cut
        now = clock.monotonic()
        if self.full_since is None:
            self.full_since = now
        elif now - self.full_since > PATIENCE_S:
            self.cut = True
            self.ready.set()
        return False


class Tail:
    """Follow tasks. ``poll_s``: seconds between looks where no hint comes."""

    def __init__(self, store: Store, *, poll_s: float = 0.5, limit: int = 1_000) -> None:
        self._store = store
        self._poll_s = poll_s
        self._limit = limit
        self._followers: set[_Follower] = set()
        # Whoever waits for a task's end, and whether the store has answered that one before.
        self._ends: dict[TaskRef, dict[asyncio.Future[EndRow | None], bool]] = {}
        # The last task of a read that was full; those behind it have not had their turn.
        self._turn = ("", "")
        self._reader: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self._idle = False
        """Whether nobody has waited for anything since the last time that nothing came for a while."""
        self._listens = False
        """Whether hints of ends bring about a look."""

    async def follow(
        self, tenant: str, task: str, after: int = 0, *, ended: bool = False, beyond: bool = False
    ) -> AsyncGenerator[EventRow]:
        """Yield events with numbers above ``after`` until the task has ended and nothing more is kept of it.

        ended: the task was seen to have ended, so that it may be over without another event. beyond: its
        stream was seen not to have come to ``after``, so that it may end without another event. Raises
        Overrun when the follower did not keep up, StoreUnavailable when this is closed, and the fault that
        ended the reading.
        """
        follower = _Follower(
            EventCursor(tenant=tenant, task=task, after=after),
            beyond=beyond,
            look_at=after if ended else None,
        )
        self._followers.add(follower)
        self._wake()
        last = after
        try:
            while True:
                await follower.ready.wait()
                follower.ready.clear()
                events = follower.taken()
                if follower.full_since is not None:
                    follower.full_since = None
                    self._wake()
                for event in events:
                    last = event.number
                    yield event
                if follower.over and not follower.events:
                    return
                if follower.cut:
                    raise Overrun(last)
                if follower.fault is not None:
                    raise follower.fault
        finally:
            self._followers.discard(follower)

    async def end(self, tenant: str, task: str, *, new: bool = False) -> EndRow | None:
        """Wait until a task has ended; answer how, or None where there is no such task.

        new: it was accepted a moment ago, so that its end is mostly heard of before a look would find it: the
        first look is put off for ``NEW_S``. A round that has begun meanwhile is waited for. Raises
        StoreUnavailable where the store is away when it is asked for the first time, later on it waits until
        the store is back; where this is closed; and the fault that ended the reading.
        """
        ref, loop = TaskRef(tenant=tenant, task=task), asyncio.get_running_loop()
        end: asyncio.Future[EndRow | None] = loop.create_future()
        self._ends.setdefault(ref, {})[end] = False
        look: asyncio.TimerHandle | None = None
        # Only one that listens already is told by hints meanwhile.
        if new and self._listens:
            look = loop.call_later(NEW_S, self._wake)
        else:
            self._wake()
        try:
            return await end
        finally:
            if look is not None:
                look.cancel()
            waiting = self._ends[ref]
            del waiting[end]
            if not waiting:
                del self._ends[ref]

    def told(self, end: EndRow) -> None:
        """Tell whoever waits for a task's end how it is on disk, from the worker that has ended it here, so
        that nobody looks for it. Ends may be waited for in other loops; those look."""
        waiting = self._ends.get(TaskRef(tenant=end.tenant, task=end.task))
        if waiting is not None:
            loop = asyncio.get_running_loop()
            for future in waiting:
                if not future.done() and future.get_loop() is loop:
                    future.set_result(end)

    async def close(self) -> None:
        """Stop reading; whoever follows or waits is told. Idempotent."""
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None
        self._tell(StoreUnavailable("nothing more is read: the app was closed"))

    def _tell(self, fault: Exception) -> None:
        """Tell all who follow or wait that nothing more is read for them."""
        for follower in self._followers:
            follower.fault = fault
            follower.ready.set()
        for waiting in self._ends.values():
            for end in waiting:
                if not end.done():
                    end.set_exception(fault)

    def _wake(self) -> None:
        self._idle = False
        self._again.set()
        if self._reader is None or self._reader.done():
            self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        loop, listening = asyncio.get_running_loop(), {}
        try:
            while self._followers or self._ends or not self._idle:
                for topic, wanted in (("events", self._followers), ("ends", self._ends)):
                    if wanted and topic not in listening:
                        listening[topic] = loop.create_task(self._listen(topic))
                self._listens = "ends" in listening
                # Before the look: whoever comes while it goes on, and every hint, brings about another one.
                self._again.clear()
                if not await self._once():
                    await self._again.wait()
        # Whatever it is: nobody else would tell those for whom nothing is read from now on.
        except Exception as fault:
            self._tell(fault)
        finally:
            self._listens = False
            for task in listening.values():
                task.cancel()

    async def _listen(self, topic: str) -> None:
        """Have the reader look again at each hint, and every ``poll_s`` without one. Who waits for nothing
        but ends has no look at what else is said; where nobody waits the reader ends, but not at once, since
        the next may come soon."""
        while True:
            hinted = await self._store.wakes.wait(topic, self._poll_s)
            if self._ends if topic == "ends" else self._followers:
                self._again.set()
            elif not (hinted or self._ends or self._followers):
                self._idle = True
                self._again.set()

    async def _once(self) -> bool:
        """Read once for all followers; answer whether there may be more at once."""
        try:
            await self._tell_ends()
            more = await self._events()
            # So that whoever only waited for this very event is gone, and nothing is asked for it.
            await asyncio.sleep(0)
            return await self._look() or more
        except StoreUnavailable as error:
            telemetry.emit(telemetry.StoreAway(duty="tail", detail=str(error)))
            await asyncio.sleep(0.25)
            return False

    async def _tell_ends(self) -> None:
        """Read how tasks have ended whose end somebody waits for, and tell them."""
        # As they stand before the look: whoever comes meanwhile has another one.
        waited: dict[TaskRef, list[asyncio.Future[EndRow | None]]] = {}
        for ref, waiting in self._ends.items():
            if left := [end for end in waiting if not end.done()]:
                waited[ref] = left
        beyond: dict[TaskRef, list[_Follower]] = {}
        for follower in self._followers:
            if follower.beyond and not follower.over:
                beyond.setdefault(follower.ref, []).append(follower)
                waited.setdefault(follower.ref, [])
        asked = list(waited.items())
        for start in range(0, len(asked), ENDS):
            part = asked[start : start + ENDS]
            try:
                rows = await self._store.read_ends([ref for ref, _ in part])
            except StoreUnavailable as error:
                for ref, ends in part:
                    for end in ends:
                        if not end.done() and not self._ends.get(ref, {}).get(end):
                            end.set_exception(error)
                raise
            found = {TaskRef(tenant=row.tenant, task=row.task): row for row in rows}
            for ref, ends in part:
                row = found.get(ref)
                over = row is None or row.state in TASK.final
                for follower in beyond.get(ref, ()) if over else ():
                    follower.look_at = follower.cursor.after
                for end in ends:
                    if over and not end.done():
                        end.set_result(row)
                    elif end in self._ends.get(ref, ()):
                        self._ends[ref][end] = True

    async def _events(self) -> bool:
        followers = [follower for follower in self._followers if follower.takes_more()]
        if not followers:
            return False
        # Those at one place are read for once.
        cursors = list({follower.cursor: None for follower in followers})
        asked = [cursor for cursor in cursors if (cursor.tenant, cursor.task) > self._turn] or cursors
        rows = await self._store.read_events(asked, self._limit, room=EVENTS_ROOM)
        full = may_be_more(rows, self._limit)
        self._turn = (rows[-1].tenant, rows[-1].task) if full else ("", "")
        by_task: dict[tuple[str, str], dict[int, EventRow]] = {}
        for row in rows:
            by_task.setdefault((row.tenant, row.task), {})[row.number] = row
        for follower in followers:
            cursor = follower.cursor
            news = by_task.get((cursor.tenant, cursor.task), {})
            # Followers of one task stand at different places: take what comes next, and nothing beyond a gap.
            number = cursor.after + 1
            while number in news:
                follower.take(news[number])
                number += 1
            if number > cursor.after + 1:
                follower.cursor = EventCursor(tenant=cursor.tenant, task=cursor.task, after=number - 1)
                follower.ready.set()
        return full or len(asked) < len(cursors)

    async def _look(self) -> bool:
        """Look at the tasks of followers that may have come to their end; answer whether any of them goes
        on."""
        looking: dict[TaskRef, list[_Follower]] = {}
        for follower in self._followers:
            if follower.looks():
                looking.setdefault(follower.ref, []).append(follower)
        refs, goes_on = list(looking), False
        for start in range(0, len(refs), LOOK):
            rows = await self._store.read_tasks(refs[start : start + LOOK])
            found = {TaskRef(tenant=row.tenant, task=row.task): row for row in rows}
            for ref in refs[start : start + LOOK]:
                for follower in looking[ref]:
                    follower.saw(found.get(ref))
                    goes_on = goes_on or not follower.over
        return goes_on
