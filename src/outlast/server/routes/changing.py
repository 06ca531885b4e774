"""Change: another round, a fork, another version, a verdict; and what happens in outside sessions."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Request, Response

from outlast.core import ids
from outlast.errors import UnsettledPrefix
from outlast.server import reading
from outlast.server.problem import Refused, pointing
from outlast.server.reading import StrictRoute
from outlast.server.routes.asked import (
    KEY,
    REPLAYED,
    Around,
    Judging,
    Operating,
    Submitting,
    TaskId,
    answer,
    described,
    reads,
    refusals,
)
from outlast.server.routes.tasks import state_headers
from outlast.server.schemas.changing import (
    Acceptance,
    AcceptancePage,
    Adoption,
    NewAcceptance,
    NewAdoption,
    NewFork,
    NewOutsideEvent,
    NewRetry,
    NewWake,
    OutsideTaken,
    VersionPage,
    acceptance_body,
    adoption_body,
    version_body,
)
from outlast.server.schemas.tasks import Task, task_body, task_path

router = APIRouter(route_class=StrictRoute, tags=["change"])

READ: Final = ("bad_json", "body_too_large", "unsupported_media_type")


@router.post(
    "/tasks/{task}/retry",
    status_code=202,
    response_model=Task,
    responses={
        202: {"description": "Its next round is queued"},
        **refusals(*READ, "not_allowed", "task_not_found", "task_not_ended", "effects_undone"),
    },
)
async def retry_task(body: NewRetry, asked: Operating, task: TaskId) -> Response:
    """Try a failed or cancelled task again, in its next round.

    What succeeded is not done again; failed operations that may be made again are, under the same id and key.
    Its stream goes on with higher numbers.
    """
    tenant = asked.caller.tenant
    await asked.app.retry(
        task, reason=body.reason, by=asked.caller.name, deadline=body.deadline, tenant=tenant
    )
    view = await asked.app.get(task, tenant=tenant)
    return answer(task_body(view, asked.root), 202, state_headers(view, None))


@router.post(
    "/tasks/{task}/fork",
    status_code=202,
    response_model=Task,
    responses={
        202: {
            "description": "The new task is stored",
            "headers": {"Location": described("Where it is."), "Idempotent-Replayed": REPLAYED},
        },
        **refusals(
            *READ,
            "not_allowed",
            "task_not_found",
            "operation_not_found",
            "unsettled_prefix",
            "idempotency_conflict",
        ),
    },
    openapi_extra=reads(Idempotency_Key=KEY),
)
async def fork_task(body: NewFork, request: Request, asked: Operating, task: TaskId) -> Response:
    """Make a new task from a prefix of a task's journal.

    Calls that the task has made behind that point are taken over under the keys that were sent, as unknown:
    evidence says what they have done, and the fork does not act twice. The same Idempotency-Key with the same
    request answers the first fork; without a key each request makes another.
    """
    tenant = asked.caller.tenant
    try:
        with pointing("/input"):
            handle = await asked.app.fork(
                task,
                before=body.before,
                reason=body.reason,
                by=asked.caller.name,
                input=body.input,
                version=body.version,
                key=reading.idempotency_key(request),
                tenant=tenant,
            )
    except UnsettledPrefix as refused:
        keys = [ids.operation_id(task, key) for key in refused.keys]
        raise Refused(refused.code, str(refused), operations=keys) from None
    view = await handle.get()
    headers = {"Location": task_path(asked.root, view.id), **state_headers(view, None)}
    if handle.replayed:
        headers["Idempotent-Replayed"] = "true"
    return answer(task_body(view, asked.root), 202, headers)


@router.post(
    "/tasks/{task}/wake",
    response_model=Task,
    responses={
        200: {"description": "It did not wait for an operator; nothing has changed"},
        202: {"model": Task, "description": "It looks again"},
        **refusals(*READ, "not_allowed", "task_not_found"),
    },
)
async def wake_task(body: NewWake, asked: Operating, task: TaskId) -> Response:
    """Let a task that waits for an operator look again now, such as after a deploy."""
    tenant = asked.caller.tenant
    woken = await asked.app.wake(task, reason=body.reason, by=asked.caller.name, tenant=tenant)
    view = await asked.app.get(task, tenant=tenant)
    return answer(task_body(view, asked.root), 202 if woken else 200, state_headers(view, None))


@router.get("/tasks/{task}/acceptance", response_model=AcceptancePage, responses=refusals("task_not_found"))
async def list_acceptances(asked: Around, task: TaskId) -> Response:
    """List the verdicts on a task's work, oldest first; the last one of its round stands."""
    views = await asked.app.acceptances(task, tenant=asked.caller.tenant)
    return answer({"items": [acceptance_body(view) for view in views], "next": None})


@router.post(
    "/tasks/{task}/acceptance",
    status_code=201,
    response_model=Acceptance,
    responses=refusals(*READ, "not_allowed", "task_not_found", "task_not_ended", "acceptance_conflict"),
)
async def judge_task(body: NewAcceptance, asked: Judging, task: TaskId) -> Response:
    """Accept or reject the work of a task that succeeded: finished is not accepted."""
    with pointing("/evidence"):
        view = await asked.app.accept(
            task,
            body.verdict,
            reason=body.reason,
            by=asked.caller.name,
            evidence=body.evidence,
            seen=body.seen,
            tenant=asked.caller.tenant,
        )
    return answer(acceptance_body(view), 201)


@router.get("/versions", response_model=VersionPage, responses=refusals())
async def list_versions(asked: Around) -> Response:
    """Count the tenant's live tasks by the version of the agent that they need, and who serves it."""
    views = await asked.app.versions.list(tenant=asked.caller.tenant)
    return answer({"items": [version_body(view) for view in views], "next": None})


@router.post(
    "/tasks/{task}/adopt",
    response_model=Adoption,
    responses=refusals(
        *READ, "not_allowed", "task_not_found", "agent_not_found", "task_ended", "version_in_use"
    ),
)
async def adopt_task(body: NewAdoption, asked: Operating, task: TaskId) -> Response:
    """Run a version's code against a task's journal, and bind the task to it if it fits.

    Where calls may have acted that the code does not ask for, they are named, and the task is bound only with
    `leave_effects`: under another key the code would make them once more. Nothing is sent, and with `dry_run`
    nothing is written. The service needs the agent's code: it serves the app that has that version.
    """
    tenant, versions = asked.caller.tenant, asked.app.versions
    if body.dry_run:
        found = await versions.rehearse(task, version=body.version, tenant=tenant)
    else:
        found = await versions.adopt(
            task,
            version=body.version,
            leave_effects=body.leave_effects,
            reason=body.reason,
            by=asked.caller.name,
            tenant=tenant,
        )
    return answer(adoption_body(found))


@router.post(
    "/outside/{provider}/{session:path}/events",
    status_code=202,
    response_model=OutsideTaken,
    responses={
        200: {"model": OutsideTaken, "description": "It came before; nothing has changed"},
        202: {"description": "It lies before the task that holds the session"},
        **refusals(*READ, "not_allowed", "not_found", "task_ended", "signal_conflict", "inbox_full"),
    },
)
async def take_outside_event(
    body: NewOutsideEvent,
    asked: Submitting,
    provider: Annotated[
        str,
        Path(
            pattern=rf"^[A-Za-z0-9_.:-]{{1,{ids.MAX_NAME_CHARS}}}$", description="As its agent has named it."
        ),
    ],
    session: Annotated[
        str, Path(min_length=1, max_length=ids.MAX_KEY_CHARS, description="The session's id there.")
    ],
) -> Response:
    """Bring an event of an outside session to the one task that holds it, by callback, webhook or poll.

    The same event again, whichever way it comes, is harmless.
    """
    with pointing("/data"):
        posted = await asked.app.outside(
            provider,
            session,
            run=body.run or "",
            event_id=body.event,
            data=body.data,
            tenant=asked.caller.tenant,
        )
    assert posted.task is not None
    repeated = posted.kind == "replayed"
    return answer(
        {"task": posted.task.task, "status": "repeated" if repeated else "accepted"}, 200 if repeated else 202
    )
