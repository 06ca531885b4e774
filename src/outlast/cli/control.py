"""``outlast pause`` and ``outlast audit``: stop new calls, and see who decided what."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli import options
from outlast.cli.direct import database
from outlast.cli.failing import command
from outlast.cli.printing import say, say_json, say_table
from outlast.core import ids
from outlast.errors import InvalidRequest, NotFound
from outlast.store.reconciling import EVERY_TENANT
from outlast.submitting import DEFAULT_TENANT

pause = typer.Typer(no_args_is_help=True, help="Stop new calls by a switch, from the next one on.")
audit = typer.Typer(no_args_is_help=True, help="Who decided what, and why.")

Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="all, or tool:<name>.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the audit trail.")]
By = Annotated[str | None, typer.Option(help="Who says so; you by default.")]
Everybody = Annotated[bool, typer.Option("--everybody", help="For every tenant.")]


def _whose(tenant: str, everybody: bool) -> str:
    if everybody and tenant != DEFAULT_TENANT:
        raise InvalidRequest("--everybody goes without --tenant")
    return EVERY_TENANT if everybody else ids.check_name(tenant, "tenant")


def _shown(tenant: str) -> str:
    return "everybody" if tenant == EVERY_TENANT else tenant


@pause.command("set")
@command
async def set_pause(
    scope: Scope,
    reason: Reason,
    by: By = None,
    everybody: Everybody = False,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Stop a tenant's new calls, all of them or one tool's; what is under way goes on.

    Example: outlast pause set tool:create_ticket --reason "wrong cost centre"
    """
    whose = _whose(tenant, everybody)
    async with database(database_url) as outlast:
        await outlast.pauses.set(scope, reason=reason, by=by or options.whoami(), tenant=whose)
        views = await outlast.pauses.list(tenant=whose)
    (view,) = [each for each in views if (each.tenant, each.scope) == (whose, scope)]
    if as_json:
        say_json({"pause": view})
    else:
        say(f"paused: {scope} of {_shown(whose)}")


@pause.command("clear")
@command
async def clear_pause(
    scope: Scope,
    reason: Reason,
    by: By = None,
    everybody: Everybody = False,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Take a switch back; calls that waited for it are made.

    Example: outlast pause clear tool:create_ticket --reason "corrected"
    """
    whose = _whose(tenant, everybody)
    async with database(database_url) as outlast:
        stood = await outlast.pauses.clear(scope, reason=reason, by=by or options.whoami(), tenant=whose)
    if not stood:
        raise NotFound(f"no switch {scope!r} of {_shown(whose)} stands")
    if as_json:
        say_json({"cleared": {"tenant": whose, "scope": scope}})
    else:
        say(f"goes on: {scope} of {_shown(whose)}")


@pause.command("list")
@command
async def list_pauses(
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """List the switches that stand for a tenant, those for everybody included.

    Example: outlast pause list
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        views = await outlast.pauses.list(tenant=tenant)
    if as_json:
        say_json({"items": views, "next": None})
        return
    if not views:
        say("nothing is paused")
        return
    say_table(
        ["scope", "of", "since", "by", "reason"],
        [[each.scope, _shown(each.tenant), each.at, each.by, each.reason] for each in views],
    )


@audit.command("list")
@command
async def list_audit(
    after: Annotated[int, typer.Option(min=0, help="Above this number, for the next page.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 100,
    everybody: Annotated[
        bool, typer.Option("--everybody", help="What was decided for every tenant at once.")
    ] = False,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """List who decided what, about what, and why, oldest first.

    Example: outlast audit list --limit 20
    """
    whose = _whose(tenant, everybody)
    async with database(database_url) as outlast:
        views = await outlast.pauses.audit(tenant=whose, after=after, limit=limit)
    following = views[-1].number if len(views) == limit else None
    if as_json:
        say_json({"items": views, "next": following})
        return
    if not views:
        say("nothing was decided")
        return
    say_table(
        ["number", "at", "who", "what", "subject", "reason"],
        [[each.number, each.at, each.who, each.what, each.subject, each.reason] for each in views],
    )
    if following:
        say(f"more: --after {following}")
