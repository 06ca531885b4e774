"""What a claim costs with much waiting, much finished, and a snapshot held open elsewhere."""

from __future__ import annotations

import statistics
import time

import asyncpg

from bench.workloads import Progress
from outlast import Outlast, clock
from outlast.core import ids
from outlast.store.contract import Store
from outlast.store.entries import Batch, EndAttempt, TaskWrites
from outlast.store.records import Claimed, ClaimRequest, Serves, SessionRenewal

SERVES = (Serves(agent="one", version="1"),)

# Ids sort by time, as real ones do; what the rows say is what a submit and an ending write.
FILL_WAITING = """
with made as (
    insert into outlast.tasks (tenant, id, state, epoch, round, facts, last_event, lane)
    select 'default', 'task_w' || $1::text || lpad(n::text, 20, '0'), 'queued', 0, 1, 0, 1, $2 from
    generate_series(1, $3) n returning id
), inputs as (
    insert into outlast.inputs (tenant, task, request_digest, agent, version_asked, pool, priority, input,
    announce, submitted_at) select 'default', id, '', 'one', '', 'default', 0, '{}', false, 0 from made
)
insert into outlast.queue (lane, tenant, task) select $2, 'default', id from made
"""
FILL_FINISHED = """
with made as (
    insert into outlast.tasks (tenant, id, state, epoch, round, facts, last_event, lane)
    select 'default', 'task_f' || $1::text || lpad(n::text, 20, '0'), 'succeeded', 1, 1, 0, 4, $2
    from generate_series(1, $3) n
    returning id
)
insert into outlast.results (tenant, task, round, state, result, effects_open, ended_at)
select 'default', id, 1, 'succeeded', '1', 0, 0 from made
"""


async def claim_time(store: Store, rounds: int) -> tuple[float, list[Claimed]]:
    """Median milliseconds of a claim of fifty over ``rounds``; and what was claimed."""
    session = clock.new_id(ids.SESSION)
    await store.renew(SessionRenewal(session=session, name="bench", ttl_us=3_600_000_000))
    spans: list[float] = []
    claimed: list[Claimed] = []
    request = ClaimRequest(session=session, pools=("default",), serves=SERVES, limit=50)
    for _ in range(rounds):
        began = time.perf_counter()
        reply = await store.claim(request)
        spans.append((time.perf_counter() - began) * 1000)
        assert len(reply.claims) == 50
        claimed.extend(reply.claims)
    return statistics.median(spans), claimed


async def finish(store: Store, count: int, progress: Progress) -> None:
    """Claim and end ``count`` tasks as a worker would."""
    session, writer, number, done = clock.new_id(ids.SESSION), clock.new_id(ids.WRITER), 0, 0
    await store.renew(SessionRenewal(session=session, name="bench", ttl_us=3_600_000_000))
    request = ClaimRequest(session=session, pools=("default",), serves=SERVES, limit=500)
    end = (EndAttempt(attempt_end="succeeded", task_state="succeeded", result="1"),)
    while done < count:
        reply = await store.claim(request)
        number += 1
        writes = tuple(
            TaskWrites(tenant=c.tenant, task=c.task, epoch=c.epoch, entries=end) for c in reply.claims
        )
        verdicts = await store.flush(Batch(writer=writer, number=number, writes=writes))
        assert all(verdict.kind == "accepted" for verdict in verdicts)
        done += len(writes)
        progress(done / count)


async def postgres(app: Outlast, url: str, progress: Progress, *, big: bool) -> dict[str, float]:
    """Measure claims at 10,000 waiting; with ``big`` also at a million waiting and five million finished, and
    beside a snapshot held open while 100,000 tasks finish."""
    store = app.store
    await app.submit("one", {})
    admin = await asyncpg.connect(url)
    lane = await admin.fetchval("select id from outlast.lanes where agent = 'one' and version = ''")
    await admin.execute("truncate outlast.queue")
    await admin.execute(
        FILL_WAITING.replace("$1::text", "'a'").replace("$2", str(lane)).replace("$3", "10000")
    )
    await admin.execute("vacuum analyze outlast.queue, outlast.tasks, outlast.inputs")
    progress(0.1)
    found = {"claim50_ms_10k": (await claim_time(store, 60))[0]}
    if big:
        for part in range(50):
            fill = (
                FILL_FINISHED.replace("$1::text", f"'{part:03d}'")
                .replace("$2", str(lane))
                .replace("$3", "100000")
            )
            await admin.execute(fill, timeout=600)
            progress(0.1 + 0.4 * part / 50)
        for part in range(10):
            fill = (
                FILL_WAITING.replace("$1::text", f"'{part:03d}'")
                .replace("$2", str(lane))
                .replace("$3", "100000")
            )
            await admin.execute(fill, timeout=600)
            progress(0.5 + 0.1 * part / 10)
        await admin.execute(
            "vacuum analyze outlast.queue, outlast.tasks, outlast.inputs, outlast.results", timeout=600
        )
        found["claim50_ms_1m"] = (await claim_time(store, 60))[0]
    holder = await asyncpg.connect(url)
    await holder.execute("begin isolation level repeatable read read only")
    await holder.fetchval("select count(*) from outlast.lanes")
    await finish(store, 100_000 if big else 3_000, lambda part: progress(0.6 + 0.4 * part))
    found["claim50_ms_snapshot"] = (await claim_time(store, 60))[0]
    await holder.close()
    await admin.close()
    return found


async def sqlite(app: Outlast, progress: Progress, *, big: bool) -> dict[str, float]:
    """Measure claims at 10,000 waiting, with ``big`` also at a million."""
    from outlast import Request

    async def fill(count: int) -> None:
        requests = [Request(agent="one", input={}) for _ in range(5000)]
        for start in range(0, count, 5000):
            await app.submit_many(requests)
            progress(start / count)

    await fill(10_000)
    found = {"claim50_ms_10k": (await claim_time(app.store, 60))[0]}
    if big:
        await fill(1_000_000)
        found["claim50_ms_1m"] = (await claim_time(app.store, 60))[0]
    return found
