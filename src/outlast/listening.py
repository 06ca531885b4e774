"""A socket to listen on, for whatever serves HTTP in this process."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any, Final

from outlast.errors import ConfigurationError

__all__ = ["VANISHED_MS", "listen"]

VANISHED_MS: Final = 30_000
"""How long what was sent may stay unconfirmed before a connection is given up: two keep-alives."""


def listen(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """Open a listening socket.

    option: what people are told to change. Raises ConfigurationError that says what is in the way.
    """
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
        hint = f"; choose another with {option}" if error.errno == errno.EADDRINUSE else ""
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from None
    listener.setblocking(False)
    return listener


def _give_up_on_the_vanished(listener: Any) -> None:
    # A client whose network went away answers nothing; the kernel would try for a quarter of an hour.
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.IPPROTO_TCP, option, VANISHED_MS)
