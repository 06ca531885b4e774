"""The HTTP client that the tool calls of one process share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx2

__all__ = ["ToolClient", "make_client", "silence", "unlogged"]

# Their lines hold whole URLs and headers, so secrets. What is worth telling is in our telemetry.
_LOGGERS: Final = (
    "httpx2",
    *(f"httpcore2.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")),
)
_silent: ContextVar[bool] = ContextVar("outlast_http_silent", default=False)


class _Silencer(logging.Filter):
    """Drop what the client logs about our own requests; other users of the library keep their lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _silent.get()


_silencer: Final = _Silencer()


def silence() -> None:
    """Make ``unlogged`` work in this process; idempotent."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_silencer)


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep the client's own log lines of the requests made in this block from being written."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


class ToolClient(httpx2.AsyncClient):
    """An HTTP client that ``make_client`` made: it tells when the first byte of a request leaves."""


class _Announcing(httpx2.AsyncBaseTransport):
    """Tell the watch before a request reaches a transport that does not tell by itself."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        watch = request.extensions.get("trace")
        if watch is not None:
            await watch("announced.send_request_headers.started", {"request": request})
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()


def make_client(
    *, transport: httpx2.AsyncBaseTransport | None = None, max_connections: int = 1000, trust_env: bool = True
) -> ToolClient:
    """Make the client that the calls of one process share; close it with ``aclose``.

    transport: another way out, for tests. max_connections: at once, to all hosts. trust_env: take proxies and
    certificates from the environment. No retries, no redirects, no cookies: one tenant's must not travel with
    another's calls.
    """
    silence()
    if transport is not None and not isinstance(transport, httpx2.AsyncHTTPTransport):
        transport = _Announcing(transport)
    return ToolClient(
        transport=transport,
        follow_redirects=False,
        trust_env=trust_env,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        # Servers close idle connections after five seconds and more. A request that meets such a close is
        # unknown, so ours are given up well before.
        limits=httpx2.Limits(
            max_connections=max_connections, max_keepalive_connections=100, keepalive_expiry=2.0
        ),
    )
