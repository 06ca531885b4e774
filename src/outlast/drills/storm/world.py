"""What a campaign stands on: a store, two ticket services, and the relays before all of them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit, urlunsplit

from outlast.app import Outlast
from outlast.drills.database import EMBEDDED, database
from outlast.testing.cramped import CrampedPostgres
from outlast.testing.proxy import Proxy
from outlast.testing.recorder import Call, Recorder
from outlast.testing.servers import EmbeddedPostgres
from outlast.testing.small_disks import why_not

__all__ = ["APIS", "World", "world"]

APIS: Final = 2
_DUTY: Final = re.compile(rb"application_name\0outlast (\w+)\0")


@dataclass(slots=True, kw_only=True)
class World:
    """Everything that does not die with a process of ours.

    url: of the store, for processes, through its relay where it has one. direct: the same without the relay.
    server: the PostgreSQL that is ours to do things to, with what was before it after a promotion; None
    elsewhere. store: the relay before it, None for a file. apis, tickets: the relays before API processes and
    ticket services. tending: held by whoever does something to the server. full_is_not_played: why the
    store's disk is never full; an empty text where it can be.
    """

    folder: Path
    keys: Recorder
    plain: Recorder
    url: str
    direct: str
    shown: str
    server: EmbeddedPostgres | None
    store: Proxy | None
    apis: Sequence[Proxy]
    tickets: Sequence[Proxy]
    stack: contextlib.AsyncExitStack
    full_is_not_played: str = ""
    before: list[EmbeddedPostgres] = field(default_factory=list)
    tending: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_file(self) -> bool:
        """Whether the store is an SQLite file."""
        return self.url.startswith("sqlite")

    @property
    def relays(self) -> list[Proxy]:
        """Every relay."""
        return [*self.apis, *self.tickets, *([] if self.store is None else [self.store])]

    async def log(self) -> list[Call]:
        """Answer the logs of both ticket services."""
        return [*await self.keys.log(), *await self.plain.log()]

    def promoted(self, server: EmbeddedPostgres) -> None:
        """Let a promoted standby be the server from now on; the old one stays as it is."""
        assert self.server is not None
        assert self.store is not None
        self.before.append(self.server)
        self.server, self.store.port = server, server.port
        self.direct = server.url_of(urlsplit(self.direct).path.lstrip("/"))


@contextlib.asynccontextmanager
async def world(postgres: str | None, folder: Path, *, by_socket: bool) -> AsyncIterator[World]:
    """Make a world in a folder.

    postgres: see ``database``. by_socket: whether processes reach PostgreSQL over a unix socket. Raises
    ConfigurationError, RecorderError, ServerError, StoreUnavailable.
    """
    async with contextlib.AsyncExitStack() as stack:
        keys = await stack.enter_async_context(Recorder(database=folder / "keys.db"))
        plain = await stack.enter_async_context(Recorder(database=folder / "plain.db"))
        await plain.configure(dedupe=False)
        server, never_full = None, ""
        if postgres == EMBEDDED:
            never_full = await asyncio.to_thread(why_not)
            server = await asyncio.to_thread(EmbeddedPostgres if never_full else CrampedPostgres)
            stack.push_async_callback(asyncio.to_thread, server.stop)
            direct, shown = server.create_database("storm"), "PostgreSQL, embedded"
        else:
            made = await stack.enter_async_context(database(postgres, folder))
            direct, shown = made.url, made.shown
            if postgres is not None:
                never_full = "others may be on the disk of a server that is not the storm's own"
        relay, url = None, direct
        parts = urlsplit(direct)
        if postgres is not None and parts.hostname is not None:
            place = None
            if by_socket:
                # In a folder of its own, since the system bounds the length of a socket's path.
                place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outlast-")))
            path = None if place is None else place / ".s.PGSQL.5432"
            made_relay = Proxy(parts.hostname, parts.port or 5432, path=path, label=duty_of)
            relay = await stack.enter_async_context(made_relay)
            url = _through(direct, relay, place)
        yield World(
            folder=folder,
            keys=keys,
            plain=plain,
            url=url,
            direct=direct,
            shown=f"{shown}, over a socket" if relay is not None and by_socket else shown,
            server=server,
            store=relay,
            # Their ports are known when they serve; until then nobody is there.
            apis=[await stack.enter_async_context(Proxy("127.0.0.1", 0)) for _ in range(APIS)],
            tickets=[
                await stack.enter_async_context(Proxy("127.0.0.1", each.port)) for each in (keys, plain)
            ],
            stack=stack,
            full_is_not_played=never_full,
        )


async def prepare(direct: str) -> None:
    """Bring the schema into a store."""
    app = Outlast("storm", database_url=direct)
    await app.open(migrate=True)
    await app.close()


def duty_of(head: bytes) -> str:
    """Tell a connection's duty from what its client sends first; nothing where that is encrypted."""
    found = _DUTY.search(head)
    return "" if found is None else found[1].decode()


def _through(url: str, relay: Proxy, folder: Path | None) -> str:
    """Answer a URL that goes through a relay. folder: of its socket, None for TCP."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    if folder is None:
        netloc, query = f"{user}@127.0.0.1:{relay.listens_on}", parts.query
    else:
        netloc, query = f"{user}@", urlencode({"host": str(folder), "port": "5432"})
    return urlunsplit((parts.scheme, netloc, parts.path, query, ""))
