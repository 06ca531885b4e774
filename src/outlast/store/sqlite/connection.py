"""Connections to one SQLite file, and what SQLite's errors mean to a caller."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from outlast import clock
from outlast.errors import ConfigurationError, StoreUnavailable
from outlast.store.contract import BatchRejected

MEMORY = ":memory:"
OLDEST = (3, 51)
"""The first SQLite that has ``jsonb_each``."""
BUSY_SECONDS = 30.0
"""How long a writer goes on asking for the lock before its callers are told StoreUnavailable."""
BUSY_SLICE_MS = 200
"""How long SQLite itself asks before we look whether to go on."""
_STATEMENTS = 512
"""How many statements stay prepared: those run last, one that ran twice counts twice. There are no more."""

# The file cannot be used as it is: a new connection may find it better.
_BROKEN = (
    apsw.IOError,
    apsw.CantOpenError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.ProtocolError,
    apsw.ReadOnlyError,
)
_UNAVAILABLE = (
    *_BROKEN,
    apsw.BusyError,
    apsw.LockedError,
    apsw.FullError,
    apsw.NoMemError,
    apsw.PermissionsError,
    apsw.AuthError,
    apsw.InterruptError,
    apsw.ConnectionClosedError,
    OSError,
    MemoryError,
)
# The values cannot be stored: a broken constraint or trigger, lone surrogates, numbers beyond 64 bits, other
# types.
_UNSTORABLE = (
    apsw.ConstraintError,
    apsw.TooBigError,
    apsw.MismatchError,
    apsw.RangeError,
    UnicodeError,
    OverflowError,
    TypeError,
)


def is_broken(error: BaseException) -> bool:
    """Say whether a connection that raised this had better be opened anew."""
    return isinstance(error, _BROKEN)


def translate(error: Exception, path: str) -> Exception:
    """Answer what a caller is told of an error: StoreUnavailable, BatchRejected, or the error itself."""
    if isinstance(error, _UNAVAILABLE):
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            told = f"another process has held the write lock of {path} for over {BUSY_SECONDS:.0f} s"
        elif isinstance(error, apsw.FullError):
            told = f"no room to write to {path} ({error}): make room there, and what waits goes on by itself"
        else:
            told = f"cannot use {path}: {error}"
        answer: Exception = StoreUnavailable(told)
    elif isinstance(error, _UNSTORABLE):
        answer = BatchRejected(f"this cannot be stored: {error}")
    else:
        return error
    answer.__cause__ = error
    return answer


def is_missing(path: str) -> bool:
    """Say whether there is no file at a path, so that to connect would make one."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return path != MEMORY
    except OSError:
        # Whoever connects is told why.
        return False
    return False


def connect(path: str, *, cache_kib: int = 16_384) -> apsw.Connection:
    """Open a connection: WAL, synchronous FULL, no foreign keys; the parent folder is made.

    Raises StoreUnavailable when the path cannot be opened, ConfigurationError for an SQLite that is too old.
    """
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) < OLDEST:
        raise ConfigurationError(
            f"SQLite {'.'.join(map(str, OLDEST))} or newer is needed, and apsw was built with {version}:"
            " install the apsw that brings its own (pip install --force-reinstall --only-binary apsw apsw)"
        )
    try:
        if path != MEMORY:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        connection = apsw.Connection(path, statementcachesize=_STATEMENTS)
    except (apsw.Error, OSError) as error:
        raise _cannot_open(path, error) from error
    try:
        _prepare(connection, path, cache_kib)
    except apsw.Error as error:
        connection.close()
        raise _cannot_open(path, error) from error
    return connection


def _cannot_open(path: str, error: Exception) -> StoreUnavailable:
    if isinstance(error, apsw.NotADBError):
        return StoreUnavailable(f"{path} is not an SQLite database")
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if os.path.isdir(path):
        why = "it is a folder"
    return StoreUnavailable(f"cannot open {path}: {why}")


def _prepare(connection: apsw.Connection, path: str, cache_kib: int) -> None:
    wait_for_locks(connection)
    # A build with STAT4, as APSW's is, would otherwise compile a statement anew whenever a value is bound
    # that is compared with an indexed column: half of all statements, each time, for many times what running
    # them costs.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    mode = _into_wal(connection)
    if path != MEMORY and mode != "wal":
        raise apsw.CantOpenError("its file system does not allow a write-ahead log")
    connection.pragma("synchronous", "full")
    connection.pragma("foreign_keys", False)
    connection.pragma("temp_store", "memory")
    connection.pragma("cache_size", -cache_kib)


def wait_for_locks(connection: apsw.Connection, milliseconds: int = BUSY_SLICE_MS) -> None:
    """Let a connection wait for locks that others hold, up to ``milliseconds``."""
    # Both: the first for locks that SQLite polls with growing pauses, the second for those it asks for every
    # millisecond, among them the one that makes a writer.
    connection.set_busy_timeout(milliseconds)
    connection.setlk_timeout(milliseconds, 0)


def _into_wal(connection: apsw.Connection) -> str:
    give_up = clock.monotonic() + BUSY_SECONDS
    while True:
        try:
            return str(connection.pragma("journal_mode", "wal"))
        except apsw.BusyError:
            if clock.monotonic() >= give_up:
                raise


def begin(connection: apsw.Connection) -> None:
    """Begin as the writer, however long others hold the lock, up to the bound. Raises apsw.BusyError after
    it."""
    give_up: float | None = None
    while True:
        try:
            connection.execute("begin immediate")
            return
        except apsw.BusyError:
            now = clock.monotonic()
            if give_up is None:
                give_up = now + BUSY_SECONDS
            elif now >= give_up:
                raise
