"""A ticket service behind the middleware, in a process of its own.

``python -m tests.otherside.service '{"url": ..., "log": ..., ...}'`` says ``ready`` with its port. Its log is
the judge: one line each time that the handler begins (``began``) and acts (``acted``), appended in one write.
The body of a request says what the handler does; see ``handle``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from outlast.drills.serving import say
from outlast.otherside import IdempotencyMiddleware, shelf_for

LOG: Path


def log(word: str, **data: Any) -> None:
    """Append a line to the service's own log."""
    line = json.dumps({"word": word, "pid": os.getpid(), **data})
    with LOG.open("ab", buffering=0) as file:
        file.write(line.encode() + b"\n")


async def handle(request: Request) -> Response:
    """Do what the body says, in this order: stop, hold, act, die, raise, hang, answer."""
    asked = await request.json()
    told = request.scope["outlast"]
    log("began", key=told["key"], takeover=told["takeover"])
    say("began", key=told["key"], takeover=told["takeover"])
    if asked.get("freeze_first") and not told["takeover"]:
        signal.raise_signal(signal.SIGSTOP)
    for _ in range(asked.get("turns", 0)):
        await asyncio.sleep(0)
    if hold := asked.get("hold"):
        await Held.wait(hold)
    log("acted", key=told["key"], takeover=told["takeover"], gone=await request.is_disconnected())
    if asked.get("die_first") and not told["takeover"]:
        os.kill(os.getpid(), signal.SIGKILL)
    if asked.get("fail"):
        raise RuntimeError("the handler's own fault")
    if asked.get("hang"):
        await asyncio.Event().wait()
    answer = {"ticket": f"R-{os.getpid()}-{told['takeover']}", "said": asked.get("say")}
    headers = {"Location": "/tickets/1", "Set-Cookie": "a=b"}
    after = BackgroundTask(log, "after", key=told["key"])
    if asked.get("stream"):
        return StreamingResponse(pieces(asked), 201, headers, media_type=asked.get("media"), background=after)
    return JSONResponse(answer, asked.get("status", 201), headers, background=after)


async def pieces(asked: dict[str, Any]) -> Any:
    """Stream as many pieces as asked for."""
    for number in range(asked["stream"]):
        yield f"{number}".ljust(asked.get("piece", 10))


class Held:
    """Barriers that a request to ``/release/{name}`` opens."""

    _events: dict[str, asyncio.Event] = {}  # noqa: RUF012

    @classmethod
    async def wait(cls, name: str) -> None:
        """Wait at a barrier."""
        await cls._events.setdefault(name, asyncio.Event()).wait()

    @classmethod
    async def release(cls, request: Request) -> Response:
        """Open a barrier."""
        cls._events.setdefault(request.path_params["name"], asyncio.Event()).set()
        return Response(status_code=204)


def main() -> None:
    """Serve until SIGTERM."""
    global LOG
    given = json.loads(sys.argv[1])
    LOG = Path(given.pop("log"))
    shelf = shelf_for(given.pop("url"))

    @asynccontextmanager
    async def life(_: Starlette) -> Any:
        await shelf.prepare()
        yield
        log("closing")
        await shelf.close()

    app = Starlette(
        routes=[
            Route("/tickets", handle, methods=["POST", "PUT"]),
            Route("/release/{name}", Held.release, methods=["GET"]),
        ],
        lifespan=life,
    )
    app.add_middleware(IdempotencyMiddleware, shelf=shelf, **given)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            say("ready", port=listener.getsockname()[1])

    Server(uvicorn.Config(app, log_level="error", lifespan="on")).run(sockets=[listener])


if __name__ == "__main__":
    main()
