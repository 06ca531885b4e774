"""Who calls: API keys and their tenants.

``OUTLAST_API_KEYS=tenant:key,…`` names the keys that are accepted. Keys are compared by digest, in constant
time, and all of them each time. With none configured everyone on this machine is tenant ``default``, and
nobody else is served: a request must come from a loopback address and be addressed to one, so that a page in
a browser cannot reach the service under a name of its own (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass
from typing import Final

from fastapi import Request
from pydantic import SecretStr

from outlast.core import ids
from outlast.errors import ConfigurationError, InvalidKey
from outlast.server.problem import Refused
from outlast.submitting import DEFAULT_TENANT

HOW_TO: Final = "set OUTLAST_API_KEYS=tenant:key,… to serve other machines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who acts: everything a request sees and does is its tenant's."""

    tenant: str
    name: str


class Keys:
    """The keys that a service accepts."""

    def __init__(self, text: SecretStr) -> None:
        """Read ``tenant:key,…``. Raises ConfigurationError, which never holds a key."""
        self._digests: list[tuple[bytes, str]] = []
        for place, item in enumerate(filter(None, map(str.strip, text.get_secret_value().split(","))), 1):
            tenant, colon, key = item.partition(":")
            if not colon or not key or key != key.strip() or not key.isascii():
                raise ConfigurationError(f"OUTLAST_API_KEYS: entry {place} is not tenant:key")
            try:
                ids.check_name(tenant, "tenant")
            except InvalidKey as error:
                raise ConfigurationError(f"OUTLAST_API_KEYS: entry {place}: {error}") from None
            self._digests.append((hashlib.sha256(key.encode()).digest(), tenant))

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._digests)

    def tenant_of(self, key: str) -> str | None:
        """Answer the tenant of a key, or None."""
        digest = hashlib.sha256(key.encode(errors="replace")).digest()
        found = None
        for accepted, tenant in self._digests:
            if hmac.compare_digest(digest, accepted):
                found = tenant
        return found


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


def principal(request: Request) -> Principal:
    """Answer who calls. Raises Refused: 401 without a valid key, 403 from elsewhere where there are none."""
    keys: Keys = request.app.state.keys
    if not keys:
        _check_near(request)
        return Principal(tenant=DEFAULT_TENANT, name="local")
    sent = request.headers.getlist("authorization")
    scheme, _space, key = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
    tenant = keys.tenant_of(key.strip()) if scheme.lower() == "bearer" else None
    if tenant is None:
        challenge = 'Bearer error="invalid_token"' if sent else "Bearer"
        raise Refused(
            "unauthorized", "send Authorization: Bearer <key>", headers={"WWW-Authenticate": challenge}
        )
    return Principal(tenant=tenant, name=f"key of {tenant}")


def _check_near(request: Request) -> None:
    client = request.client
    host = request.headers.get("host", "localhost")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
    if (client is not None and not is_loopback(client.host)) or not is_loopback(name):
        raise Refused("forbidden", f"no API keys are configured, so only this machine is served; {HOW_TO}")
