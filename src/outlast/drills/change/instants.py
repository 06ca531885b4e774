"""Schedules: two processes at one instant, and days on which the clocks are changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from outlast.core import schedule
from outlast.core.schedule import Cron
from outlast.drills.change.scene import STEADY, Played, Scene
from outlast.drills.stage import Check
from outlast.engine.housekeeping.schedules import firings_of
from outlast.store.scheduling import PutSchedule, Schedule
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.probes import Trigger

__all__ = ["autumn", "frozen_at_the_instant", "spring", "two_processes"]

_YEARLY: Final = Cron(expression="0 0 29 2 *")
"""Fires by itself on a day that hardly ever comes."""
_AT_ONCE: Final = 8
_ZONE: Final = "Europe/Berlin"


async def two_processes(scene: Scene, cell: str) -> Played:
    """Let many schedules be due at one instant, for which every worker has waited."""
    at = await scene.now_us() + 1_500_000
    names = [f"{cell}-{number}" for number in range(_AT_ONCE)]
    for name in names:
        await _put(scene, name, _YEARLY, at)
    fired = [await _fired(scene, name, 1) for name in names]
    tasks = [task for each in fired for task in each.values()]
    for task in tasks:
        await scene.end(task)
    after = [list(await _tasks(scene, name)) for name in names]
    expected = [[schedule.instant_text(at)]] * _AT_ONCE
    return Played(
        cell=cell,
        tasks=tasks,
        checks=(Check(what="instants that were fired, by schedule", expected=expected, seen=after),),
    )


async def frozen_at_the_instant(scene: Scene, cell: str) -> Played:
    """Freeze a worker that is about to fire, until another one has."""
    at = await scene.now_us()
    await _put(scene, cell, _YEARLY, at)
    worker = await scene.worker(
        cell,
        cell,
        probe=(
            Trigger(point="schedules.before_fire", action="freeze"),
            Trigger(point="schedules.after_fire", action="mark"),
        ),
    )
    await worker.says("schedules.before_fire", timeout=scene.patience_s)
    await worker.stopped()
    before = len(await _tasks(scene, cell))
    await scene.beginning.over(cell)
    tasks = await _fired(scene, cell, 1)
    worker.thaw()
    await worker.says("schedules.after_fire", timeout=scene.patience_s)
    for task in tasks.values():
        await scene.end(task)
    after = list(await _tasks(scene, cell))
    view = await scene.app.schedules.get(cell)
    return Played(
        cell=cell,
        tasks=list(tasks.values()),
        checks=(
            Check(what="tasks while it was frozen alone", expected=0, seen=before),
            Check(what="instants that were fired", expected=[schedule.instant_text(at)], seen=after),
            Check(what="what the schedule counts", expected=1, seen=view.fired),
        ),
    )


async def spring(scene: Scene, cell: str) -> Played:
    """Fire over the night in which 02:30 does not exist, and every hour of it."""
    return await _over(
        scene,
        cell,
        now=datetime(2024, 4, 1, 12, tzinfo=UTC),
        daily=(
            datetime(2024, 3, 30, 1, 30, tzinfo=UTC),
            # The clocks go forward at 01:00 UTC, over 02:30; it fires in that moment.
            datetime(2024, 3, 31, 1, 0, tzinfo=UTC),
            datetime(2024, 4, 1, 0, 30, tzinfo=UTC),
        ),
        hourly=(datetime(2024, 3, 31, 0, 0, tzinfo=UTC), 4),
    )


async def autumn(scene: Scene, cell: str) -> Played:
    """Fire over the night in which 02:30 comes twice, and every hour of it."""
    return await _over(
        scene,
        cell,
        now=datetime(2024, 10, 28, 12, tzinfo=UTC),
        daily=(
            datetime(2024, 10, 26, 0, 30, tzinfo=UTC),
            # The first of the two.
            datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
            datetime(2024, 10, 28, 1, 30, tzinfo=UTC),
        ),
        hourly=(datetime(2024, 10, 26, 23, 0, tzinfo=UTC), 4),
    )


async def _over(
    scene: Scene, cell: str, *, now: datetime, daily: Sequence[datetime], hourly: tuple[datetime, int]
) -> Played:
    """Fire two schedules as workers would whose database says that it is ``now``, two of them at once."""
    first, hours = hourly
    every_hour = [first + timedelta(hours=number) for number in range(hours)]
    timings = {
        f"{cell}-daily": (Cron(expression="30 2 * * *", zone=_ZONE), list(daily), now),
        f"{cell}-hourly": (
            Cron(expression="0 * * * *", zone=_ZONE),
            every_hour,
            every_hour[-1] + timedelta(minutes=5),
        ),
    }
    tasks: list[str] = []
    checks: list[Check] = []
    for name, (timing, expected, moment) in timings.items():
        await _put(scene, name, timing, _us(expected[0]))
        kinds = await _fire_twice(scene, name, _us(moment))
        # No worker lives yet; those that come are not to make up for the years since.
        await scene.app.schedules.pause(name, reason="played", by="drill")
        found = await _tasks(scene, name)
        tasks += found.values()
        checks += [
            Check(
                what=f"instants of {name}",
                expected=[schedule.instant_text(_us(each)) for each in expected],
                seen=list(found),
            ),
            Check(what=f"firings of {name} that counted", expected=len(expected), seen=kinds.count("fired")),
        ]
    await scene.beginning.over(cell)
    for task in tasks:
        await scene.end(task)
    return Played(cell=cell, tasks=tasks, checks=checks)


async def _fire_twice(scene: Scene, name: str, now: int) -> list[str]:
    row = await scene.app.store.read_schedule(DEFAULT_TENANT, name)
    assert row is not None, "it was put a moment ago"
    twins = [firings_of(row, now) for _ in range(2)]
    fired = await asyncio.gather(*(scene.app.store.fire_schedules(each) for each in twins))
    return [verdict.kind for each in fired for verdict in each]


async def _put(scene: Scene, name: str, timing: Cron, first: int) -> None:
    made = Schedule(
        tenant=DEFAULT_TENANT,
        id=name,
        agent="ticks",
        timing=schedule.written(timing),
        pool=STEADY,
        missed="all",
    )
    await scene.app.store.put_schedule(PutSchedule(schedule=made, next_at=first, by="drill"))


async def _tasks(scene: Scene, name: str) -> dict[str, str]:
    """Answer the tasks that a schedule has fired, by their instants, in order; a second task of an instant
    has it with a mark."""
    prefix, found = f"schedule:{name}:", {}
    rows = (await scene.app.store.dump())["inputs"]
    for key, task in sorted((row["key"] or "", row["task"]) for row in rows):
        if key.startswith(prefix):
            instant = key.removeprefix(prefix)
            found[instant if instant not in found else f"{instant} again"] = task
    return found


async def _fired(scene: Scene, name: str, count: int) -> dict[str, str]:
    async def look() -> dict[str, str] | None:
        found = await _tasks(scene, name)
        return found if len(found) >= count else None

    return await scene.until(look, f"schedule {name} never fired")


def _us(instant: datetime) -> int:
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
