"""Run the HTTP API in this process: one socket, one event loop, an end that does not wait for streams."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn
from fastapi import FastAPI

from outlast.listening import listen
from outlast.server.auth import check_binding

GRACE_S: Final = 10


class Server(uvicorn.Server):
    """Serve an API until ``stop``; signals are the caller's business.

    Args:
        api: What ``create_app`` answers.
        host, port: Where to listen; port 0 for any. Refused beyond this machine when there are no API keys.
        grace_s: Seconds for requests under way when it stops. Streams and held requests end at once.

    Raises ConfigurationError when it may not, or cannot, listen there.
    """

    def __init__(self, api: FastAPI, host: str, port: int, *, grace_s: int = GRACE_S) -> None:
        check_binding(api.state.keys, host)
        self._api = api
        self._socket = listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}"
        super().__init__(
            uvicorn.Config(
                api,
                log_config=None,
                access_log=False,
                lifespan="on",
                timeout_graceful_shutdown=grace_s,
                # Who calls is decided by the address, so no header may say otherwise.
                proxy_headers=False,
                server_header=False,
            )
        )

    async def run_until_stopped(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve; ``ready`` is called once connections are accepted."""
        self._ready = ready
        await self.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Ask for an orderly end. Idempotent."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End streams and held requests, then the rest."""
        self._api.state.closing.begin()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs us."""
        yield
