"""What people decide beside single operations: switches that stop new calls, and the audit trail."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from outlast.server.schemas.fields import BY, Body, ShortText, written
from outlast.views import AuditView, PauseView


class NewPause(Body):
    """Why calls are to stop."""

    reason: Annotated[ShortText, Field(description="Why; kept in the audit trail.")]
    by: Annotated[ShortText | None, Field(description=BY)] = None


class Pause(BaseModel):
    """A switch that stops new calls, from the next one on; what is under way goes on."""

    tenant: Annotated[str, Field(description="Whose calls it stops; `*` for everybody's.")]
    scope: Annotated[str, Field(description="`all`, or `tool:<name>`.")]
    everybody: Annotated[bool, Field(description="Whether it stands for every tenant.")]
    reason: str
    by: str
    at: datetime


class PausePage(BaseModel):
    """The switches that stand."""

    items: list[Pause]
    next: None = None


class Decision(BaseModel):
    """Who decided what, about what, and why."""

    number: int
    at: datetime
    who: str
    what: Annotated[
        str,
        Field(description="Such as `settle:<verdict>`, `pause:<scope>`, `cancel` or `schedule:<change>`."),
    ]
    subject: str
    reason: str
    data: Any


class AuditPage(BaseModel):
    """Decisions, oldest first. ``next``: what to send as ``after`` for the next page."""

    items: list[Decision]
    next: int | None


def pause_body(view: PauseView, tenant: str) -> dict[str, Any]:
    """Write a switch as a tenant sees it."""
    return {
        "tenant": view.tenant,
        "scope": view.scope,
        "everybody": view.tenant != tenant,
        "reason": view.reason,
        "by": view.by,
        "at": written(view.at),
    }


def decision_body(view: AuditView) -> dict[str, Any]:
    """Write a decision."""
    return {
        "number": view.number,
        "at": written(view.at),
        "who": view.who,
        "what": view.what,
        "subject": view.subject,
        "reason": view.reason,
        "data": view.data,
    }
