"""Run the HTTP API in this process: one socket, one event loop, an end that does not wait for streams."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from outlast.errors import ConfigurationError
from outlast.server.auth import check_binding

GRACE_S: Final = 10
VANISHED_MS: Final = 30_000
"""How long what was sent may stay unconfirmed before a connection is given up: two keep-alives."""


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


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises ConfigurationError that says what is in the way."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigurationError(f"{host} is not an address to listen on: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _give_up_on_the_vanished(listener)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        hint = "; choose another with --port" if error.errno == errno.EADDRINUSE else ""
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from None
    listener.setblocking(False)
    return listener


def _give_up_on_the_vanished(listener: Any) -> None:
    # A client whose network went away answers nothing; the kernel would try for a quarter of an hour.
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.IPPROTO_TCP, option, VANISHED_MS)
