"""Signed tokens: what may be given to somebody outside, such as a callback or a link in a mail.

A token carries its parts in the open and a signature over them (HMAC-SHA256, RFC 2104), made with a key that
is derived from the app's secret for one purpose: a token for one purpose is no token for another. It is as
good as a password for what it names; it is never logged.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Final, Literal

from outlast.errors import ConfigurationError, InvalidToken

Purpose = Literal["callback", "callback-signature", "approval-link", "approval-form", "gateway"]
LEAST_SECRET: Final = 16
"""Characters that a secret has at least."""
MAX_TOKEN: Final = 4_000
_SIGNATURE_BYTES: Final = 32


def sign(secret: str, purpose: Purpose, parts: Sequence[str], *, expires_at: int | None = None) -> str:
    """Make a token. expires_at: microseconds since the epoch, None for a token that stays good.

    The same arguments make the same token. Raises ConfigurationError for a secret that is too short.
    """
    body = json.dumps([expires_at, *parts], separators=(",", ":")).encode()
    return _text(body + _signature(secret, purpose, body))


def read(secret: str, purpose: Purpose, token: str, *, now: int) -> tuple[str, ...]:
    """Answer a token's parts. now: microseconds since the epoch.

    Raises InvalidToken for one that is altered, expired, for another purpose, or of another secret; in
    constant time as to the signature.
    """
    try:
        if len(token) > MAX_TOKEN:
            raise ValueError
        data = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
    except (ValueError, binascii.Error):
        raise InvalidToken("this is no token of ours") from None
    body, signature = data[:-_SIGNATURE_BYTES], data[-_SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, _signature(secret, purpose, body)) or _text(data) != token:
        raise InvalidToken("this is no token of ours, or it was altered")
    expires_at, *parts = json.loads(body)
    if expires_at is not None and now >= expires_at:
        raise InvalidToken("this token is too old")
    return tuple(parts)


def derived(secret: str, purpose: Purpose, text: str) -> bytes:
    """Derive a key of 32 bytes for one text, which says nothing of the secret."""
    return _signature(secret, purpose, text.encode())


def _signature(secret: str, purpose: Purpose, body: bytes) -> bytes:
    if len(secret) < LEAST_SECRET:
        raise ConfigurationError(
            f"no secret to sign with: set OUTLAST_SECRET to at least {LEAST_SECRET} random characters"
        )
    key = hmac.digest(secret.encode(), b"outlast:" + purpose.encode(), hashlib.sha256)
    return hmac.digest(key, body, hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
