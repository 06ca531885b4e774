"""The reconciliation queue: what is unknown, what is known of it, and how a person settles it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from outlast.errors import SettlementConflict
from outlast.server.problem import Refused, pointing
from outlast.server.reading import StrictRoute
from outlast.server.routes.asked import AfterOperation, Around, Operating, OperationId, answer, refusals
from outlast.server.schemas.operations import (
    NewSettlement,
    Operation,
    OperationInFull,
    OperationPlan,
    OperationStats,
    QueuePage,
    evidence_body,
    operation_body,
    operation_summary,
    place_body,
    plan_body,
    stats_body,
)
from outlast.server.schemas.tasks import event_body

router = APIRouter(route_class=StrictRoute, tags=["operations"])


@router.get("/operations", response_model=QueuePage, responses=refusals())
async def list_operations(
    asked: Around,
    state: Annotated[Literal["unknown"], Query(description="The reconciliation queue.")] = "unknown",
    after: AfterOperation = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 100,
) -> Response:
    """List the tenant's operations of which nobody knows yet whether they happened, without their values."""
    views = await asked.app.operations.list(state=state, tenant=asked.caller.tenant, after=after, limit=limit)
    places = await asked.app.operations.places([view.id for view in views], tenant=asked.caller.tenant)
    items = [
        {**operation_summary(view, asked.root), "queue": place_body(place)}
        for view, place in zip(views, places, strict=True)
    ]
    return answer({"items": items, "next": views[-1].id if len(views) == limit else None})


# Before the routes of one operation, whose path would take this one's as well.
@router.get("/operations/stats", response_model=OperationStats, responses=refusals())
async def read_stats(asked: Around) -> Response:
    """Say how the tenant's unknowns ended, tool by tool, and which tools look wrongly classified."""
    found = await asked.app.operations.stats(tenant=asked.caller.tenant)
    return answer({"items": [stats_body(each) for each in found]})


# Before the route of the operation itself, whose path would take this one's as well.
@router.get(
    "/operations/{operation:path}/plan",
    response_model=OperationPlan,
    responses=refusals("operation_not_found"),
)
async def plan_operation(request: Request, asked: Around, operation: OperationId) -> Response:
    """Say what would happen next to an operation, and why; changes nothing."""
    if request.scope.get("raw_path", b"").lower().endswith(b"%2fplan"):
        # The slash is the operation's own: its key ends so.
        return await read_operation(asked, f"{operation}/plan")
    return answer(plan_body(await asked.app.operations.plan(operation, tenant=asked.caller.tenant)))


@router.get(
    "/operations/{operation:path}",
    response_model=OperationInFull,
    responses=refusals("operation_not_found"),
)
async def read_operation(
    asked: Around,
    operation: OperationId,
    evidence_before: Annotated[
        int | None, Query(ge=1, le=2**31 - 1, description="Evidence with a lower number than this.")
    ] = None,
) -> Response:
    """Read an operation with its place in the queue, its evidence and its events.

    Of evidence the newest 200 pieces, or fewer that are some megabytes together; `evidence_earlier` is what
    to pass as `evidence_before` to have what came before them, null where there is nothing more.
    """
    operations, tenant = asked.app.operations, asked.caller.tenant
    view, evidence = await operations.show(operation, tenant=tenant, evidence_before=evidence_before)
    (place,) = await operations.places([operation], tenant=tenant)
    return answer(
        {
            **operation_body(view, asked.root),
            "queue": place_body(place),
            "evidence": [evidence_body(each) for each in evidence],
            "evidence_earlier": evidence.earlier,
            "timeline": [event_body(each) for each in await operations.timeline(operation, tenant=tenant)],
        }
    )


@router.post(
    "/operations/{operation:path}/settle",
    response_model=Operation,
    responses=refusals(
        "bad_json",
        "body_too_large",
        "unsupported_media_type",
        "not_allowed",
        "operation_not_found",
        "settlement_conflict",
    ),
)
async def settle_operation(body: NewSettlement, asked: Operating, operation: OperationId) -> Response:
    """Record what a person knows of an unknown outcome; the task goes on.

    A conflict answers with the operation as it is recorded.
    """
    try:
        with pointing("/result"):
            view = await asked.app.operations.settle(
                operation,
                body.verdict,
                reason=body.reason,
                by=asked.caller.named(body.by),
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
