"""The other side: connections to it, a request on its way, and what came of it."""

from __future__ import annotations

import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx2

from outlast.core.destinations import Address, Destination
from outlast.core.outcome import Failed, Unknown
from outlast.gateway.asking import RawHeaders
from outlast.gateway.refusals import Refused
from outlast.tools.classify import classify_exception
from outlast.tools.client import silence, unlogged

__all__ = ["Sending", "Upstream", "refusal_of"]

_KEPT: Final = 256
"""Hosts whose connections are kept."""
_LIMITS: Final = httpx2.Limits(max_connections=200, max_keepalive_connections=20, keepalive_expiry=2.0)


@dataclass(slots=True)
class _Way:
    """The connections to one host."""

    transport: httpx2.AsyncHTTPTransport
    users: int = 0


@dataclass(slots=True)
class Sending:
    """A request on its way. before: asked when the connection stands, immediately before the first byte; what
    it raises keeps the request from being sent. sent: whether anything may have left."""

    before: Callable[[], Awaitable[None]]
    sent: bool = False

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        """Follow the transport's events."""
        if event.endswith(".send_request_headers.started"):
            await self.before()
            self.sent = True
        elif event.endswith(".send_request_headers.failed"):
            # Its headers break HTTP, so it was never put into bytes.
            self.sent = type(info["exception"]).__name__ != "LocalProtocolError"


class Upstream:
    """Connections by scheme, name and port, so that none is used under another name than it was made for.

    They are made to an address, never to a name, and nothing is sent twice.
    """

    def __init__(self, ca_file: str | None, connect_s: float) -> None:
        silence()
        self._trust = ssl.create_default_context()
        if ca_file is not None:
            self._trust.load_verify_locations(ca_file)
        self._connect_s = connect_s
        self._ways: OrderedDict[tuple[str, str, int], _Way] = OrderedDict()

    async def close(self) -> None:
        """Close all connections."""
        while self._ways:
            _, way = self._ways.popitem()
            await way.transport.aclose()

    @asynccontextmanager
    async def send(
        self,
        method: str,
        to: Destination,
        address: Address,
        headers: RawHeaders,
        body: bytes,
        sending: Sending,
        seconds: float,
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request to an address, under its name; the answer's body is read in the block.

        Raises what the transport does, and what ``sending.before`` does.
        """
        way = self._way(to)
        way.users += 1
        extensions: dict[str, Any] = {
            "trace": sending,
            "target": to.target.encode("ascii"),
            "timeout": httpx2.Timeout(seconds, connect=min(seconds, self._connect_s)).as_dict(),
        }
        if to.scheme == "https":
            extensions["sni_hostname"] = to.host
        request = httpx2.Request(
            method,
            httpx2.URL(scheme=to.scheme, host=str(address), port=to.port),
            headers=[(b"host", to.authority.encode("ascii")), *headers],
            content=body,
            extensions=extensions,
        )
        try:
            with unlogged():
                response = await way.transport.handle_async_request(request)
            response.request = request
            try:
                yield response
            finally:
                await response.aclose()
        finally:
            way.users -= 1
            await self._forget()

    def _way(self, to: Destination) -> _Way:
        key = (to.scheme, to.host, to.port)
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = _Way(
                httpx2.AsyncHTTPTransport(verify=self._trust, trust_env=False, limits=_LIMITS, retries=0)
            )
        self._ways.move_to_end(key)
        return way

    async def _forget(self) -> None:
        idle = [key for key, way in self._ways.items() if not way.users]
        for key in idle[: max(0, len(self._ways) - _KEPT)]:
            await self._ways.pop(key).transport.aclose()


def refusal_of(error: Exception, *, sent: bool, what: str) -> Refused:
    """Say what an exception of the way there means."""
    said = classify_exception(error, sent, request=what)
    if sent and isinstance(error, TimeoutError | httpx2.TimeoutException):
        return Refused("no_answer", f"{what}: no answer before the call's time was over")
    if sent and not isinstance(said, Failed):
        return Refused("answer_broken", said.reason if isinstance(said, Unknown) else f"{what}: broke off")
    return Refused("unreachable", f"{what}: {type(error).__name__} before it was sent")
