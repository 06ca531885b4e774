"""Signatures of messages that come over HTTP, as Standard Webhooks 1.0 has them (symmetric, ``v1``).

What is signed is ``<webhook-id>.<webhook-timestamp>.<body>``, by HMAC-SHA256 (RFC 2104) with the bytes that
the secret, ``whsec_`` and base64, stands for. A header may hold several signatures, so that secrets can be
changed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

from outlast.core.record import record
from outlast.errors import InvalidSignature

PREFIX: Final = "whsec_"
TOLERANCE_S: Final = 300
"""How far the clocks of sender and receiver may be apart, either way."""


@record
class SignedBody:
    """A body as it came, and the headers ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature``;
    empty where one is missing."""

    body: bytes
    id: str
    timestamp: str
    signature: str


def secret_of(key: bytes) -> str:
    """Write a key as the secret that is given to a sender."""
    return PREFIX + base64.b64encode(key).decode()


def sign(key: bytes, message: str, timestamp: int, body: bytes) -> str:
    """Make the value of ``webhook-signature``. timestamp: seconds since the epoch."""
    return _signature(key, message.encode(), str(timestamp).encode(), body)


def check(key: bytes, sent: SignedBody, *, now_s: float) -> None:
    """Check a signed message; in constant time. Raises InvalidSignature that says what is wrong."""
    if not (sent.id and sent.timestamp and sent.signature):
        raise InvalidSignature("it takes the headers webhook-id, webhook-timestamp and webhook-signature")
    if not (sent.timestamp.isascii() and sent.timestamp.isdigit() and len(sent.timestamp) < 16):
        raise InvalidSignature("webhook-timestamp is no number of seconds")
    if abs(int(sent.timestamp) - now_s) > TOLERANCE_S:
        raise InvalidSignature(f"webhook-timestamp is more than {TOLERANCE_S} s away from the time here")
    expected = _signature(key, sent.id.encode(errors="replace"), sent.timestamp.encode(), sent.body).encode()
    given = [each.encode(errors="replace") for each in sent.signature.split()]
    # All of them, whichever fits.
    if not any([hmac.compare_digest(expected, each) for each in given]):
        raise InvalidSignature("none of the signatures fits the message")


def _signature(key: bytes, message: bytes, timestamp: bytes, body: bytes) -> str:
    digest = hmac.digest(key, message + b"." + timestamp + b"." + body, hashlib.sha256)
    return "v1," + base64.b64encode(digest).decode()
