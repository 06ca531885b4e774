"""A relay before a server, over TCP or a unix socket, that misbehaves as networks do.

Purpose: connections are cut, stand half open, fall silent, grow slow, and lose the one answer that mattered.
The relay knows no protocol: whose a connection is is told by ``label`` from what the client has sent first.

Failure by failure: ``cut`` resets both sides; ``halve`` the client's alone, so that the server goes on
holding what it held, until ``heal``; ``hush`` lets everything stand, in both directions, until ``heal``,
which passes on what was held back; ``slow`` delays every piece; ``lose_answer`` passes a question on, waits
until the server has begun to answer it, and cuts, so that it was carried out and nobody was told; ``refuse``
resets whoever connects.

Not covered: datagrams, and a network that reorders or changes what it carries, which TCP lets nobody see.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

__all__ = ["Loss", "Proxy"]

_PIECE = 65_536
_HEAD = 2_048
"""So many bytes of a client are enough to tell whose connection it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Which answer is to be lost. label: of the connection, any if empty. begins: how the question does."""

    label: str = ""
    begins: bytes = b""


@dataclass(slots=True, eq=False)
class _Link:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    label: str = ""
    head: bytes = b""
    losing: bool = False
    halved: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def cut(self) -> None:
        for side in (self.client, self.server):
            side.transport.abort()


class Proxy:
    """Relay connections to a server until the end of the ``async with`` block.

    host, port: of the server; both may be changed, for connections that are made from then on. path: of a
    unix socket to listen on; a free TCP port on the loopback interface by default. label: says whose a
    connection is from what the client has sent first.
    """

    def __init__(
        self, host: str, port: int, *, path: Path | None = None, label: Callable[[bytes], str] = lambda _: ""
    ) -> None:
        self.host, self.port = host, port
        self.lost = 0
        """Answers that were lost."""
        self._path = path
        self._label = label
        self._links: set[_Link] = set()
        self._losses: list[Loss] = []
        self._talking = asyncio.Event()
        self._talking.set()
        self._delay_s = 0.0
        self._refusing = False
        self._server: asyncio.Server | None = None
        self._accepting: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        if self._path is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        else:
            self._server = await asyncio.start_unix_server(self._accept, self._path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        work = [*self._accepting, *(task for link in self._links for task in link.tasks)]
        self.cut()
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    @property
    def listens_on(self) -> int:
        """Answer the TCP port that it listens on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def labels(self) -> list[str]:
        """Answer whose connections stand."""
        return [link.label for link in self._links]

    # -- misfortunes -----------------------------------------------------------------------------------------

    def cut(self, label: str = "") -> int:
        """Reset the connections of a label, all for none, on both sides; answer how many there were."""
        chosen = [link for link in self._links if label in ("", link.label)]
        for link in chosen:
            link.cut()
        return len(chosen)

    def halve(self) -> int:
        """Reset the clients' sides, and leave the server's open and unaware; answer how many there are."""
        for link in self._links:
            link.halved = True
            link.client.transport.abort()
        return len(self._links)

    def hush(self) -> None:
        """Let nothing pass any more, and let everybody wait."""
        self._talking.clear()

    def slow(self, seconds: float) -> None:
        """Let every piece come so much later."""
        self._delay_s = seconds

    def refuse(self) -> None:
        """Reset whoever connects."""
        self._refusing = True

    def lose_answer(self, loss: Loss | None = None) -> None:
        """Lose the answer to the next question that fits, any by default."""
        self._losses.append(loss or Loss())

    def heal(self) -> None:
        """Let everything pass as it should; losses that nobody has met yet are forgotten."""
        self._talking.set()
        self._delay_s = 0.0
        self._refusing = False
        self._losses.clear()
        for link in self._links:
            if link.halved:
                link.cut()

    # -- inside ----------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self._refusing:
            client.transport.abort()
            return
        me = asyncio.current_task()
        assert me is not None
        self._accepting.add(me)
        try:
            await self._talking.wait()
            answers, server = await asyncio.open_connection(self.host, self.port)
        except OSError:
            client.transport.abort()
            return
        finally:
            self._accepting.discard(me)
        link = _Link(client, server)
        self._links.add(link)
        link.tasks = [
            asyncio.create_task(self._ask(link, reader)),
            asyncio.create_task(self._answer(link, answers)),
        ]
        link.tasks[1].add_done_callback(lambda _: self._links.discard(link))

    async def _ask(self, link: _Link, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(_PIECE):
                if len(link.head) < _HEAD and not link.label:
                    link.head += data
                    link.label = self._label(link.head)
                await self._pass()
                if not link.losing:
                    link.losing = self._is_to_be_lost(link, data)
                link.server.write(data)
                await link.server.drain()
            if not link.halved:
                link.server.write_eof()
        except OSError:
            if not link.halved:
                link.cut()

    async def _answer(self, link: _Link, answers: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await answers.read(_PIECE):
                if link.losing:
                    self.lost += 1
                    break
                await self._pass()
                if not link.client.transport.is_closing():
                    link.client.write(data)
                    await link.client.drain()
        if link.losing:
            link.cut()
        link.client.close()
        link.server.close()

    async def _pass(self) -> None:
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        await self._talking.wait()

    def _is_to_be_lost(self, link: _Link, data: bytes) -> bool:
        for loss in self._losses:
            if loss.label in ("", link.label) and data.startswith(loss.begins):
                self._losses.remove(loss)
                return True
        return False
