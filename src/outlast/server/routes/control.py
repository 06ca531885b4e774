"""Switches that stop a tenant's calls, and the audit trail of what people decided."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Response

from outlast.core import ids
from outlast.server.problem import Refused
from outlast.server.reading import StrictRoute
from outlast.server.routes.asked import Around, Operating, answer, refusals
from outlast.server.schemas.control import (
    AuditPage,
    NewPause,
    Pause,
    PausePage,
    decision_body,
    pause_body,
)
from outlast.server.schemas.fields import BY, ShortText
from outlast.views import PauseView

router = APIRouter(route_class=StrictRoute, tags=["control"])

SCOPE: Final = rf"^(all|tool:[A-Za-z0-9_.:/-]{{1,{ids.MAX_NAME_CHARS}}})$"
Scope = Annotated[str, Path(pattern=SCOPE, description="`all`, or `tool:<name>`.")]


async def _standing(asked: Around, scope: str) -> PauseView:
    """Answer the switch that stands for a scope, the tenant's own before everybody's. Raises Refused."""
    tenant = asked.caller.tenant
    found = [view for view in await asked.app.pauses.list(tenant=tenant) if view.scope == scope]
    if not found:
        raise Refused("not_found", f"no switch stands for {scope!r}")
    return min(found, key=lambda view: view.tenant != tenant)


@router.get("/pauses", response_model=PausePage, responses=refusals())
async def list_pauses(asked: Around) -> Response:
    """List the switches that stop the tenant's calls, those for everybody included."""
    tenant = asked.caller.tenant
    views = await asked.app.pauses.list(tenant=tenant)
    return answer({"items": [pause_body(view, tenant) for view in views], "next": None})


@router.get("/pauses/{scope:path}", response_model=Pause, responses=refusals("not_found"))
async def read_pause(asked: Around, scope: Scope) -> Response:
    """Read the switch that stands for a scope."""
    return answer(pause_body(await _standing(asked, scope), asked.caller.tenant))


@router.put(
    "/pauses/{scope:path}",
    response_model=Pause,
    responses=refusals("bad_json", "body_too_large", "unsupported_media_type", "not_allowed"),
)
async def set_pause(body: NewPause, asked: Operating, scope: Scope) -> Response:
    """Stop the tenant's new calls of a scope, from the next one on; what is under way goes on."""
    tenant = asked.caller.tenant
    await asked.app.pauses.set(scope, reason=body.reason, by=asked.caller.named(body.by), tenant=tenant)
    return answer(pause_body(await _standing(asked, scope), tenant))


@router.delete("/pauses/{scope:path}", status_code=204, responses=refusals("not_found", "not_allowed"))
async def clear_pause(
    asked: Operating,
    scope: Scope,
    reason: Annotated[ShortText, Query(description="Why; kept in the audit trail.")],
    by: Annotated[ShortText | None, Query(description=BY)] = None,
) -> Response:
    """Take the tenant's switch back; a switch for everybody is an operator's, and stays."""
    stood = await asked.app.pauses.clear(
        scope, reason=reason, by=asked.caller.named(by), tenant=asked.caller.tenant
    )
    if not stood:
        raise Refused("not_found", f"no switch of this tenant stands for {scope!r}")
    return Response(None, 204)


@router.get("/audit", response_model=AuditPage, responses=refusals())
async def read_audit(
    asked: Around,
    after: Annotated[int, Query(ge=0, le=2**53, description="Decisions with numbers above this.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Read who decided what, and why, oldest first."""
    views = await asked.app.pauses.audit(tenant=asked.caller.tenant, after=after, limit=limit)
    following = views[-1].number if len(views) == limit else None
    return answer({"items": [decision_body(view) for view in views], "next": following})
