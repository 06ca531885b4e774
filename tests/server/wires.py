"""A wire between a client and a service that can be cut, and that can lose an answer."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from urllib.parse import urlsplit


class Wire:
    """Passes bytes on between whoever connects and one service, while it is whole."""

    def __init__(self, url: str) -> None:
        self._to = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()
        self.whole = True
        self.answers_lost = 0
        self._losing = 0
        self._instead: str | None = None
        self.refused = asyncio.Event()
        """Set when somebody was turned away since it was cut."""
        self.answered = asyncio.Event()
        """Set when somebody was answered in the place of the service."""

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._drop()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    @property
    def url(self) -> str:
        """Where to connect."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Drop every connection, and whoever comes, until it is mended."""
        self.whole = False
        self.refused.clear()
        self._drop()

    def mend(self) -> None:
        """Pass on again."""
        self.whole = True

    def lose_answers(self, count: int = 1) -> None:
        """Pass the next requests on, and drop their connections when the service begins to answer."""
        self._losing = count

    def answer_instead(self, answer: str | None) -> None:
        """Answer this, such as a proxy does whose service is away, in the place of the service."""
        self._instead = answer

    def lead_to(self, url: str) -> None:
        """Lead whoever connects from now on to another service."""
        self._to = urlsplit(url)

    def _drop(self) -> None:
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        if not self.whole:
            writer.transport.abort()
            self.refused.set()
            return
        if self._instead is not None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._instead.encode())
            await writer.drain()
            writer.close()
            self.answered.set()
            return
        inner_reader, inner_writer = await asyncio.open_connection(self._to.hostname, self._to.port)
        self._ends |= {writer, inner_writer}
        try:
            await asyncio.gather(self._pass(reader, inner_writer), self._answer(inner_reader, writer))
        finally:
            for end in (writer, inner_writer):
                self._ends.discard(end)
                end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65_536):
                writer.write(piece)
                await writer.drain()
            writer.write_eof()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65_536):
                if self._losing:
                    self._losing -= 1
                    self.answers_lost += 1
                    writer.transport.abort()
                    return
                writer.write(piece)
                await writer.drain()
            writer.write_eof()
