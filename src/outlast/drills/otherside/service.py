"""A ticket service behind the middleware: ``python -m outlast.drills.otherside.service '{"url": …, …}'``.

It says ``ready`` with its port. The log is the judge: a line each time that the handler begins and acts. The
body of a request says what the handler does; see ``_handle``. A handler that takes over looks into the log
first, as one that means it looks into its tables.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Final

import uvicorn

from outlast.drills.serving import say
from outlast.opening import shelf_for
from outlast.otherside.asgi import Message, Receive, Scope, Send
from outlast.otherside.middleware import IdempotencyMiddleware

JSON: Final = [(b"content-type", b"application/json")]


class Service:
    """The handler, and what it keeps."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._doors: dict[str, asyncio.Event] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            while True:
                word = (await receive())["type"].rpartition(".")[2]
                await send({"type": f"lifespan.{word}.complete"})
                if word == "shutdown":
                    return
        if scope["path"].startswith("/open/"):
            self._door(scope["path"].removeprefix("/open/")).set()
            await _answer(send, 204, b"")
            return
        await self._handle(scope, receive, send)

    def _door(self, name: str) -> asyncio.Event:
        return self._doors.setdefault(name, asyncio.Event())

    def _write(self, word: str, invoice: str, **more: Any) -> None:
        line = json.dumps({"word": word, "invoice": invoice, "pid": os.getpid(), **more})
        with self._log.open("ab", buffering=0) as file:
            file.write(line.encode() + b"\n")

    def _acted(self, invoice: str) -> bool:
        return f'"acted", "invoice": "{invoice}"' in self._log.read_text(encoding="utf-8")

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do what the body says: die, wait, act, die, freeze, raise, hang, answer; the first time only."""
        asked = await _body(receive)
        told, invoice = scope["outlast"], str(asked["invoice"])
        first = not told["takeover"]
        self._write("began", invoice, takeover=told["takeover"])
        say("began", invoice=invoice)
        if first and asked.get("die_before"):
            os.kill(os.getpid(), signal.SIGKILL)
        if "door" in asked:
            await self._door(asked["door"]).wait()
        if asked.get("unavailable") and not self._acted(f"{invoice}-refused"):
            self._write("acted", f"{invoice}-refused")
            await _answer(send, 503, b"{}")
            return
        if first or not self._acted(invoice):
            self._write("acted", invoice)
        if first and "then" in asked:
            signal.raise_signal({"die": signal.SIGKILL, "freeze": signal.SIGSTOP}[asked["then"]])
        if asked.get("fail"):
            raise RuntimeError("the handler's own fault")
        if asked.get("hang"):
            await asyncio.Event().wait()
        if pieces := asked.get("stream"):
            await _stream(send, pieces, int(asked["piece"]))
            return
        text = json.dumps({"ticket": f"R-{invoice}", "takeover": told["takeover"]})
        await _answer(send, 201, text.encode())


async def _body(receive: Receive) -> dict[str, Any]:
    message: Message = await receive()
    found: dict[str, Any] = json.loads(message["body"])
    return found


async def _answer(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": JSON})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _stream(send: Send, media: str, piece: int) -> None:
    headers = [(b"content-type", media.encode())]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    for number in range(4):
        await send({"type": "http.response.body", "body": b"x" * piece, "more_body": number < 3})


def main(given: dict[str, Any]) -> None:
    """Serve until SIGTERM."""
    shelf = shelf_for(given.pop("url"))
    service = Service(Path(given.pop("log")))
    prepares = given.pop("prepares", True)
    guarded = IdempotencyMiddleware(service, shelf=shelf, scope_of=_scope_of, **given)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            if prepares:
                await shelf.prepare()
            await super().startup(sockets)
            say("ready", port=listener.getsockname()[1])

        async def shutdown(self, sockets: Any = None) -> None:
            await super().shutdown(sockets)
            await shelf.close()

    Server(uvicorn.Config(guarded, log_level="error", lifespan="on")).run(sockets=[listener])


def _scope_of(scope: Scope) -> str:
    names = [value for name, value in scope["headers"] if name == b"x-client"]
    return names[0].decode() if names else "client"


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
