"""Dedicated connections: one for each duty, opened when first needed, opened again after a loss.

Duties do not share, so that a slow view never stands in front of a renewal, and a claim never in front of a
flush. Each connection serves one call at a time. A call runs in a task of its own: when its caller is
cancelled it goes on to its end, and the next caller finds the connection as it should be.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from outlast.core.record import record
from outlast.errors import ConfigurationError, StoreUnavailable
from outlast.store.postgres import failures

Answer = TypeVar("Answer")
Work = Callable[["asyncpg.Connection[asyncpg.Record]"], Awaitable[Answer]]

CONNECT_SECONDS = 5.0
HIDDEN: Final = "postgresql://***"
"""What is shown of a URL that is not well formed."""
NO_URL: Final = (
    "the PostgreSQL URL cannot be read; what is neither a letter nor a digit in its password is written with"
    " percent signs, a slash as %2F"
)
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*)(?::\d{0,5})?")


@record
class Duty:
    """What a connection is for.

    seconds: bound of one call; the server gives up a little earlier than we do. lock_ms: how long a
    statement waits for somebody's lock. fixed_plans: plan once and only along indexes, whatever the
    statistics of a table that is empty one moment and full the next say.
    """

    name: str
    seconds: float
    lock_ms: int
    fixed_plans: bool = True


CLAIM = Duty(name="claim", seconds=10, lock_ms=8_000)
FLUSH = Duty(name="flush", seconds=12, lock_ms=8_000)
LOAD = Duty(name="load", seconds=30, lock_ms=5_000)
CONTROL = Duty(name="control", seconds=8, lock_ms=5_000)
PEOPLE = Duty(name="people", seconds=8, lock_ms=5_000)
DELIVER = Duty(name="deliver", seconds=8, lock_ms=5_000)
SWEEP = Duty(name="sweep", seconds=30, lock_ms=5_000)
SUBMIT = Duty(name="submit", seconds=30, lock_ms=2_000)
VIEW = Duty(name="view", seconds=30, lock_ms=5_000, fixed_plans=False)
FOLLOW = Duty(name="follow", seconds=30, lock_ms=5_000)
LISTEN = Duty(name="listen", seconds=10, lock_ms=5_000)
MIGRATE = Duty(name="migrate", seconds=600, lock_ms=300_000, fixed_plans=False)


class Address:
    """Where a database is: a URL for the driver, and the same without its secrets for people."""

    __slots__ = ("shown", "url")

    def __init__(self, url: str) -> None:
        """Read a URL. Raises ConfigurationError, which never holds a part of it."""
        parts = _read(url)
        if parts is None:
            raise ConfigurationError(NO_URL)
        if parts.scheme not in ("postgres", "postgresql"):
            raise ConfigurationError("a PostgreSQL URL begins with postgresql://")
        self.url = url
        self.shown = mask(url)

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def mask(url: str) -> str:
    """Answer the URL with its passwords replaced by ``***``; all of it where nobody knows what is what."""
    parts = _read(url)
    if parts is None:
        return HIDDEN
    user, at, hosts = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    query = []
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if "@" in value and key != "user":
            # The end of an address, behind a question mark of its password.
            return HIDDEN
        query.append((key, "***" if "password" in key.lower() else value))
    shown = f"{parts.scheme}://{name}{':***' if colon else ''}{at}{hosts}{parts.path}"
    return f"{shown}?{urlencode(query, safe='*/')}" if query else shown


def _read(url: str) -> SplitResult | None:
    """Take a URL apart, None where it is not well formed: with a password that holds ``/``, ``?`` or ``#`` as
    they are, parts of that stand where hosts, ports and paths are looked for."""
    try:
        parts = urlsplit(url)
        parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        return None
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if "://" not in url or "#" in url or "@" in parts.path or not all(map(_HOST.fullmatch, hosts)):
        return None
    return parts


async def connect(address: Address, duty: Duty) -> asyncpg.Connection[asyncpg.Record]:
    """Open one connection for a duty, to a server that takes writes: the first one that the URL names.

    Raises StoreUnavailable, ConfigurationError.
    """
    server_ms = str(int(duty.seconds * 900))
    settings = {
        "application_name": f"outlast {duty.name}",
        "timezone": "UTC",
        "jit": "off",
        "statement_timeout": server_ms,
        "lock_timeout": str(duty.lock_ms),
        "idle_in_transaction_session_timeout": "10000",
        # A client that vanished without a word is noticed within half a minute, and its locks go with it.
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "4",
        "client_connection_check_interval": "5000",
    }
    if duty is LISTEN:
        # A notification takes a transaction id, so that it would wait for the disk like any commit.
        settings["synchronous_commit"] = "off"
    if duty.fixed_plans:
        settings |= {
            "plan_cache_mode": "force_generic_plan",
            "enable_seqscan": "off",
            "enable_bitmapscan": "off",
        }
    try:
        return await asyncpg.connect(
            address.url,
            timeout=CONNECT_SECONDS,
            server_settings=settings,
            # A standby answers views and empty claims, and all of it is old.
            target_session_attrs=SessionAttribute.read_write,
        )
    except ValueError:
        # The driver's own reading of the URL; its text may hold parts of it: nothing is raised from it.
        pass
    except asyncpg.TargetServerAttributeNotMatched as error:
        raise StoreUnavailable(failures.no_writes(address.shown)) from error
    except failures.DRIVER_ERRORS as error:
        raise failures.translate(error, address.shown) from error
    raise ConfigurationError(NO_URL)


def is_demoted(connection: asyncpg.Connection[asyncpg.Record]) -> bool:
    """Answer whether the server has said on this connection that it takes no writes any more.

    It says so, unasked, with its next answer after it has become a standby or was made read-only.
    """
    said = connection.get_settings()
    return "on" in (
        getattr(said, "in_hot_standby", "off"),
        getattr(said, "default_transaction_read_only", "off"),
    )


class Line:
    """One duty's connection."""

    def __init__(self, address: Address, duty: Duty) -> None:
        self._address = address
        self.duty = duty
        self._lock = asyncio.Lock()
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._calls: set[asyncio.Task[object]] = set()
        self._closed = False

    @property
    def shown(self) -> str:
        """The masked address."""
        return self._address.shown

    async def run(self, work: Work[Answer]) -> Answer:
        """Run one piece of work on the connection, alone; it is finished even when the caller is cancelled.

        Raises what ``failures.translate`` makes of the driver's errors.
        """
        return await asyncio.shield(self.begin(work))

    def begin(self, work: Work[Answer]) -> asyncio.Task[Answer]:
        """Begin a piece of work, which goes on to its end whoever waits for it; see ``run``."""
        call = asyncio.get_running_loop().create_task(self._run(work))
        self._calls.add(call)
        call.add_done_callback(self._forget)
        return call

    def _forget(self, call: asyncio.Task[object]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            # Whoever asked may be gone; then the error is nobody's.
            call.exception()

    async def _run(self, work: Work[Answer]) -> Answer:
        async with self._lock:
            connection = self._connection
            if connection is None or connection.is_closed():
                if self._closed:
                    raise StoreUnavailable("the store is closed")
                connection = self._connection = await connect(self._address, self.duty)
            try:
                async with asyncio.timeout(self.duty.seconds):
                    try:
                        answer = await work(connection)
                    except asyncpg.InvalidCachedStatementError:
                        # The schema was changed meanwhile. Its transaction is undone, and the driver has
                        # forgotten what it had prepared.
                        answer = await work(connection)
            except failures.DRIVER_ERRORS as error:
                if failures.spoils_connection(error):
                    self.discard()
                raise failures.translate(error, self._address.shown) from error
            except BaseException:
                # Cancelled from within, or a fault of our own: nobody knows in what state the connection is.
                self.discard()
                raise
            if is_demoted(connection):
                # Whatever it answered may be old; and nothing that only reads would ever notice.
                self.discard()
                raise StoreUnavailable(failures.no_writes(self._address.shown))
            return answer

    def open(self) -> None:
        """Take calls again after ``close``, in whichever event loop runs now; idempotent."""
        if self._closed:
            self._closed, self._lock = False, asyncio.Lock()

    def discard(self) -> None:
        """Drop the connection without a word to the server; the next call opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def close(self) -> None:
        """Let calls under way end, and close; idempotent."""
        self._closed = True
        async with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=2)
            except failures.DRIVER_ERRORS:
                connection.terminate()


class Lines:
    """A few connections for one duty, for calls that may stand beside each other."""

    def __init__(self, address: Address, duty: Duty, most: int) -> None:
        self._lines = [Line(address, duty) for _ in range(most)]
        self._free = list(reversed(self._lines))
        self._places = asyncio.Semaphore(most)
        self._closed = False

    async def run(self, work: Work[Answer]) -> Answer:
        """Run one piece of work on whichever connection is free, an open one first."""
        free, places = self._free, self._places
        await places.acquire()
        line = free.pop()
        call = line.begin(work)

        def give_back(_: object) -> None:
            free.append(line)
            places.release()

        call.add_done_callback(give_back)
        return await asyncio.shield(call)

    def open(self) -> None:
        """Take calls again after ``close``, in whichever event loop runs now; idempotent."""
        if self._closed:
            self._closed = False
            self._free = list(reversed(self._lines))
            self._places = asyncio.Semaphore(len(self._lines))
        for line in self._lines:
            line.open()

    async def close(self) -> None:
        """Close all of them once their calls have ended; idempotent."""
        self._closed = True
        for line in self._lines:
            await line.close()
