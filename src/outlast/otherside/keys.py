"""What a request says of itself in its headers, and its fingerprint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

from outlast.core import ids
from outlast.core.record import record
from outlast.errors import InvalidKey
from outlast.otherside.asgi import Scope
from outlast.otherside.problems import Refused

__all__ = ["Asked", "authorization_digest", "fingerprint", "read", "values_of"]

# RFC 9651 section 3.3.3, without parameters.
_SF_STRING: Final = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_MAX_EPOCH: Final = (1 << 63) - 1
Headers = Iterable[tuple[bytes, bytes]]


@record
class Asked:
    """A request's key, fencing number and time.

    subject: whose number ``epoch`` is. remaining_s: how long its sender waits, None when it does not say.
    """

    key: str | None
    subject: str | None = None
    epoch: int | None = None
    remaining_s: float | None = None


def read(headers: Headers) -> Asked:
    """Read what a request says. Raises Refused (``invalid_key``, ``invalid_epoch``)."""
    headers = list(headers)
    key = _key(values_of(headers, b"idempotency-key"))
    if key is None:
        return Asked(key=None)
    epoch = _epoch(values_of(headers, b"outlast-epoch"))
    subject = None
    if epoch is not None:
        task = _task(values_of(headers, b"outlast-task"))
        subject = f"key:{key}" if task is None else f"task:{task}"
    return Asked(
        key=key,
        subject=subject,
        epoch=epoch,
        remaining_s=_remaining(values_of(headers, b"outlast-deadline")),
    )


def values_of(headers: Headers, name: bytes) -> list[str]:
    """Answer every value of a header, as text; names are compared without case."""
    return [value.decode("latin-1").strip(" \t") for each, value in headers if each.lower() == name]


def authorization_digest(scope: Scope) -> str:
    """Answer the SHA-256 of the ``Authorization`` header, or an empty text: the default scope of keys."""
    found = values_of(scope["headers"], b"authorization")
    return hashlib.sha256("\n".join(found).encode()).hexdigest() if found else ""


def fingerprint(scope: Scope, body: bytes) -> bytes:
    """Answer the SHA-256 over method, path, query, content type and body, each with its length before it."""
    digest = hashlib.sha256()
    content_type = "\n".join(values_of(scope["headers"], b"content-type"))
    for part in (
        scope["method"].encode(),
        scope["path"].encode("utf-8", "surrogateescape"),
        scope.get("query_string", b""),
        content_type.encode(),
        body,
    ):
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.digest()


def _key(sent: list[str]) -> str | None:
    """Read the key, a structured field string or bare, which means the same."""
    if not sent:
        return None
    if len(sent) > 1:
        raise Refused("invalid_key", "Idempotency-Key is sent more than once")
    key = sent[0]
    if key.startswith('"'):
        match = _SF_STRING.fullmatch(key)
        if match is None:
            raise Refused(
                "invalid_key", "Idempotency-Key begins with a quote and is not a structured field string"
            )
        key = re.sub(r'\\(["\\])', r"\1", match[1])
    if not key.isascii():
        raise Refused("invalid_key", "Idempotency-Key has a character outside ASCII; encode or hash it first")
    try:
        return ids.check_key(key, "Idempotency-Key")
    except InvalidKey as error:
        raise Refused("invalid_key", str(error)) from None


def _epoch(sent: list[str]) -> int | None:
    if not sent:
        return None
    # Only digits, and few enough that reading them costs nothing.
    if len(sent) > 1 or not re.fullmatch(r"[0-9]{1,19}", sent[0], re.ASCII) or int(sent[0]) > _MAX_EPOCH:
        raise Refused("invalid_epoch", "Outlast-Epoch is sent once, as a whole number from 0 to 2^63 - 1")
    return int(sent[0])


def _task(sent: list[str]) -> str | None:
    if sent in ([], [""]):
        return None
    try:
        if len(sent) > 1 or not sent[0].isascii():
            raise InvalidKey("Outlast-Task is sent once, in ASCII")
        return ids.check_key(sent[0], "Outlast-Task")
    except InvalidKey as error:
        raise Refused("invalid_epoch", str(error)) from None


def _remaining(sent: list[str]) -> float | None:
    # Advice only: what cannot be read is left aside.
    if len(sent) != 1 or not re.fullmatch(r"[0-9]{1,12}", sent[0], re.ASCII):
        return None
    return int(sent[0]) / 1000
