"""Another backend that holds something in an open transaction, and how to see that somebody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from outlast.store.entries import Batch
from outlast.store.postgres import PostgresStore
from outlast.store.records import SweepRequest

T = TypeVar("T")
PATIENCE = 20.0
"""How long anything here may take, in seconds, before the test has failed."""


class Rival:
    """Another process, whose transactions stay open until it is told otherwise.

    It has a connection for raw statements (``run``, ``hold``) and a store of its own, whose verbs are caught
    between their last statement and their commit.
    """

    def __init__(self, connection: Any, store: Any) -> None:
        self.connection = connection
        self._store = store
        self._lines: list[Any] = []
        self._transaction: Any = None

    async def begin(self) -> None:
        """Open the transaction of the raw statements."""
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def commit(self) -> None:
        """Commit everything that is open."""
        await self._end("commit")
        transaction, self._transaction = self._transaction, None
        await transaction.commit()

    async def rollback(self) -> None:
        """Roll back everything that is open."""
        await self._end("rollback")
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            await transaction.rollback()

    async def _end(self, how: str) -> None:
        lines, self._lines = self._lines, []
        for line in lines:
            await line.run(lambda connection: connection.execute(how))

    async def run(self, sql: str, *arguments: Any) -> list[Any]:
        """Run a statement in the open transaction."""
        return list(await self.connection.fetch(sql, *arguments))

    async def hold(self, table: str, **names: str) -> None:
        """Lock one row, as strongly as a row can be locked."""
        where = " and ".join(f"{name} = ${n}" for n, name in enumerate(names, 1))
        rows = await self.run(f"select from outlast.{table} where {where} for update", *names.values())
        assert len(rows) == 1

    async def about_to_commit(self, line: str) -> Any:
        """Answer the rival's store, its next verb on this line in a transaction that stays open."""
        connection_of = getattr(self._store, f"_{line}_line")
        await connection_of.run(lambda connection: connection.execute("begin"))
        self._lines.append(connection_of)
        return self._store

    async def sweep(self, now: int) -> None:
        """Sweep, and not commit yet."""
        store = await self.about_to_commit("sweep")
        await store.sweep(SweepRequest(), now=now)

    async def flush(self, batch: Batch, now: int) -> None:
        """Write a batch, and not commit yet."""
        store = await self.about_to_commit("flush")
        verdicts = await store.flush(batch, now=now)
        assert {verdict.kind for verdict in verdicts} == {"accepted"}

    async def somebody_waits(self) -> bool:
        """Answer whether another backend of this database waits for a lock."""
        rows = await self.run(
            "select from pg_stat_activity"
            " where datname = current_database() and state = 'active' and wait_event_type = 'Lock'"
            " and pid <> pg_backend_pid()"
        )
        return bool(rows)

    async def see_time_over(self, at: int | None) -> None:
        """Wait until the database's clock is past an instant."""
        # A thousandth more, since the server rounds what it sleeps.
        await self.run("select pg_sleep_until(to_timestamp(($1::bigint + 1000) / 1000000.0))", at)
        [row] = await self.run("select outlast.clock_us() > $1 as over", at)
        assert row["over"]

    async def see_blocked(self, twin: asyncio.Future[Any]) -> bool:
        """Wait until the twin waits for a lock (True) or has ended without waiting (False)."""
        async with asyncio.timeout(PATIENCE):
            while not twin.done():
                # Statistics are frozen within a transaction unless we say otherwise.
                await self.run("select pg_stat_clear_snapshot()")
                if await self.somebody_waits():
                    return True
                # PostgreSQL tells nobody that a backend begins to wait.
                await asyncio.sleep(0.005)
        return False

    async def commits_first(self, act: Awaitable[T]) -> T:
        """Begin an act that has to wait for what is open here; commit that, and answer what it does."""
        return await self._goes_first(act, self.commit)

    async def fails_first(self, act: Awaitable[T]) -> T:
        """Begin an act that has to wait for what is open here; roll that back, and answer what it does."""
        return await self._goes_first(act, self.rollback)

    async def _goes_first(self, act: Awaitable[T], end: Callable[[], Awaitable[None]]) -> T:
        twin = start(act)
        assert await self.see_blocked(twin)
        await end()
        return await ended(twin)


@asynccontextmanager
async def rival(url: str) -> AsyncIterator[Rival]:
    """Begin a rival; what it has open at the end of the block is rolled back."""
    connection = await asyncpg.connect(url)
    store = PostgresStore(url)
    other = Rival(connection, store)
    try:
        await store.open()
        await other.begin()
        yield other
    finally:
        await other.rollback()
        await store.close()
        await connection.close(timeout=10)


def start(act: Awaitable[T]) -> asyncio.Task[T]:
    """Begin something that may have to wait."""

    async def run() -> T:
        return await act

    return asyncio.ensure_future(run())


async def ended(twin: asyncio.Task[T]) -> T:
    """Wait for the end of a twin that nothing holds up any more."""
    return await asyncio.wait_for(twin, PATIENCE)


@asynccontextmanager
async def long_waits(url: str, function: str) -> AsyncIterator[None]:
    """Let a function of the database wait for locks as long as a test may take."""
    connection = await asyncpg.connect(url)
    try:
        [short] = await connection.fetchval(
            "select proconfig from pg_proc where pronamespace = 'outlast'::regnamespace and proname = $1",
            function,
        )
        assert short.startswith("lock_timeout=")
        await connection.execute(f"alter function outlast.{function} set lock_timeout = '{PATIENCE}s'")
        try:
            yield
        finally:
            await connection.execute(
                f"alter function outlast.{function} set lock_timeout = '{short.partition('=')[2]}'"
            )
    finally:
        await connection.close()
