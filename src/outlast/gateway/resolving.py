"""From a host to the one address that is connected to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence

from outlast.core.destinations import Address, Destination, Network, forbidden
from outlast.gateway.refusals import Refused

__all__ = ["Resolver", "address_of", "system_resolver"]

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Answers the addresses of a name, for a port. Raises OSError."""


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """Ask the system."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def address_of(
    to: Destination, resolver: Resolver, allowed: Sequence[Network], timeout: float
) -> Address:
    """Answer the address to connect to.

    A name with any address that nobody may connect to is refused as a whole: which of them a second look-up
    would bring is not ours to say. Raises Refused.
    """
    try:
        literal = ipaddress.ip_address(to.host)
    except ValueError:
        found = await _look_up(to, resolver, timeout)
    else:
        found = [literal]
    for address in found:
        if forbidden(address, allowed) is not None:
            # Which address, and why, is nothing to tell the one who asks.
            raise Refused("forbidden_address", f"{to.host} leads to an address that nobody may connect to")
    return found[0]


async def _look_up(to: Destination, resolver: Resolver, timeout: float) -> list[Address]:
    try:
        async with asyncio.timeout(timeout):
            texts = await resolver(to.host, to.port)
        found = [ipaddress.ip_address(text) for text in texts]
    except (OSError, UnicodeError, ValueError):
        found = []
    if not found:
        raise Refused("unresolvable", f"no address of {to.host} was found")
    return found
