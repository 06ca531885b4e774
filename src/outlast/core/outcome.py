"""The three values an attempt at an operation can end with: succeeded, failed, unknown.

An outcome says what is known, never what is likely. ``Failed`` says whether anything can have happened:
a failure is only a failure when nothing was done, or when the other side said that it declined.
"""

from __future__ import annotations

from typing import Any, Literal

from outlast.core.record import record

FailureKind = Literal[
    "not_sent",  # never reached the other side, or it said that it did not process it
    "throttled",  # 429, or 503 with a wait: not processed, and told when to come back
    "rejected",  # processed and declined
    "invalid",  # the arguments are wrong
    "forbidden",  # not permitted
    "conflict",  # the other side holds something else under this key
    "error",  # the body raised before anything was sent
    "deadline",  # its time was over before it was sent
    "did_not_happen",  # settled so by evidence or by a person
]


@record
class Succeeded:
    """It happened. ``result`` is what the tool returned; ``remote_id`` its name over there, if told."""

    result: Any
    remote_id: str | None = None


@record
class Failed:
    """It did not happen, and that is known.

    reason: for people. retryable: the same call may be made again. retry_after_s: seconds the other side
    asked to wait, None where it did not say.
    """

    kind: FailureKind
    reason: str
    retryable: bool
    retry_after_s: float | None = None
    status: int | None = None


@record
class Unknown:
    """Nobody here knows whether it happened. ``clue`` says what was seen (never bodies or secrets)."""

    reason: str
    clue: str = ""


Outcome = Succeeded | Failed | Unknown
