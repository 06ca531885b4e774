"""Operations of the ledger, their evidence, and how a person settles one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, Field

from outlast.server.schemas.fields import Body, ShortText, written
from outlast.server.schemas.tasks import task_path
from outlast.views import EvidenceView, OperationView


class NewSettlement(Body):
    """What a person records of an unknown outcome."""

    verdict: Annotated[
        Literal["happened", "did_not_happen", "send_again"],
        Field(description="`send_again` repeats the call under the same key."),
    ]
    reason: Annotated[ShortText, Field(description="Why; kept as evidence.")]
    by: Annotated[ShortText | None, Field(description="Who says so; the caller's key by default.")] = None
    result: Annotated[Any, Field(description="What the agent is to see of the call, when it happened.")] = (
        None
    )
    turn: Annotated[
        int | None,
        Field(
            strict=True, ge=0, le=2**53, description="The turn that was seen: refused when it has moved on."
        ),
    ] = None
    forced: Annotated[
        bool,
        Field(strict=True, description="Settle as not happened although the call may still be under way."),
    ] = False


class OperationLinks(BaseModel):
    """Where to go from an operation."""

    self: str
    task: str
    settle: str


class Operation(BaseModel):
    """One durable thing that a task does. ``id`` is the idempotency key that the other side saw."""

    id: str
    task: str
    key: str
    position: int
    kind: str
    name: str
    state: str
    effect: str | None
    attempt: int
    turn: int
    epoch: int
    fingerprint: str
    arguments: Any
    result: Any
    error: dict[str, Any] | None
    settled_by: str | None
    created_at: datetime
    intent_at: datetime | None
    deadline_at: datetime | None
    due_at: datetime | None
    ended_at: datetime | None
    links: OperationLinks


class Evidence(BaseModel):
    """What was asked, answered, came late, or was said by a person."""

    number: int
    attempt: int
    source: str
    at: datetime
    data: Any


class OperationWithEvidence(Operation):
    """An operation with everything that is known of it."""

    evidence: list[Evidence]


class OperationPage(BaseModel):
    """Operations. ``next``: what to send as ``after`` for the next page."""

    items: list[Operation]
    next: str | None


def operation_path(root: str, operation: str) -> str:
    """Where an operation is found."""
    return f"{root}/v1/operations/{quote(operation, safe=':')}"


def operation_body(view: OperationView, root: str) -> dict[str, Any]:
    """Write an operation."""
    here = operation_path(root, view.id)
    return {
        "id": view.id,
        "task": view.task,
        "key": view.key,
        "position": view.position,
        "kind": view.kind,
        "name": view.name,
        "state": view.state,
        "effect": view.effect,
        "attempt": view.attempt,
        "turn": view.turn,
        "epoch": view.epoch,
        "fingerprint": view.fingerprint,
        "arguments": view.arguments,
        "result": view.result,
        "error": view.error,
        "settled_by": view.settled_by,
        "created_at": written(view.created_at),
        "intent_at": written(view.intent_at),
        "deadline_at": written(view.deadline_at),
        "due_at": written(view.due_at),
        "ended_at": written(view.ended_at),
        "links": {"self": here, "task": task_path(root, view.task), "settle": f"{here}/settle"},
    }


def evidence_body(view: EvidenceView) -> dict[str, Any]:
    """Write a piece of evidence."""
    return {
        "number": view.number,
        "attempt": view.attempt,
        "source": view.source,
        "at": written(view.at),
        "data": view.data,
    }
