"""What every route is given: the app, who calls, and answers in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Response

from outlast.app import Outlast
from outlast.core import ids, values
from outlast.errors import InvalidKey, OperationNotFound, TaskNotFound
from outlast.server.auth import Principal, principal
from outlast.server.closing import Closing, Stopping
from outlast.server.problem import MAX_ANSWER_BYTES, MEDIA_TYPE, PROBLEMS
from outlast.views import TaskView


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request's surroundings: the app, who calls, what tells of a stop, the path it is mounted under."""

    app: Outlast
    caller: Principal
    closing: Closing
    root: str


async def _asked(request: Request) -> Asked:
    state = request.app.state
    return Asked(
        app=state.outlast,
        caller=principal(request),
        closing=state.closing,
        root=str(request.scope.get("root_path", "")).rstrip("/"),
    )


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


# One dependency a request: FastAPI takes a good part of a millisecond for a handful of them.
Around = Annotated[Asked, Depends(_asked)]
TaskId = Annotated[str, Depends(_task_id)]
OperationId = Annotated[str, Depends(_operation_id)]


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


def refusals(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Describe in OpenAPI which problems a route answers with, besides what every route may."""
    described: dict[int | str, dict[str, Any]] = {}
    for code in (
        "unauthorized",
        "forbidden",
        "invalid_request",
        "internal_error",
        "store_unavailable",
        *codes,
    ):
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
