"""The schema: numbered migrations, each a folder of SQL files applied together, once, under a lock.

A migration's checksum covers its files; one that was applied with other contents is refused, since nobody
could say what the database holds. Nothing is migrated unasked: ``check`` refuses a database that is behind or
ahead.
"""

from __future__ import annotations

import hashlib
from importlib import resources

import asyncpg

from outlast.core.record import record
from outlast.errors import SchemaMismatch, SchemaOutdated, SchemaTooNew
from outlast.store.contract import SCHEMA_VERSION

_LOCK = "select pg_advisory_xact_lock(hashtextextended('outlast.migrate', 0))"
_BEGIN = """
create schema if not exists outlast;
create table if not exists outlast.migrations (
    number integer primary key,
    name text not null,
    checksum text not null,
    applied_at bigint not null
)
"""
_EXISTS = "select to_regclass('outlast.migrations') is not null"
_APPLIED = "select number, name, checksum from outlast.migrations order by number"
_RECORD = """
insert into outlast.migrations (number, name, checksum, applied_at)
values ($1, $2, $3, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
"""


@record
class Migration:
    """One numbered step: its name, its text, and the digest of that text."""

    number: int
    name: str
    sql: str
    checksum: str


def known() -> tuple[Migration, ...]:
    """Read the migrations that this code brings, in order."""
    found = []
    root = resources.files("outlast.store.postgres") / "migrations"
    for folder in sorted(root.iterdir(), key=lambda entry: entry.name):
        if not folder.is_dir() or not folder.name[:4].isdigit():
            continue
        files = sorted(
            (file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda f: f.name
        )
        sql = "\n".join(file.read_text(encoding="utf-8") for file in files)
        checksum = hashlib.sha256(sql.encode()).hexdigest()
        found.append(Migration(number=int(folder.name[:4]), name=folder.name, sql=sql, checksum=checksum))
    return tuple(found)


async def migrate(connection: asyncpg.Connection[asyncpg.Record], where: str) -> list[str]:
    """Apply what is missing, in one transaction under a lock; answer the names applied.

    Raises SchemaTooNew, SchemaMismatch.
    """
    async with connection.transaction():
        await connection.execute(_LOCK)
        if not await connection.fetchval(_EXISTS):
            await connection.execute(_BEGIN)
        applied = {row["number"]: row for row in await connection.fetch(_APPLIED)}
        _refuse_newer(max(applied, default=0), where)
        names = []
        for migration in known():
            row = applied.get(migration.number)
            if row is None:
                await connection.execute(migration.sql)
                await connection.execute(_RECORD, migration.number, migration.name, migration.checksum)
                names.append(migration.name)
            elif row["checksum"] != migration.checksum:
                raise _other_contents(row["name"], where)
        return names


async def check(connection: asyncpg.Connection[asyncpg.Record], where: str) -> None:
    """Refuse a database whose schema is not the one that this code knows.

    Raises SchemaOutdated, SchemaTooNew, SchemaMismatch.
    """
    applied = await connection.fetch(_APPLIED) if await connection.fetchval(_EXISTS) else []
    newest = max((row["number"] for row in applied), default=0)
    _refuse_newer(newest, where)
    if newest < SCHEMA_VERSION:
        state = f"has schema {newest}" if newest else "has no schema of Outlast yet"
        raise SchemaOutdated(
            f"the database at {where} {state}; this code needs {SCHEMA_VERSION}: run `outlast migrate`"
        )
    checksums = {migration.number: migration.checksum for migration in known()}
    for row in applied:
        if row["checksum"] != checksums.get(row["number"]):
            raise _other_contents(row["name"], where)


def _refuse_newer(newest: int, where: str) -> None:
    if newest > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"the database at {where} has schema {newest}, newer than this code's {SCHEMA_VERSION}: "
            "upgrade Outlast"
        )


def _other_contents(name: str, where: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"migration {name} at {where} was applied with other contents than this code brings"
    )
