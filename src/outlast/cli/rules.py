"""``outlast rules``: what calls need no question, and which are never made."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from outlast.cli import options
from outlast.cli.direct import database
from outlast.cli.failing import command
from outlast.cli.printing import say, say_json, say_table
from outlast.core import ids
from outlast.errors import InvalidInput
from outlast.views import RuleView

app = typer.Typer(no_args_is_help=True, help="Standing rules: policy for a tool's calls inside bounds.")

Tool = Annotated[str, typer.Argument(metavar="TOOL", help="The tool.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the audit trail.")]
By = Annotated[str | None, typer.Option(help="Who says so; you by default.")]
Bounds = Annotated[
    str, typer.Option(help='By argument, as JSON: {"amount": {"max": 100}}; also min, equals, one_of.')
]


@app.command("list")
@command
async def list_rules(
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """List the rules that stand, by tool.

    Example: outlast rules list
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        views = await outlast.rules.list(tenant=tenant)
    if as_json:
        say_json({"items": views, "next": None})
    elif not views:
        say("no rules stand")
    else:
        say_table(
            ["number", "tool", "verdict", "bounds", "by", "reason"],
            [[each.number, each.tool, each.verdict, each.bounds, each.by, each.reason] for each in views],
        )


@app.command("allow")
@command
async def allow(
    tool: Tool,
    reason: Reason,
    bounds: Bounds = "{}",
    by: By = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Let a tool's calls inside the bounds be made without a question.

    Example: outlast rules allow create_ticket --bounds '{"amount": {"max": 100}}' --reason "small ones"
    """
    await _put(tool, "allow", reason, bounds, by, tenant, database_url, as_json)


@app.command("deny")
@command
async def deny(
    tool: Tool,
    reason: Reason,
    bounds: Bounds = "{}",
    by: By = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Let no call of a tool inside the bounds be made, unless a person approves that very call.

    Example: outlast rules deny create_ticket --bounds '{"amount": {"min": 1000}}' --reason "never so much"
    """
    await _put(tool, "deny", reason, bounds, by, tenant, database_url, as_json)


@app.command("withdraw")
@command
async def withdraw(
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="The rule's number.")],
    reason: Reason,
    by: By = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Take a rule back, for every call that has not begun.

    Example: outlast rules withdraw 3 --reason "the budget is spent"
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        await outlast.rules.withdraw(number, reason=reason, by=by or options.whoami(), tenant=tenant)
    if as_json:
        say_json({"withdrawn": {"tenant": tenant, "number": number}})
    else:
        say(f"withdrawn: rule {number}")


async def _put(
    tool: str,
    verdict: Literal["allow", "deny"],
    reason: str,
    bounds: str,
    by: str | None,
    tenant: str,
    database_url: str | None,
    as_json: bool,
) -> None:
    ids.check_name(tenant, "tenant")
    given = _json(bounds)
    async with database(database_url) as outlast:
        number = await outlast.rules.put(
            tool, verdict, reason=reason, by=by or options.whoami(), bounds=given, tenant=tenant
        )
        found: list[RuleView] = [
            each for each in await outlast.rules.list(tenant=tenant) if each.number == number
        ]
    if as_json:
        say_json({"rule": found[0] if found else {"number": number}})
    else:
        say(f"rule {number} stands: {verdict} {tool}")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"--bounds is not JSON: {error}") from None
