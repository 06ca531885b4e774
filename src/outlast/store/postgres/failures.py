"""What the driver and the server raise, sorted into the contract's own errors.

Nothing of the driver leaves this package: whoever calls a verb sees ``StoreUnavailable``, ``BatchRejected``
or an error of the schema. Messages are one line and hold neither the password nor values of a batch.
"""

from __future__ import annotations

import asyncpg

from outlast.errors import OutlastError, SchemaOutdated, StoreUnavailable
from outlast.store.contract import BatchRejected

DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""Everything that a call through the driver raises, apart from being cancelled."""


class NoSuchLane(RuntimeError):
    """A task was to stand in a lane that is not known, or not there any more."""


class OutOfOrder(RuntimeError):
    """A writer's batch does not follow the last one that was applied: two writers share an id."""


_OURS = {"OLLAN": NoSuchLane, "OLSEQ": OutOfOrder}
"""SQLSTATEs that our own functions raise."""

# 08 connection, 28 not let in, 3D no such database, 53 out of resources, 57 shut down or cancelled, 58
# system, XX internal, 25006 read-only (a standby), 25P03 idle in transaction, 40 rolled back to break a
# deadlock, 55000 a database that lets nobody in for now, 55P03 not within lock_timeout.
_AWAY_CLASSES = ("08", "28", "3D", "53", "57", "58", "XX", "40")
_AWAY_STATES = ("25006", "25P03", "55000", "55P03")
_USED_UP = {
    "53100": "its disk is full: make room there, and what waits goes on by itself",
    "53200": "its memory is used up: give it more, or let fewer processes work on it",
    "53300": "its connections are used up: raise max_connections, or let fewer processes work on it",
}
"""What people can do about a server that has run out of something."""
_SCHEMA_STATES = ("42P01", "42883", "3F000")
# 22 data, 23 constraint, 54 limit, P0 raised by a guard.
_REJECTED_CLASSES = ("22", "23", "54", "P0")


def sqlstate(error: BaseException) -> str:
    """Answer the SQLSTATE of a server's error, or an empty text."""
    return str(getattr(error, "sqlstate", None) or "")


def spoils_connection(error: BaseException) -> bool:
    """Answer whether a connection that raised this is not to be used again."""
    if isinstance(error, asyncpg.PostgresError):
        state = sqlstate(error)
        # A read-only server stays so; a cancelled or deadlocked statement leaves the connection as it was.
        return state[:2] in ("08", "58", "XX") or state in ("25006", "25P03") or state.startswith("57P")
    return True


def translate(error: BaseException, where: str) -> Exception:
    """Turn an error of the driver into the contract's own; ``where`` is the masked address."""
    if isinstance(error, OutlastError | BatchRejected):
        return error
    state = sqlstate(error)
    if isinstance(error, asyncpg.PostgresError) and state:
        if error.severity is None and state.startswith("22"):
            # Raised by the driver itself while it encoded arguments: its text holds them.
            return BatchRejected("a value cannot be encoded for the database")
        text = one_line(error)
        if state in _OURS:
            return _OURS[state](text)
        if state[:2] in _AWAY_CLASSES or state in _AWAY_STATES:
            advice = f" ({_USED_UP[state]})" if state in _USED_UP else ""
            return StoreUnavailable(f"PostgreSQL at {where}: {text}{advice}")
        if state in _SCHEMA_STATES:
            return SchemaOutdated(
                f"the schema at {where} is not the one this code knows ({text}); run `outlast migrate`"
            )
        if state[:2] in _REJECTED_CLASSES:
            return BatchRejected(f"PostgreSQL refused it: {text} ({state})")
        return RuntimeError(f"PostgreSQL at {where}: {text} ({state})")
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"PostgreSQL at {where} did not answer in time")
    if isinstance(error, OSError):
        return StoreUnavailable(f"cannot reach PostgreSQL at {where}: {_reason(error)}")
    return StoreUnavailable(f"the connection to PostgreSQL at {where} was lost: {one_line(error)}")


def no_writes(where: str) -> str:
    """Say that a server takes no writes; ``where`` is the masked address."""
    return f"PostgreSQL at {where} takes no writes: it is a standby, or was made read-only"


def one_line(error: BaseException) -> str:
    """Answer an error's text in one line."""
    return " ".join(str(error.args[0] if error.args else type(error).__name__).split())


def _reason(error: OSError) -> str:
    # asyncio joins the errors of several addresses into one long text without an errno.
    return (error.strerror or one_line(error)).split("; ")[0]
