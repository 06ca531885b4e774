"""Answers: gathered from a handler, kept as rows, and sent, once to its client and again to every repeat."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Final

from outlast.core.record import record
from outlast.otherside.asgi import Message, Receive, Send
from outlast.store.shelf import KeyAnswer

__all__ = ["Gathering", "Whole", "kept", "replayed"]

# Of one connection or one moment, or for one browser's eyes; the length is written anew.
_NOT_KEPT: Final = frozenset(
    {
        b"connection", b"content-length", b"date", b"keep-alive", b"proxy-authenticate", b"server",
        b"set-cookie", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
RawHeaders = list[tuple[bytes, bytes]]


@record
class Whole:
    """A whole answer."""

    status: int
    headers: RawHeaders
    body: bytes

    async def send(self, send: Send) -> None:
        """Send it; a client that is gone is no fault."""
        headers = self.headers
        if not any(name.lower() == b"content-length" for name, _ in headers) and self.status not in (
            204,
            304,
        ):
            headers = [*headers, (b"content-length", str(len(self.body)).encode())]
        try:
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            await send({"type": "http.response.body", "body": self.body, "more_body": False})
        except OSError:
            # ASGI's way to say that nobody is there any more.
            return


def kept(answer: Whole) -> KeyAnswer:
    """Answer the row for an answer: its status, its body, and the headers that mean something later."""
    headers = [
        [name.decode("latin-1"), value.decode("latin-1")]
        for name, value in answer.headers
        if name.lower() not in _NOT_KEPT
    ]
    return KeyAnswer(status=answer.status, headers=json.dumps(headers), body=answer.body)


def replayed(row: KeyAnswer) -> Whole:
    """Answer what a repeat gets: the first answer, marked."""
    assert row.body is not None
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in json.loads(row.headers)]
    headers.append((b"idempotent-replayed", b"true"))
    return Whole(status=row.status, headers=headers, body=row.body)


class Gathering:
    """Stand between a handler and its client: gather the whole answer, or let a large or streamed one pass.

    settle: keeps a whole answer and says what the client gets. pass_by: notes the status of one that passes,
    before its last piece is sent. An answer passes when it is ``text/event-stream`` or has more than
    ``max_bytes``.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        *,
        body: bytes,
        max_bytes: int,
        settle: Callable[[Whole], Awaitable[Whole]],
        pass_by: Callable[[int], Awaitable[None]],
    ) -> None:
        self.passing = False
        """Whether something has been sent that is not kept."""
        self.ended = False
        """Whether the handler's answer is complete."""
        self._receive, self._send = receive, send
        self._request: bytes | None = body
        self._max_bytes = max_bytes
        self._settle, self._pass_by = settle, pass_by
        self._start: Message | None = None
        self._gathered = bytearray()
        self._over = asyncio.Event()
        self._gone = False

    async def receive(self) -> Message:
        """Give the handler its request, and then nothing until its answer is complete.

        It does not learn that its client is gone, unless the answer passes: then nobody else will have it.
        """
        if self._request is not None:
            body, self._request = self._request, None
            return {"type": "http.request", "body": body, "more_body": False}
        if self.passing and not self.ended:
            over, gone = asyncio.ensure_future(self._over.wait()), asyncio.ensure_future(self._disconnected())
            try:
                await asyncio.wait({over, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                over.cancel()
                gone.cancel()
        else:
            await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a piece of the handler's answer."""
        if self.ended or self._over.is_set():
            return  # the answer is complete, or came too late
        if message["type"] == "http.response.start":
            self._start = {**message, "headers": list(message.get("headers", ())), "trailers": False}
            if _passes(self._start["headers"], self._max_bytes):
                await self._begin_to_pass()
        elif message["type"] == "http.response.body":
            await self._take(message.get("body", b""), more=message.get("more_body", False))

    async def end(self, instead: Whole) -> None:
        """End an answer that the handler did not complete: with another one, or, if it passes, as it is."""
        if self.ended:
            return
        self.ended = True
        if self.passing:
            await self._pass_by(self.status)
        else:
            await (await self._settle(instead)).send(self._send)
        self._over.set()

    @property
    def status(self) -> int:
        """The status that the handler answered."""
        assert self._start is not None
        return int(self._start["status"])

    async def _take(self, piece: bytes, *, more: bool) -> None:
        assert self._start is not None, "a body comes after its start"
        if not self.passing:
            self._gathered += piece
            piece = b""
            if len(self._gathered) > self._max_bytes:
                await self._begin_to_pass()
                piece = bytes(self._gathered)
                self._gathered.clear()
        if more:
            if self.passing and piece:
                await self._forward({"type": "http.response.body", "body": piece, "more_body": True})
            return
        self.ended = True
        if self.passing:
            await self._pass_by(self.status)
            await self._forward({"type": "http.response.body", "body": piece, "more_body": False})
        else:
            whole = Whole(status=self.status, headers=self._start["headers"], body=bytes(self._gathered))
            await (await self._settle(whole)).send(self._send)
        self._over.set()

    async def _begin_to_pass(self) -> None:
        assert self._start is not None
        self.passing = True
        await self._forward(self._start)

    async def _forward(self, message: Message) -> None:
        if self._gone:
            return
        try:
            await self._send(message)
        except OSError:
            self._gone = True

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _passes(headers: RawHeaders, max_bytes: int) -> bool:
    for name, value in headers:
        if name.lower() == b"content-type" and value.lower().startswith(b"text/event-stream"):
            return True
        if name.lower() == b"content-length" and value.isdigit() and int(value) > max_bytes:
            return True
    return False
