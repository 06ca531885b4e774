"""What every route is given: the app, who calls, and answers in JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final

from fastapi import Depends, Query, Request, Response

from outlast.app import Outlast
from outlast.core import ids, values
from outlast.core.record import record
from outlast.errors import ApprovalNotFound, InvalidKey, OperationNotFound, TaskNotFound
from outlast.server.auth import JUDGE, OPERATE, SUBMIT, Principal, principal
from outlast.server.closing import Closing, Stopping
from outlast.server.problem import MAX_ANSWER_BYTES, MEDIA_TYPE, PROBLEMS
from outlast.views import TaskView


@record
class Asked:
    """A request's surroundings: the app, who calls, what tells of a stop, the path it is mounted under."""

    app: Outlast
    caller: Principal
    closing: Closing
    root: str


def _asked_by(*needed: str) -> Callable[[Request], Awaitable[Asked]]:
    """Make the dependency of routes that take one of some roles."""

    async def asked(request: Request) -> Asked:
        state = request.app.state
        return Asked(
            app=state.outlast,
            caller=principal(request, needed),
            closing=state.closing,
            root=root_of(request),
        )

    return asked


def root_of(request: Request) -> str:
    """Answer the path that the service is mounted under."""
    return str(request.scope.get("root_path", "")).rstrip("/")


async def _task_id(task: str) -> str:
    # What we cannot have made does not exist, and is not worth a look into the database.
    try:
        ids.parse_id(task, prefix=ids.TASK)
    except InvalidKey:
        raise TaskNotFound(f"no task {task[:100]!r}") from None
    return task


async def _operation_id(operation: str) -> str:
    try:
        task, key = ids.split_operation_id(operation)
        ids.parse_id(task, prefix=ids.TASK)
        ids.check_operation_key(key)
    except InvalidKey:
        raise OperationNotFound(f"no operation {operation[:100]!r}") from None
    return operation


async def _approval_id(approval: str) -> str:
    try:
        ids.check_approval_id(approval)
    except InvalidKey:
        raise ApprovalNotFound(f"no approval {approval[:100]!r}") from None
    return approval


# One dependency a request: FastAPI takes a good part of a millisecond for a handful of them.
Around = Annotated[Asked, Depends(_asked_by())]
"""For reading, and for what has rules of its own about who may."""
Submitting = Annotated[Asked, Depends(_asked_by(*SUBMIT))]
Operating = Annotated[Asked, Depends(_asked_by(*OPERATE))]
Judging = Annotated[Asked, Depends(_asked_by(*JUDGE))]
TaskId = Annotated[str, Depends(_task_id)]
OperationId = Annotated[str, Depends(_operation_id)]
AfterOperation = Annotated[
    str | None,
    Query(
        description="Behind this operation: `next` of the page before.",
        pattern=r"^task_[0-9a-z]{26}:[\x20-\x7e]{1,200}$",
    ),
]
ApprovalId = Annotated[str, Depends(_approval_id)]


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer JSON: what was stored comes out as it was stored."""
    text = values.encode(body, limit=MAX_ANSWER_BYTES, what="answer")
    return Response(
        text, status, {"Cache-Control": "private, no-cache", **(headers or {})}, "application/json"
    )


async def hold(asked: Asked, view: TaskView, seconds: int | None) -> TaskView:
    """Wait up to ``seconds`` for a task's end, and answer the task as it stands then."""
    if not seconds or view.ended_at is not None:
        return view
    try:
        return await asked.closing.unless_closed(asked.app.wait(view.id, tenant=view.tenant, timeout=seconds))
    except (TimeoutError, Stopping):
        return await asked.app.get(view.id, tenant=view.tenant)


EVERY_ROUTE = ("unauthorized", "forbidden", "invalid_request", "internal_error", "store_unavailable")


PUBLIC_ROUTE = tuple(code for code in EVERY_ROUTE if code not in ("unauthorized", "forbidden"))
"""What routes may that take no key."""


def refusals(*codes: str, public: bool = False) -> dict[int | str, dict[str, Any]]:
    """Describe in OpenAPI which problems a route answers with, besides what every route may. public: it takes
    no key."""
    described: dict[int | str, dict[str, Any]] = {}
    for code in (*(PUBLIC_ROUTE if public else EVERY_ROUTE), *codes):
        status, title = PROBLEMS[code]
        entry = described.setdefault(
            status,
            {
                "description": title,
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        )
        if title not in entry["description"]:
            entry["description"] += f"; {title[0].lower()}{title[1:]}"
    return described


def described(text: str) -> dict[str, Any]:
    """Describe a header of an answer in OpenAPI."""
    return {"description": text, "schema": {"type": "string"}}


KEY: Final = "1 to 255 characters, bare or as a structured field string (RFC 9651)."
REPLAYED: Final = described("`true` when this is the first task of the same key.")


def reads(**headers: str) -> dict[str, Any]:
    """Describe in OpenAPI the headers that a route reads for itself, by their grammars."""
    return {
        "parameters": [
            {
                "name": name.replace("_", "-"),
                "in": "header",
                "required": False,
                "description": description,
                "schema": {"type": "string"},
            }
            for name, description in headers.items()
        ]
    }


WAIT = "`wait=N`: hold the answer up to N seconds (at most 60) for the task's end (RFC 7240)."
