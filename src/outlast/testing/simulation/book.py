"""The book of schedules: what becomes of every instant, by other eyes than the store's.

Purpose: to say of each firing, at the very moment when it is committed, whether it may be. Instants and
policies are worked out here by themselves.

Identity: a schedule's id and its instant.

State: kept beside the database, whatever those who ask it are told.

Clock: the database's.

Not covered: cron but for every minute; zones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from outlast.core import values
from outlast.core.transitions import TASK
from outlast.store.contract import Store
from outlast.store.records import TaskRef
from outlast.store.scheduling import (
    DueRequest,
    DueSchedules,
    Fired,
    Firing,
    PutSchedule,
    Schedule,
    SchedulePut,
    ScheduleSet,
    SetSchedule,
)
from outlast.testing.simulation.node import EPOCH_US
from outlast.testing.simulation.world import World

__all__ = ["SECOND_US", "Book", "Watched"]

SECOND_US: Final = 1_000_000
LATE_US: Final = 60 * SECOND_US
"""What is later than this has been missed, as the docs say."""
MINUTE_US: Final = 60 * SECOND_US
MOST: Final = 1_000


@dataclass(slots=True)
class Page:
    """One schedule in the book. first: the first instant of the times that it has now; next: the first that
    has not fired. counts: what became of those between. fired, skipped: how many, of all its times."""

    schedule: Schedule
    first: int | None
    next: int | None
    paused: bool = False
    last_task: str | None = None
    counts: Counter[str] = field(default_factory=Counter)
    fired: int = 0
    skipped: int = 0

    def after(self, instant: int) -> int | None:
        """Answer the instant that follows another."""
        timing = values.decode(self.schedule.timing)
        if "every_us" in timing:
            return instant + int(timing["every_us"])
        return None if "at_us" in timing else (instant // MINUTE_US + 1) * MINUTE_US

    def between(self, first: int | None, end: int | None) -> list[int]:
        """Answer the instants from one to another, which is left out; None is the end of all."""
        found: list[int] = []
        while first is not None and (end is None or first < end) and len(found) < MOST:
            found.append(first)
            first = self.after(first)
        return found


class Book:
    """What becomes of every schedule, with other eyes than the store's."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.pages: dict[str, Page] = {}
        self.fired: dict[tuple[str, int], str] = {}
        """The task of each instant that fired, for ever."""
        self._looked: dict[str, list[int]] = {}
        """When workers were told that a schedule is due."""

    def now(self) -> int:
        """Answer the database's time."""
        return EPOCH_US + int(self._world.loop.time() * SECOND_US)

    def looked(self, due: DueSchedules) -> None:
        """Note who is told to fire, and when."""
        for row in due.rows:
            self._looked.setdefault(row.schedule.id, []).append(due.now)

    def put(self, asked: PutSchedule, done: SchedulePut) -> None:
        """Note a schedule that was made or replaced."""
        name = asked.schedule.id
        page = self.pages.get(name)
        if done.kind == "created":
            self._accuse_if(page is not None, f"schedule {name} was made although it is there")
            self.pages[name] = Page(schedule=asked.schedule, first=asked.next_at, next=asked.next_at)
        elif done.kind == "replaced" and page is not None:
            if page.schedule.timing != asked.schedule.timing:
                self.close(page)
                page.first = page.next = asked.next_at
                page.counts.clear()
            page.schedule = asked.schedule

    def set(self, asked: SetSchedule, done: ScheduleSet) -> None:
        """Note a schedule that was paused, let go on or deleted."""
        page = self.pages.get(asked.id)
        if done.kind != "done" or page is None:
            self._accuse_if(done.kind == "done", f"schedule {asked.id} was changed and is not there")
            return
        if asked.command == "delete":
            self.close(self.pages.pop(asked.id))
        elif asked.command == "pause":
            page.paused = True
        else:
            passed = page.between(page.next, asked.next_at)
            ahead = [instant for instant in passed if instant > self.now()]
            self._accuse_if(bool(ahead), f"schedule {asked.id} went on without {ahead}, which lie ahead")
            page.counts["paused"] += len(passed)
            page.paused, page.next = False, asked.next_at

    def fire(self, firing: Firing, fired: Fired, lives: bool) -> None:
        """Note a firing. lives: whether the schedule's last task does."""
        if fired.kind in ("passed", "early", "busy"):
            return
        name, page = f"schedule {firing.schedule}", self.pages.get(firing.schedule)
        if page is None or page.paused or firing.expected != page.next:
            self._world.accuse(f"{name} was fired for {firing.instant}: {fired.kind}, and stands as {page}")
            return
        if firing.submission is None:
            self._pass_over(page, firing.expected, firing.next_at)
            page.next = firing.next_at
            return
        self._pass_over(page, firing.expected, firing.instant)
        self._accuse_if(firing.instant > self.now(), f"{name} fired early for {firing.instant}")
        if fired.kind == "skipped":
            page.skipped += 1
            self._accuse_if(
                page.schedule.overlap != "skip" or not lives, f"{name} skipped {firing.instant} for nothing"
            )
        else:
            self._note_fired(page, firing, fired, lives)
        page.counts[fired.kind] += 1
        self._accuse_if(
            firing.next_at != page.after(firing.instant), f"{name} goes on with {firing.next_at}: {firing}"
        )
        page.next = firing.next_at

    def _note_fired(self, page: Page, firing: Firing, fired: Fired, lives: bool) -> None:
        name, told = f"schedule {firing.schedule}", (firing.schedule, firing.instant)
        if fired.kind != "fired":
            # It was worked out long ago, and a schedule of that name has fired it since.
            self._accuse_if(told not in self.fired, f"{name} fired {firing.instant}: {fired}")
            return
        self._accuse_if(told in self.fired, f"{name} fired {firing.instant} twice")
        self._accuse_if(
            lives and page.schedule.overlap == "skip",
            f"{name} fired {firing.instant} while its last task lives",
        )
        on_time = any(at - firing.instant <= LATE_US for at in self._looked.get(firing.schedule, ()))
        self._accuse_if(
            page.schedule.missed == "skip" and not on_time,
            f"{name} made up for {firing.instant}, against its word",
        )
        self.fired[told] = page.last_task = fired.task
        page.fired += 1

    def _pass_over(self, page: Page, first: int, end: int | None) -> None:
        """Look whether a firing may leave out what lies between."""
        passed = page.between(first, end)
        held, now = page.schedule, self.now()
        for instant in passed:
            late = now - (first if held.missed == "once" else instant) > LATE_US
            newer = 0 if held.missed != "all" else len(page.between(page.after(instant), now + 1))
            if not late or (held.missed == "all" and newer < held.max_missed):
                self._world.accuse(
                    f"schedule {held.id} passed over {instant}, missed={held.missed}, at {now}"
                )
        page.counts["missed"] += len(passed)

    def close(self, page: Page) -> None:
        """Compare how many instants there were with what became of them."""
        due = len(page.between(page.first, page.next))
        self._accuse_if(
            due != page.counts.total(),
            f"schedule {page.schedule.id} had {due} instants, and came to {dict(page.counts)}",
        )

    def _accuse_if(self, broken: bool, text: str) -> None:
        if broken:
            self._world.accuse(text)


class Watched:
    """The world's database, with a book beside it."""

    def __init__(self, store: Store, book: Book) -> None:
        self._store, self._book = store, book

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put_schedule(self, asked: PutSchedule, *, now: int | None = None) -> SchedulePut:
        done = await self._store.put_schedule(asked, now=now)
        self._book.put(asked, done)
        return done

    async def set_schedule(self, asked: SetSchedule, *, now: int | None = None) -> ScheduleSet:
        done = await self._store.set_schedule(asked, now=now)
        self._book.set(asked, done)
        return done

    async def due_schedules(self, request: DueRequest, *, now: int | None = None) -> DueSchedules:
        due = await self._store.due_schedules(request, now=now)
        self._book.looked(due)
        return due

    async def fire_schedules(self, firings: Sequence[Firing], *, now: int | None = None) -> list[Fired]:
        verdicts = await self._store.fire_schedules(firings, now=now)
        for firing, fired in zip(firings, verdicts, strict=True):
            page, lives = self._book.pages.get(firing.schedule), False
            if page is not None and page.last_task is not None:
                refs = [TaskRef(tenant=firing.tenant, task=page.last_task)]
                lives = any(row.state not in TASK.final for row in await self._store.read_tasks(refs))
            self._book.fire(firing, fired, lives)
        return verdicts
