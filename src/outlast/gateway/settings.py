"""How a gateway behaves, and the file that says so."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.core import destinations
from outlast.errors import ConfigurationError

DEFAULT_LISTEN = "127.0.0.1:8790"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Settings of one gateway. Times are in seconds.

    listen: host and port. allow: where requests may go, each ``[scheme://]host[:port][/path]``; none is
    nowhere. ranges: ranges of private addresses that may be connected to all the same. ca_file: certificates
    to trust besides the system's. max_request_bytes, max_answer_bytes: the largest bodies. fresh_s: how old
    the look at the store may be when a request leaves. resolve_s, connect_s, receive_s: bounds for looking a
    name up, for connecting, and for the body of a request to come in.
    """

    listen: str = DEFAULT_LISTEN
    allow: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    ca_file: str | None = None
    max_request_bytes: int = 8 * 1024 * 1024
    max_answer_bytes: int = 8 * 1024 * 1024
    fresh_s: float = 0.02
    resolve_s: float = 5.0
    connect_s: float = 10.0
    receive_s: float = 30.0

    def __post_init__(self) -> None:
        destinations.read_rules(self.allow)
        destinations.read_networks(self.ranges)
        for name in (
            "max_request_bytes",
            "max_answer_bytes",
            "fresh_s",
            "resolve_s",
            "connect_s",
            "receive_s",
        ):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be more than zero")


def read_settings(path: str | Path | None, **said: Any) -> GatewaySettings:
    """Read settings from a TOML file; what is said besides wins, None is as good as not said.

    Lists of both are put together. Raises ConfigurationError that names the file and what is wrong.
    """
    found: dict[str, Any] = {}
    if path is not None:
        try:
            with open(path, "rb") as file:
                found = tomllib.load(file)
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ConfigurationError(f"cannot read {path}: {error}") from None
    kinds = {field.name: type(field.default) for field in dataclasses.fields(GatewaySettings)}
    for name, value in found.items():
        if name not in kinds:
            raise ConfigurationError(
                f"{path}: there is no setting {name}; there are {', '.join(sorted(kinds))}"
            )
        if kinds[name] is tuple:
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise ConfigurationError(f"{path}: {name} is a list of texts")
            found[name] = tuple(value)
        elif kinds[name] is float and type(value) is int:
            found[name] = float(value)
        elif type(value) is not (str if name == "ca_file" else kinds[name]):
            raise ConfigurationError(f"{path}: {name} is no {type(value).__name__}")
    for name, value in said.items():
        if isinstance(value, tuple):
            found[name] = (*found.get(name, ()), *value)
        elif value is not None:
            found[name] = value
    return GatewaySettings(**found)


def host_and_port(listen: str) -> tuple[str, int]:
    """Read ``host:port``. Raises ConfigurationError."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ConfigurationError(f"{listen!r} is no host:port")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)
