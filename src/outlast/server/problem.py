"""Problem documents (RFC 9457): one table from error codes to statuses, and the handlers that use it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Match

from outlast.core import values
from outlast.engine.signature import pointer
from outlast.errors import (
    ApprovalConflict,
    CallbackOver,
    FingerprintMismatch,
    InvalidInput,
    InvalidRequest,
    InvalidToken,
    OutlastError,
    ScheduleConflict,
    SettlementConflict,
    TaskEnded,
    TaskNotEnded,
    Unavailable,
    Unserializable,
    ValueTooLarge,
)

MEDIA_TYPE: Final = "application/problem+json"
MAX_ANSWER_BYTES: Final = 1 << 30
MAX_PROBLEMS: Final = 50
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

PROBLEMS: Final[dict[str, tuple[int, str]]] = {
    # Of the request as such.
    "bad_json": (400, "The body is not JSON"),
    "bad_request": (400, "The request cannot be read"),
    "unauthorized": (401, "A valid API key is needed"),
    "forbidden": (403, "This is not allowed here"),
    "not_allowed": (403, "Whoever calls may not do this"),
    "invalid_signature": (403, "The message is not signed as it has to be"),
    "not_found": (404, "There is no such thing"),
    "method_not_allowed": (405, "The method is not allowed here"),
    "not_acceptable": (406, "No representation is acceptable"),
    "body_too_large": (413, "The body is too large"),
    "unsupported_media_type": (415, "The body must be JSON"),
    # Of what it asks for.
    "invalid_request": (422, "The request cannot be accepted"),
    "invalid_key": (422, "A key, id or name breaks its rules"),
    "invalid_input": (422, "The input does not fit"),
    "unserializable": (422, "A value has no JSON form"),
    "value_too_large": (422, "A value is too large"),
    "invalid_schedule": (422, "The schedule makes no sense"),
    "agent_not_found": (422, "There is no such agent"),
    "idempotency_conflict": (422, "The idempotency key was used for another request"),
    "signal_conflict": (422, "The signal's key was used for other data"),
    "task_not_found": (404, "There is no such task"),
    "operation_not_found": (404, "There is no such operation"),
    "approval_not_found": (404, "There is no such approval"),
    "rule_not_found": (404, "There is no such rule"),
    "invalid_token": (404, "It leads nowhere, or not any more"),
    "schedule_not_found": (404, "There is no such schedule"),
    "schedule_conflict": (412, "The schedule is another revision than was seen"),
    "conflict": (409, "It disagrees with what is recorded"),
    "operation_conflict": (409, "The operation is recorded with other arguments"),
    "settlement_conflict": (409, "The operation is not open to this settlement"),
    "approval_conflict": (409, "The approval cannot be decided any more"),
    "fingerprint_mismatch": (409, "The approval asks about something else than was seen"),
    "callback_over": (410, "Nobody waits for this answer any more"),
    "task_ended": (409, "The task has ended"),
    "task_not_ended": (409, "The task lives, or has succeeded"),
    "effects_undone": (409, "What the task has done was undone"),
    "unsettled_prefix": (409, "What comes before has not ended"),
    "version_in_use": (409, "The task runs, or went on"),
    "acceptance_conflict": (409, "The work was judged since"),
    "session_taken": (409, "Another task holds the outside session"),
    "approval_denied": (409, "Policy or a person said no"),
    "approval_expired": (409, "Nobody decided in time"),
    "call_pending": (409, "The call is not over"),
    "unsettled": (409, "Nobody knows yet whether it happened"),
    "approval_pending": (409, "Nobody has decided yet"),
    "call_held": (409, "The call is held back"),
    "wait_timeout": (409, "It did not come in time"),
    "budget_exceeded": (409, "The task has spent what it may"),
    "child_failed": (409, "The child task failed"),
    "child_cancelled": (409, "The child task was cancelled"),
    "lease_lost": (409, "The lease is no longer held"),
    "task_failed": (409, "The task failed"),
    "task_cancelled": (409, "The task was cancelled"),
    "deadline_exceeded": (409, "The time is over"),
    "ambiguous_operation": (409, "The operation's identity is not repeatable"),
    "operation_failed": (409, "The operation did not succeed"),
    "step_failed": (409, "The step failed"),
    "tool_rejected": (409, "The call was declined"),
    "tool_failed": (409, "The call failed"),
    "result_unstorable": (409, "The result cannot be stored"),
    "inbox_full": (429, "Too many signals lie before the task"),
    # Of the service.
    "error": (500, "An error of the service"),
    "internal_error": (500, "An error of the service"),
    "configuration_error": (500, "The service is not configured rightly"),
    "schema_mismatch": (503, "The database's schema does not fit this service"),
    "schema_outdated": (503, "The database's schema is older than this service"),
    "schema_too_new": (503, "The database's schema is newer than this service"),
    "unavailable": (503, "Try again later"),
    "store_unavailable": (503, "The database cannot be reached"),
    "busy": (503, "A twin of this request is still open"),
    "scope_busy": (503, "Somebody else is in the scope"),
    "stream_overrun": (503, "The stream was not read fast enough"),
    "stopping": (503, "The service is stopping"),
}
"""Code to status and title; complete for every public error, which a test checks."""

_BY_STATUS: Final = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    413: "body_too_large",
    415: "unsupported_media_type",
}


class Refused(HTTPException):
    """A refusal by the HTTP layer, by its code in ``PROBLEMS``; ``members`` extend the problem document."""

    def __init__(
        self, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(PROBLEMS[code][0], detail, dict(headers or {}))
        self.code = code
        self.members = members


def problem(code: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any) -> Response:
    """Answer a problem document."""
    status, title = PROBLEMS[code]
    document = {
        "type": f"urn:outlast:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        **members,
    }
    text = values.encode(document, limit=MAX_ANSWER_BYTES, what="problem")
    return Response(text, status, headers, media_type=MEDIA_TYPE)


@contextmanager
def pointing(base: str) -> Iterator[None]:
    """Put the pointers of refused values below ``base``, the place in the body where the value stood."""
    try:
        yield
    except InvalidInput as error:
        if error.problems:
            error.problems = tuple((base + where, what) for where, what in error.problems)
        error.pointer = base + error.pointer
        raise
    except (Unserializable, ValueTooLarge) as error:
        error.pointer = base + error.pointer
        raise


def _of_outlast(_: Request, error: Exception) -> Response:
    assert isinstance(error, OutlastError)
    code = error.code if error.code in PROBLEMS else "error"
    headers: dict[str, str] = {}
    members: dict[str, Any] = {}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, InvalidInput) and error.problems:
        members["errors"] = [
            {"pointer": where, "detail": what} for where, what in error.problems[:MAX_PROBLEMS]
        ]
    elif isinstance(error, InvalidRequest) and error.pointer:
        members["errors"] = [{"pointer": error.pointer, "detail": str(error)}]
    if isinstance(error, SettlementConflict | ApprovalConflict | TaskEnded | TaskNotEnded | CallbackOver):
        members["state"] = error.state
    if isinstance(error, FingerprintMismatch):
        members["current"] = error.current
    if isinstance(error, ScheduleConflict):
        members["revision"] = error.revision
    # A token that was guessed, altered or too old: which of it is nobody's business.
    detail = "there is nothing here, or not any more" if isinstance(error, InvalidToken) else str(error)
    return problem(code, detail, headers=headers, **members)


def _of_validation(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors: list[dict[str, Any]] = []
    for item in error.errors()[:MAX_PROBLEMS]:
        place, *path = item["loc"]
        detail = str(item["msg"]).removeprefix("Value error, ")
        if place == "body":
            errors.append({"pointer": pointer(tuple(path)), "detail": detail})
        else:
            errors.append({"in": place, "name": ".".join(map(str, path)), "detail": detail})
    first = errors[0]
    where = first.get("pointer") or first.get("name") or "the body"
    return problem("invalid_request", f"{where}: {first['detail']}", errors=errors)


def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    if isinstance(error, Refused):
        return problem(error.code, str(error.detail), headers=error.headers, **error.members)
    code = _BY_STATUS.get(error.status_code, "bad_request" if error.status_code < 500 else "internal_error")
    detail = str(error.detail)
    if detail == HTTPStatus(error.status_code).phrase:
        detail = PROBLEMS[code][1]
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_allowed(request))
    return problem(code, detail, headers=headers)


def _allowed(request: Request) -> list[str]:
    # The router names the methods of the first route that fits the path; other routes may fit it too.
    return [
        method
        for method in METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in request.app.routes
        )
    ]


def _of_fault(_: Request, __: Exception) -> Response:
    # What went wrong inside is for the log alone.
    return problem("internal_error", "the service could not do this; its log says why")


def install(app: FastAPI) -> None:
    """Answer every error of an app with a problem document."""
    app.add_exception_handler(OutlastError, _of_outlast)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(StarletteHTTPException, _of_http)
    app.add_exception_handler(Exception, _of_fault)
