"""The inbox in an SQLite file: on the caller's apsw connection, in the caller's transaction."""

from __future__ import annotations

from typing import Any

import apsw

from outlast.errors import Busy
from outlast.store.sqlite.otherside import tables
from outlast.store.sqlite.otherside.tables import SQL


class SqliteInbox:
    """See ``outlast.store.shelf.Inbox``."""

    async def prepare(self, connection: Any) -> None:
        """See ``Inbox``."""
        with connection:
            connection.execute(tables.SCHEMA)

    async def once(self, connection: Any, consumer: str, event: str) -> bool:
        """See ``Inbox``. Raises Busy when another holds the file's writer lock."""
        mine = tables.check_transaction(connection)
        try:
            noted = mine.execute(SQL["once"], {"consumer": consumer, "event": event}).fetchall()
        except apsw.BusyError as error:
            raise Busy("another connection writes; begin the transaction with begin immediate") from error
        except apsw.SQLError as error:
            raise tables.told(error) from error
        return bool(noted)

    async def sweep(self, connection: Any, keep_us: int) -> int:
        """See ``Inbox``."""
        return len(connection.execute(SQL["sweep_inbox"], {"keep_us": keep_us}).fetchall())
