"""The workloads: what is measured, one function each, over an opened app."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable

from outlast import Outlast, Request, WorkerSettings, telemetry
from outlast.engine.worker import Worker

Progress = Callable[[float], None]
"""Told how much of a workload is done, from 0 to 1."""


@contextlib.asynccontextmanager
async def working(app: Outlast, **settings: object) -> AsyncIterator[Worker]:
    """Run one worker of the app while the block lasts."""
    worker = app.worker(WorkerSettings(**{"slots": 100, "linger_s": 1.0, **settings}))  # type: ignore[arg-type]
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running


async def drain(app: Outlast, agent: str, tasks: int, progress: Progress) -> float:
    """Tasks per second of one worker over a backlog of ``tasks`` that is already there (W1 drain, W2,
    W2e)."""
    for start in range(0, tasks, 1000):
        await app.submit_many([Request(agent=agent, input={}) for _ in range(min(1000, tasks - start))])
    ended = 0
    finished = asyncio.Event()

    def count(signal: telemetry.Signal) -> None:
        nonlocal ended
        if isinstance(signal, telemetry.AttemptEnded):
            ended += 1
            if ended % 64 == 0:
                progress(ended / tasks)
            if ended >= tasks:
                finished.set()

    stop = telemetry.subscribe(count)
    try:
        started = time.perf_counter()
        async with working(app):
            await finished.wait()
            seconds = time.perf_counter() - started
    finally:
        stop()
    return tasks / seconds


async def end_to_end(app: Outlast, seconds: float, in_flight: int, progress: Progress) -> float:
    """Tasks per second from submit to result with ``in_flight`` callers (W1 e2e)."""
    done = 0
    async with working(app):
        await (await app.submit("one", {})).result(timeout="10s")
        started = time.perf_counter()
        end = started + seconds

        async def caller() -> None:
            nonlocal done
            while time.perf_counter() < end:
                await (await app.submit("one", {})).result(timeout="30s")
                done += 1
                progress(min(1.0, 1 - (end - time.perf_counter()) / seconds))

        await asyncio.gather(*(caller() for _ in range(in_flight)))
        return done / (time.perf_counter() - started)


async def latency(app: Outlast, rounds: int, progress: Progress) -> tuple[float, float]:
    """Median and 95th percentile, in milliseconds, from submit to result on an idle worker (W3)."""
    spans = []
    async with working(app):
        for number in range(rounds + 10):
            began = time.perf_counter()
            await (await app.submit("one", {})).result(timeout="10s")
            if number >= 10:
                spans.append((time.perf_counter() - began) * 1000)
            progress(number / (rounds + 10))
    return statistics.median(spans), statistics.quantiles(spans, n=20)[18]


async def submits(app: Outlast, seconds: float, in_flight: int, progress: Progress) -> float:
    """Submits per second of one client with ``in_flight`` callers, one task a call (W4 single)."""
    done = 0
    started = time.perf_counter()
    end = started + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await app.submit("one", {})
            done += 1

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    progress(1.0)
    return done / (time.perf_counter() - started)


async def batch_submits(app: Outlast, seconds: float, progress: Progress) -> float:
    """Submits per second of one client in batches of 5,000 (W4 batch)."""
    done = 0
    requests = [Request(agent="one", input={}) for _ in range(5000)]
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        await app.submit_many(requests)
        done += len(requests)
        progress(min(1.0, (time.perf_counter() - started) / seconds))
    return done / (time.perf_counter() - started)
