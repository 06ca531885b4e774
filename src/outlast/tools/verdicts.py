"""The exceptions that ``ToolCall.http`` raises: verdicts of the tool, with the outcome they stand for.

A verdict is about one request, its outcome about the whole call. When another request of the call may have
acted, a failure of this one leaves the call unknown. That is looked at when the engine asks, not when the
exception is made: a sibling in a task group may be under way at that moment, and be cut off because of it.
"""

from __future__ import annotations

from collections.abc import Callable

from outlast.core.outcome import Failed, Unknown
from outlast.errors import Forbidden, Invalid, NotSent, Rejected, ToolVerdict, Uncertain

__all__ = [
    "HttpForbidden",
    "HttpInvalid",
    "HttpNotSent",
    "HttpRejected",
    "HttpUncertain",
    "HttpVerdict",
    "in_block",
    "of_whole_call",
    "others_open_of",
    "verdict",
]


def _never() -> bool:
    return False


class HttpVerdict(ToolVerdict):
    """What one request came to; ``others_open`` says whether another one of its call may have acted."""

    request_outcome: Failed | Unknown
    others_open: Callable[[], bool]

    def __init__(self, outcome: Failed | Unknown, others_open: Callable[[], bool] = _never) -> None:
        super().__init__(outcome.reason)
        self.request_outcome = outcome
        self.others_open = others_open

    @property
    def outcome(self) -> Failed | Unknown:
        """Answer the outcome of the whole call, as far as it is known now."""
        return of_whole_call(self.request_outcome, self.others_open)

    @property
    def status(self) -> int | None:
        """Answer the HTTP status of a failure, None when no answer came."""
        return self.request_outcome.status if isinstance(self.request_outcome, Failed) else None


class HttpRejected(HttpVerdict, Rejected):
    """Declined by an HTTP service."""


class HttpInvalid(HttpVerdict, Invalid):
    """Refused by an HTTP service because of the arguments."""


class HttpForbidden(HttpVerdict, Forbidden):
    """Not permitted by an HTTP service."""


class HttpNotSent(HttpVerdict, NotSent):
    """Not processed by an HTTP service. ``retry_after`` is in seconds."""

    def __init__(self, outcome: Failed, others_open: Callable[[], bool] = _never) -> None:
        NotSent.__init__(self, outcome.reason, retry_after=outcome.retry_after_s)
        self.request_outcome = outcome
        self.others_open = others_open


class HttpUncertain(HttpVerdict, Uncertain):
    """Sent to an HTTP service, without an answer that can be trusted."""

    def __init__(self, outcome: Unknown, others_open: Callable[[], bool] = _never) -> None:
        Uncertain.__init__(self, outcome.clue or outcome.reason)
        self.request_outcome = outcome
        self.others_open = others_open


def verdict(outcome: Failed | Unknown, others_open: Callable[[], bool] = _never) -> ToolVerdict:
    """Make the exception that a tool body sees for what a request came to."""
    if isinstance(outcome, Unknown):
        return HttpUncertain(outcome, others_open)
    match outcome.kind:
        case "not_sent" | "throttled" | "deadline":
            return HttpNotSent(outcome, others_open)
        case "invalid":
            return HttpInvalid(outcome, others_open)
        case "forbidden":
            return HttpForbidden(outcome, others_open)
        case _:
            return HttpRejected(outcome, others_open)


def of_whole_call(said: Failed | Unknown, others_open: Callable[[], bool]) -> Failed | Unknown:
    """Say what a call came to of which one request came to ``said``."""
    if isinstance(said, Failed) and others_open():
        return Unknown(
            reason=f"{said.reason}; another request of this call went out", clue=f"then {said.kind}"
        )
    return said


def in_block(exc: BaseException, others_open: Callable[[], bool]) -> BaseException:
    """Note on an exception that one send raised it, and how to ask after the others of its call."""
    try:
        exc._outlast_others_open = others_open  # type: ignore[attr-defined]
    except AttributeError:
        pass  # an exception with slots: without the note it counts as less sure
    return exc


def others_open_of(exc: BaseException) -> Callable[[], bool] | None:
    """Answer what ``in_block`` noted."""
    noted: Callable[[], bool] | None = getattr(exc, "_outlast_others_open", None)
    return noted
