"""Trying again, forks, versions, verdicts on finished work, events of outside sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from outlast.changing import AcceptanceView, Rehearsal, VersionView
from outlast.server.schemas.fields import Body, Length, Name, ShortText, written

Why = Annotated[ShortText, Field(description="Why; kept in the audit trail.")]


class NewRetry(Body):
    """Why a task is to be tried again, and how long that may take."""

    reason: Why
    deadline: Annotated[
        Length | None, Field(description="How long the round may take; as its agent declares by default.")
    ] = None


class NewFork(Body):
    """From where on a new task goes its own way."""

    reason: Why
    before: Annotated[
        str | None,
        Field(
            strict=True,
            min_length=1,
            max_length=200,
            description="Key of the first operation that the fork does anew; null takes over all that ended.",
        ),
    ] = None
    input: Annotated[dict[str, Any] | None, Field(description="Another input; the same by default.")] = None
    version: Annotated[Name | None, Field(description="Another version of its agent.")] = None


class NewWake(Body):
    """Why a task is to look again."""

    reason: Why


class NewAdoption(Body):
    """To which version a task is to be bound."""

    reason: Why
    version: Annotated[
        Name | None, Field(description="One that this service has; its latest by default.")
    ] = None
    dry_run: Annotated[bool, Field(strict=True, description="Say what would be, and change nothing.")] = False
    leave_effects: Annotated[
        bool,
        Field(strict=True, description="Bind it although there are `effects_left`: somebody has looked."),
    ] = False


class NewAcceptance(Body):
    """What somebody says of finished work."""

    verdict: Literal["accepted", "rejected"]
    reason: Why
    evidence: Annotated[Any, Field(description="What shows it: any JSON value.")] = None
    seen: Annotated[
        int | None,
        Field(
            strict=True,
            ge=0,
            le=2**31 - 1,
            description="How many verdicts were seen: refused if there are more.",
        ),
    ] = None


class NewOutsideEvent(Body):
    """What happened in an outside session."""

    event: Annotated[
        ShortText, Field(description="Its id at the provider; the same one is taken once, however it comes.")
    ]
    run: Annotated[ShortText | None, Field(description="The run within the session, if it is of one.")] = None
    data: Annotated[Any, Field(description="What its agent is to see: any JSON value.")] = None


class Version(BaseModel):
    """How many live tasks need a version of an agent."""

    agent: str
    version: Annotated[str | None, Field(description="null for those that no worker has bound yet.")]
    queued: int
    running: int
    waiting: int
    served_by: Annotated[
        int, Field(description="Living workers that serve it; with none its tasks wait, and cost nothing.")
    ]


class VersionPage(BaseModel):
    """The versions that live tasks need."""

    items: list[Version]
    next: None = None


class Adoption(BaseModel):
    """What a version's code makes of a task's journal, and whether the task is bound to it now."""

    task: str
    adopted: bool
    from_version: str
    version: str
    fits: Annotated[bool, Field(description="Whether the code can take the journal over.")]
    met: Annotated[int, Field(description="Operations that the code asked for and the journal answered.")]
    differences: Annotated[
        list[str], Field(description="Where it asks for other operations than the journal holds.")
    ]
    left_over: Annotated[
        list[str], Field(description="Keys of those that it was past and did not ask for; they stand.")
    ]
    not_reached: Annotated[
        list[str],
        Field(description="Keys of those behind the place where it goes on; asked for yet, or never."),
    ]
    effects_left: Annotated[
        list[str],
        Field(
            description="Keys of calls that may have acted and were not asked for; with any, nothing is"
            " adopted unless `leave_effects` says so."
        ),
    ]
    goes_on_at: Annotated[list[str], Field(description="Keys of what it would do next.")]
    ended: Annotated[bool, Field(description="The code came to its end.")]
    failed: Annotated[str | None, Field(description="What it raised by itself.")]


class Acceptance(BaseModel):
    """A verdict on finished work; the last one of a round stands."""

    round: int
    number: int
    verdict: Literal["accepted", "rejected"]
    by: str
    reason: str
    evidence: Any
    at: datetime


class AcceptancePage(BaseModel):
    """The verdicts on a task's work, oldest first."""

    items: list[Acceptance]
    next: None = None


class OutsideTaken(BaseModel):
    """The event lies before the task; ``repeated`` when it did before."""

    task: str
    status: Literal["accepted", "repeated"]


def version_body(view: VersionView) -> dict[str, Any]:
    """Write how many tasks need a version."""
    return {
        "agent": view.agent,
        "version": view.version,
        "queued": view.queued,
        "running": view.running,
        "waiting": view.waiting,
        "served_by": view.served_by,
    }


def adoption_body(found: Rehearsal) -> dict[str, Any]:
    """Write what code makes of a journal."""
    return {
        "task": found.task,
        "adopted": found.adopted,
        "from_version": found.from_version,
        "version": found.version,
        "fits": found.fits,
        "met": found.met,
        "differences": list(found.differences),
        "left_over": list(found.left_over),
        "not_reached": list(found.not_reached),
        "effects_left": list(found.effects_left),
        "goes_on_at": list(found.goes_on_at),
        "ended": found.ended,
        "failed": found.failed,
    }


def acceptance_body(view: AcceptanceView) -> dict[str, Any]:
    """Write a verdict."""
    return {
        "round": view.round,
        "number": view.number,
        "verdict": view.verdict,
        "by": view.by,
        "reason": view.reason,
        "evidence": view.evidence,
        "at": written(view.at),
    }
