"""Every store there is, opened on a database of the test's own, and a way past each.

``from tests.stores import *`` in a conftest gives its tests ``store_kind``, ``store``, ``backdoor`` and
``reopen`` as ``outlast.testing.store_suite`` asks for them. Stores are imported when a test asks for one, so
that a fault in one of them does not take the other's tests with it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from outlast.store.contract import Store
from outlast.testing.store_suite.scene import Backdoor, Reopen

__all__ = [
    "STORES",
    "backdoor",
    "copied_sqlite_url",
    "database_url",
    "emptied_postgres_url",
    "new_store",
    "reopen",
    "store",
    "store_kind",
]

STORES = ("sqlite-file", "postgres", *(["sqlite-memory"] if os.environ.get("OUTLAST_TEST_ALL") else []))
"""A database in memory runs the same program as a file; the simulation lives on it."""


# ── ways past ────────────────────────────────────────────────────────────────────────────────────


class PostgresBackdoor:
    """Connections of the tests' own."""

    dialect = "postgres"

    def __init__(self, url: str) -> None:
        self._url = url

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """Connect for the length of the block; unqualified names are Outlast's."""
        connection = await asyncpg.connect(self._url)
        try:
            await connection.execute("set search_path to outlast, public")
            yield connection
        finally:
            await connection.close(timeout=10)

    async def run(self, sql: str) -> list[tuple[Any, ...]]:
        async with self.connect() as connection:
            return [tuple(row) for row in await connection.fetch(sql)]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        # As an application has it: Outlast's schema is not on its search path.
        connection = await asyncpg.connect(self._url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close(timeout=10)


class SqliteBackdoor:
    """A second connection to the same file, or the store's own to a database in memory."""

    dialect = "sqlite"

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[apsw.Connection]]) -> None:
        self._connect = connect

    async def run(self, sql: str) -> list[tuple[Any, ...]]:
        async with self._connect() as connection:
            with connection:
                return list(connection.execute(sql))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._connect() as connection:
            connection.execute("begin immediate")
            try:
                yield connection
            except BaseException:
                connection.execute("rollback")
                raise
            connection.execute("commit")


class MemoryBackdoor(SqliteBackdoor):
    """The store's own connection: a database in memory has no other."""

    def __init__(self, store: Store) -> None:
        @asynccontextmanager
        async def connect() -> AsyncIterator[apsw.Connection]:
            yield store._executor._writer.connection()  # type: ignore[attr-defined]

        super().__init__(connect)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        pytest.skip("a database in memory has one connection")
        yield


@asynccontextmanager
async def _file(path: str) -> AsyncIterator[apsw.Connection]:
    connection = apsw.Connection(path)
    try:
        connection.set_busy_timeout(10_000)
        yield connection
    finally:
        connection.close()


# ── fixtures ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=STORES)
def store_kind(request: pytest.FixtureRequest) -> str:
    """Which store this test runs on."""
    return str(request.param)


@pytest.fixture
async def emptied_postgres_url(shared_postgres_url: str) -> str:
    """The URL of a PostgreSQL database that is this test's own while it runs, migrated and without rows."""
    connection = await asyncpg.connect(shared_postgres_url)
    try:
        await connection.execute("set lock_timeout = '20s'")
        full = await connection.fetch(await _rows_anywhere(connection))
        if full:
            await connection.execute("truncate " + ", ".join(f"outlast.{row['name']}" for row in full))
        # Also those of tables that hold nothing any more.
        await connection.execute(
            "select setval(s.oid::regclass, 1, false)"
            "  from pg_class s join pg_depend d on d.objid = s.oid and d.deptype = 'i'"
            " where s.relkind = 'S' and s.relnamespace = 'outlast'::regnamespace"
        )
        # Some tests edit the schema's own records.
        await connection.execute(
            "create table if not exists public.migrations_as_they_were as table outlast.migrations;"
            " delete from outlast.migrations;"
            " insert into outlast.migrations select * from public.migrations_as_they_were"
        )
    finally:
        await connection.close(timeout=10)
    return shared_postgres_url


async def _rows_anywhere(connection: Any) -> str:
    """Make the query that names the tables with rows: to truncate all of them costs several times as much."""
    tables = [
        row["tablename"]
        for row in await connection.fetch(
            "select tablename from pg_tables where schemaname = 'outlast' and tablename <> 'migrations'"
        )
    ]
    return " union all ".join(
        f"select '{table}' as name where exists (select from outlast.{table})" for table in tables
    )


@pytest.fixture
def copied_sqlite_url(sqlite_url: str, sqlite_template: Path) -> str:
    """The URL of an SQLite database of this test's own, migrated and without rows."""
    shutil.copyfile(sqlite_template, sqlite_url.removeprefix("sqlite:///"))
    return sqlite_url


@pytest.fixture
def database_url(store_kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of a database of this test's own; nothing need be in it yet."""
    if store_kind == "sqlite-memory":
        return MEMORY
    fixture = {"sqlite-file": "copied_sqlite_url", "postgres": "emptied_postgres_url"}[store_kind]
    return str(request.getfixturevalue(fixture))


MEMORY = "sqlite://:memory:"


def new_store(url: str) -> Store:
    """Make a store on a database, neither migrated nor opened."""
    if url.startswith("postgresql:"):
        from outlast.store.postgres import PostgresStore

        return PostgresStore(url)
    from outlast.store.sqlite import SqliteStore

    if url == MEMORY:
        return SqliteStore(url, executor="inline")
    return SqliteStore(url)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """A migrated, opened store; closed afterwards."""
    made = new_store(database_url)
    try:
        await made.migrate()
        await made.open()
        yield made
    finally:
        await made.close()


@pytest.fixture
def backdoor(store_kind: str, database_url: str, store: Store) -> Backdoor:
    """Raw SQL beside ``store``."""
    if store_kind == "postgres":
        return PostgresBackdoor(database_url)
    if store_kind == "sqlite-file":
        return SqliteBackdoor(lambda: _file(database_url.removeprefix("sqlite:///")))
    return MemoryBackdoor(store)


@pytest.fixture
async def reopen(store_kind: str, database_url: str) -> AsyncIterator[Reopen]:
    """Open more stores on the database of ``store``, as other processes would; skip where none can be."""
    if store_kind == "sqlite-memory":
        pytest.skip("a database in memory belongs to one store")
    async with AsyncExitStack() as stack:

        async def again() -> Store:
            made = new_store(database_url)
            stack.push_async_callback(made.close)
            await made.open()
            return made

        yield again
