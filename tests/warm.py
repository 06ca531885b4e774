"""Connections to PostgreSQL that outlive a test: a backend that knows Outlast's functions answers at once.

A new backend spends some ten milliseconds on each function that it meets, and thousands of tests bring half a
dozen new backends each. Whoever closes a connection to one of the ``shared`` databases gives it back instead,
reset as a pooler would; the next to connect with the very same settings gets it. What is terminated is gone,
but for a store's listener, which never ends otherwise: that is reset when it is lent again.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import asyncpg

__all__ = ["Warm", "cool", "lend", "shared"]

shared: set[str] = set()
"""The URLs of databases whose connections are kept. They live as long as the run does."""

_SPARE = 40
_idle: defaultdict[tuple[str, str], list[Warm]] = defaultdict(list)
_connect = asyncpg.connect


class Warm(asyncpg.Connection):  # type: ignore[misc]
    """A connection that is given back where it would be closed."""

    kind: tuple[str, str]
    listens = False

    async def close(self, *, timeout: float | None = None) -> None:
        if self.is_closed() or _full():
            await super().close(timeout=timeout)
            return
        try:
            await self.reset(timeout=timeout)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            # In the midst of something, or ended by the server.
            await super().close(timeout=timeout)
            return
        _idle[self.kind].append(self)

    def terminate(self) -> None:
        if self.is_closed() or not self.listens or _full():
            super().terminate()
        else:
            _idle[self.kind].append(self)

    async def taken(self) -> bool:
        """Make it as good as new; answer False, and end it, where that cannot be."""
        if not self.is_closed() and self.listens:
            # Nobody who heard of its end before is to hear of it again.
            self._termination_listeners.clear()
            try:
                await self.reset(timeout=10)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                super().terminate()
        return not self.is_closed()


async def lend(url: str, **settings: Any) -> Any:
    """Connect as ``asyncpg.connect`` does; to a shared database with a warm connection, if there is one."""
    if url not in shared or "connection_class" in settings:
        return await _connect(url, **settings)
    kind = (url, repr(sorted(settings.items())))
    idle = _idle[kind]
    while idle:
        warm = idle.pop()
        if await warm.taken():
            return warm
    # Not before: a fault of this store is not to take the other's tests with it.
    from outlast.store.postgres.connections import LISTEN

    made = await _connect(url, connection_class=Warm, **settings)
    made.kind = kind
    made.listens = settings.get("server_settings", {}).get("application_name") == f"outlast {LISTEN.name}"
    return made


def _full() -> bool:
    return sum(map(len, _idle.values())) >= _SPARE


def cool() -> None:
    """Let whoever connects from now on meet the server as it is."""
    for idle in _idle.values():
        while idle:
            asyncpg.Connection.terminate(idle.pop())
