"""What an answer, or the lack of one, says about a call: one table for status codes, one for exceptions.

Purpose. Three values, never a guess: it happened, it did not happen and that is known, nobody here knows. A
row says *failed* only where the standard, or the place where the error comes from, says that nothing was
done. A wrong *failed* makes a second effect; a wrong *unknown* costs a question. So doubt is *unknown*.

What decides. For requests through ``ToolCall.http`` the moment when the first byte left: before it everything
is *not sent*. For other clients the type of the exception. A later request of one call cannot make *failed*
of an earlier one that went out; see ``outlast.tools.http``.

Texts hold a method, a host, a path, a status and the names of exception classes; never bodies, header values,
query strings, credentials in URLs or the messages of foreign exceptions.

Not covered. Whether a *read* may simply be repeated, and when to retry, is the engine's.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal

import httpx2

from outlast import clock
from outlast.core.masking import mask_passwords
from outlast.core.outcome import Failed, FailureKind, Outcome, Unknown
from outlast.core.record import record
from outlast.core.retry import parse_date, parse_retry_after, sensible_wait
from outlast.errors import (
    DeadlineExceeded,
    Forbidden,
    Invalid,
    LeaseLost,
    NotSent,
    Rejected,
    Uncertain,
)
from outlast.tools.verdicts import HttpVerdict, of_whole_call, others_open_of

__all__ = [
    "Row",
    "classify_exception",
    "classify_response",
    "of_resend",
    "outcome_of_exception",
    "rows",
]


@record
class Row:
    """One line of the reference table. ``outcome`` is "succeeded", "unknown", or the kind of failure."""

    seen: str
    outcome: Literal["succeeded", "unknown"] | FailureKind
    retryable: bool
    why: str


@dataclass(frozen=True, slots=True)
class _Statuses:
    first: int
    last: int
    outcome: Literal["succeeded", "unknown"] | FailureKind
    why: str
    retryable: bool = False


# The first line that fits decides, so exceptions stand before their class.
_STATUSES: Final = (
    _Statuses(200, 299, "succeeded", "it was done"),
    _Statuses(300, 399, "unknown", "a redirect does not say whether the call was processed before it"),
    _Statuses(400, 400, "rejected", "looked at and declined"),
    _Statuses(401, 401, "forbidden", "no valid credentials"),
    _Statuses(403, 403, "forbidden", "not permitted"),
    _Statuses(407, 407, "forbidden", "the proxy wants credentials; the service never saw the call"),
    _Statuses(
        408,
        408,
        "unknown",
        "by RFC 9110 the request was incomplete, but gateways say it of a slow service too",
    ),
    _Statuses(
        409, 409, "conflict", "it holds something else, or a twin of this call is being processed there"
    ),
    _Statuses(
        421, 421, "not_sent", "RFC 9110: sent to the wrong server, which does not process it", retryable=True
    ),
    _Statuses(422, 422, "invalid", "the arguments are wrong"),
    _Statuses(425, 425, "not_sent", "RFC 8470: not processed, since it might be a replay", retryable=True),
    _Statuses(429, 429, "throttled", "RFC 6585: too many requests; not processed", retryable=True),
    _Statuses(451, 451, "forbidden", "not permitted, by law"),
    _Statuses(400, 499, "rejected", "declined"),
    _Statuses(
        503, 503, "not_sent", "not processed at this time; `throttled` with a Retry-After", retryable=True
    ),
    _Statuses(
        500, 599, "unknown", "it, or something on the way, broke; before or after it acted, it does not say"
    ),
)
_NO_STATUS: Final = _Statuses(0, 0, "unknown", "not a status of HTTP")

# Raised before a connection stands, so before a byte of the request can have left.
_NEVER_SENT: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (httpx2.ConnectError, "no connection: refused, unreachable, no such name, or TLS failed"),
    (httpx2.ConnectTimeout, "no connection in time"),
    (httpx2.PoolTimeout, "no free connection in time"),
    (httpx2.ProxyError, "the proxy made no connection"),
    (ConnectionRefusedError, "no connection: refused"),
    (socket.gaierror, "no such name"),
)
# Ours to mend: the same call would fail the same way.
_NEVER_SENDABLE: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (httpx2.UnsupportedProtocol, "the URL has a scheme that is not HTTP"),
    (httpx2.InvalidURL, "the URL cannot be parsed"),
)
_SENT: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (httpx2.ReadTimeout, "sent, and no answer in time"),
    (httpx2.WriteTimeout, "a part was sent, the rest not in time"),
    (httpx2.ReadError, "the connection broke before the whole answer was here"),
    (httpx2.WriteError, "the connection broke while the request was being sent"),
    (httpx2.CloseError, "the connection broke while it was being closed"),
    (httpx2.RemoteProtocolError, "the answer was cut, or is not HTTP"),
    (httpx2.DecodingError, "the body of the answer cannot be decoded"),
    (httpx2.TooManyRedirects, "redirected without end"),
    (httpx2.LocalProtocolError, "the request breaks HTTP; a part of it may have left"),
    (httpx2.TransportError, "the exchange failed in an unexpected way"),
)


def classify_response(
    status: int, headers: Mapping[str, str], now_unix_s: float, *, request: str = "the call"
) -> Failed | Unknown | None:
    """Say what an answer means by its status; None when it says that the call was done.

    headers: looked up as they come, so use a mapping that ignores case. now_unix_s: seconds since 1970, for a
    date in ``Retry-After`` of an answer that has no ``Date`` of its own. request: method, host and path, for
    the text. Pure. RFC 9110 section 15.
    """
    line = next((line for line in _STATUSES if line.first <= status <= line.last), _NO_STATUS)
    if line.outcome == "succeeded":
        return None
    text = f"{status} from {request}"
    if line.outcome == "unknown":
        return Unknown(reason=f"{text}: {line.why}", clue=f"HTTP {status}")
    return failed_answer(line.outcome, text, status, headers, now_unix_s, retryable=line.retryable)


def failed_answer(
    kind: FailureKind,
    text: str,
    status: int,
    headers: Mapping[str, str],
    now_unix_s: float,
    *,
    retryable: bool,
) -> Failed:
    """Make the failure that an answer stands for, with the wait that it asks for."""
    wait = sensible_wait(_asked_wait(headers, now_unix_s)) if retryable else None
    if kind == "not_sent" and wait is not None:
        kind = "throttled"
    return Failed(kind=kind, reason=text, retryable=retryable, retry_after_s=wait, status=status)


def _asked_wait(headers: Mapping[str, str], now_unix_s: float) -> float | None:
    """Read how long the other side asked to be left alone, by its own clock where it tells it: ours may be
    wrong by more than the whole wait."""
    there = parse_date(headers.get("date"), now_unix_s)
    return parse_retry_after(headers.get("retry-after"), now_unix_s if there is None else there)


def classify_exception(
    exc: BaseException, began: bool, *, request: str = "the call"
) -> Failed | Unknown | None:
    """Say what an exception of an HTTP client, of a socket or of a time limit means; None for any other.

    began: whether something may have left for the outside; it matters for time limits and cancellation, whose
    type does not tell. Errors of connecting are *not sent*, and errors of reading are *unknown*, whatever it
    says.
    """
    name = type(exc).__name__
    for kind, why in _NEVER_SENT:
        if isinstance(exc, kind):
            return Failed(kind="not_sent", reason=f"{request}: {why} ({name})", retryable=True)
    for kind, why in _NEVER_SENDABLE:
        if isinstance(exc, kind):
            return Failed(kind="error", reason=f"{request}: {why} ({name})", retryable=False)
    if isinstance(exc, TimeoutError | asyncio.CancelledError):
        word = "cancelled" if isinstance(exc, asyncio.CancelledError) else "timed out"
        if began:
            return Unknown(reason=f"{request}: {word} after it had begun", clue=name)
        return Failed(kind="not_sent", reason=f"{request}: {word} before it was sent", retryable=True)
    for kind, why in _SENT:
        if isinstance(exc, kind):
            return Unknown(reason=f"{request}: {why}", clue=name)
    return None


def outcome_of_exception(exc: BaseException, *, began: bool, changes: bool) -> Failed | Unknown:
    """Say how a call ended whose body raised.

    began: something may have left for the outside (``ToolCall.began``). changes: the tool's effect is not
    ``read``. What the tool says itself (``ToolVerdict``) is believed. Anything that is neither a verdict nor
    an error of a client is unknown once something that changes has begun, and before that an error that is
    not retried.
    """
    match exc:
        case HttpVerdict():
            return exc.outcome
        case NotSent():
            wait = sensible_wait(exc.retry_after)
            return Failed(
                kind="not_sent" if wait is None else "throttled",
                reason=_said(exc) or "the tool says that it was not sent",
                retryable=True,
                retry_after_s=wait,
            )
        case Uncertain():
            return Unknown(reason="the tool cannot tell whether it happened", clue=mask_passwords(exc.clue))
        case Rejected():
            return Failed(kind="rejected", reason=_said(exc) or "declined", retryable=False)
        case Invalid():
            return Failed(kind="invalid", reason=_said(exc) or "the arguments are wrong", retryable=False)
        case Forbidden():
            return Failed(kind="forbidden", reason=_said(exc) or "not permitted", retryable=False)
        case BaseExceptionGroup():
            each = [outcome_of_exception(part, began=began, changes=changes) for part in exc.exceptions]
            # The least sure part speaks for all, then one that forbids a retry.
            return min(
                each,
                key=lambda part: (
                    2 if isinstance(part, Failed) and part.retryable else isinstance(part, Failed)
                ),
            )
        case httpx2.HTTPStatusError():
            answer = exc.response
            said = classify_response(
                answer.status_code, answer.headers, clock.unix_us() / 1_000_000, request=_request_of(exc)
            )
            if said is not None:
                others_open = answer.extensions.get("outlast.others_open") or others_open_of(exc)
                return of_whole_call(said, others_open or (lambda: began and changes))
        case LeaseLost() if not (began and changes):
            return Failed(
                kind="not_sent", reason="the lease was lost before the call was sent", retryable=True
            )
        case DeadlineExceeded() if not (began and changes):
            return Failed(
                kind="deadline", reason="the time was over before the call was sent", retryable=True
            )
        case _:
            said = classify_exception(exc, began and changes, request=_request_of(exc))
            if said is not None:
                # Not from a block with one send: it cannot speak for what this call sent before.
                return of_whole_call(said, others_open_of(exc) or (lambda: began and changes))
    if began and changes:
        return Unknown(reason="the tool raised after its call had begun", clue=_place(exc))
    return Failed(kind="error", reason=f"the tool raised {_place(exc)}", retryable=False)


def of_resend(outcome: Outcome) -> Outcome:
    """Say what the outcome of a resend means for an operation with an earlier attempt that is still unknown.

    That this attempt did nothing says nothing about the earlier one: 409 can be that one being processed, 422
    its key being taken, 403 a credential that has been withdrawn since. Only success settles both, since both
    have one key.
    """
    if isinstance(outcome, Failed):
        return Unknown(
            reason=f"sent again and not done this time, the earlier attempt is open: {outcome.reason}",
            clue=outcome.kind if outcome.status is None else f"{outcome.kind} ({outcome.status})",
        )
    return outcome


def rows() -> tuple[Row, ...]:
    """Answer the whole table, for the reference in the docs; made from the tables that decide."""
    table = [
        Row(
            seen=f"{line.first}" if line.first == line.last else f"{line.first}-{line.last}",
            outcome=line.outcome,
            retryable=line.retryable,
            why=line.why,
        )
        for line in _STATUSES
    ]
    table += [
        Row(seen=kind.__name__, outcome="not_sent", retryable=True, why=why) for kind, why in _NEVER_SENT
    ]
    table += [
        Row(seen=kind.__name__, outcome="error", retryable=False, why=why) for kind, why in _NEVER_SENDABLE
    ]
    table += [Row(seen=kind.__name__, outcome="unknown", retryable=False, why=why) for kind, why in _SENT]
    return (
        *table,
        Row(seen="time limit, cancelled", outcome="unknown", retryable=False, why="once the call had begun"),
        Row(seen="time limit, cancelled", outcome="not_sent", retryable=True, why="before the call was sent"),
        Row(
            seen="LeaseLost",
            outcome="not_sent",
            retryable=True,
            why="the last check before the send refused it",
        ),
        Row(
            seen="DeadlineExceeded",
            outcome="deadline",
            retryable=True,
            why="the time was over before the send",
        ),
        Row(seen="Rejected", outcome="rejected", retryable=False, why="the tool says so"),
        Row(seen="Invalid", outcome="invalid", retryable=False, why="the tool says so"),
        Row(seen="Forbidden", outcome="forbidden", retryable=False, why="the tool says so"),
        Row(seen="NotSent", outcome="not_sent", retryable=True, why="the tool says so"),
        Row(seen="Uncertain", outcome="unknown", retryable=False, why="the tool says so"),
        Row(
            seen="another exception", outcome="unknown", retryable=False, why="once a changing call had begun"
        ),
        Row(seen="another exception", outcome="error", retryable=False, why="before anything was sent"),
    )


def describe(method: str, url: httpx2.URL) -> str:
    """Name a request in a text: method, host and path, nothing that can hold a secret."""
    port = "" if url.port is None else f":{url.port}"
    return f"{method} {url.host}{port}{url.path}"


def _request_of(exc: BaseException) -> str:
    request = getattr(exc, "_request", None)
    return describe(request.method, request.url) if isinstance(request, httpx2.Request) else "the call"


def _said(exc: BaseException) -> str:
    """Answer what a tool says itself, without the passwords of addresses that it names."""
    return mask_passwords(str(exc))


def _place(exc: BaseException) -> str:
    """Name an exception's class and its line; the message is somebody else's and may hold secrets."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = type(exc).__qualname__
    if trace is None:
        return name
    code = trace.tb_frame.f_code
    return f"{name} in {PurePath(code.co_filename).name}:{trace.tb_lineno} ({code.co_name})"
