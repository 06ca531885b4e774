"""Refusals as problem documents (RFC 9457), each with a stable code."""

from __future__ import annotations

import math
from typing import Any, Final

from outlast.core import values
from outlast.otherside.answers import Whole

__all__ = ["PROBLEMS", "Refused"]

PROBLEMS: Final[dict[str, tuple[int, str]]] = {
    "idempotency_key_missing": (400, "An Idempotency-Key is needed"),
    "invalid_key": (400, "The Idempotency-Key breaks its rules"),
    "invalid_epoch": (400, "The fencing headers break their rules"),
    "body_too_large": (413, "The body is too large"),
    "idempotency_conflict": (422, "The idempotency key was used for another request"),
    "in_flight": (409, "A request under this key is being processed"),
    "stale_epoch": (409, "A newer holder of this task has called"),
    "answer_not_kept": (409, "It was answered, and the answer was not kept"),
    "store_unavailable": (503, "The keys cannot be looked up"),
    "handler_failed": (500, "The service failed"),
    "handler_timeout": (504, "The service did not answer in time"),
}
"""Code to status and title."""


class Refused(Exception):
    """A refusal by its code in ``PROBLEMS``. retry_after: seconds. members: extend the document."""

    def __init__(self, code: str, detail: str, *, retry_after: float | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.code = code
        self.retry_after = retry_after
        self.members = members

    def answer(self) -> Whole:
        """Answer the refusal as it is sent."""
        status, title = PROBLEMS[self.code]
        document = {
            "type": f"urn:outlast:problem:{self.code}",
            "title": title,
            "status": status,
            "detail": str(self),
            "code": self.code,
            **self.members,
        }
        headers = [(b"content-type", b"application/problem+json")]
        if self.retry_after is not None:
            headers.append((b"retry-after", str(max(1, math.ceil(self.retry_after))).encode()))
        return Whole(status=status, headers=headers, body=values.encode(document, what="problem").encode())
