"""Tasks, their attempts and events."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from outlast.server.schemas.fields import (
    Body,
    Instant,
    Length,
    Name,
    Reason,
    ShortText,
    TaskStateName,
    written,
)
from outlast.views import AttemptView, EventView, TaskView

Count = Annotated[int | None, Field(strict=True, ge=0, le=2**53 - 1)]


class Budget(Body):
    """Bounds on what a task may spend; what is left out bounds nothing."""

    operations: Annotated[Count, Field(description="Steps, calls and children that it begins.")] = None
    tokens: Annotated[Count, Field(description="As whoever calls a model counts them.")] = None
    cost: Annotated[
        Any,
        WithJsonSchema(
            {
                "anyOf": [{"type": "string", "pattern": r"^\d+(\.\d+)?$"}, {"type": "number", "minimum": 0}],
                "description": "An amount in the app's currency; as text it is exact.",
            }
        ),
    ] = None
    depth: Annotated[Count, Field(description="Generations of children below it.")] = None


class NewTask(Body):
    """What a caller asks for."""

    agent: Annotated[Name, Field(description="The agent that is to do it.")]
    input: Annotated[dict[str, Any] | None, Field(description="The agent's parameters by name.")] = None
    user: Annotated[ShortText | None, Field(description="For whom, within the tenant.")] = None
    pool: Annotated[Name | None, Field(description="Which workers; the agent's pool by default.")] = None
    priority: Annotated[
        int, Field(strict=True, ge=-1000, le=1000, description="Higher goes first among the tenant's own.")
    ] = 0
    deadline: Annotated[
        Length | None, Field(description="How long after acceptance the task must have ended.")
    ] = None
    run_at: Annotated[Instant | None, Field(description="Not to start before this instant.")] = None
    version: Annotated[Name | None, Field(description="A version of the agent to bind to.")] = None
    budget: Annotated[
        Budget | None, Field(description="Bounds on what the task, its steps and calls may spend.")
    ] = None


class NewCancel(Body):
    """Why a task is to end."""

    reason: Annotated[Reason, Field(description="Why; kept in the audit trail and in the task's error.")] = ""
    undo: Annotated[
        bool, Field(strict=True, description="Undo what it has done first, where its tools can.")
    ] = False


class SignalStored(BaseModel):
    """A signal as it was accepted."""

    task: str
    name: str
    number: Annotated[int, Field(description="Its place in the task's inbox.")]


class Failure(BaseModel):
    """Why something did not succeed."""

    code: str
    message: str


class TaskLinks(BaseModel):
    """Where to go from a task."""

    self: str
    events: str
    result: str
    attempts: str
    operations: str
    approvals: str
    cancel: str
    acceptance: str


class TaskSummary(BaseModel):
    """A task as a list shows it."""

    id: str
    tenant: str
    agent: str
    version: Annotated[str, Field(description="Empty until a worker has bound it.")]
    pool: str
    priority: int
    state: TaskStateName
    reason: Annotated[str | None, Field(description="What it waits for.")]
    epoch: Annotated[int, Field(description="The number of its latest lease; grows only.")]
    round: int
    attempts: int
    last_event: int
    effects_open: Annotated[
        int, Field(description="Side effects of which nobody knows yet whether they happened.")
    ]
    key: Annotated[str | None, Field(description="The idempotency key that it was submitted with.")]
    user: str | None
    error: Failure | None
    cancelling: Annotated[bool, Field(description="It is to end as cancelled; nothing new begins.")]
    parent: Annotated[str | None, Field(description="The task that it is a child of.")]
    children: Annotated[int, Field(description="Children that it has started.")]
    asks: Annotated[int, Field(description="Questions to people that are open.")]
    forked_from: Annotated[str | None, Field(description="The task whose journal it began with.")]
    accepted: Annotated[
        Literal["accepted", "rejected"] | None, Field(description="The verdict that stands on its work.")
    ]
    submitted_at: datetime
    ended_at: datetime | None
    deadline_at: datetime | None
    links: TaskLinks


class Task(TaskSummary):
    """A task as it stands."""

    input: Any
    result: Any
    budget: Annotated[dict[str, Any] | None, Field(description="The bounds on what it may spend.")]
    detail: Annotated[str | None, Field(description="What an operator is to know, while it waits for one.")]


class TaskPage(BaseModel):
    """Tasks, newest first. ``next``: what to send as ``before`` for the next page."""

    items: list[TaskSummary]
    next: str | None


class TaskResult(BaseModel):
    """How a task ended, or that it has not.

    ``result`` when ``state`` is succeeded, ``error`` when it is failed or cancelled, neither while it lives.
    """

    id: str
    state: TaskStateName
    result: Any
    error: Failure | None
    effects_open: int
    ended_at: datetime | None


class Event(BaseModel):
    """An event of a task's stream. ``number`` is dense and increasing; ``epoch`` names the attempt."""

    task: str
    number: int
    kind: str
    epoch: int
    at: datetime
    data: Any


class EventPage(BaseModel):
    """Events in order. ``next``: what to send as ``after`` for more; null when the final event has been
    seen."""

    items: list[Event]
    next: int | None


class Attempt(BaseModel):
    """One lease of a task: ``end`` is null while it stands."""

    epoch: int
    round: int
    worker: str
    session: str
    version: str
    started_at: datetime
    ended_at: datetime | None
    end: str | None


class AttemptPage(BaseModel):
    """A task's attempts, oldest first."""

    items: list[Attempt]
    next: None = None


def task_path(root: str, task: str) -> str:
    """Where a task is found."""
    return f"{root}/v1/tasks/{task}"


def summary_body(view: TaskView, root: str) -> dict[str, Any]:
    """Write a task for a list."""
    here = task_path(root, view.id)
    return {
        "id": view.id,
        "tenant": view.tenant,
        "agent": view.agent,
        "version": view.version,
        "pool": view.pool,
        "priority": view.priority,
        "state": view.state,
        "reason": view.reason,
        "epoch": view.epoch,
        "round": view.round,
        "attempts": view.attempts,
        "last_event": view.last_event,
        "effects_open": view.effects_open,
        "key": view.key,
        "user": view.user,
        "error": view.error,
        "cancelling": view.cancelling,
        "parent": view.parent,
        "children": view.children,
        "asks": view.asks,
        "forked_from": view.forked_from,
        "accepted": view.accepted,
        "submitted_at": written(view.submitted_at),
        "ended_at": written(view.ended_at),
        "deadline_at": written(view.deadline_at),
        "links": {
            "self": here,
            "events": f"{here}/events",
            "result": f"{here}/result",
            "attempts": f"{here}/attempts",
            "operations": f"{here}/operations",
            "approvals": f"{root}/v1/approvals?task={view.id}",
            "cancel": f"{here}/cancel",
            "acceptance": f"{here}/acceptance",
        },
    }


def task_body(view: TaskView, root: str) -> dict[str, Any]:
    """Write a task in full."""
    return {
        **summary_body(view, root),
        "input": view.input,
        "result": view.result,
        "budget": view.budget,
        "detail": view.detail,
    }


def result_body(view: TaskView) -> dict[str, Any]:
    """Write how a task ended."""
    return {
        "id": view.id,
        "state": view.state,
        "result": view.result,
        "error": view.error,
        "effects_open": view.effects_open,
        "ended_at": written(view.ended_at),
    }


def event_body(view: EventView) -> dict[str, Any]:
    """Write an event."""
    return {
        "task": view.task,
        "number": view.number,
        "kind": view.kind,
        "epoch": view.epoch,
        "at": written(view.at),
        "data": view.data,
    }


def attempt_body(view: AttemptView) -> dict[str, Any]:
    """Write an attempt."""
    return {
        "epoch": view.epoch,
        "round": view.round,
        "worker": view.worker,
        "session": view.session,
        "version": view.version,
        "started_at": written(view.started_at),
        "ended_at": written(view.ended_at),
        "end": view.end,
    }
