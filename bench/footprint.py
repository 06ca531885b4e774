"""What standing still and remembering cost: an idle worker, bytes per task, memory of many waiting and
running tasks."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable

import asyncpg

from bench import workloads
from bench.apps import make_app
from outlast import Request

IDLE_S = 30.0
Counter = Callable[[], Awaitable[int]]


async def idle(url: str, count: Counter | None) -> dict[str, float]:
    """CPU share and statements per second of a worker process with nothing to do, over thirty seconds.

    What a server does by itself, such as autovacuum, is counted over as long without one, and is left out.
    """
    own = await _over_a_while(count) if count else 0.0
    code = (
        "import asyncio,sys;from bench.apps import make_app;from bench.workloads import working\n"
        "async def main():\n"
        "    app=make_app(sys.argv[1]); await app.open()\n"
        "    async with working(app):\n"
        "        print('ready', flush=True); await asyncio.to_thread(sys.stdin.readline)\n"
        "    await app.close()\n"
        "asyncio.run(main())"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, url, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdout.readline()
    # Let the start-up settle: what is measured is standing still.
    await asyncio.sleep(2.0)
    before, started = cpu_s(process.pid), time.perf_counter()
    found = {}
    if count:
        found["idle_statements_per_s"] = await _over_a_while(count) - own
    else:
        await asyncio.sleep(IDLE_S)
    found["idle_cpu_percent"] = 100 * (cpu_s(process.pid) - before) / (time.perf_counter() - started)
    process.stdin.write(b"\n")
    await process.wait()
    return found


async def _over_a_while(count: Counter) -> float:
    """Count for thirty seconds; answer how many it were a second."""
    before, started = await count(), time.perf_counter()
    await asyncio.sleep(IDLE_S)
    return (await count() - before) / (time.perf_counter() - started)


def cpu_s(pid: int) -> float:
    """Answer the processor seconds that a process has used, in steps of a clock tick (10 ms)."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


async def _memory(url: str, progress: workloads.Progress) -> dict[str, float]:
    """Resident megabytes gained by 10,000 tasks that wait for an hour."""
    app = make_app(url)
    await app.open()
    before = _resident_mb()
    async with workloads.working(app, slots=1000, linger_s=0.05) as worker:
        for _ in range(10):
            await app.submit_many([Request(agent="napping", input={}) for _ in range(1000)])
        running = 0
        peak = before
        while True:
            running = max(running, len(worker.runs))
            peak = max(peak, _resident_mb())
            waiting = await app.store.health()
            if not worker.runs and not waiting.queued:
                break
            await asyncio.sleep(0.05)
        progress(0.9)
        found = {
            "memory_mb_10k_waiting": _resident_mb() - before,
            "most_running": float(running),
            "memory_mb_most_running": peak,
        }
    await app.close()
    return found


def counter(admin: asyncpg.Connection[asyncpg.Record]) -> Counter:
    """Answer what counts the statements of a database, as its transactions (pg_stat_database)."""
    counting = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"

    async def count() -> int:
        await admin.execute("select pg_stat_force_next_flush()")
        return int(await admin.fetchval(counting))

    return count


async def postgres(url: str, progress: workloads.Progress) -> dict[str, float]:
    """Measure on PostgreSQL; statements are counted by the server."""
    app = make_app(url)
    await app.open(migrate=True)
    admin = await asyncpg.connect(url)
    found: dict[str, float] = {}
    for key, agent in (("wal_bytes_per_task", "one"), ("wal_bytes_per_ten_effects", "effects")):
        before = await admin.fetchval("select pg_current_wal_lsn()")
        await workloads.drain(app, agent, 2000, lambda part: None)
        found[key] = float(await admin.fetchval("select pg_current_wal_lsn() - $1::pg_lsn", before)) / 2000
    await app.close()
    progress(0.3)
    found.update(await idle(url, counter(admin)))
    progress(0.7)
    found.update(await _memory(url, progress))
    await admin.close()
    return found


async def sqlite(url: str, progress: workloads.Progress) -> dict[str, float]:
    """Measure on SQLite."""
    app = make_app(url)
    await app.open(migrate=True)
    await app.close()
    found = await idle(url, None)
    progress(0.7)
    found.update(await _memory(url, progress))
    return found
