"""What waiting, deciding and dividing work cost: a fan-out of children, a decision until its call has been
made, and many waiting tasks beside a claim and an idle worker."""

from __future__ import annotations

import asyncio
import statistics
import time

from bench import footprint
from bench.apps import make_app
from bench.claims import claim_time
from bench.workloads import Progress, working
from outlast import Outlast, Request
from outlast.views import ApprovalView

CHILDREN = 1_000
WAITING = 50_000
CLAIMS = 60


async def fan_out(app: Outlast, rounds: int, progress: Progress) -> float:
    """Children per second of a task that spawns a thousand at once and waits for all, from its submit to its
    result; the median of some."""
    rates = []
    async with working(app):
        await (await app.submit("fan_out", {"count": 10})).result(timeout="60s")
        for number in range(rounds):
            began = time.perf_counter()
            assert await (await app.submit("fan_out", {"count": CHILDREN})).result(timeout="10m") == CHILDREN
            rates.append(CHILDREN / (time.perf_counter() - began))
            progress((number + 1) / rounds)
    return statistics.median(rates)


async def decision(app: Outlast, rounds: int, progress: Progress) -> tuple[float, float]:
    """Median and 95th percentile, in milliseconds, from a decision to the result of the call that waited for
    it: the task is suspended, its worker idle."""
    spans = []
    async with working(app, linger_s=0.0):
        for number in range(rounds + 5):
            handle = await app.submit("approved", {})
            async for event in handle.events():
                if event.kind == "task.waiting":
                    break
            asked = await _asked(app, handle.id)
            began = time.perf_counter()
            await app.approvals.decide(asked.id, "approve", fingerprint=asked.fingerprint, by="bench")
            await handle.result(timeout="30s")
            if number >= 5:
                spans.append((time.perf_counter() - began) * 1000)
            progress(number / (rounds + 5))
    return statistics.median(spans), statistics.quantiles(spans, n=20)[18]


async def _asked(app: Outlast, task: str) -> ApprovalView:
    (asked,) = await app.approvals.list(task=task)
    return asked


async def beside_waiting(url: str, count: footprint.Counter | None, progress: Progress) -> dict[str, float]:
    """A claim of fifty, and an idle worker, beside 50,000 tasks that wait for a signal; to be compared with
    the same figures without them."""
    app = make_app(url)
    await app.open(migrate=True)
    async with working(app, slots=1_000, linger_s=0.0) as worker:
        for start in range(0, WAITING, 5_000):
            await app.submit_many([Request(agent="signalled", input={}) for _ in range(5_000)])
            progress(0.3 * start / WAITING)
        while True:
            health = await app.store.health()
            if not worker.runs and not health.queued:
                break
            await asyncio.sleep(0.5)
    # Nobody but the worker that is looked at is connected meanwhile.
    await app.close()
    progress(0.6)
    found = {f"waiting50k_{name}": value for name, value in (await footprint.idle(url, count)).items()}
    progress(0.9)
    await app.open()
    await app.submit_many([Request(agent="one", input={}) for _ in range(CLAIMS * 50)])
    found["waiting50k_claim50_ms"] = (await claim_time(app.store, CLAIMS))[0]
    await app.close()
    return found
