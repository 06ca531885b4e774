"""The tables ``outlast_otherside_*``: their text, their statements, and the caller's own connection."""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

import apsw

from outlast.errors import ConfigurationError, SchemaOutdated
from outlast.store import statements

_HERE = resources.files("outlast.store.sqlite.otherside")
SQL: Final = statements.load(_HERE / "sql")
"""Every statement by name."""
SCHEMA: Final = (_HERE / "schema.sql").read_text(encoding="utf-8")


def told(error: Exception) -> Exception:
    """Answer what a caller is told of an error: SchemaOutdated for missing tables, else the error itself."""
    if isinstance(error, apsw.SQLError) and "outlast_otherside" in str(error):
        return SchemaOutdated(
            "the tables of outlast.otherside are missing or older here: call prepare() once"
        )
    return error


def check_transaction(connection: Any) -> apsw.Connection:
    """Refuse a connection that is not apsw's, or not in a transaction. Raises ConfigurationError."""
    if not isinstance(connection, apsw.Connection):
        raise ConfigurationError(
            f"connection is {type(connection).__name__}; SQLite takes an apsw.Connection"
        )
    if not connection.in_transaction:
        raise ConfigurationError("the connection is not in a transaction; begin one (begin immediate) first")
    return connection
