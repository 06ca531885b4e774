"""What a client asks of the gateway: where a request is to go, under which token, with what.

Two forms. A forward proxy gets the whole URL as the target (RFC 9112 section 3.2.2), as any client sends it
that is told of a proxy for plain http. The reverse form is ``/<scheme>/<host>/<path>`` of the gateway itself,
for https as well.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from outlast.core.destinations import Destination
from outlast.core.passages import SAFE_METHODS
from outlast.core.record import record
from outlast.gateway.refusals import Refused
from outlast.otherside.asgi import Receive, Scope
from outlast.tools.passing import TOKEN_HEADER

__all__ = ["Asked", "RawHeaders", "end_to_end", "read_asked", "read_body", "token_of"]

RawHeaders = list[tuple[bytes, bytes]]

# RFC 9110 section 7.6.1, and what the names of old mean.
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authentication-info",
        b"proxy-authorization", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_TOKEN: Final = TOKEN_HEADER.lower().encode()


@record
class Asked:
    """A request as it was asked for. headers: as they came."""

    method: str
    to: Destination
    headers: RawHeaders

    @property
    def acts(self) -> bool:
        """Whether it may change something."""
        return self.method not in SAFE_METHODS

    def fingerprint(self, body: bytes) -> str:
        """Answer the digest of method, URL and body."""
        head = f"{self.method} {self.to.url}\n".encode()
        return hashlib.sha256(head + body).hexdigest()


def read_asked(scope: Scope) -> Asked:
    """Read where a request is to go. Raises Refused."""
    method = str(scope["method"]).upper()
    if method == "CONNECT":
        raise Refused(
            "no_tunnels",
            "nothing in a tunnel could be checked; send https requests as <gateway>/https/<host>/<path>",
        )
    raw = bytes(scope["raw_path"]).decode("latin-1")
    query = bytes(scope["query_string"]).decode("latin-1")
    scheme, whole, rest = raw.partition("://")
    if not whole or scheme.startswith("/"):
        _, scheme, rest = (*raw.split("/", 2), "", "")[:3]
    place, slash, path = rest.partition("/")
    try:
        to = Destination.read(scheme, place, f"{slash}{path}" + (f"?{query}" if query else ""))
    except ValueError as error:
        raise Refused("invalid_target", f"{error}; ask for <gateway>/https/<host>/<path>") from None
    return Asked(method=method, to=to, headers=list(scope["headers"]))


def token_of(headers: RawHeaders) -> str:
    """Answer the token of a request. Raises Refused.

    ``Outlast-Token``, or ``Proxy-Authorization`` with ``Bearer``, or with ``Basic`` and the token for a
    password, which is what clients make of ``http://outlast:<token>@gateway``.
    """
    for name, value in headers:
        if name.lower() == _TOKEN:
            return value.decode("latin-1").strip()
    for name, value in headers:
        if name.lower() == b"proxy-authorization":
            scheme, _, rest = value.decode("latin-1").strip().partition(" ")
            if scheme.lower() == "bearer":
                return rest.strip()
            if scheme.lower() == "basic":
                try:
                    return base64.b64decode(rest.strip(), validate=True).decode("latin-1").partition(":")[2]
                except (ValueError, binascii.Error):
                    break
    raise Refused("token_missing", f"send the token of the call as {TOKEN_HEADER} or Proxy-Authorization")


async def read_body(headers: RawHeaders, receive: Receive, most: int, timeout: float) -> bytes | None:
    """Read a request's body; None when its client has gone. Raises Refused."""
    too_large = Refused("body_too_large", f"at most {most} bytes are passed on")
    for name, value in headers:
        if name.lower() == b"content-length" and value.isdigit() and int(value) > most:
            raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(timeout):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if len(body) > most:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refused("body_too_slow", f"the body did not come within {timeout:g} s") from None


def end_to_end(
    headers: Iterable[tuple[bytes, bytes]], without: frozenset[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Answer the headers that are passed on: none that are of one connection only, none of those named."""
    every = [(name.lower(), value) for name, value in headers]
    of_connection = {
        part.strip().lower()
        for name, value in every
        if name in (b"connection", b"proxy-connection")
        for part in value.split(b",")
    }
    return (
        (name, value)
        for name, value in every
        if name not in _HOP_BY_HOP and name not in of_connection and name not in without
    )
