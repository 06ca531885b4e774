"""The verbs of schedules: ``put_schedule``, ``set_schedule``, ``due_schedules``, ``fire_schedules``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from outlast.store.scheduling import (
    NEW,
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
from outlast.store.sqlite import submit as submitting
from outlast.store.sqlite import switches
from outlast.store.sqlite.heads import json_text
from outlast.store.sqlite.transaction import Row, Transaction


def put(tx: Transaction, asked: PutSchedule, now: int | None) -> SchedulePut:
    """Make or replace a schedule; see ``Store.put_schedule``."""
    at = tx.now(now)
    schedule = asked.schedule
    stands = read(tx, schedule.tenant, schedule.id)
    if stands is not None and stands.schedule == schedule and asked.revision != NEW:
        return SchedulePut(kind="unchanged", revision=stands.revision)
    revision = 0 if stands is None else stands.revision
    if asked.revision is not None and asked.revision != revision:
        return SchedulePut(kind="conflict", revision=revision)
    given = {**asdict(schedule), "next_at": asked.next_at, "by": asked.by, "now": at, "revision": revision}
    tx.run("make_schedule" if stands is None else "replace_schedule", given)
    said = f'{{"revision":{revision + 1},"agent":{json_text(schedule.agent)},"timing":{schedule.timing}'
    switches.audit(
        tx,
        schedule.tenant,
        who=asked.by,
        what="schedule:create" if stands is None else "schedule:replace",
        subject=schedule.id,
        reason=asked.reason,
        at=at,
        data=f'{said},"input":{schedule.input}}}',
    )
    return SchedulePut(kind="created" if stands is None else "replaced", revision=revision + 1)


def change(tx: Transaction, asked: SetSchedule, now: int | None) -> ScheduleSet:
    """Pause, resume or delete a schedule; see ``Store.set_schedule``."""
    at = tx.now(now)
    stands = read(tx, asked.tenant, asked.id)
    if stands is None:
        return ScheduleSet(kind="not_found", revision=0)
    pausing = asked.command == "pause" and (stands.paused, stands.paused_by) == (asked.reason, asked.by)
    if pausing or (asked.command == "resume" and stands.paused is None):
        return ScheduleSet(kind="unchanged", revision=stands.revision)
    if asked.revision is not None and asked.revision != stands.revision:
        return ScheduleSet(kind="conflict", revision=stands.revision)
    given = {**asdict(asked), "now": at, "revision": stands.revision}
    changed = tx.run(f"{asked.command}_schedule", given)
    assert changed == 1, "the schedule changed inside its own transaction"
    switches.audit(
        tx,
        asked.tenant,
        who=asked.by,
        what=f"schedule:{asked.command}",
        subject=asked.id,
        reason=asked.reason,
        at=at,
        data=json_text({"revision": stands.revision}),
    )
    return ScheduleSet(kind="done", revision=stands.revision + (asked.command != "delete"))


def peek(tx: Transaction, request: DueRequest, now: int | None) -> DueSchedules | None:
    """Answer that nothing is due without being the writer; None when there is something."""
    at = tx.now(now)
    if tx.row("schedules_due", {"now": at, "limit": 1}) is not None:
        return None
    return DueSchedules(now=at, next_due_us=_next_due_us(tx, at))


def due(tx: Transaction, request: DueRequest, now: int | None) -> DueSchedules:
    """Take schedules that are due; see ``Store.due_schedules``."""
    at = tx.now(now)
    rows = [_row(row) for row in tx.rows("schedules_due", {"now": at, "limit": request.limit})]
    for row in rows:
        tx.run("take_schedule", (at + request.lease_us, row.schedule.tenant, row.schedule.id))
    return DueSchedules(now=at, rows=tuple(rows), next_due_us=_next_due_us(tx, at))


def _next_due_us(tx: Transaction, at: int) -> int | None:
    found = tx.row("next_schedule", (at,))
    assert found is not None
    return None if found[0] is None else int(found[0]) - at


def fire(tx: Transaction, firings: Sequence[Firing], now: int | None) -> list[Fired]:
    """Fire schedules, each for one instant; see ``Store.fire_schedules``."""
    return [_fire(tx, firing, tx.now(now)) for firing in firings]


def _fire(tx: Transaction, firing: Firing, at: int) -> Fired:
    stands = read(tx, firing.tenant, firing.schedule)
    if (
        stands is None
        or (stands.revision, stands.next_at) != (firing.revision, firing.expected)
        or stands.paused is not None
    ):
        return Fired(kind="passed")
    if firing.instant > at:
        return Fired(kind="early")
    fired = _submit(tx, firing, stands)
    note = firing.note
    if fired.kind == "conflict":
        assert firing.submission is not None
        note = f"nothing fired: the key {firing.submission.key} is that of another request, of {fired.task}"
    done = fired.kind in ("fired", "replayed")
    changed = tx.run(
        "move_schedule",
        {
            "tenant": firing.tenant,
            "id": firing.schedule,
            "revision": firing.revision,
            "expected": firing.expected,
            "next_at": firing.next_at,
            "last_at": firing.instant if done else None,
            "last_task": fired.task if done else None,
            "fired": int(fired.kind == "fired"),
            "skipped": int(fired.kind == "skipped"),
            "note": note,
            "now": at,
        },
    )
    assert changed == 1, "the schedule changed inside its own transaction"
    return fired


def _submit(tx: Transaction, firing: Firing, stands: ScheduleRow) -> Fired:
    if firing.submission is None:
        return Fired(kind="moved")
    if (
        stands.schedule.overlap == "skip"
        and stands.last_task is not None
        and tx.row("is_live", (firing.tenant, stands.last_task)) is not None
    ):
        return Fired(kind="skipped", task=stands.last_task)
    known = tx.row("is_submitted", (firing.tenant, firing.submission.task)) is not None
    (submitted,) = submitting.submit(tx, [firing.submission])
    assert submitted.kind != "stale", "a schedule's task has no parent"
    kind: Literal["fired", "replayed", "conflict", "busy"]
    if submitted.kind == "accepted":
        kind = "replayed" if known else "fired"
    else:
        kind = submitted.kind
    return Fired(kind=kind, task=submitted.task)


# -- views -------------------------------------------------------------------------------------------------


def read(tx: Transaction, tenant: str, id: str) -> ScheduleRow | None:
    """Read a schedule; see ``Store.read_schedule``."""
    found = tx.row("read_schedule", (tenant, id))
    return None if found is None else _row(found)


def list_schedules(tx: Transaction, tenant: str, after: str, limit: int) -> list[ScheduleRow]:
    """List a tenant's schedules; see ``Store.list_schedules``."""
    return [_row(row) for row in tx.rows("list_schedules", (tenant, after, limit))]


def _row(row: Row) -> ScheduleRow:
    tenant, id_, agent, timing, version, pool, priority, input_, user, deadline_us, *rest = row
    missed, max_missed, overlap, jitter_us, revision, paused, paused_by, next_at, last_at, *rest = rest
    last_task, fired, skipped, note, noted_at, created_at, changed_at, changed_by = rest
    return ScheduleRow(
        schedule=Schedule(
            tenant=tenant,
            id=id_,
            agent=agent,
            timing=timing,
            version=version,
            pool=pool,
            priority=priority,
            input=input_,
            user=user,
            deadline_us=deadline_us,
            missed=missed,
            max_missed=max_missed,
            overlap=overlap,
            jitter_us=jitter_us,
        ),
        revision=revision,
        paused=paused,
        paused_by=paused_by,
        next_at=next_at,
        last_at=last_at,
        last_task=last_task,
        fired=fired,
        skipped=skipped,
        note=note,
        noted_at=noted_at,
        created_at=created_at,
        changed_at=changed_at,
        changed_by=changed_by,
    )
