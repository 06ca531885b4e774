"""A change of the schema for a drill, in a file that nobody else uses."""

from __future__ import annotations

import apsw

__all__ = ["add_column"]

PATIENCE_MS = 500


def add_column(path: str, table: str, column: str) -> bool:
    """Add a column to one of Outlast's tables, as a migration would that only adds; answer whether it could.

    It does not where others write to the file for longer than a moment. table, column: names that the caller
    has made up, and nobody else.
    """
    connection = apsw.Connection(path)
    try:
        connection.set_busy_timeout(PATIENCE_MS)
        connection.execute(f"alter table {table} add column {column} text")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True
