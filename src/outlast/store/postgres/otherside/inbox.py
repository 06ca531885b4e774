"""The inbox on PostgreSQL: on the caller's asyncpg connection, in the caller's transaction."""

from __future__ import annotations

from typing import Any

import asyncpg

from outlast.errors import Busy
from outlast.store.postgres.otherside import tables
from outlast.store.postgres.otherside.tables import SQL


class PostgresInbox:
    """See ``outlast.store.shelf.Inbox``."""

    async def prepare(self, connection: Any) -> None:
        """See ``Inbox``."""
        await tables.prepare(connection)

    async def once(self, connection: Any, consumer: str, event: str) -> bool:
        """See ``Inbox``. Raises Busy when a twin holds it too long, or committed out of this one's sight."""
        tables.check_transaction(connection)
        try:
            return await connection.fetchval(SQL["once"], consumer, event) is True
        except (
            asyncpg.UndefinedTableError,
            asyncpg.UndefinedFunctionError,
            asyncpg.InvalidSchemaNameError,
        ) as error:
            raise tables.missing() from error
        except asyncpg.LockNotAvailableError as error:
            raise Busy("a twin of this event is still being consumed") from error
        except asyncpg.SerializationError as error:
            # Only under repeatable read or stricter, where the twin that won can never be seen.
            raise Busy("a twin of this event committed after the transaction had begun") from error

    async def sweep(self, connection: Any, keep_us: int) -> int:
        """See ``Inbox``."""
        return int(await connection.fetchval(SQL["sweep_inbox"], keep_us))
