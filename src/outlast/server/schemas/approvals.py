"""Questions to people, their decisions, links to them, and standing rules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, Field

from outlast.server.schemas.fields import Body, Length, Name, Reason, ShortText, written
from outlast.server.schemas.operations import operation_path
from outlast.server.schemas.tasks import task_path
from outlast.views import ApprovalView, RuleView, VoteView

ApprovalStateName = Literal["pending", "approved", "rejected", "expired", "withdrawn", "used"]
Fingerprint = Annotated[ShortText, Field(description="Of the approval as it was seen.")]


class NewDecision(Body):
    """What a person decides, about exactly what they have seen."""

    verdict: Annotated[
        Literal["approve", "reject", "answer"],
        Field(description="`answer` for a question, `approve` for a call, `reject` for both."),
    ]
    fingerprint: Fingerprint
    reason: Annotated[Reason, Field(description="Why; kept in the audit trail.")] = ""
    arguments: Annotated[
        dict[str, Any] | None,
        Field(description="With `approve`: what to send instead; decides a new fingerprint."),
    ] = None
    answer: Annotated[Any, Field(description="With `answer`: what is said.")] = None


class NewLink(Body):
    """For whom a link is, and how long it stands."""

    to: Annotated[ShortText, Field(description="The person by whose name it decides.")]
    expires_in: Annotated[
        Length, Field(description="30 days at most, and never beyond the approval's own time.")
    ] = "1d"


class Link(BaseModel):
    """A link for one person to one approval: it shows what will be done, and decides in a second step."""

    url: str
    to: str
    expires_at: datetime


class ApprovalLinks(BaseModel):
    """Where to go from an approval."""

    self: str
    decision: str
    links: str
    task: str
    operation: str


class Approval(BaseModel):
    """A question to people. ``shown``: all that will be done, or all that is asked."""

    id: str
    tenant: str
    task: str
    operation: Annotated[str, Field(description="What waits for it.")]
    subject: Literal["call", "question"]
    state: ApprovalStateName
    name: Annotated[str, Field(description="The tool that is to be called; `ask` for a question.")]
    fingerprint: Annotated[str, Field(description="What a decision has to name.")]
    shown: Any
    reason: str
    roles: Annotated[list[str], Field(description="Who may decide; every approver where it is empty.")]
    quorum: Annotated[int, Field(description="How many have to agree.")]
    votes: Annotated[int, Field(description="How many have.")]
    four_eyes: Annotated[bool, Field(description="Whoever the task is for may not decide.")]
    requester: str | None
    policy: str
    edited: Annotated[bool, Field(description="An approver changed the arguments.")]
    answer: Any
    created_at: datetime
    expires_at: datetime | None
    decided_at: datetime | None
    decided_by: str | None
    decision_reason: str | None
    used_at: datetime | None
    links: ApprovalLinks


class Vote(BaseModel):
    """One person's word, about the fingerprint that they saw."""

    who: str
    verdict: str
    fingerprint: str
    reason: str
    via: str
    at: datetime


class ApprovalInFull(Approval):
    """An approval with who said what about it, oldest first."""

    votes_cast: list[Vote]


class ApprovalPage(BaseModel):
    """Approvals, oldest first. ``next``: what to send as ``after`` for the next page."""

    items: list[Approval]
    next: str | None


class NewRule(Body):
    """A standing rule for a tool's calls inside bounds."""

    tool: Annotated[Name, Field(description="The tool.")]
    verdict: Annotated[
        Literal["allow", "deny"], Field(description="What needs no question, or never is done.")
    ]
    reason: Annotated[ShortText, Field(description="Why; kept in the audit trail.")]
    bounds: Annotated[
        dict[str, dict[str, Any]],
        Field(
            default_factory=dict,
            description="By argument: `max`, `min`, `equals`, `one_of`; every call where it is empty.",
        ),
    ]


class Rule(BaseModel):
    """A standing rule: policy, not a decision."""

    number: int
    tenant: str
    tool: str
    verdict: Literal["allow", "deny"]
    bounds: dict[str, dict[str, Any]]
    by: str
    reason: str
    at: datetime


class RulePage(BaseModel):
    """The rules that stand, by tool."""

    items: list[Rule]
    next: None = None


def approval_path(root: str, approval: str) -> str:
    """Where an approval is found."""
    return f"{root}/v1/approvals/{quote(approval, safe=':~')}"


def approval_body(view: ApprovalView, root: str) -> dict[str, Any]:
    """Write an approval."""
    here = approval_path(root, view.id)
    return {
        "id": view.id,
        "tenant": view.tenant,
        "task": view.task,
        "operation": view.operation,
        "subject": view.subject,
        "state": view.state,
        "name": view.name,
        "fingerprint": view.fingerprint,
        "shown": view.shown,
        "reason": view.reason,
        "roles": list(view.roles),
        "quorum": view.quorum,
        "votes": view.votes,
        "four_eyes": view.four_eyes,
        "requester": view.requester,
        "policy": view.policy,
        "edited": view.edited,
        "answer": view.answer,
        "created_at": written(view.created_at),
        "expires_at": written(view.expires_at),
        "decided_at": written(view.decided_at),
        "decided_by": view.decided_by,
        "decision_reason": view.decision_reason,
        "used_at": written(view.used_at),
        "links": {
            "self": here,
            "decision": f"{here}/decision",
            "links": f"{here}/links",
            "task": task_path(root, view.task),
            "operation": operation_path(root, view.operation),
        },
    }


def vote_body(view: VoteView) -> dict[str, Any]:
    """Write one person's word."""
    return {
        "who": view.who,
        "verdict": view.verdict,
        "fingerprint": view.fingerprint,
        "reason": view.reason,
        "via": view.via,
        "at": written(view.at),
    }


def rule_body(view: RuleView) -> dict[str, Any]:
    """Write a standing rule."""
    return {
        "number": view.number,
        "tenant": view.tenant,
        "tool": view.tool,
        "verdict": view.verdict,
        "bounds": view.bounds,
        "by": view.by,
        "reason": view.reason,
        "at": written(view.at),
    }
