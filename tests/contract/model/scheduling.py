"""The model's schedules: what fires tasks by the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.contract.model.submitting import Submitting

from outlast.store.scheduling import (
    NEW,
    DueRequest,
    DueSchedules,
    Fired,
    Firing,
    PutSchedule,
    SchedulePut,
    ScheduleRow,
    ScheduleSet,
    SetSchedule,
)


class Scheduling(Submitting):
    """The verbs of schedules."""

    def put_schedule(self, asked: PutSchedule, now: int) -> SchedulePut:
        """Make a schedule or put another in its place, by compare-and-set on its revision."""
        name = (asked.schedule.tenant, asked.schedule.id)
        stands = self.schedules.get(name)
        revision = stands.revision if stands else 0
        if stands is not None and stands.schedule == asked.schedule and asked.revision != NEW:
            return SchedulePut(kind="unchanged", revision=revision)
        if asked.revision not in (None, revision):
            return SchedulePut(kind="conflict", revision=revision)
        self.taken.pop(name, None)
        if stands is None:
            self.schedules[name] = ScheduleRow(
                schedule=asked.schedule, revision=1, paused=None, paused_by=None, next_at=asked.next_at,
                last_at=None, last_task=None, fired=0, skipped=0, note=None, noted_at=None, created_at=now,
                changed_at=now, changed_by=asked.by,
            )  # fmt: skip
            return SchedulePut(kind="created", revision=1)
        same = stands.schedule.timing == asked.schedule.timing
        self.schedules[name] = replace(
            stands, schedule=asked.schedule, next_at=stands.next_at if same else asked.next_at,
            revision=revision + 1, changed_at=now, changed_by=asked.by,
        )  # fmt: skip
        return SchedulePut(kind="replaced", revision=revision + 1)

    def set_schedule(self, asked: SetSchedule, now: int) -> ScheduleSet:
        """Pause a schedule, let it go on, or delete it."""
        name = (asked.tenant, asked.id)
        stands = self.schedules.get(name)
        if stands is None:
            return ScheduleSet(kind="not_found", revision=0)
        pausing = (stands.paused, stands.paused_by) == (asked.reason, asked.by)
        if (asked.command == "pause" and pausing) or (asked.command == "resume" and stands.paused is None):
            return ScheduleSet(kind="unchanged", revision=stands.revision)
        if asked.revision not in (None, stands.revision):
            return ScheduleSet(kind="conflict", revision=stands.revision)
        if asked.command == "delete":
            del self.schedules[name]
            self.taken.pop(name, None)
            return ScheduleSet(kind="done", revision=stands.revision)
        changed = replace(stands, revision=stands.revision + 1, changed_at=now, changed_by=asked.by)
        if asked.command == "pause":
            changed = replace(changed, paused=asked.reason, paused_by=asked.by)
        else:
            changed = replace(changed, paused=None, paused_by=None, next_at=asked.next_at)
            self.taken.pop(name, None)
        self.schedules[name] = changed
        return ScheduleSet(kind="done", revision=changed.revision)

    def due_schedules(self, request: DueRequest, now: int) -> DueSchedules:
        """Take what is due and was not taken just now."""
        next_at = {
            name: row.next_at
            for name, row in self.schedules.items()
            if row.paused is None and row.next_at is not None
        }
        due = sorted(
            (at, name) for name, at in next_at.items() if at <= now and self.taken.get(name, 0) <= now
        )
        for _, name in due:
            self.taken[name] = now + request.lease_us
        ahead = [at - now for at in next_at.values() if at > now]
        return DueSchedules(
            now=now,
            rows=tuple(self.schedules[name] for _, name in due),
            next_due_us=min(ahead, default=None),
        )

    def fire_schedules(self, firings: Sequence[Firing], now: int) -> list[Fired]:
        """Submit tasks for instants of schedules, each once."""
        return [self._fire(one, now) for one in firings]

    def _fire(self, one: Firing, now: int) -> Fired:
        name = (one.tenant, one.schedule)
        stands = self.schedules.get(name)
        if (
            stands is None
            or (stands.revision, stands.next_at) != (one.revision, one.expected)
            or stands.paused is not None
        ):
            return Fired(kind="passed")
        if one.instant > now:
            return Fired(kind="early")
        said, note = Fired(kind="moved"), one.note
        last = self.tasks.get((one.tenant, stands.last_task or ""))
        if one.submission is not None and stands.schedule.overlap == "skip" and last and last.live:
            said = Fired(kind="skipped", task=last.record.task)
        elif one.submission is not None:
            new = (one.tenant, one.submission.task) not in self.tasks
            [submitted] = self.submit([one.submission], now)
            kind = "fired" if new else "replayed"
            if submitted.kind != "accepted":
                kind = submitted.kind
            said = Fired(kind=kind, task=submitted.task)  # type: ignore[arg-type]
        if said.kind == "conflict":
            note = "the key is another's"
        if said.kind in ("fired", "replayed"):
            stands = replace(stands, last_at=one.instant, last_task=said.task)
        if note is not None:
            stands = replace(stands, note=note, noted_at=now)
        self.schedules[name] = replace(
            stands, next_at=one.next_at, fired=stands.fired + (said.kind == "fired"),
            skipped=stands.skipped + (said.kind == "skipped"),
        )  # fmt: skip
        if one.next_at != one.expected:
            self.taken.pop(name, None)
        return said

    def read_schedule(self, tenant: str, name: str) -> ScheduleRow | None:
        """Read a schedule."""
        return self.schedules.get((tenant, name))

    def list_schedules(self, tenant: str, limit: int) -> list[ScheduleRow]:
        """List a tenant's schedules."""
        mine = [row for (of, _), row in sorted(self.schedules.items()) if of == tenant]
        return mine[:limit]
