"""Schedules: what fires tasks by the clock."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from outlast.core import schedule
from outlast.schedules import ScheduleView
from outlast.server.schemas.fields import BY, Body, Instant, Length, Name, ShortText, written

CronText = Annotated[
    str,
    Field(max_length=schedule.MAX_CRON_CHARS),
    WithJsonSchema({"type": "string", "maxLength": schedule.MAX_CRON_CHARS, "examples": ["30 2 * * 1-5"]}),
]
MissedName = Literal["skip", "once", "all"]
OverlapName = Literal["allow", "skip"]


class NewSchedule(Body):
    """What is to fire, and when: one of `cron`, `every` and `at`."""

    agent: Annotated[Name, Field(description="The agent whose tasks are fired.")]
    input: Annotated[dict[str, Any] | None, Field(description="The agent's parameters by name.")] = None
    cron: Annotated[
        CronText | None,
        Field(description="Minute, hour, day of month, month, day of week; or `@daily` and its like."),
    ] = None
    zone: Annotated[
        str | None, Field(max_length=120, description="The IANA time zone of `cron`; UTC by default.")
    ] = None
    every: Annotated[
        Length | None,
        Field(description="An interval, a second or more; the first firing is so long from now."),
    ] = None
    at: Annotated[Instant | None, Field(description="One instant, at most a minute ago.")] = None
    missed: Annotated[
        MissedName,
        Field(
            description="What becomes of firings over a minute late: none (`skip`), one for all (`once`), "
            "each (`all`)."
        ),
    ] = "once"
    max_missed: Annotated[
        int,
        Field(strict=True, ge=1, le=schedule.MAX_MISSED, description="With `all`: only the newest so many."),
    ] = 100
    overlap: Annotated[
        OverlapName, Field(description="`skip`: submit nothing while the last task of the schedule lives.")
    ] = "allow"
    jitter: Annotated[Length | None, Field(description="Tasks start up to so much later; a day at most.")] = (
        None
    )
    user: Annotated[ShortText | None, Field(description="For whom, within the tenant.")] = None
    pool: Annotated[Name | None, Field(description="Which workers; the agent's pool by default.")] = None
    priority: Annotated[
        int, Field(strict=True, ge=-1000, le=1000, description="Higher goes first among the tenant's own.")
    ] = 0
    deadline: Annotated[
        Length | None, Field(description="How long after its firing a task must have ended.")
    ] = None
    version: Annotated[Name | None, Field(description="A version of the agent to bind to.")] = None
    reason: Annotated[ShortText | None, Field(description="Why; kept in the audit trail.")] = None
    by: Annotated[ShortText | None, Field(description=BY)] = None


class ScheduleChange(Body):
    """Why a schedule is paused or goes on."""

    reason: Annotated[ShortText, Field(description="Why; kept in the audit trail.")]
    by: Annotated[ShortText | None, Field(description=BY)] = None


class Schedule(BaseModel):
    """A schedule as it stands."""

    id: str
    tenant: str
    agent: str
    version: Annotated[str, Field(description="Empty for the latest that a worker serves.")]
    pool: str
    priority: int
    user: str | None
    deadline: Annotated[float | None, Field(description="Seconds.")]
    input: Any
    cron: str | None
    zone: str | None
    every: Annotated[float | None, Field(description="Seconds.")]
    at: datetime | None
    missed: MissedName
    max_missed: int
    overlap: OverlapName
    jitter: Annotated[float, Field(description="Seconds.")]
    revision: Annotated[int, Field(description="Grows with each change; the entity tag.")]
    paused: Annotated[str | None, Field(description="Why it is paused.")]
    paused_by: str | None
    next_at: Annotated[
        datetime | None, Field(description="When it fires next; null while it is paused and when it is over.")
    ]
    last_at: Annotated[datetime | None, Field(description="The newest instant that fired.")]
    last_task: str | None
    fired: Annotated[int, Field(description="Tasks submitted.")]
    skipped: Annotated[int, Field(description="Firings without a task because the last one lived.")]
    note: Annotated[str | None, Field(description="What to know of it, such as firings that were missed.")]
    noted_at: datetime | None
    created_at: datetime
    changed_at: datetime
    changed_by: str


class SchedulePage(BaseModel):
    """Schedules by id. ``next``: what to send as ``after`` for the next page."""

    items: list[Schedule]
    next: str | None


class Instants(BaseModel):
    """When a schedule fires next."""

    items: list[datetime]
    next: None = None


def schedule_body(view: ScheduleView) -> dict[str, Any]:
    """Write a schedule."""
    return {
        "id": view.id,
        "tenant": view.tenant,
        "agent": view.agent,
        "version": view.version,
        "pool": view.pool,
        "priority": view.priority,
        "user": view.user,
        "deadline": view.deadline,
        "input": view.input,
        "cron": view.cron,
        "zone": view.zone,
        "every": view.every,
        "at": written(view.at),
        "missed": view.missed,
        "max_missed": view.max_missed,
        "overlap": view.overlap,
        "jitter": view.jitter,
        "revision": view.revision,
        "paused": view.paused,
        "paused_by": view.paused_by,
        "next_at": written(view.next_at),
        "last_at": written(view.last_at),
        "last_task": view.last_task,
        "fired": view.fired,
        "skipped": view.skipped,
        "note": view.note,
        "noted_at": written(view.noted_at),
        "created_at": written(view.created_at),
        "changed_at": written(view.changed_at),
        "changed_by": view.changed_by,
    }
