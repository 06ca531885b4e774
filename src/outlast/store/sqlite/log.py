"""Keep the write-ahead log small: copy it back into the file outside of anybody's commit.

SQLite's own checkpoint runs inside the commit that passes the threshold, so somebody's verb pays for it, and
a log that a long reader made large keeps its size on disk. Here the writer copies after its callers were
answered, goes on trying while a reader holds the log, and cuts the file once it can.
"""

from __future__ import annotations

import apsw

from outlast import clock
from outlast.store.sqlite import connection as connections

COPY_PAGES = 1_000
"""From how many pages on the log is copied back: 4 MB."""
CUT_PAGES = 8 * COPY_PAGES
"""From how many pages on the file itself is cut, which waits a moment for readers."""
CUT_WAIT_MS = 50
RETRY_SECONDS = 1.0
"""How soon to try again while a reader holds the log."""
LIMIT_BYTES = COPY_PAGES * 4096
"""What SQLite leaves of the file when it starts again from its beginning."""


class Log:
    """The write-ahead log of one connection."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._pages = 0
        self._again_at: float | None = None
        self._again_pages = 0
        connection.pragma("journal_size_limit", LIMIT_BYTES)
        # This takes the place of SQLite's own checkpoint.
        connection.set_wal_hook(self._count)

    def _count(self, connection: apsw.Connection, database: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def tend(self) -> float | None:
        """Copy the log back if it is large; answer after how many seconds to ask again, None for not before a
        commit.

        Never raises: what is committed is safe in the log.
        """
        if self._pages < COPY_PAGES:
            return None
        if (
            self._again_at is not None
            and clock.monotonic() < self._again_at
            and self._pages < self._again_pages
        ):
            return RETRY_SECONDS
        try:
            finished = self._copy()
        except apsw.Error:
            finished = False
        if finished:
            # The next commit tells how many pages there are then.
            self._pages, self._again_at = 0, None
            return None
        self._again_at = clock.monotonic() + RETRY_SECONDS
        self._again_pages = self._pages + COPY_PAGES
        return RETRY_SECONDS

    def _copy(self) -> bool:
        pages, copied = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if copied < pages:
            return False
        if pages >= CUT_PAGES:
            connections.wait_for_locks(self._connection, CUT_WAIT_MS)
            try:
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                connections.wait_for_locks(self._connection)
        return True
