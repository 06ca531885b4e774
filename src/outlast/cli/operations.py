"""``outlast operations``: the ledger, and the queue of what nobody knows yet."""

from __future__ import annotations

import getpass
import json
from typing import Annotated, Any, Literal

import typer

from outlast.cli import options
from outlast.cli.direct import database, operation_id, task_id
from outlast.cli.failing import command
from outlast.cli.printing import plain, say, say_fields, say_json, say_table
from outlast.core import ids
from outlast.errors import InvalidInput
from outlast.views import OperationView

app = typer.Typer(no_args_is_help=True, help="The ledger, and settling what is unknown.")

OperationId = Annotated[str, typer.Argument(metavar="OPERATION", help="An operation's id: <task>:<key>.")]
Verdict = Literal["happened", "did_not_happen", "send_again"]


@app.command("list")
@command
async def list_operations(
    task: Annotated[
        str | None, typer.Option(help="The ledger of this task; without it, all that is unknown.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="Above this operation's id, for the next page.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 100,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """List operations of which nobody knows whether they happened, or a task's ledger.

    Example: outlast operations list
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        if task is not None:
            await outlast.get(task_id(task), tenant=tenant)
            views = await outlast.operations.list(task=task, tenant=tenant, limit=limit)
        else:
            above = None if after is None else operation_id(after)
            views = await outlast.operations.list(state="unknown", tenant=tenant, after=above, limit=limit)
    following = views[-1].id if task is None and len(views) == limit else None
    if as_json:
        say_json({"items": views, "next": following})
        return
    if not views:
        say("nothing is unknown" if task is None else "no operations")
        return
    say_table(
        ["operation", "kind", "name", "state", "effect", "attempt", "since"],
        [
            [
                each.id,
                each.kind,
                each.name,
                each.state,
                each.effect,
                each.attempt or "",
                each.intent_at or each.created_at,
            ]
            for each in views
        ],
    )
    if following:
        say(f"more: --after {following}")


@app.command("show")
@command
async def show_operation(
    operation: OperationId,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Show an operation with all that is known of it.

    Example: outlast operations show task_01jz8f5s9ve5ptq3mwr7n1k2bd:create_ticket#1
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        view, evidence = await outlast.operations.show(operation_id(operation), tenant=tenant)
    if as_json:
        say_json({"operation": view, "evidence": evidence})
        return
    _say_operation(view)
    if evidence:
        say("")
        say_table(
            ["at", "attempt", "source", "evidence"],
            [[plain(each.at), each.attempt, each.source, each.data] for each in evidence],
        )


@app.command("settle")
@command
async def settle_operation(
    operation: OperationId,
    verdict: Annotated[Verdict, typer.Argument(help="What became of it, or that it is to be sent again.")],
    reason: Annotated[str, typer.Option(help="Why; kept as evidence.")],
    by: Annotated[str | None, typer.Option(help="Who says so; you by default.")] = None,
    result: Annotated[
        str | None, typer.Option(help="What the agent is to see of the call, as JSON, when it happened.")
    ] = None,
    turn: Annotated[
        int | None, typer.Option(min=0, help="The turn that you saw: refused if it moved on.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Although the call may still be under way.")] = False,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Record what you know of an unknown outcome; its task goes on.

    Example: outlast operations settle task_01jz8f5s9ve5ptq3mwr7n1k2bd:create_ticket#1 happened
    --result '{"id": "R-55821"}' --reason "found in the ticket system"
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        view = await outlast.operations.settle(
            operation_id(operation),
            verdict,
            reason=reason,
            by=by or _me(),
            result=_json(result),
            turn=turn,
            forced=force,
            tenant=tenant,
        )
    if as_json:
        say_json({"operation": view})
    else:
        _say_operation(view)


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        return "cli"


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"--result is not JSON: {error}") from None


def _say_operation(view: OperationView) -> None:
    say_fields(
        [
            ("operation", view.id),
            ("kind", view.kind),
            ("name", view.name),
            ("state", view.state),
            ("effect", view.effect),
            ("attempt", view.attempt or None),
            ("turn", view.turn),
            ("fingerprint", view.fingerprint),
            ("arguments", view.arguments),
            ("result", view.result),
            ("error", view.error),
            ("settled by", view.settled_by),
            ("intent", view.intent_at),
            ("deadline", view.deadline_at),
            ("ended", view.ended_at),
        ]
    )
