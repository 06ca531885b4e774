"""Operations of the ledger, their evidence, and how a person settles one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, Field

from outlast.ledger import PlanView
from outlast.ledger import ToolStats as Stats
from outlast.server.schemas.fields import BY, Body, ShortText, written
from outlast.server.schemas.tasks import Event, task_path
from outlast.views import EvidenceView, OperationView, QueueView


class NewSettlement(Body):
    """What a person records of an unknown outcome."""

    verdict: Annotated[
        Literal["happened", "did_not_happen", "send_again"],
        Field(description="`send_again` repeats the call under the same key."),
    ]
    reason: Annotated[ShortText, Field(description="Why; kept as evidence.")]
    by: Annotated[ShortText | None, Field(description=BY)] = None
    result: Annotated[Any, Field(description="What the agent is to see of the call, when it happened.")] = (
        None
    )
    turn: Annotated[
        int | None,
        Field(
            strict=True,
            ge=0,
            le=2**31 - 1,
            description="The turn that was seen: refused when it has moved on.",
        ),
    ] = None
    forced: Annotated[
        bool,
        Field(
            strict=True,
            description="Settle so although the call may still be under way, or its effect may not show yet:"
            " `did_not_happen` and `send_again` are refused before `visible_at` otherwise.",
        ),
    ] = False


class OperationLinks(BaseModel):
    """Where to go from an operation."""

    self: str
    task: str
    settle: str
    plan: str


class OperationSummary(BaseModel):
    """One durable thing that a task does, as a list shows it."""

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
    idempotency_key: Annotated[
        str, Field(description="What the other side saw: `id`, unless a fork has taken it over.")
    ]
    fingerprint: str
    business_key: Annotated[str | None, Field(description="What the call is about, where the tool says so.")]
    error: dict[str, Any] | None
    settled_by: str | None
    usage: Annotated[
        dict[str, Any] | None, Field(description="Tokens and cost that it has spent, where it said so.")
    ]
    created_at: datetime
    intent_at: datetime | None
    deadline_at: datetime | None
    visible_at: Annotated[
        datetime | None,
        Field(description="Until when an effect of the last attempt may still show, as its tool said then."),
    ]
    due_at: datetime | None
    ended_at: datetime | None
    links: OperationLinks


class Operation(OperationSummary):
    """One durable thing that a task does."""

    arguments: Any
    result: Any


class Evidence(BaseModel):
    """What was asked, answered, came late, or was said by a person."""

    number: int
    attempt: int
    source: str
    at: datetime
    data: Any


class QueuePlace(BaseModel):
    """A place in the reconciliation queue."""

    since: Annotated[datetime, Field(description="When it became unknown.")]
    asked: Annotated[int, Field(description="Questions to the other side so far.")]
    unusable: Annotated[int, Field(description="Those in a row that brought no evidence.")]
    ask_at: Annotated[
        datetime | None, Field(description="When it is asked about next; null where nobody asks any more.")
    ]
    sender_gone: Annotated[bool, Field(description="Whoever made the last attempt cannot send any more.")]
    why: Annotated[str, Field(description="The plan, for people.")]
    resend: Annotated[bool, Field(description="Settled as to be sent again, which its task is to do.")]
    needs_person: Annotated[bool, Field(description="Nobody but a person can settle it.")]


class QueuedOperation(OperationSummary):
    """An operation with its place in the reconciliation queue; null when it is not in it."""

    queue: QueuePlace | None


class OperationInFull(Operation):
    """An operation with everything that is known of it. ``queue``: its place in the reconciliation queue,
    null when it is not in it. ``timeline``: its events, oldest first."""

    queue: QueuePlace | None
    evidence: Annotated[list[Evidence], Field(description="Oldest first; if it is not all, the newest.")]
    evidence_earlier: Annotated[
        int | None, Field(description="Pass it as `evidence_before` for what came earlier; null: nothing.")
    ]
    timeline: list[Event]


class OperationPlan(BaseModel):
    """What comes next for an operation, and why."""

    operation: str
    state: str
    action: Annotated[
        Literal["nothing", "happened", "did_not_happen", "send_again", "ask", "wait", "person"],
        Field(description="`nothing` where it is not unknown; `person` where somebody has to settle it."),
    ]
    why: str
    at: Annotated[datetime | None, Field(description="When, if not at once.")]
    asked: Annotated[int, Field(description="Questions to the other side so far.")]
    refused_until: Annotated[
        datetime | None,
        Field(
            description="Until when a person's `did_not_happen` and `send_again` are refused unless forced;"
            " null where they are not."
        ),
    ]


class ToolStats(BaseModel):
    """How the unknowns of a tool ended, whoever settled them."""

    tool: str
    unknown: Annotated[int, Field(description="Open now.")]
    happened: int
    did_not_happen: int
    sent_again: Annotated[
        int, Field(description="Each time counts: it may be unknown, and settled, once more.")
    ]
    share: Annotated[
        float | None,
        Field(description="Of `did_not_happen` among those that ended; null where none has.", ge=0, le=1),
    ]
    hint: Annotated[str | None, Field(description="What to do about a share that is telling.")]


class OperationStats(BaseModel):
    """How unknowns ended, by tool in the order of names."""

    items: list[ToolStats]


class OperationPage(BaseModel):
    """Operations. ``next``: what to send as ``after`` for the next page."""

    items: list[OperationSummary]
    next: str | None


class QueuePage(BaseModel):
    """Unknown operations. ``next``: what to send as ``after`` for the next page."""

    items: list[QueuedOperation]
    next: str | None


def operation_path(root: str, operation: str) -> str:
    """Where an operation is found."""
    return f"{root}/v1/operations/{quote(operation, safe=':')}"


def operation_body(view: OperationView, root: str) -> dict[str, Any]:
    """Write an operation."""
    return {**operation_summary(view, root), "arguments": view.arguments, "result": view.result}


def operation_summary(view: OperationView, root: str) -> dict[str, Any]:
    """Write an operation as a list shows it."""
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
        "idempotency_key": view.idempotency_key,
        "fingerprint": view.fingerprint,
        "business_key": view.business_key,
        "error": view.error,
        "settled_by": view.settled_by,
        "usage": view.usage,
        "created_at": written(view.created_at),
        "intent_at": written(view.intent_at),
        "deadline_at": written(view.deadline_at),
        "visible_at": written(view.visible_at),
        "due_at": written(view.due_at),
        "ended_at": written(view.ended_at),
        "links": {
            "self": here,
            "task": task_path(root, view.task),
            "settle": f"{here}/settle",
            "plan": f"{here}/plan",
        },
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


def place_body(view: QueueView | None) -> dict[str, Any] | None:
    """Write a place in the reconciliation queue."""
    if view is None:
        return None
    return {
        "since": written(view.since),
        "asked": view.asked,
        "unusable": view.unusable,
        "ask_at": written(view.ask_at),
        "sender_gone": view.sender_gone,
        "why": view.why,
        "resend": view.resend,
        "needs_person": view.needs_person,
    }


def plan_body(view: PlanView) -> dict[str, Any]:
    """Write what comes next for an operation."""
    return {
        "operation": view.operation,
        "state": view.state,
        "action": view.action,
        "why": view.why,
        "at": written(view.at),
        "asked": view.asked,
        "refused_until": written(view.refused_until),
    }


def stats_body(view: Stats) -> dict[str, Any]:
    """Write how the unknowns of a tool ended."""
    return {
        "tool": view.tool,
        "unknown": view.unknown,
        "happened": view.happened,
        "did_not_happen": view.did_not_happen,
        "sent_again": view.sent_again,
        "share": view.share,
        "hint": view.hint,
    }
