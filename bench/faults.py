"""How soon another worker writes after a kill -9, and how long an intent takes with four busy workers and a
busy API."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time

from bench import http
from bench.apps import make_app
from bench.workloads import Progress, working
from outlast import Outlast, Request, TaskContext, ToolCall

LEASE_S = 2.0
POLL_S = 0.5
ROUNDS = 12
WORKERS = 4

RUN = "import asyncio, sys; from bench.faults import {0}; asyncio.run({0}(*sys.argv[1:]))"


async def serve(url: str) -> None:
    """Serve until killed, under the lease that is measured."""
    app = make_app(url)
    await app.open()
    # It stays in memory, under its lease.
    async with working(app, lease_s=LEASE_S, poll_s=POLL_S, linger_s=3600.0):
        print("ready", flush=True)
        await asyncio.Event().wait()


async def takeover(url: str, progress: Progress) -> dict[str, float]:
    """Answer the longest of a few times from a kill -9 to the successor's first write, in seconds and over
    the lease.

    The killed worker is the only one at first; its task sleeps in memory. The successor stands by.
    """
    app = make_app(url)
    await app.open(migrate=True)
    spans = []
    for number in range(ROUNDS):
        victim = await asyncio.create_subprocess_exec(
            sys.executable, "-c", RUN.format("serve"), url, stdout=asyncio.subprocess.PIPE
        )
        assert victim.stdout is not None
        await victim.stdout.readline()
        handle = await app.submit("napping", {})
        async for event in handle.events():
            if event.kind == "attempt.started":
                break
        async with working(app, lease_s=LEASE_S, poll_s=POLL_S, linger_s=0.0):
            victim.kill()
            killed = time.time()
            await victim.wait()
            async for event in handle.events():
                if event.kind == "attempt.started" and event.epoch > 1:
                    spans.append(event.at.timestamp() - killed)
                    break
        progress(number / ROUNDS)
    await app.close()
    return {
        "takeover_s_max": max(spans),
        "takeover_s_p50": statistics.median(spans),
        "takeover_bound_s": LEASE_S + 2 * POLL_S,
    }


async def work(url: str) -> None:
    """Serve tasks that measure how long their intents take; print the milliseconds as JSON when told to
    end."""
    spans: list[float] = []
    app = Outlast("busy", database_url=url)
    started: dict[str, float] = {}

    @app.tool(effect="idempotent")
    async def touch(call: ToolCall, number: int) -> int:
        spans.append((time.perf_counter() - started[f"{call.task}/{number}"]) * 1000)
        async with call.sending():
            return number

    @app.agent
    async def paced(task: TaskContext) -> None:
        for number in range(20):
            started[f"{task.id}/{number}"] = time.perf_counter()
            await task.call(touch, number=number)
            await asyncio.sleep(0.1)

    await app.open()
    async with working(app, slots=10):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    await app.close()
    print(json.dumps(spans), flush=True)


async def intents(url: str, seconds: float, progress: Progress) -> dict[str, float]:
    """Answer the 99th percentile, in milliseconds, from a call to its committed intent.

    Four worker processes, each with ten tasks that call ten times a second, and an API process that takes
    submits.
    """
    app = make_app(url)

    @app.agent
    async def paced(task: TaskContext) -> None:
        """Run by the workers' own registration."""

    await app.open(migrate=True)
    await app.submit_many([Request(agent="paced") for _ in range(int(seconds) * WORKERS * 10)])
    workers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", RUN.format("work"), url,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(WORKERS)
    ]  # fmt: skip
    for worker in workers:
        assert worker.stdout is not None
        await worker.stdout.readline()
    # One caller is enough to keep the API in the picture; sixteen would measure the machine.
    await http.submits(url, seconds, connections=1)
    spans: list[float] = []
    for worker in workers:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(b"\n")
        spans += json.loads(await worker.stdout.readline())
        await worker.wait()
    progress(1.0)
    await app.close()
    cuts = statistics.quantiles(spans, n=100)
    return {"intent_ms_p50": statistics.median(spans), "intent_ms_p99": cuts[98]}
