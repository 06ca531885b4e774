"""The gateway's own answers: problem documents (RFC 9457), each with a stable code."""

from __future__ import annotations

import math
from typing import Final

from outlast.core import values
from outlast.otherside.answers import Whole
from outlast.tools.passing import ANSWER_HEADER, Verdict

__all__ = ["LASTING", "PROBLEMS", "Refused"]

PROBLEMS: Final[dict[str, tuple[int, Verdict, str]]] = {
    "invalid_target": (400, "refused", "The target of the request cannot be read"),
    "no_tunnels": (405, "refused", "Tunnels are not made"),
    "token_missing": (407, "refused", "A token is needed"),
    "invalid_token": (403, "refused", "The token is not one of ours, or was altered"),
    "token_expired": (403, "refused", "The token is too old"),
    "forbidden_host": (403, "refused", "Requests may not go there"),
    "forbidden_address": (403, "refused", "Nobody may connect to that address"),
    "body_too_large": (413, "refused", "The body is too large"),
    "body_too_slow": (408, "refused", "The body did not come in time"),
    "too_many_requests": (429, "refused", "The operation has sent too many requests"),
    "stale_epoch": (409, "refused", "The task is held by a newer worker, or by none"),
    "lease_over": (409, "refused", "The lease of the task is over"),
    "cancelled": (409, "refused", "The task is cancelled"),
    "not_running": (409, "refused", "The operation does not run under this attempt"),
    "deadline_over": (409, "refused", "The time of the operation is over"),
    "other_decision": (403, "refused", "What was decided is something else"),
    "no_approval": (403, "refused", "The decision that was asked for does not stand"),
    "paused": (409, "refused", "A switch holds back the calls of this tool"),
    "store_unavailable": (503, "not-sent", "The store cannot be asked"),
    "unresolvable": (502, "not-sent", "The host has no address"),
    "unreachable": (502, "not-sent", "The request could not be sent"),
    "no_answer": (504, "unknown", "No answer came in time"),
    "answer_broken": (502, "unknown", "No whole answer came"),
    "answer_too_large": (502, "unknown", "The answer is too large"),
}
"""Code to status, what became of the request, and title."""

LASTING: Final = frozenset({"token_expired", "stale_epoch", "cancelled", "not_running", "deadline_over"})
"""Refusals of a token that never end: epochs, attempts and time only go on."""


class Refused(Exception):
    """A request that is not passed on, or whose answer is not, by its code in ``PROBLEMS``."""

    def __init__(self, code: str, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.retry_after = retry_after

    @property
    def verdict(self) -> Verdict:
        """What became of the request."""
        return PROBLEMS[self.code][1]

    def answer(self) -> Whole:
        """Answer it as it is sent."""
        status, verdict, title = PROBLEMS[self.code]
        document = {
            "type": f"urn:outlast:problem:{self.code}",
            "title": title,
            "status": status,
            "detail": str(self),
            "code": self.code,
        }
        headers = [
            (b"content-type", b"application/problem+json"),
            (ANSWER_HEADER.lower().encode(), verdict.encode()),
        ]
        if self.code == "token_missing":
            headers.append((b"proxy-authenticate", b'Bearer realm="outlast"'))
            headers.append((b"proxy-authenticate", b'Basic realm="outlast"'))
        if self.retry_after is not None:
            headers.append((b"retry-after", str(max(1, math.ceil(self.retry_after))).encode()))
        return Whole(status=status, headers=headers, body=values.encode(document, what="problem").encode())
