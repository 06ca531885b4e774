"""Schedules in the world: people put, pause, replace and delete them, workers fire them, and a book is kept.

Purpose: each instant of a schedule fires at most once, not early, not while it is paused or gone; and none is
passed over but for what its policy, a pause or a task that still lives excuses.

Identity: a schedule's id and its instant.

State: see ``book``.

Clock: the database's. Everybody else's is off, by as much as an hour.

Failure by failure: those that fall on workers and the store. That nobody looked for minutes is a schedule
that is put with an instant long past, as it would then stand.

Not covered: zones and days on which clocks change; those have tests of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from outlast.app import Outlast
from outlast.core import schedule as schedules
from outlast.core import values
from outlast.engine.context import TaskContext
from outlast.errors import OutlastError, StoreUnavailable
from outlast.store.scheduling import NEW, PutSchedule, Schedule
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.simulation.agents import APP, open_app
from outlast.testing.simulation.book import SECOND_US, Book, Watched
from outlast.testing.simulation.weather import Faults
from outlast.testing.simulation.world import Member, World

__all__ = ["Timetable"]

PLAN_S: Final = 14.0
"""For how long people change schedules."""
OVERDUE_S: Final = 30.0
"""In what time after the world has healed every instant has been fired that was due: all who look may be
waiting for answers that will not come, and a worker that took it and died keeps others from it."""
LOOK_S: Final = 4.0
SLACK_US: Final = 5 * SECOND_US
IDS: Final = ("a", "b")


@APP.agent(name="tick")
async def tick(task: TaskContext, seconds: float) -> dict[str, Any]:
    """Do nothing of note, for some time."""
    await task.sleep(seconds)
    return {"tickets": []}


class Timetable:
    """Those who keep schedules in one world; see ``ingredients.Ingredient``."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world, self._count = world, faults.schedules
        self._fate = world.random("timetable")
        self.book = Book(world)
        world.database = Watched(world.database, self.book)
        self._healed = asyncio.Event()
        self._planning: list[asyncio.Task[Any]] = []
        self._keeping: list[asyncio.Task[Any]] = []

    def start(self) -> Sequence[asyncio.Task[Any]]:
        """Let people plan; answer those who come to an end."""
        self._planning = [self._begin(f"planner{n}", self._plan) for n in range(1, self._count + 1)]
        self._keeping = [self._begin("keeper", self._keep)]
        return self._planning

    def _begin(self, name: str, work: Callable[[Member], Coroutine[Any, Any, None]]) -> asyncio.Task[Any]:
        member = self._world.add(name)
        # The database's clock decides, and nobody else's.
        member.seams.step_us = int(self._fate.uniform(-3600e6, 3600e6))
        task: asyncio.Task[Any] = self._world.start(member.node, work(member), name=name)
        return task

    # -- people ---------------------------------------------------------------------------------------------

    async def _plan(self, member: Member) -> None:
        """Make and change schedules for a while, as often as it takes to be told."""
        app, loop = await open_app(member), self._world.loop
        until = loop.time() + self._fate.uniform(PLAN_S / 2, PLAN_S)
        while loop.time() < until and not self._healed.is_set():
            what = self._fate.choice(
                (self._put, self._put, self._put_overdue, self._pause, self._resume, self._delete)
            )
            try:
                await what(app, self._fate.choice(IDS))
            except StoreUnavailable:
                await asyncio.sleep(0.5)
            except OutlastError as error:
                self._world.note(f"a planner was refused: {error.code}")
            await asyncio.sleep(self._fate.uniform(0.0, 3.0))

    async def _put(self, app: Outlast, name: str) -> None:
        fate = self._fate
        now = datetime.fromtimestamp(self.book.now() / SECOND_US, UTC)
        times: dict[str, Any] = fate.choice(
            (
                {"every": fate.choice((1, 1.5, 2, 4))},
                {"every": fate.choice((1, 2))},
                {"cron": "* * * * *"},
                {"at": now + timedelta(seconds=fate.uniform(-5.0, 8.0))},
            )
        )
        await app.schedules.put(name, tick, self._input(), **times, **self._policy())

    async def _put_overdue(self, app: Outlast, name: str) -> None:
        """Put a schedule that stands as if nobody had looked for minutes; only where there is none."""
        fate = self._fate
        every_us = fate.choice((15, 20, 30)) * SECOND_US
        policy = self._policy()
        policy.pop("jitter")
        made = Schedule(
            tenant=DEFAULT_TENANT,
            id=name,
            agent="tick",
            timing=schedules.written(schedules.Every(every_us=every_us)),
            input=values.encode(self._input()),
            **policy,
        )
        first = self.book.now() - int(fate.uniform(0.5, 12.0) * every_us)
        await app.store.put_schedule(PutSchedule(schedule=made, next_at=first, by="app", revision=NEW))

    def _input(self) -> dict[str, Any]:
        return {"seconds": self._fate.choice((0.0, 0.0, 0.5, 3.0))}

    def _policy(self) -> dict[str, Any]:
        fate = self._fate
        return {
            "missed": fate.choice(schedules.MISSED),
            "max_missed": fate.choice((2, 4, 100)),
            "overlap": fate.choice(schedules.OVERLAPS),
            "jitter": fate.choice((None, None, 1)),
        }

    async def _pause(self, app: Outlast, name: str) -> None:
        await app.schedules.pause(name, reason="not now", by="person:planner")

    async def _resume(self, app: Outlast, name: str) -> None:
        await app.schedules.resume(name, by="person:planner")

    async def _delete(self, app: Outlast, name: str) -> None:
        await app.schedules.delete(name, by="person:planner")

    async def _keep(self, member: Member) -> None:
        """When the world has healed, look whether all has fired that was due, and put an end to it."""
        await self._healed.wait()
        await asyncio.wait(self._planning)
        app = await open_app(member)
        late = self._world.loop.time() + OVERDUE_S
        await asyncio.sleep(LOOK_S)
        while self._overdue() and self._world.loop.time() < late:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        for name in self._overdue():
            instant, now = self.book.pages[name].next, self.book.now()
            self._world.accuse(f"schedule {name} has not fired for {instant} by {now}")
        for name in list(self.book.pages):
            await self._fate.choice((self._delete, self._pause))(app, name)

    def _overdue(self) -> list[str]:
        """Answer the schedules that ought to have fired by now."""
        by = self.book.now() - SLACK_US
        pages = self.book.pages.items()
        return [name for name, page in pages if not page.paused and page.next is not None and page.next < by]

    # -- the end --------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Let the last one do what is left to do."""
        self._healed.set()

    async def rest(self) -> None:
        """Wait until nothing fires any more."""
        await asyncio.wait(self._keeping)

    def leave(self) -> None:
        """Say who could not do what they had to."""
        self._world.accuse_failed((*self._planning, *self._keeping))

    def judge(self, dump: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
        """Compare the tasks that there are with the book."""
        keys = {row["key"]: row["task"] for row in dump["inputs"] if str(row["key"]).startswith("schedule:")}
        told = {schedules.firing_key(*name): task for name, task in self.book.fired.items()}
        if keys != told:
            yield f"schedules fired {sorted(told.items())}, and there are {sorted(keys.items())}"
        rows = {row["id"]: row for row in dump["schedules"]}
        if set(rows) != set(self.book.pages):
            yield f"there are schedules {sorted(rows)}, and people know of {sorted(self.book.pages)}"
            return
        for name, page in self.book.pages.items():
            self.book.close(page)
            row, said = rows[name], (page.fired, page.skipped, page.next)
            if (row["fired"], row["skipped"], row["next_at"]) != said:
                yield f"schedule {name} says {dict(row)}, the book {said}"
