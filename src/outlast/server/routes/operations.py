"""The reconciliation queue: what is unknown, what is known of it, and how a person settles it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from outlast.errors import SettlementConflict
from outlast.server.problem import Refused, pointing
from outlast.server.reading import StrictRoute
from outlast.server.routes.asked import Around, OperationId, answer, refusals
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
    asked: Around,
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
    views = await asked.app.operations.list(state=state, tenant=asked.caller.tenant, after=after, limit=limit)
    following = views[-1].id if len(views) == limit else None
    return answer({"items": [operation_body(view, asked.root) for view in views], "next": following})


@router.get(
    "/operations/{operation:path}",
    response_model=OperationWithEvidence,
    responses=refusals("operation_not_found"),
)
async def read_operation(asked: Around, operation: OperationId) -> Response:
    """Read an operation with its evidence."""
    view, evidence = await asked.app.operations.show(operation, tenant=asked.caller.tenant)
    body = operation_body(view, asked.root)
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
async def settle_operation(body: NewSettlement, asked: Around, operation: OperationId) -> Response:
    """Record what a person knows of an unknown outcome; the task goes on.

    A conflict answers with the operation as it is recorded.
    """
    try:
        with pointing("/result"):
            view = await asked.app.operations.settle(
                operation,
                body.verdict,
                reason=body.reason,
                by=body.by or asked.caller.name,
                result=body.result,
                turn=body.turn,
                forced=body.forced,
                tenant=asked.caller.tenant,
            )
    except SettlementConflict as conflict:
        recorded, _ = await asked.app.operations.show(operation, tenant=asked.caller.tenant)
        raise Refused(
            conflict.code,
            str(conflict),
            state=conflict.state,
            operation=operation_body(recorded, asked.root),
        ) from None
    return answer(operation_body(view, asked.root))
