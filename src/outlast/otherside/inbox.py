"""The inbox: a consumer of messages handles each event once, in its own transaction.

Purpose. Whoever delivers messages delivers some of them twice. ``once`` notes an event in the transaction in
which the consumer writes what the event makes it write; both are committed, or neither.

Identity. (consumer, event id). Two consumers of one event give different names.

Failure by failure. The consumer dies or rolls back: the event is not noted, and its repeat is True. A twin in
another transaction waits for the first: then it gets False, or True if the first rolled back. It waits no
longer than its connection's ``lock_timeout`` (PostgreSQL) or busy timeout (SQLite) allows.

Not covered. What a consumer does outside its transaction. A repeat that comes after ``sweep`` has forgotten
the event.
"""

from __future__ import annotations

from typing import Any

from outlast.core import ids
from outlast.core.durations import Duration, microseconds
from outlast.opening import inbox_for

__all__ = ["once", "prepare", "sweep"]


async def prepare(connection: Any) -> None:
    """Make the inbox's tables where they are missing; idempotent. Not inside a transaction on SQLite."""
    await inbox_for(connection).prepare(connection)


async def once(connection: Any, event_id: str, *, consumer: str = "") -> bool:
    """Note an event in the caller's open transaction; True exactly once for each (consumer, event_id).

    connection: asyncpg's, in a transaction, or an ``apsw.Connection`` after ``begin immediate``. event_id: 1
    to 255 characters without control characters. consumer: who asks, as a name, or nothing.

    Raises InvalidKey for an id or name that breaks its rules, ConfigurationError for a connection of another
    kind or without a transaction, Busy when a twin keeps it waiting too long, SchemaOutdated without
    ``prepare``. Atomic with the caller's transaction.
    """
    ids.check_key(event_id, "event id")
    if consumer != "":
        ids.check_name(consumer, "consumer")
    return await inbox_for(connection).once(connection, consumer, event_id)


async def sweep(connection: Any, *, keep: Duration = "30d") -> int:
    """Forget events noted longer ago than ``keep``; answer how many. Keep more than your broker does."""
    return await inbox_for(connection).sweep(connection, microseconds(keep, what="keep"))
