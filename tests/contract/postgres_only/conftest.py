"""A store on PostgreSQL, connections beside it, and a wire to it that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from tests.stores import emptied_postgres_url

from outlast.store.postgres import PostgresStore
from outlast.testing.store_suite.scene import scene

__all__ = ["emptied_postgres_url", "scene"]

Open = Callable[[], Awaitable[PostgresStore]]


@pytest.fixture
def database_url(emptied_postgres_url: str) -> str:
    """The URL of a migrated database without rows."""
    return emptied_postgres_url


@pytest.fixture
async def another(database_url: str) -> AsyncIterator[Open]:
    """Open one more store, as another process would."""
    async with AsyncExitStack() as stack:

        async def again(url: str = database_url) -> PostgresStore:
            made = PostgresStore(url)
            stack.push_async_callback(made.close)
            await made.open()
            return made

        yield again


@pytest.fixture
async def store(another: Open) -> PostgresStore:
    """An opened store."""
    return await another()


Beside = Callable[[], Awaitable["asyncpg.Connection[asyncpg.Record]"]]


@pytest.fixture
async def connect(database_url: str) -> AsyncIterator[Beside]:
    """Open connections of the test's own; unqualified names are Outlast's."""
    async with AsyncExitStack() as stack:

        async def one() -> asyncpg.Connection[asyncpg.Record]:
            connection = await asyncpg.connect(
                database_url, server_settings={"search_path": "outlast, public"}
            )
            stack.callback(connection.terminate)
            return connection

        yield one


@pytest.fixture
async def beside(connect: Beside) -> asyncpg.Connection[asyncpg.Record]:
    """One such connection."""
    return await connect()


async def until(connection: Any, question: str, *arguments: object) -> None:
    """Wait until a query answers true; what it asks for is brought about by somebody else's backend."""
    async with asyncio.timeout(30):
        while True:
            # Inside a transaction the server would answer from what it saw of its backends the first time.
            await connection.execute("select pg_stat_clear_snapshot()")
            if await connection.fetchval(question, *arguments):
                return
            await asyncio.sleep(0.005)


async def until_blocked(connection: Any, duty: str) -> None:
    """Wait until the connection of a duty waits for a lock."""
    await until(
        connection,
        "select count(*) > 0 from pg_stat_activity"
        " where application_name = $1 and datname = current_database() and wait_event_type = 'Lock'",
        f"outlast {duty}",
    )


async def end_backends(connection: Any, duty: str) -> None:
    """End the backends of a duty in this database, as an administrator would."""
    await connection.fetch(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = $1 and datname = current_database()",
        f"outlast {duty}",
    )


class Wire:
    """A TCP relay before the server: it can swallow answers, hang up on clients, and refuse new ones."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.mute = False
        self.refuse = False

    async def start(self) -> int:
        """Listen; answer the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def hang_up(self) -> None:
        """Reset the clients' connections; the server's side of each stays open and hears nothing of it."""
        for client in self._clients:
            client.transport.abort()
        self._clients.clear()

    async def stop(self) -> None:
        """End everything."""
        self.hang_up()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        upstream_reader, upstream = await asyncio.open_connection(self._host, self._port)
        self._clients.add(writer)

        async def ask() -> None:
            with suppress(ConnectionError):
                while data := await reader.read(65536):
                    upstream.write(data)
            # The server's side is kept open by whoever reads its answers below.

        async def answer() -> None:
            with suppress(ConnectionError):
                while data := await upstream_reader.read(65536):
                    if not self.mute and not writer.transport.is_closing():
                        writer.write(data)
            writer.close()

        for work in (ask(), answer()):
            task = asyncio.create_task(work)
            self._pumps.add(task)


@pytest.fixture
async def wire(database_url: str) -> AsyncIterator[Wire]:
    """A wire to the server; its URL is ``wired_url``."""
    parts = urlsplit(database_url)
    assert parts.hostname is not None
    made = Wire(parts.hostname, parts.port or 5432)
    yield made
    await made.stop()


@pytest.fixture
async def wired(wire: Wire, database_url: str, another: Open) -> PostgresStore:
    """A store that reaches the server over ``wire``."""
    port = await wire.start()
    parts = urlsplit(database_url)
    user = parts.netloc.rpartition("@")[0]
    url = urlunsplit((parts.scheme, f"{user}@127.0.0.1:{port}", parts.path, parts.query, ""))
    return await another(url)  # type: ignore[call-arg]
