"""Tasks: submit, list, read, wait, follow, signal, cancel."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Header, Path, Query, Request, Response

from outlast.errors import TaskEnded
from outlast.server import reading
from outlast.server.problem import Refused, pointing
from outlast.server.routes.asked import (
    KEY,
    REPLAYED,
    WAIT,
    AfterOperation,
    Around,
    Operating,
    Submitting,
    TaskId,
    answer,
    described,
    hold,
    reads,
    refusals,
)
from outlast.server.schemas.fields import NAME_SCHEMA, Name, OperationStateName, TaskStateName
from outlast.server.schemas.operations import OperationPage, operation_summary
from outlast.server.schemas.tasks import (
    AttemptPage,
    EventPage,
    NewCancel,
    NewTask,
    SignalStored,
    Task,
    TaskPage,
    TaskResult,
    attempt_body,
    event_body,
    result_body,
    summary_body,
    task_body,
    task_path,
)
from outlast.server.sse import SEND_TIMEOUT_S, EventStream
from outlast.views import TaskView

router = APIRouter(route_class=reading.StrictRoute, tags=["tasks"])

LIVE: Final = {"Retry-After": "1"}

FRAME: Final = {
    "type": "object",
    "description": "One frame; `stream.overrun` and `stream.stopping` have no id.",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "description": "The event's number."},
        "event": {"type": "string", "description": "The event's kind."},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/Event"},
        },
    },
}
"""How OpenAPI describes a stream: by one of its frames."""


@router.post(
    "/tasks",
    status_code=202,
    response_model=Task,
    responses={
        200: {"model": Task, "description": "The task has ended within the wait that was asked for"},
        202: {
            "description": "The task is stored",
            "headers": {
                "Location": described("Where the task is."),
                "Retry-After": described("Seconds to wait before asking for it."),
                "Idempotent-Replayed": REPLAYED,
            },
        },
        **refusals(
            "bad_json", "body_too_large", "unsupported_media_type", "not_allowed", "idempotency_conflict"
        ),
    },
    openapi_extra=reads(
        Idempotency_Key=KEY,
        Prefer=WAIT,
        traceparent="W3C Trace Context; goes with the task.",
    ),
)
async def submit_task(body: NewTask, request: Request, asked: Submitting) -> Response:
    """Accept a task: when this answers, it is stored.

    The same Idempotency-Key with the same request answers the first task; with another request it is refused.
    """
    with pointing("/input"):
        handle = await asked.app.submit(
            body.agent,
            body.input,
            key=reading.idempotency_key(request),
            tenant=asked.caller.tenant,
            user=body.user,
            pool=body.pool,
            priority=body.priority,
            deadline=body.deadline,
            run_at=body.run_at,
            version=body.version,
            budget=None if body.budget is None else body.budget.model_dump(exclude_none=True),
            trace=reading.traceparent(request),
        )
    wait = reading.preferred_wait(request)
    view = await hold(asked, await handle.get(), wait)
    headers = {"Location": task_path(asked.root, view.id)}
    if handle.replayed:
        headers["Idempotent-Replayed"] = "true"
    if wait is not None:
        headers["Preference-Applied"] = f"wait={wait}"
    if view.ended_at is None:
        headers |= LIVE
    ended_in_time = wait is not None and view.ended_at is not None
    return answer(task_body(view, asked.root), 200 if ended_in_time else 202, headers)


@router.get("/tasks", response_model=TaskPage, responses=refusals())
async def list_tasks(
    asked: Around,
    state: Annotated[TaskStateName | None, Query(description="Only tasks in this state.")] = None,
    agent: Annotated[Name | None, Query(description="Only tasks of this agent.")] = None,
    parent: Annotated[
        str | None, Query(description="Only children of this task.", pattern=r"^task_[0-9a-z]{26}$")
    ] = None,
    before: Annotated[
        str | None,
        Query(description="Below this task: `next` of the page before.", pattern=r"^task_[0-9a-z]{26}$"),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """List the tenant's tasks, newest first."""
    views = await asked.app.list(
        tenant=asked.caller.tenant, state=state, agent=agent, parent=parent, before=before, limit=limit
    )
    following = views[-1].id if len(views) == limit else None
    return answer({"items": [summary_body(view, asked.root) for view in views], "next": following})


@router.get(
    "/tasks/{task}",
    response_model=Task,
    responses={
        304: {"description": "It has not changed since the entity tag that was sent"},
        **refusals("task_not_found"),
    },
    openapi_extra=reads(Prefer=WAIT, If_None_Match="An entity tag that was seen."),
)
async def read_task(request: Request, asked: Around, task: TaskId) -> Response:
    """Read a task as it stands."""
    wait = reading.preferred_wait(request)
    view = await hold(asked, await asked.app.get(task, tenant=asked.caller.tenant), wait)
    headers = state_headers(view, wait)
    if reading.etag_matches(request, headers["ETag"]):
        return Response(None, 304, {"Cache-Control": "private, no-cache", **headers})
    return answer(task_body(view, asked.root), 200, headers)


@router.get(
    "/tasks/{task}/result",
    response_model=TaskResult,
    responses={
        202: {"model": TaskResult, "description": "The task has not ended"},
        **refusals("task_not_found"),
    },
    openapi_extra=reads(Prefer=WAIT),
)
async def read_result(request: Request, asked: Around, task: TaskId) -> Response:
    """Read how a task ended: 200 whether it succeeded, failed or was cancelled, which `state` says."""
    wait = reading.preferred_wait(request)
    view = await hold(asked, await asked.app.get(task, tenant=asked.caller.tenant), wait)
    return answer(result_body(view), 202 if view.ended_at is None else 200, state_headers(view, wait))


@router.get(
    "/tasks/{task}/events",
    response_model=EventPage,
    responses={
        200: {
            "description": "Events above the position; a stream (the default), or a page of JSON",
            "content": {"text/event-stream": {"schema": FRAME}},
        },
        204: {"description": "The task has ended and its last event has been seen; there is nothing more"},
        **refusals("task_not_found"),
    },
)
async def follow_events(
    request: Request,
    asked: Around,
    task: TaskId,
    after: Annotated[int, Query(ge=0, le=2**53, description="Events with numbers above this.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="Events in a page of JSON, at most.")] = 500,
    last_event_id: Annotated[
        int | None, Header(alias="Last-Event-ID", ge=0, le=2**53, description="As `after`, and wins over it.")
    ] = None,
) -> Response:
    """Follow a task's events: first what is kept, then what comes, until it has ended.

    A task that is tried again goes on, with higher numbers.
    """
    if last_event_id is not None:
        after = last_event_id
    if reading.wants_json(request):
        events = await asked.app.stored_events(task, tenant=asked.caller.tenant, after=after, limit=limit)
        # Only then: a task that has ended by now may have begun its next round, or been judged.
        view = await asked.app.get(task, tenant=asked.caller.tenant)
        reached = events[-1].number if events else after
        ended = view.ended_at is not None and reached >= view.last_event
        return answer({"items": [event_body(event) for event in events], "next": None if ended else reached})
    view = await asked.app.get(task, tenant=asked.caller.tenant)
    if view.ended_at is not None and after >= view.last_event:
        return Response(None, 204)
    following = asked.app.events(task, tenant=asked.caller.tenant, after=after)
    return EventStream(
        following, asked.closing, keep_alive_s=request.app.state.keep_alive_s, send_timeout_s=SEND_TIMEOUT_S
    )


@router.get("/tasks/{task}/attempts", response_model=AttemptPage, responses=refusals("task_not_found"))
async def list_attempts(asked: Around, task: TaskId) -> Response:
    """List a task's attempts, oldest first."""
    await asked.app.get(task, tenant=asked.caller.tenant)
    attempts = await asked.app.attempts(task, tenant=asked.caller.tenant)
    return answer({"items": [attempt_body(attempt) for attempt in attempts], "next": None})


@router.get("/tasks/{task}/operations", response_model=OperationPage, responses=refusals("task_not_found"))
async def list_task_operations(
    asked: Around,
    task: TaskId,
    state: Annotated[OperationStateName | None, Query(description="Only operations in this state.")] = None,
    after: AfterOperation = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 100,
) -> Response:
    """List a task's ledger in order, without the arguments and results."""
    tenant = asked.caller.tenant
    await asked.app.get(task, tenant=tenant)
    views = await asked.app.operations.list(task=task, state=state, tenant=tenant, after=after, limit=limit)
    following = views[-1].id if len(views) == limit else None
    return answer({"items": [operation_summary(each, asked.root) for each in views], "next": following})


@router.post(
    "/tasks/{task}/cancel",
    response_model=Task,
    responses={
        200: {
            "description": "It is cancelled, now or since before",
            "headers": {"Idempotent-Replayed": described("`true` when it was cancelled before.")},
        },
        202: {"model": Task, "description": "It begins nothing new but to undo, and ends as cancelled"},
        **refusals(
            *("bad_json", "body_too_large", "unsupported_media_type"),
            *("not_allowed", "task_not_found", "task_ended"),
        ),
    },
)
async def cancel_task(body: NewCancel, asked: Operating, task: TaskId) -> Response:
    """Cancel a task: what is answered agrees with how it ends.

    Cancelling twice is no error. A task that ended otherwise answers 409 with its end.
    """
    tenant = asked.caller.tenant
    try:
        reply = await asked.app.cancel(
            task, reason=body.reason, by=asked.caller.name, undo=body.undo, tenant=tenant
        )
    except TaskEnded as ended:
        view = await asked.app.get(task, tenant=tenant)
        raise Refused(ended.code, str(ended), state=ended.state, task=task_body(view, asked.root)) from None
    view = await asked.app.get(task, tenant=tenant)
    headers = state_headers(view, None)
    if reply.kind == "already":
        headers["Idempotent-Replayed"] = "true"
    return answer(task_body(view, asked.root), 202 if reply.kind == "requested" else 200, headers)


@router.post(
    "/tasks/{task}/signals/{name:path}",
    status_code=202,
    response_model=SignalStored,
    responses={
        202: {
            "description": "The signal is stored",
            "headers": {"Idempotent-Replayed": described("`true` when it was sent before, with this key.")},
        },
        **refusals(
            *("bad_json", "body_too_large", "unsupported_media_type", "not_allowed"),
            *("task_not_found", "task_ended", "signal_conflict", "inbox_full"),
        ),
    },
    openapi_extra=reads(Idempotency_Key="1 to 255 characters; a repeat with the same data is stored once."),
)
async def send_signal(
    request: Request,
    asked: Submitting,
    task: TaskId,
    name: Annotated[str, Path(pattern=NAME_SCHEMA["pattern"], description="What a wait asks for.")],
    data: Annotated[Any, Body(description="The data: any JSON value.")] = None,
) -> Response:
    """Send a task a signal: when this answers, it is stored, whether the task waits for it yet or not."""
    posted = await asked.app.signal(
        task, name, data, key=reading.idempotency_key(request), tenant=asked.caller.tenant
    )
    headers = {"Idempotent-Replayed": "true"} if posted.kind == "replayed" else {}
    return answer({"task": task, "name": name, "number": posted.number}, 202, headers)


def state_headers(view: TaskView, wait: int | None) -> dict[str, str]:
    """Answer the headers that tell a task's representations apart, and when to ask again."""
    # Every change of a task appends an event, so its last number and state tell representations apart.
    headers = {"ETag": f'W/"{view.round}-{view.last_event}-{view.state}"'}
    if view.ended_at is None:
        headers |= LIVE
    if wait is not None:
        headers["Preference-Applied"] = f"wait={wait}"
    return headers
