"""Bring the schema of a file up to what this code knows, and say whether it is."""

from __future__ import annotations

import hashlib
import re
from importlib import resources

from outlast.core.record import record
from outlast.errors import SchemaMismatch, SchemaOutdated, SchemaTooNew
from outlast.store.contract import SCHEMA_VERSION
from outlast.store.sqlite.transaction import Transaction

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


@record
class Migration:
    """One step of the schema. checksum: SHA-256 of its text, in hex."""

    number: int
    name: str
    sql: str
    checksum: str


def _load() -> tuple[Migration, ...]:
    found = []
    for file in (resources.files("outlast.store.sqlite") / "migrations").iterdir():
        match = _FILE.fullmatch(file.name)
        if match is not None:
            sql = file.read_text(encoding="utf-8")
            checksum = hashlib.sha256(sql.encode()).hexdigest()
            found.append(Migration(number=int(match[1]), name=file.name[:-4], sql=sql, checksum=checksum))
    return tuple(sorted(found, key=lambda migration: migration.number))


MIGRATIONS = _load()


def migrate(tx: Transaction) -> list[str]:
    """Apply what is missing, in this one transaction; see ``Store.migrate``."""
    tx.run("make_migrations")
    applied = {number: checksum for number, checksum in tx.rows("read_migrations")}
    if applied and max(applied) > SCHEMA_VERSION:
        raise SchemaTooNew(_too_new(max(applied)))
    names = []
    for migration in MIGRATIONS:
        checksum = applied.get(migration.number)
        if checksum is None:
            tx.execute(migration.sql)
            tx.run("keep_migration", (migration.number, migration.name, migration.checksum, tx.now()))
            names.append(migration.name)
        elif checksum != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration.name} was applied with another text than this code has; "
                "nothing was changed"
            )
    return names


def schema_version(tx: Transaction) -> int:
    """Answer the newest migration applied, 0 for none."""
    if not tx.rows("has_migrations"):
        return 0
    row = tx.row("read_version")
    return 0 if row is None or row[0] is None else int(row[0])


def check_schema(tx: Transaction) -> None:
    """Raise SchemaOutdated or SchemaTooNew unless the schema is the one that this code knows."""
    version = schema_version(tx)
    if version < SCHEMA_VERSION:
        raise SchemaOutdated(
            f"the database's schema is at {version}, this code needs {SCHEMA_VERSION}; run `outlast migrate`"
        )
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(_too_new(version))


def _too_new(version: int) -> str:
    return f"the database's schema is at {version}, this code knows up to {SCHEMA_VERSION}; upgrade Outlast"
