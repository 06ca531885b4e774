"""The reconciliation queue: what is unknown, what is known of it, and how a person settles it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from outlast.errors import SettlementConflict
from outlast.server.problem import Refused, pointing
from outlast.server.reading import StrictRoute
from outlast.server.routes.asked import App, Caller, OperationId, answer, refusals, root_of
from outlast.server.schemas.operations import (
    NewSettlement,
    Operation,
    OperationPage,
    OperationWithEvidence,
    evidence_body,
    operation_body,
)

router = APIRouter(route_class=StrictRoute, tags=["operations"])


@router.get("/operations", response_model=OperationPage, responses=refusals())
async def list_operations(
    request: Request,
    app: App,
    caller: Caller,
    state: Annotated[Literal["unknown"], Query(description="The reconciliation queue.")] = "unknown",
    after: Annotated[
        str | None,
        Query(
            description="Above this operation: `next` of the page before.",
            pattern=r"^task_[0-9a-z]{26}:[\x20-\x7e]{1,200}$",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 100,
) -> Response:
    """List the tenant's operations of which nobody knows yet whether they happened."""
    views = await app.operations.list(state=state, tenant=caller.tenant, after=after, limit=limit)
    root = root_of(request)
    following = views[-1].id if len(views) == limit else None
    return answer({"items": [operation_body(view, root) for view in views], "next": following})


@router.get(
    "/operations/{operation:path}",
    response_model=OperationWithEvidence,
    responses=refusals("operation_not_found"),
)
async def read_operation(request: Request, app: App, caller: Caller, operation: OperationId) -> Response:
    """Read an operation with its evidence."""
    view, evidence = await app.operations.show(operation, tenant=caller.tenant)
    body = operation_body(view, root_of(request))
    return answer({**body, "evidence": [evidence_body(each) for each in evidence]})


@router.post(
    "/operations/{operation:path}/settle",
    response_model=Operation,
    responses=refusals(
        "bad_json",
        "body_too_large",
        "unsupported_media_type",
        "operation_not_found",
        "settlement_conflict",
    ),
)
async def settle_operation(
    body: NewSettlement, request: Request, app: App, caller: Caller, operation: OperationId
) -> Response:
    """Record what a person knows of an unknown outcome; the task goes on.

    A conflict answers with the operation as it is recorded.
    """
    try:
        with pointing("/result"):
            view = await app.operations.settle(
                operation,
                body.verdict,
                reason=body.reason,
                by=body.by or caller.name,
                result=body.result,
                turn=body.turn,
                forced=body.forced,
                tenant=caller.tenant,
            )
    except SettlementConflict as conflict:
        recorded, _ = await app.operations.show(operation, tenant=caller.tenant)
        raise Refused(
            conflict.code,
            str(conflict),
            state=conflict.state,
            operation=operation_body(recorded, root_of(request)),
        ) from None
    return answer(operation_body(view, root_of(request)))
