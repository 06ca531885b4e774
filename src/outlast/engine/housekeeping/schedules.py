"""Schedules: submits tasks by the clock, for everybody, whatever agents this process knows.

Purpose: each instant of a schedule gives one task, however many processes look, and none is passed over in
silence.

Identity: (schedule, instant). The task's idempotency key is made of both, and the schedule's next instant is
compared and moved on in the transaction that stores the task.

State: what a schedule says, and the first instant that has not fired. Which one comes next is worked out here
(``outlast.core.schedule``); the store only compares.

Clock: the database's decides what is due and what was missed. Before the time comes it is asked how long that
is; this process's clock only measures the sleep until it asks again.

What is fenced: a firing compares the schedule's revision and next instant under its lock. A twin that fires
the same instant, and one that has read the schedule before it was changed or paused, change nothing.

Failure by failure: this process dies before the commit: nothing has happened, and others find the schedule
due when what it took is over (``LEASE_US``). It dies after: the schedule has moved on. It dies while it makes
up for many: those committed stand, and others go on from there. The answer is lost:
looked at again, and passed. Nobody looks for a while: the schedule's policy on missed firings says what is
made up for. A schedule cannot be worked out here (a zone that this system's tables lack): it is left to
others, with a note that people see. A firing is refused for good: a warning, and the others go on.

Not covered: an instant is fired when somebody looks, so that a schedule made a moment ago by another process,
and due at once, may be up to two seconds late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final

from outlast import clock, probes, telemetry
from outlast.core import canonical, ids, schedule, values
from outlast.engine.settings import WorkerSettings
from outlast.errors import StoreUnavailable
from outlast.store.contract import BatchRejected, Store
from outlast.store.records import Submission
from outlast.store.scheduling import DueRequest, DueSchedules, Firing, ScheduleRow

BATCH: Final = 64
LOOKS: Final = 2
"""It looks every second time that the sweeper does, and when the next schedule is known to be due."""
LEASE_US: Final = 10_000_000
MOST: Final = 500
MOST_BYTES: Final = 4_000_000
"""So many firings, with inputs of about so many bytes, in one transaction."""
SOONEST_S: Final = 0.01


async def keep_firing(store: Store, settings: WorkerSettings) -> None:
    """Fire what is due for ever; end by cancelling."""
    while True:
        pause = LOOKS * settings.sweep_s
        try:
            due = await fire_due(store)
            if len(due.rows) >= BATCH:
                pause = 0.0
            elif due.next_due_us is not None:
                pause = min(pause, max(due.next_due_us / 1_000_000, SOONEST_S))
        except StoreUnavailable as error:
            telemetry.emit(telemetry.StoreAway(duty="schedules", detail=str(error)))
        await asyncio.sleep(pause)


async def fire_due(store: Store) -> DueSchedules:
    """Fire what is due by now; answer what was taken for that. Raises StoreUnavailable."""
    due = await store.due_schedules(DueRequest(limit=BATCH, lease_us=LEASE_US))
    by_schedule = [firings for row in due.rows if (firings := firings_of(row, due.now))]
    if by_schedule:
        probes.reach("schedules.before_fire")
        for portion in _portions([firing for each in by_schedule for firing in each]):
            await _fire(store, portion, due.now)
        probes.reach("schedules.after_fire")
    return due


def _portions(firings: list[Firing]) -> Iterator[list[Firing]]:
    """Part firings into transactions of a bounded size, in order."""
    portion: list[Firing] = []
    size = 0
    for firing in firings:
        weight = 0 if firing.submission is None else len(firing.submission.input)
        if portion and (len(portion) >= MOST or size + weight > MOST_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(firing)
        size += weight
    if portion:
        yield portion


async def _fire(store: Store, firings: list[Firing], now: int) -> None:
    try:
        verdicts = await store.fire_schedules(firings)
    except BatchRejected as error:
        if len({(each.tenant, each.schedule) for each in firings}) == 1:
            name = firings[0].schedule
            telemetry.emit(telemetry.Warned(about=f"schedule {name} cannot fire", advice=str(error)))
            return
        # One of them is at fault, and the others have nothing to do with it.
        for _, group in groupby(firings, lambda each: (each.tenant, each.schedule)):
            await _fire(store, list(group), now)
        return
    for firing, fired in zip(firings, verdicts, strict=True):
        telemetry.emit(
            telemetry.ScheduleFired(
                tenant=firing.tenant,
                schedule=firing.schedule,
                verdict=fired.kind,
                task=fired.task,
                late=max(0, now - firing.instant) / 1_000_000,
            )
        )


def firings_of(row: ScheduleRow, now: int) -> list[Firing]:
    """Work out what a schedule that is due fires now, as firings that follow each other."""
    held = row.schedule
    assert row.next_at is not None, "a schedule that is due has an instant"
    move = Firing(
        tenant=held.tenant,
        schedule=held.id,
        revision=row.revision,
        expected=row.next_at,
        instant=row.next_at,
        next_at=row.next_at,
    )
    missed: schedule.Missed = "all" if held.missed == "all" else "skip" if held.missed == "skip" else "once"
    try:
        timing = schedule.read(values.decode(held.timing))
        due = schedule.decide(timing, missed, held.max_missed, row.next_at, now)
    # Whatever is wrong with it here, it must not stop the others; elsewhere it may well be right.
    except Exception as error:
        note = f"one worker could not work it out: {type(error).__name__}: {error}"[:500]
        return [] if row.note == note else [replace(move, note=note)]
    if not due.fires:
        return [replace(move, next_at=due.next_at, note=due.note)]
    # Each firing expects what the one before has set.
    expected, nexts = (row.next_at, *due.fires[1:]), (*due.fires[1:], due.next_at)
    made = [
        replace(
            move, expected=before, instant=instant, next_at=next_at, submission=submission_of(row, instant)
        )
        for before, instant, next_at in zip(expected, due.fires, nexts, strict=True)
    ]
    return [replace(made[0], note=due.note), *made[1:]]


def submission_of(row: ScheduleRow, instant: int) -> Submission:
    """Make the task that a schedule fires for an instant."""
    held = row.schedule
    at = schedule.instant_text(instant)
    origin = {"schedule": held.id, "instant": at}
    wait_us = schedule.spread(held.tenant, held.id, instant, held.jitter_us)
    request = {
        **origin,
        "agent": held.agent,
        "version": held.version,
        "input": held.input,
        "options": [held.pool, held.priority, held.user, held.deadline_us],
    }
    return Submission(
        tenant=held.tenant,
        task=clock.new_id(ids.TASK),
        key=schedule.firing_key(held.id, instant),
        request_digest=canonical.digest(request),
        agent=held.agent,
        version=held.version,
        pool=held.pool,
        priority=held.priority,
        input=held.input,
        user=held.user,
        deadline_us=held.deadline_us,
        run_at=instant + wait_us if wait_us else None,
        origin=values.encode(origin),
    )
