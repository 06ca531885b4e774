"""``outlast tasks`` once more: retry, fork, wake, accept, reject; for tasks that ended, or stand still."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from outlast.cli import options, tasks
from outlast.cli.direct import database, task_id
from outlast.cli.failing import FAILED, OK, command
from outlast.cli.printing import say, say_json
from outlast.cli.tasks import TaskId, say_task
from outlast.core import ids

app = tasks.app
"""All of ``outlast tasks``."""

Reason = Annotated[str, typer.Option(help="Why; kept in the audit trail.")]
By = Annotated[str | None, typer.Option(help="Who wants it; you by default.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end; 1 when it does not succeed.")]
Evidence = Annotated[str, typer.Option(help="What shows it, as JSON; - reads it from stdin.")]
Seen = Annotated[
    int | None, typer.Option(min=0, help="How many verdicts you have seen: refused (4) if there are more.")
]


@app.command("retry")
@command
async def retry_task(
    task: TaskId,
    reason: Reason,
    deadline: Annotated[
        str | None,
        typer.Option(help="The round is to be over by then: 30s, 10m; as its agent declares by default."),
    ] = None,
    by: By = None,
    wait: Wait = False,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> int:
    """Try a failed or cancelled task again; what succeeded is not done again.

    One that lives, has succeeded or was undone is a conflict (4).

    Example: outlast tasks retry task_01jz8f5s9ve5ptq3mwr7n1k2bd --reason "the bank is back" --wait
    """
    task_id(task)
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        number = await outlast.retry(
            task, reason=reason, by=by or options.whoami(), deadline=deadline, tenant=tenant
        )
        view = await (outlast.wait(task, tenant=tenant) if wait else outlast.get(task, tenant=tenant))
    if as_json:
        say_json({"round": number, "task": view})
    elif wait:
        say_task(view)
    else:
        say(f"round {number} is queued")
    return FAILED if wait and view.state != "succeeded" else OK


@app.command("fork")
@command
async def fork_task(
    task: TaskId,
    reason: Reason,
    before: Annotated[
        str | None,
        typer.Option(
            help="Key of the first operation that the fork does anew; all that ended stands by default."
        ),
    ] = None,
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", help="Another input, as a JSON object; - reads it from stdin."),
    ] = None,
    version: Annotated[str | None, typer.Option(help="Another version of its agent.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same key and request is one fork.")
    ] = None,
    by: By = None,
    wait: Wait = False,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> int:
    """Make a new task from a prefix of a task's journal; effects behind it are found, not made twice.

    A prefix that holds anything that has not ended is a conflict (4).

    Example: outlast tasks fork task_01jz8f5s9ve5ptq3mwr7n1k2bd --before pay#1 --reason "other amount"
    """
    task_id(task)
    ids.check_name(tenant, "tenant")
    given = None if input is None else options.json_object(input)
    async with database(database_url) as outlast:
        handle = await outlast.fork(
            task,
            before=before,
            reason=reason,
            by=by or options.whoami(),
            input=given,
            version=version,
            key=key,
            tenant=tenant,
        )
        view = await (outlast.wait(handle.id, tenant=tenant) if wait else handle.get())
    if as_json:
        say_json({"task": view})
    elif wait:
        say_task(view)
    else:
        say(view.id)
    return FAILED if wait and view.state != "succeeded" else OK


@app.command("wake")
@command
async def wake_task(
    task: TaskId,
    reason: Reason,
    by: By = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Let a task that waits for an operator look again now, such as after a deploy.

    Example: outlast tasks wake task_01jz8f5s9ve5ptq3mwr7n1k2bd --reason "version 3 is back"
    """
    task_id(task)
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        woken = await outlast.wake(task, reason=reason, by=by or options.whoami(), tenant=tenant)
        view = await outlast.get(task, tenant=tenant)
    if as_json:
        say_json({"woken": woken, "task": view})
    else:
        say("it looks again" if woken else f"it does not wait for an operator: it is {view.state}")


@app.command("accept")
@command
async def accept_task(
    task: TaskId,
    reason: Reason,
    evidence: Evidence = "null",
    seen: Seen = None,
    by: By = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Accept the work of a task that succeeded; the last verdict stands.

    Example: outlast tasks accept task_01jz8f5s9ve5ptq3mwr7n1k2bd --reason "the sums agree"
    """
    await _judge("accepted", task, reason, evidence, seen, by, tenant, database_url, as_json)


@app.command("reject")
@command
async def reject_task(
    task: TaskId,
    reason: Reason,
    evidence: Evidence = "null",
    seen: Seen = None,
    by: By = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Reject the work of a task that succeeded; the last verdict stands.

    Example: outlast tasks reject task_01jz8f5s9ve5ptq3mwr7n1k2bd --reason "wrong cost centre" --seen 1
    """
    await _judge("rejected", task, reason, evidence, seen, by, tenant, database_url, as_json)


async def _judge(
    verdict: Literal["accepted", "rejected"],
    task: str,
    reason: str,
    evidence: str,
    seen: int | None,
    by: str | None,
    tenant: str,
    database_url: str | None,
    as_json: bool,
) -> None:
    task_id(task)
    ids.check_name(tenant, "tenant")
    given = tasks.json_of(evidence, "--evidence")
    async with database(database_url) as outlast:
        view = await outlast.accept(
            task,
            verdict,
            reason=reason,
            by=by or options.whoami(),
            evidence=given,
            seen=seen,
            tenant=tenant,
        )
    if as_json:
        say_json({"acceptance": view})
    else:
        say(f"{view.verdict}: verdict {view.number} of round {view.round}")
