"""The raw baseline: what the database itself does with single-row commits from this process."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import apsw
import asyncpg

PAYLOAD = "x" * 200


async def postgres(url: str, seconds: float, connections: int = 16) -> tuple[float, float]:
    """Answer (commits/s over ``connections``, median milliseconds of one commit over one connection)."""
    pool = [await asyncpg.connect(url) for _ in range(connections)]
    await pool[0].execute(
        "create table if not exists raw_rows (id bigserial primary key, body text not null)"
    )
    done = 0
    end = time.perf_counter() + seconds

    async def commit(connection: asyncpg.Connection) -> None:
        nonlocal done
        insert = await connection.prepare("insert into raw_rows (body) values ($1)")
        while time.perf_counter() < end:
            await insert.fetchval(PAYLOAD)
            done += 1

    started = time.perf_counter()
    await asyncio.gather(*(commit(connection) for connection in pool))
    rate = done / (time.perf_counter() - started)
    insert = await pool[0].prepare("insert into raw_rows (body) values ($1)")
    spans = []
    end = time.perf_counter() + seconds / 3
    while time.perf_counter() < end:
        began = time.perf_counter()
        await insert.fetchval(PAYLOAD)
        spans.append(time.perf_counter() - began)
    await pool[0].execute("drop table raw_rows")
    for connection in pool:
        await connection.close()
    return rate, statistics.median(spans) * 1000


def sqlite(folder: Path, seconds: float) -> tuple[float, float]:
    """Answer (commits/s of one thread, median milliseconds of one commit); WAL, synchronous FULL."""
    connection = apsw.Connection(str(folder / "raw.db"))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.execute("create table raw_rows (id integer primary key, body text not null)")
    spans: list[float] = []
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        began = time.perf_counter()
        with connection:
            connection.execute("insert into raw_rows (body) values (?)", (PAYLOAD,))
        spans.append(time.perf_counter() - began)
    rate = len(spans) / (time.perf_counter() - started)
    connection.close()
    return rate, statistics.median(spans) * 1000
