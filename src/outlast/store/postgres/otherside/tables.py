"""The schema ``outlast_otherside``: its text, its statements, and how it is made."""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

from outlast.errors import ConfigurationError, SchemaOutdated
from outlast.store import statements

_HERE = resources.files("outlast.store.postgres.otherside")
SQL: Final = statements.load(_HERE / "sql")
"""Every statement by name."""
SCHEMA: Final = (_HERE / "schema.sql").read_text(encoding="utf-8")

_LOCK = "select pg_advisory_xact_lock(hashtextextended('outlast_otherside.prepare', 0))"


async def prepare(connection: Any) -> None:
    """Make what is missing, in one transaction under a lock."""
    async with connection.transaction():
        await connection.execute(_LOCK)
        await connection.execute("set local client_min_messages = warning")
        await connection.execute(SCHEMA)


def missing() -> SchemaOutdated:
    """Make the error for a database without the tables, or with older ones."""
    return SchemaOutdated("the tables of outlast.otherside are missing or older here: call prepare() once")


def check_transaction(connection: Any) -> None:
    """Refuse a connection that is not asyncpg's, or not in a transaction. Raises ConfigurationError."""
    if not hasattr(connection, "is_in_transaction"):
        raise ConfigurationError(f"connection is {type(connection).__name__}; PostgreSQL takes asyncpg's")
    if not connection.is_in_transaction():
        raise ConfigurationError("the connection is not in a transaction; begin one first")
