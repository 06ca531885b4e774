"""Where a drill keeps its tasks: a file of its own, or a PostgreSQL database that nobody else uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from outlast.testing.servers import EmbeddedPostgres

__all__ = ["EMBEDDED", "Database", "Disk", "add_column", "database"]

EMBEDDED = "embedded"
"""Instead of a URL: a private PostgreSQL, started for the drill and gone with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """url: for the drill's processes. shown: for people, without secrets."""

    url: str
    shown: str


@asynccontextmanager
async def database(postgres: str | None, folder: Path) -> AsyncIterator[Database]:
    """Make a database for the length of the block.

    postgres: None for an SQLite file in ``folder``; ``embedded``; or a URL, on whose server a database of the
    drill's own is made and dropped. Raises ConfigurationError when that cannot be, ServerError,
    StoreUnavailable.
    """
    if postgres is None:
        path = folder / "outlast.db"
        yield Database(url=f"sqlite:///{path}", shown=f"SQLite, {path}")
    elif postgres == EMBEDDED:
        server = await asyncio.to_thread(EmbeddedPostgres)
        try:
            yield Database(url=server.create_database("demo"), shown="PostgreSQL, embedded")
        finally:
            server.stop()
    else:
        # Only here, so that a demo on SQLite does not load the driver.
        from outlast.store.postgres.scratch import database as scratch_database

        async with scratch_database(postgres) as made:
            yield Database(url=made.url, shown=f"PostgreSQL, {made.shown}")


async def add_column(url: str, table: str, column: str) -> bool:
    """Add a column to a table of a drill's database; answer whether it could, so that nobody waits for it."""
    if url.startswith("sqlite"):
        from outlast.store.sqlite import scratch as file

        return await asyncio.to_thread(file.add_column, url.removeprefix("sqlite:///"), table, column)
    from outlast.store.postgres import scratch as server

    return await server.add_column(url, table, column)


class Disk:
    """The room that the databases of this process have to grow.

    Made before they are opened. A PostgreSQL server's disk is not this process's, so that nothing happens
    there.
    """

    def __init__(self) -> None:
        from outlast.store.sqlite import scratch as file

        self._files = file.Rooms()

    def told(self, line: str) -> None:
        """Do what a line says: ``full`` leaves no room, ``room`` gives it back."""
        for word in line.split():
            if word in ("full", "room"):
                self._files.limit(word == "full")
