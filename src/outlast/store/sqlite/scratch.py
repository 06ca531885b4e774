"""What drills do to a file that nobody else uses: a change of its schema, and a disk that is full."""

from __future__ import annotations

import threading
import weakref
from typing import Final

import apsw

__all__ = ["Rooms", "add_column"]

PATIENCE_MS = 500
PAGES: Final = 0xFFFFFFFE
"""SQLite's own bound of a file."""


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


class Rooms:
    """The room of all connections that this process opens from now on."""

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[apsw.Connection] = weakref.WeakSet()
        self._lock = threading.Lock()
        apsw.connection_hooks.append(self._opened)

    def _opened(self, connection: apsw.Connection) -> None:
        with self._lock:
            self._connections.add(connection)

    def limit(self, full: bool) -> None:
        """Let the files grow no further, or give them their room back; may be called from any thread.

        A connection that is at work at this moment is waited for.
        """
        with self._lock:
            connections = list(self._connections)
        pause = threading.Event()
        for connection in connections:
            while True:
                try:
                    # SQLite takes the size that the file has for anything less.
                    connection.pragma("max_page_count", 1 if full else PAGES)
                except apsw.ConnectionClosedError:
                    break
                except (apsw.ThreadingViolationError, apsw.BusyError):
                    pause.wait(0.002)
                else:
                    break
