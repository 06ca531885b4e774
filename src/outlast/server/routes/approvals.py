"""Questions to people: list and read them, decide on one, give somebody a link to one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from outlast.errors import ApprovalConflict, ConfigurationError, FingerprintMismatch, InvalidRequest
from outlast.server.problem import Refused, pointing
from outlast.server.reading import StrictRoute, etag_matches
from outlast.server.routes.asked import ApprovalId, Around, Asked, answer, reads, refusals
from outlast.server.schemas.approvals import (
    Approval,
    ApprovalInFull,
    ApprovalPage,
    ApprovalStateName,
    Link,
    NewDecision,
    NewLink,
    approval_body,
    vote_body,
)
from outlast.server.schemas.fields import written
from outlast.views import ApprovalView

router = APIRouter(route_class=StrictRoute, tags=["approvals"])


@router.get("/approvals", response_model=ApprovalPage, responses=refusals("approval_not_found"))
async def list_approvals(
    asked: Around,
    state: Annotated[
        ApprovalStateName | None, Query(description="Only approvals in this state; all by default.")
    ] = None,
    task: Annotated[
        str | None, Query(description="Only approvals of this task.", pattern=r"^task_[0-9a-z]{26}$")
    ] = None,
    after: Annotated[
        str | None,
        Query(
            description="Behind this approval: `next` of the page before.",
            pattern=r"^task_[0-9a-z]{26}:[\x20-\x7e]{1,200}~[1-9][0-9]{0,8}$",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 100,
) -> Response:
    """List the tenant's approvals, oldest first; `state=pending` for those that wait for somebody."""
    views = await asked.app.approvals.list(
        tenant=asked.caller.tenant, state=state, task=task, after=after, limit=limit
    )
    following = views[-1].id if len(views) == limit else None
    return answer({"items": [approval_body(view, asked.root) for view in views], "next": following})


@router.get(
    "/approvals/{approval:path}",
    response_model=ApprovalInFull,
    responses={
        304: {"description": "It has not changed since the entity tag that was sent"},
        **refusals("approval_not_found"),
    },
    openapi_extra=reads(If_None_Match="An entity tag that was seen."),
)
async def read_approval(request: Request, asked: Around, approval: ApprovalId) -> Response:
    """Read an approval: exactly what will be done, its fingerprint, and who said what about it."""
    view = await asked.app.approvals.get(approval, tenant=asked.caller.tenant)
    headers = {"ETag": _etag(view)}
    if etag_matches(request, headers["ETag"]):
        return Response(None, 304, {"Cache-Control": "private, no-cache", **headers})
    votes = await asked.app.approvals.votes(approval, tenant=asked.caller.tenant)
    body = {**approval_body(view, asked.root), "votes_cast": [vote_body(each) for each in votes]}
    return answer(body, 200, headers)


@router.post(
    "/approvals/{approval:path}/decision",
    response_model=Approval,
    responses=refusals(
        *("bad_json", "body_too_large", "unsupported_media_type", "not_allowed"),
        *("approval_not_found", "approval_conflict", "fingerprint_mismatch"),
    ),
)
async def decide_approval(body: NewDecision, asked: Around, approval: ApprovalId) -> Response:
    """Decide on an approval, for exactly what was seen.

    It takes role `approver`, or one of those that the approval names. While more people have to agree it
    stays pending. The same word of the same person again is answered alike; whoever comes too late gets 409
    with the approval as it is recorded.
    """
    try:
        view = await _decided(body, asked, approval)
    except (ApprovalConflict, FingerprintMismatch) as conflict:
        recorded = await asked.app.approvals.get(approval, tenant=asked.caller.tenant)
        raise Refused(
            conflict.code,
            str(conflict),
            state=recorded.state,
            approval=approval_body(recorded, asked.root),
        ) from None
    return answer(approval_body(view, asked.root), 200, {"ETag": _etag(view)})


async def _decided(body: NewDecision, asked: Asked, approval: str) -> ApprovalView:
    approvals, who = asked.app.approvals, asked.caller
    if body.verdict == "answer":
        if "answer" not in body.model_fields_set:
            raise InvalidRequest("an answer says something", pointer="/answer")
        if body.arguments is not None:
            raise InvalidRequest("an answer changes no arguments", pointer="/arguments")
        with pointing("/answer"):
            return await approvals.answer(
                approval,
                body.answer,
                fingerprint=body.fingerprint,
                by=who.name,
                reason=body.reason,
                roles=who.deciding,
                via="api",
                tenant=who.tenant,
            )
    if "answer" in body.model_fields_set:
        raise InvalidRequest("only the verdict answer has one", pointer="/answer")
    with pointing("/arguments"):
        return await approvals.decide(
            approval,
            body.verdict,
            fingerprint=body.fingerprint,
            by=who.name,
            reason=body.reason,
            roles=who.deciding,
            arguments=body.arguments,
            via="api",
            tenant=who.tenant,
        )


@router.post(
    "/approvals/{approval:path}/links",
    status_code=201,
    response_model=Link,
    responses=refusals(
        *("bad_json", "body_too_large", "unsupported_media_type", "not_allowed"),
        *("approval_not_found", "configuration_error"),
    ),
)
async def make_link(body: NewLink, request: Request, asked: Around, approval: ApprovalId) -> Response:
    """Make a link by which one person sees the approval and decides on it, without a key.

    Whoever may decide makes links for themselves, an operator for others. Opening it decides nothing.
    """
    made = await asked.app.approvals.link(
        approval,
        to=body.to,
        by=asked.caller.name,
        roles=asked.caller.deciding,
        expires_in=body.expires_in,
        tenant=asked.caller.tenant,
    )
    url = made.url
    if url is None:
        # The name that a request was sent to is nothing to build links from, but on this machine.
        if not asked.caller.local:
            raise ConfigurationError("where links lead is not known; set OUTLAST_PUBLIC_URL")
        url = f"{str(request.base_url).rstrip('/')}/approve/{made.token}"
    return answer(
        {"url": url, "to": made.to, "expires_at": written(made.expires_at)},
        201,
        {"Cache-Control": "no-store"},
    )


def _etag(view: ApprovalView) -> str:
    # What can change: the state, who agreed, and what exactly is asked about.
    return f'W/"{view.state}-{view.votes}-{view.fingerprint[-16:]}"'
