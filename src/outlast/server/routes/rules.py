"""Standing rules: what a tenant's calls may do without a question, or never."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from outlast.errors import RuleNotFound
from outlast.server.problem import pointing
from outlast.server.reading import StrictRoute
from outlast.server.routes.asked import Around, Operating, answer, refusals
from outlast.server.schemas.approvals import NewRule, Rule, RulePage, rule_body
from outlast.server.schemas.fields import ShortText

router = APIRouter(route_class=StrictRoute, tags=["rules"])


@router.get("/rules", response_model=RulePage, responses=refusals())
async def list_rules(asked: Around) -> Response:
    """List the rules that stand, by tool."""
    views = await asked.app.rules.list(tenant=asked.caller.tenant)
    return answer({"items": [rule_body(view) for view in views], "next": None})


@router.post(
    "/rules",
    status_code=201,
    response_model=Rule,
    responses=refusals("bad_json", "body_too_large", "unsupported_media_type", "not_allowed"),
)
async def put_rule(body: NewRule, asked: Operating) -> Response:
    """Let a rule stand, from the next call on. A decision on one call beats it, either way."""
    tenant = asked.caller.tenant
    with pointing("/bounds"):
        number = await asked.app.rules.put(
            body.tool,
            body.verdict,
            reason=body.reason,
            by=asked.caller.name,
            bounds=body.bounds,
            tenant=tenant,
        )
    for view in await asked.app.rules.list(tenant=tenant):
        if view.number == number:
            return answer(rule_body(view), 201)
    raise RuleNotFound(f"rule {number} was taken back at once")


@router.delete("/rules/{number}", status_code=204, responses=refusals("not_allowed", "rule_not_found"))
async def withdraw_rule(
    asked: Operating,
    number: Annotated[int, Path(ge=1, le=2**53, description="The rule's number.")],
    reason: Annotated[ShortText, Query(description="Why; kept in the audit trail.")],
) -> Response:
    """Take a rule back, for every call that has not begun."""
    await asked.app.rules.withdraw(number, reason=reason, by=asked.caller.name, tenant=asked.caller.tenant)
    return Response(None, 204)
