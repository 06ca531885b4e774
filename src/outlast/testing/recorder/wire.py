"""HTTP/1.1 over asyncio streams, small enough to misbehave on purpose at the level of the socket."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

__all__ = ["Answer", "Connection", "Request", "listen"]

_MAX_HEAD = 64 * 1024
_MAX_BODY = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A call as it was read: ``headers`` by lower-case name, ``query`` with the last value of each name."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Parse the body. Raises ``ValueError`` when it is not JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What goes back."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @classmethod
    def of(cls, status: int, value: Any, **headers: str) -> Answer:
        """Make a JSON answer; ``headers`` are named with underscores."""
        named = {name.replace("_", "-").title(): text for name, text in headers.items()}
        body = json.dumps(value, ensure_ascii=False).encode()
        return cls(status=status, body=body, headers={"Content-Type": "application/json", **named})

    def head(self) -> bytes:
        """Render the status line and the headers."""
        try:
            phrase = HTTPStatus(self.status).phrase
        except ValueError:
            phrase = "Unnamed"
        lines = [f"HTTP/1.1 {self.status} {phrase}", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Connection(asyncio.StreamReaderProtocol):
    """One client. ``gone`` is set as soon as it closes its side or the connection breaks."""

    def __init__(
        self, serve: Callable[[Connection], Awaitable[None]], running: set[asyncio.Task[None]]
    ) -> None:
        self.gone = asyncio.Event()
        self.reader = asyncio.StreamReader(limit=_MAX_HEAD)
        super().__init__(self.reader)
        self.writer: asyncio.StreamWriter
        self._serve = serve
        self._running = running

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self.writer = asyncio.StreamWriter(transport, self, self.reader, asyncio.get_running_loop())
        task = asyncio.ensure_future(self._run())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def eof_received(self) -> bool:
        self.gone.set()
        super().eof_received()
        return True  # keep our side open: whether to answer is the service's decision

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        super().connection_lost(exc)

    async def _run(self) -> None:
        try:
            await self._serve(self)
        except ConnectionError:
            pass  # the client left in the middle of an answer; the log was written before
        finally:
            self.writer.close()

    async def next_request(self) -> Request | None:
        """Read the next call; None when the client is done or does not speak HTTP."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head.split("\r\n")
            method, target, _version = line.split(" ")
            pairs = (field.partition(":") for field in fields if field)
            headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
            if headers.get("transfer-encoding", "").lower() == "chunked":
                body = await self._chunks()
            else:
                length = int(headers.get("content-length", "0"))
                body = await self.reader.readexactly(length) if 0 < length <= _MAX_BODY else b""
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            return None
        parts = urlsplit(target)
        return Request(
            method=method,
            path=unquote(parts.path),
            query=dict(parse_qsl(parts.query, keep_blank_values=True)),
            headers=headers,
            body=body,
        )

    async def _chunks(self) -> bytes:
        body = b""
        while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
            if len(body) > _MAX_BODY:
                raise ValueError("too large")
        while await self.reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers
        return body

    async def send(self, *pieces: bytes, pause_s: float = 0.0) -> None:
        """Send pieces one after the other, with a pause before each but the first."""
        for number, piece in enumerate(pieces):
            if number and pause_s:
                await asyncio.sleep(pause_s)
            self.writer.write(piece)
            await self.writer.drain()

    def reset(self) -> None:
        """Break the connection so that the client sees RST."""
        sock = self.writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def listen(
    serve: Callable[[Connection], Awaitable[None]], port: int, running: set[asyncio.Task[None]]
) -> tuple[asyncio.Server, int]:
    """Listen on 127.0.0.1; ``port`` 0 lets the system choose. Answers the server and its port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(serve, running), "127.0.0.1", port)
    return server, int(server.sockets[0].getsockname()[1])
