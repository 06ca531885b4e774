"""The sweeper: ends dead sessions, wakes what is due, fails what is too late.

Purpose: only the sweeper takes a task away from a worker, by raising its epoch under the head's lock.

Clock: the database's, read after the lock.

Failure by failure: the sweeper dies in a sweep: its transaction is undone, the next one looks again. The
store is away: when it answers again, live workers get the time of one renewal to say so before anybody is
judged. It never needs the worker's code and hands tasks on untouched whatever agents its own process knows.
"""

from __future__ import annotations

import asyncio

from outlast import probes, telemetry
from outlast.engine.settings import WorkerSettings
from outlast.errors import StoreUnavailable
from outlast.store.contract import Store
from outlast.store.records import SweepRequest, Swept


async def sweep_once(store: Store, settings: WorkerSettings) -> Swept:
    """Sweep once. Raises StoreUnavailable."""
    probes.reach("sweeper.before_sweep")
    # A task past its deadline is left to its worker for as long as that lets calls end, and a little longer.
    grace_us = int((settings.grace_s + 5.0) * 1_000_000)
    swept = await store.sweep(SweepRequest(max_deaths=settings.max_deaths, grace_us=grace_us))
    probes.reach("sweeper.after_sweep")
    if swept.sessions or swept.woken or swept.expired:
        telemetry.emit(
            telemetry.SweepDone(
                sessions=len(swept.sessions),
                lost=len(swept.lost),
                parked=len(swept.parked),
                woken=len(swept.woken),
                expired=len(swept.expired),
            )
        )
    return swept


async def keep_sweeping(store: Store, settings: WorkerSettings) -> None:
    """Sweep for ever; end by cancelling. A timer that is due soon is looked at when it is due."""
    away = False
    while True:
        pause = settings.sweep_s
        if away:
            away = not (await store.health()).reachable
            if not away:
                pause += settings.renewal_s
        else:
            try:
                swept = await sweep_once(store, settings)
                if swept.more:
                    pause = 0.0
                elif swept.next_due_us is not None:
                    pause = min(pause, max(swept.next_due_us / 1_000_000, 0.01))
            except StoreUnavailable as error:
                telemetry.emit(telemetry.StoreAway(duty="sweep", detail=str(error)))
                away = True
        await asyncio.sleep(pause)
