"""``outlast operations``: the ledger, and the queue of what nobody knows yet."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer

from outlast.cli import options
from outlast.cli.direct import database, operation_id, task_id
from outlast.cli.failing import FAILED, OK, UNAVAILABLE, command
from outlast.cli.loading import load_app
from outlast.cli.printing import OPERATION_VALUES, listed, plain, say, say_fields, say_json, say_table
from outlast.core import ids
from outlast.core.durations import microseconds
from outlast.errors import InvalidInput, InvalidRequest
from outlast.views import EventView, OperationView, QueueView

app = typer.Typer(no_args_is_help=True, help="The ledger, and settling what is unknown.")

OperationId = Annotated[str, typer.Argument(metavar="OPERATION", help="An operation's id: <task>:<key>.")]
Verdict = Literal["happened", "did_not_happen", "send_again"]


@app.command("list")
@command
async def list_operations(
    task: Annotated[
        str | None, typer.Option(help="The ledger of this task; without it, all that is unknown.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="Behind this operation's id, for the next page.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 100,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """List operations of which nobody knows whether they happened, or a task's ledger; show has their values.

    Example: outlast operations list
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        if task is not None:
            await outlast.get(task_id(task), tenant=tenant)
        above = None if after is None else operation_id(after)
        views = await outlast.operations.list(task=task, tenant=tenant, after=above, limit=limit)
    following = views[-1].id if len(views) == limit else None
    if as_json:
        say_json({"items": [listed(each, OPERATION_VALUES) for each in views], "next": following})
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
    evidence_before: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="Only evidence with a lower number than this.")
    ] = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Show an operation with its place in the queue, its timeline and all that is known of it.

    Example: outlast operations show task_01jz8f5s9ve5ptq3mwr7n1k2bd:create_ticket#1
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        view, evidence = await outlast.operations.show(
            operation_id(operation), tenant=tenant, evidence_before=evidence_before
        )
        (place,) = await outlast.operations.places([operation], tenant=tenant)
        timeline = await outlast.operations.timeline(operation, tenant=tenant)
    if as_json:
        shown = {"evidence": evidence, "evidence_earlier": evidence.earlier, "timeline": timeline}
        say_json({"operation": view, "queue": place, **shown})
        return
    _say_operation(view, place)
    if timeline:
        say("")
        say_table(
            ["at", "event", "attempt", "what"],
            [[plain(each.at), each.kind, each.data.get("attempt"), _said(each)] for each in timeline],
        )
    if evidence:
        say("")
        say_table(
            ["at", "attempt", "source", "evidence"],
            [[plain(each.at), each.attempt, each.source, each.data] for each in evidence],
        )
    if evidence.earlier:
        say(f"earlier evidence: --evidence-before {evidence.earlier}")


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
    force: Annotated[
        bool, typer.Option("--force", help="Although it may be under way, or may not show yet.")
    ] = False,
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
            by=by or options.whoami(),
            result=_json(result),
            turn=turn,
            forced=force,
            tenant=tenant,
        )
    if as_json:
        say_json({"operation": view})
    else:
        _say_operation(view, None)


@app.command("plan")
@command
async def plan_operation(
    operation: OperationId,
    target: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:APP", help="Your app, for a plan by its tools as they are."),
    ] = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Say what would happen next to an operation, and why; changes nothing.

    Without an app it is the plan that was last recorded.

    Example: outlast operations plan task_01jz8f5s9ve5ptq3mwr7n1k2bd:create_ticket#1 --app app:app
    """
    ids.check_name(tenant, "tenant")
    name = operation_id(operation)
    options.choose_database(database_url)
    async with database(database_url) if target is None else load_app(target) as outlast:
        decided = await outlast.operations.plan(name, tenant=tenant)
    if as_json:
        say_json({"plan": decided})
        return
    say_fields(
        [
            ("operation", decided.operation),
            ("state", decided.state),
            ("next", decided.action),
            ("why", decided.why),
            ("at", decided.at),
            ("asked", decided.asked or None),
            ("not happened, or again", _refused_until(decided.refused_until)),
        ]
    )


@app.command("stats")
@command
async def operation_stats(
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Say how unknowns ended, tool by tool; a hint stands by tools whose outcomes look wrongly classified.

    Example: outlast operations stats
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        found = await outlast.operations.stats(tenant=tenant)
    if as_json:
        say_json({"items": found})
        return
    if not found:
        say("nothing was ever unknown")
        return
    say_table(
        ["tool", "unknown", "happened", "did not happen", "sent again", "share that did not"],
        [
            [
                each.tool,
                each.unknown,
                each.happened,
                each.did_not_happen,
                each.sent_again,
                "" if each.share is None else f"{each.share:.0%}",
            ]
            for each in found
        ],
    )
    for each in found:
        if each.hint:
            say(f"{plain(each.tool)}: {each.hint}")


@app.command("sweep")
@command
async def sweep_other_side(
    target: options.Target,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="A tool registered with list_effects=.")],
    since: Annotated[
        str, typer.Option(help="From then on: 30m, 24h or 7d ago, or an instant with a time zone.")
    ] = "24h",
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> int:
    """Find effects that the other side holds and the ledger never admitted; 1 when there are any.

    Ends with 5 when the other side could not be asked: that is no clean bill.

    Example: outlast operations sweep app:app create_ticket --since 24h
    """
    ids.check_name(tenant, "tenant")
    begin = _since(since)
    options.choose_database(database_url)
    async with load_app(target) as outlast:
        # By the database's clock, whatever this machine's says.
        now = (await outlast.store.health()).now
        if isinstance(begin, int):
            begin = datetime.fromtimestamp((now - begin) / 1_000_000, UTC)
        found = await outlast.operations.sweep_other_side(tool, since=begin, tenant=tenant)
    if as_json:
        say_json({"sweep": found, "since": begin})
    elif found.verdict == "clean":
        say(f"clean: {found.seen} effects since {plain(begin)}, each with an intent in the ledger")
    elif found.verdict == "unknown":
        say(f"unknown: the other side could not be asked ({found.detail})")
    else:
        say(f"{len(found.unadmitted)} of {found.seen} effects since {plain(begin)} have no intent here:")
        for key in found.unadmitted:
            say(key)
    return {"clean": OK, "unadmitted": FAILED, "unknown": UNAVAILABLE}[found.verdict]


def _since(text: str) -> datetime | int:
    """Read an instant, or a length of time in microseconds."""
    try:
        return microseconds(text, what="--since")
    except InvalidRequest:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise InvalidRequest(f"--since {text!r} is neither a length such as 24h nor an instant with a zone")
    return at


def _said(event: EventView) -> str:
    """What an event says beside what every one of an operation says."""
    common = ("operation", "kind", "name", "attempt", "effect", "idempotency_key")
    return " ".join(f"{name}={plain(value)}" for name, value in event.data.items() if name not in common)


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"--result is not JSON: {error}") from None


def _say_operation(view: OperationView, place: QueueView | None) -> None:
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
            ("about", view.business_key),
            ("arguments", view.arguments),
            ("result", view.result),
            ("error", view.error),
            ("settled by", view.settled_by),
            ("intent", view.intent_at),
            ("deadline", view.deadline_at),
            ("shows until", view.visible_at if view.visible_at != view.deadline_at else None),
            ("ended", view.ended_at),
            *_place(place),
        ]
    )


def _refused_until(at: datetime | None) -> str | None:
    """Until when a person cannot settle it so."""
    return None if at is None else f"refused until {plain(at)} unless forced"


def _instead(place: QueueView) -> str:
    return "never: it waits for a person" if place.needs_person else "never: it is to be sent again"


def _place(place: QueueView | None) -> list[tuple[str, Any]]:
    if place is None:
        return []
    return [
        ("unknown since", place.since),
        ("asked", place.asked),
        ("asked next", place.ask_at or _instead(place)),
        ("sender", "cannot send any more" if place.sender_gone else "may still be able to send"),
        ("plan", place.why or None),
    ]
