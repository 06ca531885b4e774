"""Another backend that holds something in an open transaction, and how to see that somebody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from outlast.store.postgres import batches
from outlast.store.records import Batch

T = TypeVar("T")
PATIENCE = 20.0
"""How long anything here may take, in seconds, before the test has failed."""


class Rival:
    """A backend of our own with a transaction that is open until it is told otherwise."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transaction: Any = None

    async def begin(self) -> None:
        """Open a transaction."""
        self._transaction = self._connection.transaction()
        await self._transaction.start()

    async def commit(self) -> None:
        """Commit it."""
        transaction, self._transaction = self._transaction, None
        await transaction.commit()

    async def rollback(self) -> None:
        """Roll it back, if it is open."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            await transaction.rollback()

    async def run(self, sql: str, *arguments: Any) -> list[Any]:
        """Run a statement in the open transaction."""
        return list(await self._connection.fetch(sql, *arguments))

    async def hold(self, table: str, **names: str) -> None:
        """Lock one row, as strongly as a row can be locked."""
        where = " and ".join(f"{name} = ${n}" for n, name in enumerate(names, 1))
        rows = await self.run(f"select from outlast.{table} where {where} for update", *names.values())
        assert len(rows) == 1

    async def sweep(self, now: int, *, max_deaths: int = 3) -> None:
        """Sweep inside the open transaction."""
        await self.run("select * from outlast.sweep(500, $1, 5000000, $2)", max_deaths, now)

    async def flush(self, batch: Batch, now: int) -> None:
        """Write a batch inside the open transaction: a backend that is about to commit it."""
        places = ", ".join(f"${n}" for n in range(1, batches.ARGUMENTS + 1))
        await self.run(f"select outlast.flush({places})", *batches.encode(batch, now))

    async def somebody_waits(self) -> bool:
        """Answer whether another backend of this database waits for a lock."""
        rows = await self.run(
            "select from pg_stat_activity"
            " where datname = current_database() and state = 'active' and wait_event_type = 'Lock'"
            " and pid <> pg_backend_pid()"
        )
        return bool(rows)

    async def see_blocked(self, twin: asyncio.Future[Any]) -> bool:
        """Wait until the twin waits for a lock (True) or has ended without waiting (False)."""
        async with asyncio.timeout(PATIENCE):
            while not twin.done():
                # Statistics are frozen within a transaction unless we say otherwise.
                await self.run("select pg_stat_clear_snapshot()")
                if await self.somebody_waits():
                    return True
                await asyncio.sleep(0.005)
        return False


@asynccontextmanager
async def rival(url: str) -> AsyncIterator[Rival]:
    """Connect a rival and open its transaction; rolled back at the end of the block if it is still open."""
    connection = await asyncpg.connect(url)
    other = Rival(connection)
    try:
        await other.begin()
        yield other
    finally:
        await other.rollback()
        await connection.close(timeout=10)


def start(act: Awaitable[T]) -> asyncio.Task[T]:
    """Begin something that may have to wait."""

    async def run() -> T:
        return await act

    return asyncio.ensure_future(run())


async def ended(twin: asyncio.Task[T]) -> T:
    """Wait for the end of a twin that nothing holds up any more."""
    return await asyncio.wait_for(twin, PATIENCE)
