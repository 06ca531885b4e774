"""Schedules: make, change, look at, pause, preview."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response

from outlast.core import schedule
from outlast.errors import InvalidKey, ScheduleNotFound
from outlast.schedules import ScheduleRequest, ScheduleView
from outlast.server import reading
from outlast.server.problem import pointing
from outlast.server.routes.asked import Around, Operating, answer, reads, refusals
from outlast.server.schemas.fields import BY, ShortText, written
from outlast.server.schemas.schedules import (
    Instants,
    NewSchedule,
    Schedule,
    ScheduleChange,
    SchedulePage,
    schedule_body,
)

router = APIRouter(route_class=reading.StrictRoute, tags=["schedules"])

PRECONDITION: Final = reads(
    If_Match="The entity tag of the revision that was seen; refused when another stands.",
)
BODIES: Final = ("bad_json", "body_too_large", "unsupported_media_type", "not_allowed")
Why = Annotated[ShortText | None, Query(description="Why; kept in the audit trail.")]
By = Annotated[ShortText | None, Query(description=BY)]


async def _known_id(id: str) -> str:
    # What nobody can have made does not exist.
    try:
        return schedule.check_id(id)
    except InvalidKey:
        raise ScheduleNotFound(f"no schedule {id[:100]!r}") from None


KnownId = Annotated[str, Depends(_known_id)]


def _answer(view: ScheduleView, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return answer(
        schedule_body(view), status, {"ETag": reading.revision_tag(view.revision), **(headers or {})}
    )


@router.get("/schedules", response_model=SchedulePage, responses=refusals())
async def list_schedules(
    asked: Around,
    after: Annotated[
        str, Query(max_length=255, description="Above this id: `next` of the page before.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """List the tenant's schedules by id."""
    views = await asked.app.schedules.list(tenant=asked.caller.tenant, after=after, limit=limit)
    following = views[-1].id if len(views) == limit else None
    return answer({"items": [schedule_body(view) for view in views], "next": following})


@router.put(
    "/schedules/{id}",
    response_model=Schedule,
    responses={
        201: {"model": Schedule, "description": "The schedule is new"},
        **refusals(*BODIES, "bad_request", "invalid_schedule", "agent_not_found", "schedule_conflict"),
    },
    openapi_extra=reads(
        If_Match="The entity tag of the revision that was seen; refused when another stands.",
        If_None_Match="`*`: the schedule must be new.",
    ),
)
async def put_schedule(id: str, body: NewSchedule, request: Request, asked: Operating) -> Response:
    """Make a schedule, or put this one in the place of another of its id; the same again changes nothing."""
    with pointing("/input"):
        kind, view = await asked.app.schedules.apply(
            ScheduleRequest(
                id=id,
                agent=body.agent,
                input=body.input,
                cron=body.cron,
                zone=body.zone,
                every=body.every,
                at=body.at,
                missed=body.missed,
                max_missed=body.max_missed,
                overlap=body.overlap,
                jitter=body.jitter,
                tenant=asked.caller.tenant,
                user=body.user,
                pool=body.pool,
                priority=body.priority,
                deadline=body.deadline,
                version=body.version,
                by=asked.caller.named(body.by),
                reason=body.reason or "",
                revision=reading.expected_revision(request),
            )
        )
    if kind == "created":
        return _answer(view, 201, {"Location": f"{asked.root}/v1/schedules/{view.id}"})
    return _answer(view)


@router.get(
    "/schedules/{id}",
    response_model=Schedule,
    responses=refusals("schedule_not_found"),
)
async def read_schedule(asked: Around, id: KnownId) -> Response:
    """Read a schedule as it stands."""
    return _answer(await asked.app.schedules.get(id, tenant=asked.caller.tenant))


@router.delete(
    "/schedules/{id}",
    status_code=204,
    responses=refusals("bad_request", "not_allowed", "schedule_not_found", "schedule_conflict"),
    openapi_extra=PRECONDITION,
)
async def delete_schedule(
    request: Request, asked: Operating, id: KnownId, reason: Why = None, by: By = None
) -> Response:
    """Delete a schedule; tasks that it fired go on."""
    await asked.app.schedules.delete(
        id,
        tenant=asked.caller.tenant,
        by=asked.caller.named(by),
        reason=reason or "",
        revision=reading.expected_revision(request),
    )
    return Response(None, 204)


CHANGE: Final[dict[str, Any]] = {
    "response_model": Schedule,
    "responses": refusals(*BODIES, "bad_request", "schedule_not_found", "schedule_conflict"),
    "openapi_extra": PRECONDITION,
}


@router.post("/schedules/{id}/pause", **CHANGE)
async def pause_schedule(body: ScheduleChange, request: Request, asked: Operating, id: KnownId) -> Response:
    """Fire no more, from now on until it is resumed; tasks that it fired go on."""
    view = await asked.app.schedules.pause(
        id,
        reason=body.reason,
        tenant=asked.caller.tenant,
        by=asked.caller.named(body.by),
        revision=reading.expected_revision(request),
    )
    return _answer(view)


@router.post("/schedules/{id}/resume", **CHANGE)
async def resume_schedule(body: ScheduleChange, request: Request, asked: Operating, id: KnownId) -> Response:
    """Fire again, from the first instant ahead; what passed meanwhile is not made up for."""
    view = await asked.app.schedules.resume(
        id,
        reason=body.reason,
        tenant=asked.caller.tenant,
        by=asked.caller.named(body.by),
        revision=reading.expected_revision(request),
    )
    return _answer(view)


@router.get("/schedules/{id}/next", response_model=Instants, responses=refusals("schedule_not_found"))
async def preview_schedule(
    asked: Around,
    id: KnownId,
    count: Annotated[int, Query(ge=1, le=1000, description="How many instants.")] = 5,
) -> Response:
    """Say when a schedule fires next, as if it were not paused."""
    instants = await asked.app.schedules.preview(id, tenant=asked.caller.tenant, count=count)
    return answer({"items": [written(each) for each in instants], "next": None})
