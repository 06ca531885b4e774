"""``outlast tasks``: look at tasks, follow one, submit one, send it a signal, cancel it.

What operators do about tasks that ended, or stand still, is in ``outlast.cli.changing``.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Final, Literal

import typer

from outlast.cli import options
from outlast.cli.direct import database, task_id
from outlast.cli.failing import FAILED, OK, command
from outlast.cli.loading import load_app
from outlast.cli.printing import OPERATION_VALUES, listed, plain, say, say_fields, say_json, say_table
from outlast.core import ids
from outlast.errors import InvalidInput, InvalidKey
from outlast.views import EventView, TaskView

app = typer.Typer(
    no_args_is_help=True, help="Look at tasks, follow, submit, signal, cancel, retry, fork and judge one."
)

State = Literal["queued", "running", "waiting", "succeeded", "failed", "cancelled"]
CANCELLED: Final = {
    "cancelled": "cancelled",
    "already": "cancelled before",
    "requested": "it runs, begins nothing new, and ends as cancelled",
}
NOT_LISTED: Final = ("input", "result", "detail")
"""What is read of a task only where it is shown alone."""
UNDOING: Final = "it undoes what it has done, and ends as cancelled"
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="A task's id.")]


@app.command("list")
@command
async def list_tasks(
    state: Annotated[State | None, typer.Option(help="Only tasks in this state.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only tasks of this agent.")] = None,
    parent: Annotated[str | None, typer.Option(help="Only children of this task.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")] = 50,
    before: Annotated[str | None, typer.Option(help="Below this task's id, for the next page.")] = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """List tasks, newest first.

    Example: outlast tasks list --state failed --limit 10
    """
    ids.check_name(tenant, "tenant")
    if agent is not None:
        ids.check_name(agent, "agent")
    if before is not None and ids.parse_id(before).prefix != ids.TASK:
        raise InvalidKey("--before takes a task's id")
    async with database(database_url) as outlast:
        views = await outlast.list(
            tenant=tenant,
            state=state,
            agent=agent,
            parent=None if parent is None else task_id(parent),
            before=before,
            limit=limit,
        )
    following = views[-1].id if len(views) == limit else None
    if as_json:
        say_json({"items": [listed(view, NOT_LISTED) for view in views], "next": following})
        return
    if not views:
        say("no tasks")
        return
    say_table(
        ["task", "agent", "state", "waits for", "attempts", "unknown", "submitted"],
        [
            [
                view.id,
                f"{view.agent}@{view.version}" if view.version else view.agent,
                view.state,
                view.reason,
                view.attempts,
                view.effects_open or "",
                view.submitted_at,
            ]
            for view in views
        ],
    )
    if following:
        say(f"more: --before {following}")


@app.command("show")
@command
async def show_task(
    task: TaskId,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a task with its attempts and operations.

    Example: outlast tasks show task_01jz8f5s9ve5ptq3mwr7n1k2bd
    """
    task_id(task)
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        view = await outlast.get(task, tenant=tenant)
        attempts = await outlast.attempts(task, tenant=tenant)
        operations = await outlast.operations.list(task=task, tenant=tenant, limit=10_000)
    if as_json:
        ledger = [listed(each, OPERATION_VALUES) for each in operations]
        say_json({"task": view, "attempts": attempts, "operations": ledger})
        return
    say_task(view)
    if attempts:
        say("")
        say_table(
            ["epoch", "worker", "version", "started", "ended", "end"],
            [
                [each.epoch, each.worker, each.version, each.started_at, each.ended_at, each.end or "running"]
                for each in attempts
            ],
        )
    if operations:
        say("")
        say_table(
            ["operation", "kind", "name", "state", "attempt", "settled by"],
            [
                [each.key, each.kind, each.name, each.state, each.attempt or "", each.settled_by]
                for each in operations
            ],
        )


@app.command("watch")
@command
async def watch_task(
    task: TaskId,
    after: Annotated[int, typer.Option(min=0, help="Only events with numbers above this.")] = 0,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> int:
    """Follow a task's events to its end; ends with 0 when it succeeded, 1 when it did not.

    Example: outlast tasks watch task_01jz8f5s9ve5ptq3mwr7n1k2bd
    """
    task_id(task)
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        async for event in outlast.events(task, tenant=tenant, after=after):
            _say_event(event, as_json=as_json)
        view = await outlast.get(task, tenant=tenant)
    return OK if view.state == "succeeded" else FAILED


@app.command("submit")
@command
async def submit_task(
    target: options.Target,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="A registered agent's name.")],
    input: options.Input = "{}",
    key: Annotated[str | None, typer.Option(help="Idempotency key.")] = None,
    user: Annotated[str | None, typer.Option(help="For whom, within the tenant.")] = None,
    pool: Annotated[str | None, typer.Option(help="Which workers.")] = None,
    priority: Annotated[int, typer.Option(help="Higher goes first, from -1000 to 1000.")] = 0,
    deadline: Annotated[str | None, typer.Option(help="To be over by then: 30s, 10m, 1h30m.")] = None,
    version: Annotated[str | None, typer.Option(help="The version to bind to.")] = None,
    budget: Annotated[
        str | None, typer.Option(help='Bounds as JSON: {"operations": 50, "tokens": 100000, "cost": "2.50"}.')
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end; 1 when it does not succeed.")
    ] = False,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> int:
    """Submit a task to an app's agent.

    Example: outlast tasks submit app:app reimburse --input '{"invoice": "INV-102"}' --key inv-102
    """
    given = options.json_object(input)
    options.choose_database(database_url)
    async with load_app(target) as outlast:
        handle = await outlast.submit(
            agent,
            given,
            key=key,
            tenant=tenant,
            user=user,
            pool=pool,
            priority=priority,
            deadline=deadline,
            version=version,
            budget=None if budget is None else json_of(budget, "--budget"),
        )
        view = await (outlast.wait(handle.id, tenant=tenant) if wait else handle.get())
    if as_json:
        say_json({"task": view, "replayed": handle.replayed})
    elif wait:
        say_task(view)
    else:
        say(view.id + (" (as before)" if handle.replayed else ""))
    return FAILED if wait and view.state != "succeeded" else OK


@app.command("cancel")
@command
async def cancel_task(
    task: TaskId,
    reason: Annotated[str, typer.Option(help="Why; kept in the audit trail and in the task's error.")] = "",
    undo: Annotated[
        bool, typer.Option("--undo", help="Undo what it has done first, where its tools can.")
    ] = False,
    by: Annotated[str | None, typer.Option(help="Who wants it; you by default.")] = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Cancel a task; cancelling twice is no error, and one that ended otherwise is a conflict (4).

    Example: outlast tasks cancel task_01jz8f5s9ve5ptq3mwr7n1k2bd --reason "not needed any more" --undo
    """
    task_id(task)
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        reply = await outlast.cancel(task, reason=reason, by=by or options.whoami(), undo=undo, tenant=tenant)
        view = await outlast.get(task, tenant=tenant)
    if as_json:
        say_json({"cancel": reply.kind, "task": view})
    else:
        say(UNDOING if undo and reply.kind == "requested" else CANCELLED[reply.kind])


@app.command("signal")
@command
async def send_signal(
    task: TaskId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the task waits for.")],
    data: Annotated[
        str, typer.Option("--data", "-d", help="The signal's data as JSON; - reads it from stdin.")
    ] = "null",
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same data under it is stored once.")
    ] = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Send a task a signal; it is kept, whether the task waits for it yet or not.

    Example: outlast tasks signal task_01jz8f5s9ve5ptq3mwr7n1k2bd paid --data '{"amount": "118.50"}' --key p-1
    """
    task_id(task)
    ids.check_name(tenant, "tenant")
    given = json_of(data, "--data")
    async with database(database_url) as outlast:
        posted = await outlast.signal(task, name, given, key=key, tenant=tenant)
    replayed = posted.kind == "replayed"
    if as_json:
        say_json({"signal": {"task": task, "name": name, "number": posted.number}, "replayed": replayed})
    else:
        say(f"{name} is stored" + (" (as before)" if replayed else ""))


def json_of(text: str, option: str) -> Any:
    """Read JSON that an option holds, or standard input for -. Raises InvalidInput."""
    if text == "-":
        text = sys.stdin.read()
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{option} is not JSON: {error}") from None


def say_task(view: TaskView) -> None:
    """Show a task to people."""
    waits = f" for {view.reason}" if view.reason else ""
    say_fields(
        [
            ("task", view.id),
            ("agent", f"{view.agent}@{view.version}" if view.version else view.agent),
            ("state", view.state + waits + (", to be cancelled" if view.cancelling else "")),
            ("why", view.detail),
            ("accepted", None if view.accepted is None else f"the work is {view.accepted}"),
            ("round", view.round if view.round > 1 else None),
            ("forked from", view.forked_from),
            ("parent", view.parent),
            ("children", view.children or None),
            ("asks", f"{view.asks} open: outlast approvals list --task {view.id}" if view.asks else None),
            ("attempts", view.attempts),
            ("unknown", view.effects_open or None),
            ("key", view.key),
            ("user", view.user),
            ("submitted", view.submitted_at),
            ("ended", view.ended_at),
            ("deadline", view.deadline_at),
            ("budget", view.budget),
            ("input", view.input),
            ("result", view.result),
            ("error", view.error),
        ]
    )


def _say_event(event: EventView, *, as_json: bool) -> None:
    if as_json:
        say_json(event)
        return
    data = "" if event.data in (None, {}) else plain(event.data)
    say(f"{plain(event.at)}  {event.number:>4}  {event.kind:<22} {data}".rstrip())
