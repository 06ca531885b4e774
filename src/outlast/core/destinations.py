"""Destinations: where a request goes, and the rules that say where requests may go. Pure; nothing is
resolved.

A rule is ``[scheme://]host[:port][/path]``: ``api.example.com``, ``https://api.example.com/v1/``,
``*.example.com:8443``, ``http://10.1.2.3``. Without a scheme both http and https are meant, without a port
that of the scheme. A path covers itself and what is below it; ``*.`` stands for one label or more.

Hosts are compared in lower case and without a dot at the end. A host is a DNS name or a plain literal
address; all other spellings of an address (decimal, hexadecimal, octal, shortened) are no hosts here, since
resolvers read them as addresses that no rule names. A path that steps upwards, however it is written, is
refused: the server might read it as another one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

from outlast.core.record import record
from outlast.errors import ConfigurationError

__all__ = ["Address", "Destination", "Network", "Rule", "covered", "forbidden", "read_networks", "read_rules"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_RULES: Final = 64
PORTS: Final = {"http": 80, "https": 443}
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_RULE: Final = re.compile(r"(?:(?P<scheme>[^:/]+)://)?(?P<place>[^/?#@]+)(?P<path>/[^?#]*)?")
# RFC 6052, RFC 3056, RFC 4380, RFC 4291: an address of version 4 stands inside, which nobody would look at.
_CARRIERS: Final = tuple(
    ipaddress.IPv6Network(text)
    for text in ("::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16")
)

_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")


@record
class Destination:
    """Where a request goes. host: lower case, no brackets. target: path and query as they are sent."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def path(self) -> str:
        """The path without the query."""
        return self.target.partition("?")[0]

    @property
    def authority(self) -> str:
        """The value of a ``Host`` header (RFC 9110 section 7.2)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole URL."""
        return f"{self.scheme}://{self.authority}{self.target}"

    @classmethod
    def read(cls, scheme: str, place: str, target: str) -> Destination:
        """Read a destination of its parts. Raises ValueError that says what is wrong, for people."""
        scheme = scheme.lower()
        if scheme not in PORTS:
            raise ValueError("the scheme is neither http nor https")
        host, port = _place(place)
        if (
            "#" in target
            or not target.isascii()
            or any(ord(char) <= 32 or ord(char) == 127 for char in target)
        ):
            raise ValueError("the path holds a character that no path has")
        target = target if target.startswith("/") else f"/{target}"
        if _steps(target.partition("?")[0]):
            raise ValueError("the path steps upwards")
        return cls(scheme=scheme, host=host, port=port or PORTS[scheme], target=target)


@record
class Rule:
    """Where requests may go. scheme: None for both. port: None for that of the scheme. host: maybe
    ``*.…``."""

    scheme: str | None
    host: str
    port: int | None
    path: str

    @classmethod
    def read(cls, text: str) -> Rule:
        """Read a rule. Raises ConfigurationError."""
        match = _RULE.fullmatch(text)
        if match is None:
            raise ConfigurationError(f"{text!r} is no rule: write [scheme://]host[:port][/path]")
        scheme = match["scheme"]
        if scheme is not None and scheme.lower() not in PORTS:
            raise ConfigurationError(f"rule {text!r}: the scheme is neither http nor https")
        wide = match["place"].startswith("*.")
        try:
            host, port = _place(match["place"][2:] if wide else match["place"])
        except ValueError as error:
            raise ConfigurationError(f"rule {text!r}: {error}") from None
        path = match["path"] or "/"
        if _steps(path):
            raise ConfigurationError(f"rule {text!r}: the path steps upwards")
        return cls(
            scheme=None if scheme is None else scheme.lower(),
            host=f"*.{host}" if wide else host,
            port=port,
            path=path,
        )

    def covers(self, to: Destination) -> bool:
        """Answer whether a request may go there."""
        if self.scheme not in (None, to.scheme) or to.port != (self.port or PORTS[to.scheme]):
            return False
        if self.host.startswith("*."):
            if not to.host.endswith(self.host[1:]) or _literal(to.host) is not None:
                return False
        elif to.host != self.host:
            return False
        below = self.path if self.path.endswith("/") else f"{self.path}/"
        return to.path == self.path or to.path.startswith(below)


def read_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Read rules. Raises ConfigurationError, also for more than MAX_RULES."""
    rules = tuple(Rule.read(text) for text in texts)
    if len(rules) > MAX_RULES:
        raise ConfigurationError(f"at most {MAX_RULES} rules, not {len(rules)}")
    return rules


def covered(to: Destination, rules: Sequence[Rule]) -> bool:
    """Answer whether any rule lets a request go there; none is nothing."""
    return any(rule.covers(to) for rule in rules)


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read address ranges such as ``10.0.0.0/8``. Raises ConfigurationError."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ConfigurationError(f"{text!r} is no range of addresses: {error}") from None
    return tuple(found)


def forbidden(address: Address, allowed: Sequence[Network]) -> str | None:
    """Say why nobody may connect to an address, None when one may.

    allowed: ranges that an operator lists; they win. An address of version 4 inside one of version 6 is not
    covered by a range of version 4.
    """
    if any(address in network for network in allowed):
        return None
    if isinstance(address, ipaddress.IPv6Address) and (
        address.scope_id is not None or any(address in network for network in _CARRIERS)
    ):
        return "it carries another address"
    if address.is_loopback:
        return "it is this machine's own"
    if address.is_link_local:
        return "it is link-local"
    if address.is_multicast:
        return "it is multicast"
    # Python's lists lag behind, so of version 6 only what is given out for global unicast counts (RFC 4291).
    if not address.is_global or (address.version == 6 and address not in _GLOBAL_UNICAST):
        return "it is private or reserved"
    return None


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _place(text: str) -> tuple[str, int | None]:
    """Read ``host[:port]``. Raises ValueError."""
    if text.startswith("["):
        inside, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError("the host is no address in brackets")
        try:
            address = ipaddress.IPv6Address(inside)
        except ValueError:
            raise ValueError("the host is no address in brackets") from None
        if address.scope_id is not None:
            raise ValueError("an address with a zone is no destination")
        return str(address), _port(rest[1:]) if rest else None
    host, colon, port = text.partition(":")
    return _host(host), _port(port) if colon else None


def _host(text: str) -> str:
    host = text.lower().removesuffix(".")
    labels = host.split(".")
    if not host or len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("the host is no name; write one with other characters in its xn-- form")
    # By the WHATWG's rule a name whose last label is a number is an address; resolvers know many spellings.
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]):
        address = _literal(host)
        if address is None:
            raise ValueError("the host is an address in a spelling that is not taken")
        return str(address)
    return host


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65_535:
        raise ValueError("the port is none")
    return int(text)


def _steps(path: str) -> bool:
    """Answer whether a path holds a step to itself or upwards, as any server might read it."""
    # Some servers decode twice, take a backslash for a slash, or cut parameters off.
    decoded = unquote_to_bytes(unquote_to_bytes(path)).replace(b"\\", b"/")
    return any(part.partition(b";")[0] in (b".", b"..") for part in decoded.split(b"/"))
