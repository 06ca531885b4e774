"""A database for a demo or a drill on somebody's server: made for a while, dropped afterwards.

Where the account may not make databases, the one that was named is used, but only if nothing is in it: what
is somebody's is never written to, and never dropped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from outlast import clock
from outlast.core import ids
from outlast.core.record import record
from outlast.errors import ConfigurationError
from outlast.store.postgres import connections, failures
from outlast.store.postgres.connections import Address

__all__ = ["Scratch", "add_column", "database"]

# What is in the database that a user would miss: relations outside of the server's own schemas.
_FOREIGN = """
select n.nspname || '.' || c.relname
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f')
    and n.nspname <> 'information_schema' and n.nspname not like 'pg\\_%'
order by 1
limit 1
"""


@record
class Scratch:
    """url: of the database. shown: the same for people, without secrets."""

    url: str
    shown: str


@asynccontextmanager
async def database(url: str) -> AsyncIterator[Scratch]:
    """Make a database on the server of ``url`` for the length of the block, and drop it.

    Without the right to make one, the named database itself is used if it is empty, and what was made in it
    is dropped. Raises ConfigurationError when it is not empty, StoreUnavailable.
    """
    named = Address(url)
    connection = await connections.connect(named, connections.MIGRATE)
    name = f"outlast_demo_{clock.new_id(ids.WRITER).rpartition('_')[2]}"
    try:
        made = await _make(connection, named, name)
        try:
            yield Scratch(url=made.url, shown=made.shown)
        finally:
            if made is named:
                # It was empty before, so the schema is ours.
                await connection.execute("drop schema if exists outlast cascade")
            else:
                await connection.execute(f'drop database if exists "{name}" with (force)')
    finally:
        await connection.close(timeout=5)


async def _make(connection: asyncpg.Connection[asyncpg.Record], named: Address, name: str) -> Address:
    try:
        # Make a database that nobody else knows of.
        await connection.execute(f'create database "{name}" template template0')
    except asyncpg.InsufficientPrivilegeError:
        await _refuse_foreign(connection, named)
        return named
    except failures.DRIVER_ERRORS as error:
        raise failures.translate(error, named.shown) from error
    return Address(_renamed(named.url, name))


async def _refuse_foreign(connection: asyncpg.Connection[asyncpg.Record], address: Address) -> None:
    found = await connection.fetchval(_FOREIGN)
    if found is not None:
        raise ConfigurationError(
            f"this account may not create databases, and the one at {address.shown} is not empty (it holds"
            f" {found}); name an empty one, or use --postgres embedded"
        )


def _renamed(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, f"/{name}", parts.query, ""))


async def add_column(url: str, table: str, column: str) -> bool:
    """Add a column to one of Outlast's tables, as a migration would that only adds; answer whether it could.

    It does not where somebody holds the table for longer than a moment, since all others would wait behind
    it. table, column: names that the caller has made up, and nobody else.
    """
    connection = await connections.connect(Address(url), connections.MIGRATE)
    try:
        await connection.execute("set lock_timeout = '500ms'")
        await connection.execute(f"alter table outlast.{table} add column {column} text")
    except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
        return False
    finally:
        await connection.close()
    return True
