"""put_schedule, set_schedule, due_schedules, fire_schedules: calls of functions that live in the database.

People's changes go over the control line. Looking for what is due waits for nobody, and firing is submitting,
so these go over the lines of the sweeper and of submit: a lock held on a schedule never stands before a
renewal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from outlast.store.postgres.connections import Line
from outlast.store.postgres.failures import NoSuchLane
from outlast.store.postgres.submitting import Submitting, submission_row
from outlast.store.scheduling import (
    DueRequest,
    DueSchedules,
    Fired,
    Firing,
    PutSchedule,
    Schedule,
    SchedulePut,
    ScheduleRow,
    ScheduleSet,
    SetSchedule,
)

_NOTHING = (None,) * 14
"""The columns of a submission where there is none."""


class Scheduling:
    """The verbs, over lines that they share with others."""

    def __init__(
        self, control: Line, looking: Line, firing: Line, submitting: Submitting, sql: dict[str, str]
    ) -> None:
        self._control = control
        self._looking = looking
        self._firing = firing
        self._submitting = submitting
        self._sql = sql

    async def put(self, asked: PutSchedule, now: int | None) -> SchedulePut:
        """Make or replace a schedule by compare-and-set on its revision."""
        s = asked.schedule
        [row] = await self._rows(
            self._control,
            "put_schedule",
            *(s.tenant, s.id, s.agent, s.version, s.pool, s.priority, s.input, s.user, s.deadline_us),
            *(s.timing, s.missed, s.max_missed, s.overlap, s.jitter_us),
            *(asked.next_at, asked.by, asked.reason, asked.revision, now),
        )
        return SchedulePut(kind=row["kind"], revision=row["revision"])

    async def set(self, asked: SetSchedule, now: int | None) -> ScheduleSet:
        """Pause, resume or delete a schedule by compare-and-set on its revision."""
        [row] = await self._rows(
            self._control,
            "set_schedule",
            *(asked.tenant, asked.id, asked.command, asked.by, asked.reason, asked.next_at),
            *(asked.revision, now),
        )
        return ScheduleSet(kind=row["kind"], revision=row["revision"])

    async def due(self, request: DueRequest, now: int | None) -> DueSchedules:
        """Take schedules that are due."""
        first, *taken = await self._rows(self._looking, "due_schedules", request.limit, request.lease_us, now)
        at, next_due_at = first["now"], first["next_due_at"]
        rows: list[asyncpg.Record] = []
        if taken:
            # In a statement of its own: whatever has changed since then is compared when it is fired.
            names = [row["tenant"] for row in taken], [row["id"] for row in taken]
            rows = await self._rows(self._looking, "load_schedules", *names, at)
        return DueSchedules(
            now=at,
            rows=tuple(schedule_of(row) for row in rows),
            next_due_us=None if next_due_at is None else max(0, next_due_at - at),
        )

    async def fire(self, firings: Sequence[Firing], now: int | None) -> list[Fired]:
        """Fire schedules, each in a savepoint of one transaction."""
        submissions = [firing.submission for firing in firings if firing.submission is not None]
        for make in (False, True):
            lanes = iter(await self._submitting.lanes_for(submissions, make=make))
            rows = [
                (
                    *(f.tenant, f.schedule, f.revision, f.expected, f.instant, f.next_at, f.note),
                    *(_NOTHING if f.submission is None else submission_row(f.submission)[1:]),
                    None if f.submission is None else next(lanes),
                )
                for f in firings
            ]
            try:
                found = await self._rows(self._firing, "fire_schedules", *zip(*rows, strict=True), now)
            except NoSuchLane:
                # Nothing was done: a task is about to stand in a lane for the first time, or the database was
                # put back to an earlier state and what we know of it is wrong.
                if make:
                    raise
            else:
                return [Fired(kind=row["kind"], task=row["task"]) for row in found]
        raise AssertionError("unreachable")

    async def _rows(self, line: Line, name: str, *arguments: Any) -> list[asyncpg.Record]:
        sql = self._sql[name]
        return await line.run(lambda connection: connection.fetch(sql, *arguments))


def schedule_of(row: asyncpg.Record) -> ScheduleRow:
    """Make a schedule's record of a row that has its columns."""
    return ScheduleRow(
        schedule=Schedule(
            tenant=row["tenant"],
            id=row["id"],
            agent=row["agent"],
            timing=row["timing"],
            version=row["version_asked"],
            pool=row["pool"],
            priority=row["priority"],
            input=row["input"],
            user=row["user_name"],
            deadline_us=row["deadline_us"],
            missed=row["missed"],
            max_missed=row["max_missed"],
            overlap=row["overlap"],
            jitter_us=row["jitter_us"],
        ),
        revision=row["revision"],
        paused=row["paused"],
        paused_by=row["paused_by"],
        next_at=row["next_at"],
        last_at=row["last_at"],
        last_task=row["last_task"],
        fired=row["fired"],
        skipped=row["skipped"],
        note=row["note"],
        noted_at=row["noted_at"],
        created_at=row["created_at"],
        changed_at=row["changed_at"],
        changed_by=row["changed_by"],
    )
