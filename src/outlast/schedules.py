"""Schedules as people use them: what fires tasks by the clock, checked before anything is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal

from outlast.backing import Backing
from outlast.core import ids, schedule, values
from outlast.core.durations import MAX_US, Duration
from outlast.core.record import record
from outlast.core.schedule import Cron, Every, Missed, Once, Overlap, Timing
from outlast.engine.registry import Registry
from outlast.entrances import guarded
from outlast.errors import InvalidSchedule, ScheduleConflict, ScheduleNotFound, StoreUnavailable
from outlast.store.scheduling import PutSchedule, Schedule, ScheduleRow, SetSchedule
from outlast.submitting import DEFAULT_TENANT, Request, submission_for
from outlast.views import instant

MAX_PREVIEW = 1_000
_TRIES = 5
"""How often a change is tried again that nobody bound to a revision."""


@record
class ScheduleRequest:
    """What a caller asks for, as it was sent; see ``Schedules.put``."""

    id: str
    agent: str
    input: Any = None
    cron: str | None = None
    zone: str | None = None
    every: Duration | None = None
    at: datetime | None = None
    missed: str = "once"
    max_missed: int = 100
    overlap: str = "allow"
    jitter: Duration | None = None
    tenant: str = DEFAULT_TENANT
    user: str | None = None
    pool: str | None = None
    priority: int = 0
    deadline: Duration | None = None
    version: str | None = None
    by: str = "app"
    reason: str = ""
    revision: int | None = None


@record
class ScheduleView:
    """A schedule as it stands. One of cron (with zone), every (seconds) and at is set.

    next_at: when it fires next; None while it is paused and when it is over. last_at, last_task: the newest
    instant that fired, and its task. fired, skipped: tasks submitted, and not submitted because the last one
    lived. note: what to know of it, such as firings that were missed. revision: grows with each change.
    """

    id: str
    tenant: str
    agent: str
    version: str
    pool: str
    priority: int
    user: str | None
    deadline: float | None
    input: Any
    cron: str | None
    zone: str | None
    every: float | None
    at: datetime | None
    missed: str
    max_missed: int
    overlap: str
    jitter: float
    revision: int
    paused: str | None
    paused_by: str | None
    next_at: datetime | None
    last_at: datetime | None
    last_task: str | None
    fired: int
    skipped: int
    note: str | None
    noted_at: datetime | None
    created_at: datetime | None
    changed_at: datetime | None
    changed_by: str

    @classmethod
    def of(cls, row: ScheduleRow) -> ScheduleView:
        """Read a stored schedule."""
        held, timing = row.schedule, _timing(row)
        return cls(
            id=held.id,
            tenant=held.tenant,
            agent=held.agent,
            version=held.version,
            pool=held.pool,
            priority=held.priority,
            user=held.user,
            deadline=None if held.deadline_us is None else held.deadline_us / 1_000_000,
            input=values.decode(held.input),
            cron=timing.expression if isinstance(timing, Cron) else None,
            zone=timing.zone if isinstance(timing, Cron) else None,
            every=timing.every_us / 1_000_000 if isinstance(timing, Every) else None,
            at=instant(timing.at) if isinstance(timing, Once) else None,
            missed=held.missed,
            max_missed=held.max_missed,
            overlap=held.overlap,
            jitter=held.jitter_us / 1_000_000,
            revision=row.revision,
            paused=row.paused,
            paused_by=row.paused_by,
            next_at=None if row.paused is not None else instant(row.next_at),
            last_at=instant(row.last_at),
            last_task=row.last_task,
            fired=row.fired,
            skipped=row.skipped,
            note=row.note,
            noted_at=instant(row.noted_at),
            created_at=instant(row.created_at),
            changed_at=instant(row.changed_at),
            changed_by=row.changed_by,
        )


@guarded(refusal=InvalidSchedule)
class Schedules:
    """What fires tasks by the clock. Workers fire; one that knows none of the agents does too."""

    def __init__(self, app: Backing) -> None:
        self._app = app

    async def put(
        self,
        id: str,
        agent: Callable[..., Any] | str,
        input: Any = None,
        *,
        cron: str | None = None,
        zone: str | None = None,
        every: Duration | None = None,
        at: datetime | None = None,
        missed: Missed = "once",
        max_missed: int = 100,
        overlap: Overlap = "allow",
        jitter: Duration | None = None,
        tenant: str = DEFAULT_TENANT,
        user: str | None = None,
        pool: str | None = None,
        priority: int = 0,
        deadline: Duration | None = None,
        version: str | None = None,
        by: str = "app",
        reason: str = "",
        revision: int | None = None,
    ) -> ScheduleView:
        """Make a schedule, or put this one in the place of another of its id.

        One of: cron, five fields in the IANA zone ``zone`` (UTC by default); every, a length of time, the
        first firing being that long after now; at, one instant. missed: what becomes of firings that are over
        a minute late: ``skip``; ``once``, one for all of them; ``all``, each, but only the newest
        ``max_missed``. overlap: ``skip`` submits nothing while the last task of the schedule lives. jitter:
        tasks start up to so much later. The rest is as in ``app.submit``; pool and deadline are the agent's
        by default, as they are now. by, reason: for the audit trail. revision: the one that was seen, 0 for a
        schedule that must be new; by default whatever stands is replaced.

        Raises InvalidSchedule and the rest of the InvalidRequest family, AgentNotFound, ScheduleConflict,
        StoreUnavailable. Atomic, idempotent: the same again changes nothing.
        """
        _, view = await self.apply(
            ScheduleRequest(
                id=id,
                agent=agent if isinstance(agent, str) else self._app.registry.name_of(agent),
                input=input,
                cron=cron,
                zone=zone,
                every=every,
                at=at,
                missed=missed,
                max_missed=max_missed,
                overlap=overlap,
                jitter=jitter,
                tenant=tenant,
                user=user,
                pool=pool,
                priority=priority,
                deadline=deadline,
                version=version,
                by=by,
                reason=reason,
                revision=revision,
            )
        )
        return view

    async def apply(
        self, request: ScheduleRequest
    ) -> tuple[Literal["created", "replaced", "unchanged"], ScheduleView]:
        """Do as ``put`` does, and say what came of it."""
        made, timing = _checked(self._app.registry, request)
        store = self._app.store
        stands = await store.read_schedule(made.tenant, made.id)
        now = await self._now()
        same = stands is not None and stands.schedule.timing == made.timing
        put = await store.put_schedule(
            PutSchedule(
                schedule=made,
                next_at=_first(timing, now, again=same),
                by=request.by,
                reason=request.reason,
                revision=request.revision,
            )
        )
        if put.kind == "conflict":
            raise _conflict(made.id, put.revision, request.revision)
        return put.kind, await self.get(made.id, tenant=made.tenant)

    async def get(self, id: str, *, tenant: str = DEFAULT_TENANT) -> ScheduleView:
        """Read a schedule. Raises ScheduleNotFound."""
        return ScheduleView.of(await self._read(id, tenant))

    async def list(
        self, *, tenant: str = DEFAULT_TENANT, after: str = "", limit: int = 100
    ) -> Sequence[ScheduleView]:
        """List schedules by id. after: the id to go on above. Raises InvalidKey."""
        if after:
            ids.check_key(after, "after")
        return [ScheduleView.of(row) for row in await self._app.store.list_schedules(tenant, after, limit)]

    async def delete(
        self,
        id: str,
        *,
        tenant: str = DEFAULT_TENANT,
        by: str = "app",
        reason: str = "",
        revision: int | None = None,
    ) -> None:
        """Delete a schedule; tasks that it fired go on. Kept in the audit trail.

        Raises ScheduleNotFound, ScheduleConflict.
        """
        await self._set("delete", id, tenant, by, reason, revision)

    async def pause(
        self,
        id: str,
        *,
        reason: str,
        tenant: str = DEFAULT_TENANT,
        by: str = "app",
        revision: int | None = None,
    ) -> ScheduleView:
        """Fire no more, from now on until ``resume``; tasks that it fired go on. Kept in the audit trail.

        Raises ScheduleNotFound, ScheduleConflict. Idempotent.
        """
        ids.check_key(reason, "reason")
        await self._set("pause", id, tenant, by, reason, revision)
        return await self.get(id, tenant=tenant)

    async def resume(
        self,
        id: str,
        *,
        tenant: str = DEFAULT_TENANT,
        by: str = "app",
        reason: str = "",
        revision: int | None = None,
    ) -> ScheduleView:
        """Fire again, from the first instant ahead; what passed meanwhile is not made up for. Kept in the
        audit trail.

        Raises ScheduleNotFound, ScheduleConflict. Idempotent.
        """
        await self._set("resume", id, tenant, by, reason, revision)
        return await self.get(id, tenant=tenant)

    async def preview(
        self,
        id: str | None = None,
        *,
        cron: str | None = None,
        zone: str | None = None,
        every: Duration | None = None,
        at: datetime | None = None,
        tenant: str = DEFAULT_TENANT,
        count: int = 5,
    ) -> Sequence[datetime]:
        """Answer the next instants of a schedule, as if it were not paused, or of times not yet stored.

        Raises ScheduleNotFound, InvalidSchedule. Changes nothing.
        """
        if not 1 <= count <= MAX_PREVIEW:
            raise InvalidSchedule(f"count is from 1 to {MAX_PREVIEW}, not {count}", pointer="/count")
        if id is None:
            timing = schedule.timing_of(cron=cron, zone=zone, every=every, at=at)
            first = schedule.first_after(timing, await self._now())
        else:
            row = await self._read(id, tenant)
            timing, first = _timing(row), row.next_at
            if row.paused is not None:
                first = schedule.going_on(timing, first, await self._now())
        return [at for us in schedule.preview(timing, first, count) if (at := instant(us)) is not None]

    # -- inside ---------------------------------------------------------------------------------------------

    async def _read(self, id: str, tenant: str) -> ScheduleRow:
        ids.check_name(tenant, "tenant")
        row = await self._app.store.read_schedule(tenant, schedule.check_id(id))
        if row is None:
            raise ScheduleNotFound(f"no schedule {id} in tenant {tenant}")
        return row

    async def _set(
        self,
        command: Literal["pause", "resume", "delete"],
        id: str,
        tenant: str,
        by: str,
        reason: str,
        revision: int | None,
    ) -> None:
        ids.check_key(by, "by")
        if reason:
            ids.check_key(reason, "reason")
        for left in range(_TRIES, -1, -1):
            row = await self._read(id, tenant)
            next_at = row.next_at
            if command == "resume":
                next_at = schedule.going_on(_timing(row), row.next_at, await self._now())
            done = await self._app.store.set_schedule(
                SetSchedule(
                    tenant=tenant,
                    id=id,
                    command=command,
                    by=by,
                    reason=reason,
                    next_at=next_at,
                    # What is next was worked out for this revision, whichever the caller has seen.
                    revision=row.revision if revision is None else revision,
                )
            )
            if done.kind == "not_found":
                raise ScheduleNotFound(f"no schedule {id} in tenant {tenant}")
            if done.kind != "conflict":
                return
            if revision is not None or not left:
                raise _conflict(id, done.revision, revision)

    async def _now(self) -> int:
        """Ask the database what time it is. Raises StoreUnavailable."""
        health = await self._app.store.health()
        if not health.reachable:
            raise StoreUnavailable(health.detail)
        return health.now


def _checked(registry: Registry, request: ScheduleRequest) -> tuple[Schedule, Timing]:
    """Check a request and make the record to store. Raises the InvalidRequest family and AgentNotFound."""
    schedule.check_id(request.id)
    ids.check_name(request.agent, "agent")
    timing = schedule.timing_of(cron=request.cron, zone=request.zone, every=request.every, at=request.at)
    _one_of(request.missed, schedule.MISSED, "missed")
    _one_of(request.overlap, schedule.OVERLAPS, "overlap")
    if not 1 <= request.max_missed <= schedule.MAX_MISSED:
        raise InvalidSchedule(f"max_missed is from 1 to {schedule.MAX_MISSED}", pointer="/max_missed")
    jitter_us = 0
    if request.jitter is not None:
        jitter_us = schedule.length_of(request.jitter, "jitter", zero=True)
    if jitter_us > schedule.MAX_JITTER_US:
        raise InvalidSchedule("jitter is a day at most", pointer="/jitter")
    ids.check_key(request.by, "by")
    if request.reason:
        ids.check_key(request.reason, "reason")
    # A schedule's task is like any other; so are the rules for it.
    task = submission_for(
        registry,
        Request(
            agent=request.agent,
            input=request.input,
            tenant=request.tenant,
            user=request.user,
            pool=request.pool,
            priority=request.priority,
            deadline=request.deadline,
            version=request.version,
        ),
    )
    made = Schedule(
        tenant=task.tenant,
        id=request.id,
        agent=task.agent,
        timing=schedule.written(timing),
        version=task.version,
        pool=task.pool,
        priority=task.priority,
        input=task.input,
        user=task.user,
        deadline_us=task.deadline_us,
        missed=request.missed,
        max_missed=request.max_missed,
        overlap=request.overlap,
        jitter_us=jitter_us,
    )
    return made, timing


def _one_of(value: object, known: tuple[str, ...], what: str) -> None:
    if value not in known:
        raise InvalidSchedule(f"{what} is one of {', '.join(known)}, not {value!r}"[:300], pointer=f"/{what}")


def _first(timing: Timing, now: int, *, again: bool) -> int | None:
    """Answer the first instant of a schedule that is put now. again: it stands with these times already."""
    first = schedule.first_after(timing, now)
    if isinstance(timing, Once):
        if timing.at < now - schedule.LATE_US:
            if again:
                return None
            said, today = schedule.instant_text(timing.at), schedule.instant_text(now)
            raise InvalidSchedule(f"at lies in the past: {said}; now is {today}", pointer="/at")
        if timing.at > now + MAX_US:
            raise InvalidSchedule("at lies more than a hundred years ahead", pointer="/at")
    return first


def _timing(row: ScheduleRow) -> Timing:
    return schedule.read(values.decode(row.schedule.timing))


def _conflict(id: str, revision: int, seen: int | None) -> ScheduleConflict:
    stands = f"it is at revision {revision}" if revision else "there is none"
    wanted = "it must not be there yet" if seen == 0 else f"revision {seen} was seen"
    return ScheduleConflict(f"schedule {id}: {wanted}, and {stands}", revision=revision)
