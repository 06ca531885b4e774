"""Who calls, and what they may do: API keys, their tenants, names and roles.

``OUTLAST_API_KEYS=tenant:key,…`` names the keys that are accepted; ``tenant:key:name:role+role`` is the key
of one person or service, with the roles that it has, and a key without roles has them all. Keys are compared
by digest, in constant time, and all of them each time. With none configured everyone on this machine is
tenant ``default`` with every role, and nobody else is served: a request must come from a loopback address and
be addressed to one, so that a page in a browser cannot reach the service under a name of its own (DNS
rebinding).

Roles are asked for here and nowhere else, but for those that an approval names itself: these are the
approval's to say.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from typing import Final

from fastapi import Request
from pydantic import SecretStr

from outlast.core import ids
from outlast.core.record import record
from outlast.errors import ConfigurationError, InvalidKey, InvalidRequest, NotAllowed
from outlast.server.problem import Refused
from outlast.submitting import DEFAULT_TENANT

HOW_TO: Final = "set OUTLAST_API_KEYS=tenant:key,… to serve other machines"


EVERY_ROLE: Final = "*"
ADMIN: Final = "admin"
SUBMIT: Final = ("submitter", "operator")
"""Who may give tasks something to do: submit them, send them signals."""
OPERATE: Final = ("operator",)
"""Who may steer: cancel, try again, fork, adopt, settle, pause, set rules."""
JUDGE: Final = ("approver", "operator")
"""Who may judge finished work."""
_ROLE: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")


@record
class Principal:
    """Who acts: everything a request sees and does is its tenant's.

    roles: ``*`` stands for all. local: on this machine, without keys.
    """

    tenant: str
    name: str
    roles: frozenset[str] = frozenset({EVERY_ROLE})
    local: bool = False

    @property
    def deciding(self) -> tuple[str, ...]:
        """The roles that decisions are made with: an admin has them all."""
        return (EVERY_ROLE,) if ADMIN in self.roles else tuple(sorted(self.roles))

    def check(self, needed: tuple[str, ...]) -> None:
        """Ask for one of some roles; none needed, none asked for. Raises NotAllowed."""
        if needed and not self.roles & {EVERY_ROLE, ADMIN, *needed}:
            raise NotAllowed(f"{self.name} may not do this: it takes role {' or '.join(needed)}")

    def named(self, by: str | None) -> str:
        """Answer who acts, where a body may say so: on this machine without keys it is believed. Raises
        InvalidRequest for somebody else's name."""
        if by is None or self.local:
            return by or self.name
        if by != self.name:
            raise InvalidRequest("the key says who does it; leave the name out", pointer="/by")
        return by


class Keys:
    """The keys that a service accepts."""

    def __init__(self, text: SecretStr) -> None:
        """Read ``tenant:key,tenant:key:name:role+role,…``; no key stands there twice, since it is to say who
        acts. Raises ConfigurationError, which never holds a key."""
        self._known: list[tuple[bytes, Principal]] = []
        first: dict[bytes, int] = {}
        for place, item in enumerate(filter(None, map(str.strip, text.get_secret_value().split(","))), 1):
            try:
                key, who = _read(item)
            except ValueError as error:
                raise ConfigurationError(f"OUTLAST_API_KEYS: entry {place} {error}") from None
            digest = hashlib.sha256(key.encode()).digest()
            if first.setdefault(digest, place) != place:
                raise ConfigurationError(
                    f"OUTLAST_API_KEYS: entry {place} has the same key as entry {first[digest]}"
                )
            self._known.append((digest, who))

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._known)

    def principal_of(self, key: str) -> Principal | None:
        """Answer whose key this is, or None."""
        digest = hashlib.sha256(key.encode(errors="replace")).digest()
        found = None
        for accepted, who in self._known:
            if hmac.compare_digest(digest, accepted):
                found = who
        return found


def _read(item: str) -> tuple[str, Principal]:
    """Read one entry. Raises ValueError whose text goes on ``entry 3 …``, without the key."""
    tenant, *rest = item.split(":")
    if len(rest) not in (1, 3) or not rest[0] or rest[0] != rest[0].strip() or not rest[0].isascii():
        raise ValueError("is not tenant:key, nor tenant:key:name:role+role")
    try:
        ids.check_name(tenant, "tenant")
        if len(rest) == 1:
            return rest[0], Principal(tenant=tenant, name=f"key of {tenant}")
        key, name, roles = rest
        ids.check_key(name, "the name")
    except InvalidKey as error:
        raise ValueError(f"cannot be read: {error}") from None
    named = roles.split("+")
    if not all(_ROLE.fullmatch(role) for role in named):
        raise ValueError("has roles that are not words such as approver+finance")
    return key, Principal(tenant=tenant, name=name, roles=frozenset(named))


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    host = host.strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_binding(keys: Keys, host: str) -> None:
    """Refuse to serve other machines without keys. Raises ConfigurationError."""
    if not keys and not is_loopback(host):
        raise ConfigurationError(f"no API keys are configured, so {host} is not served; {HOW_TO}")


SCHEME: Final = {"type": "http", "scheme": "bearer", "description": "An API key."}
"""How OpenAPI describes the keys."""


def principal(request: Request, needed: tuple[str, ...] = ()) -> Principal:
    """Answer who calls, who has to have one of the roles that are needed, if any are.

    Raises Refused: 401 without a valid key, 403 from elsewhere where there are none; and NotAllowed.
    """
    keys: Keys = request.app.state.keys
    if not keys:
        _check_near(request)
        return Principal(tenant=DEFAULT_TENANT, name="local", local=True)
    sent = request.headers.getlist("authorization")
    scheme, _space, key = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
    who = keys.principal_of(key.strip()) if scheme.lower() == "bearer" else None
    if who is None:
        challenge = 'Bearer error="invalid_token"' if sent else "Bearer"
        raise Refused(
            "unauthorized", "send Authorization: Bearer <key>", headers={"WWW-Authenticate": challenge}
        )
    who.check(needed)
    return who


def _check_near(request: Request) -> None:
    client = request.client
    host = request.headers.get("host", "localhost")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
    if (client is not None and not is_loopback(client.host)) or not is_loopback(name):
        raise Refused("forbidden", f"no API keys are configured, so only this machine is served; {HOW_TO}")
