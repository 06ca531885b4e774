"""Run a gateway in this process."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn

from outlast.gateway.proxy import Gateway
from outlast.gateway.settings import host_and_port
from outlast.listening import listen

__all__ = ["Server"]

GRACE_S: Final = 10


class Server(uvicorn.Server):
    """Serve a gateway until ``stop``; signals are the caller's business.

    address: ``host:port``, port 0 for any. grace_s: seconds for requests under way when it stops. Raises
    ConfigurationError when it cannot listen there.
    """

    def __init__(self, gateway: Gateway, address: str, *, grace_s: int = GRACE_S) -> None:
        host, port = host_and_port(address)
        self._socket = listen(host, port, option="--listen")
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
        super().__init__(
            uvicorn.Config(
                gateway,
                # The other parser loses the host of a whole URL as the target.
                http="h11",
                # Tokens and URLs have their place in headers.
                h11_max_incomplete_event_size=64 * 1024,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=grace_s,
                proxy_headers=False,
                server_header=False,
                date_header=False,
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

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs us."""
        yield
