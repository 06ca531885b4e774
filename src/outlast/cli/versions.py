"""``outlast versions``: which versions of agents live tasks need, and how they come to another one."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import Progress

from outlast.app import Outlast
from outlast.changing import Rehearsal
from outlast.cli import options
from outlast.cli.direct import database, task_id
from outlast.cli.failing import CONFLICT, OK, command
from outlast.cli.loading import load_app
from outlast.cli.printing import say, say_fields, say_json, say_table
from outlast.core import ids
from outlast.errors import InvalidRequest, TaskEnded, TaskNotFound, VersionInUse

app = typer.Typer(no_args_is_help=True, help="Versions of agents: who needs which, and adopting another one.")

PAGE: Final = 200


@app.command("list")
@command
async def list_versions(
    everybody: Annotated[bool, typer.Option("--all", help="Of all tenants.")] = False,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Count live tasks by the version that they need, and the workers that serve it.

    A version that nobody serves may be taken out of the deploy only once no task needs it.

    Example: outlast versions list --all
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        views = await outlast.versions.list(tenant=None if everybody else tenant)
    if as_json:
        say_json({"items": views, "next": None})
    elif not views:
        say("no task lives")
    else:
        say_table(
            ["agent", "version", "queued", "running", "waiting", "served by"],
            [
                [
                    each.agent,
                    each.version or "not bound yet",
                    each.queued,
                    each.running,
                    each.waiting,
                    each.served_by or "nobody",
                ]
                for each in views
            ],
        )


@app.command("adopt")
@command
async def adopt(
    target: options.Target,
    tasks: Annotated[list[str] | None, typer.Argument(metavar="[TASK]...", help="Tasks' ids.")] = None,
    agent: Annotated[str | None, typer.Option(help="With --from: all live tasks of this agent.")] = None,
    bound_to: Annotated[
        str | None, typer.Option("--from", help="The version that they are bound to.")
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="The version that takes them over; the app's latest by default.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; kept in the audit trail.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be, and change nothing.")
    ] = False,
    leave_effects: Annotated[
        bool, typer.Option("--leave-effects", help="Adopt also where effects are left over; look first.")
    ] = False,
    by: Annotated[str | None, typer.Option(help="Who wants it; you by default.")] = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> int:
    """Run your app's code against tasks' journals, and bind the tasks that it fits to its version.

    Nothing is sent. A task that the code does not fit stays as it is, and so does one that runs, and one with
    effects that the code does not ask for, unless you say --leave-effects: then the command ends with 4. Name
    tasks, or take all of an agent and a version.

    Example: outlast versions adopt app:app --agent reimburse --from 3 --dry-run
    """
    ids.check_name(tenant, "tenant")
    if bool(tasks) == bool(agent and bound_to) or bool(agent) != bool(bound_to):
        raise InvalidRequest("name tasks, or give --agent and --from")
    if not dry_run and not reason:
        raise InvalidRequest("--reason is needed, unless this is a --dry-run")
    named = [task_id(each) for each in tasks or ()]
    options.choose_database(database_url)
    found: list[Rehearsal] = []
    refused: dict[str, str] = {}
    async with load_app(target) as outlast:
        if agent is not None and bound_to is not None:
            named = [each async for each in _bound(outlast, agent, bound_to, tenant)]
        with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            for task in bar.track(named, description="rehearsing"):
                try:
                    if dry_run:
                        found.append(await outlast.versions.rehearse(task, version=version, tenant=tenant))
                    else:
                        found.append(
                            await outlast.versions.adopt(
                                task,
                                version=version,
                                leave_effects=leave_effects,
                                reason=reason,
                                by=by or options.whoami(),
                                tenant=tenant,
                            )
                        )
                except (VersionInUse, TaskEnded, TaskNotFound) as error:
                    if len(named) == 1:
                        raise
                    refused[task] = str(error)
    adopted = [each.task for each in found if each.adopted]
    if as_json:
        say_json({"dry_run": dry_run, "adopted": adopted, "rehearsals": found, "refused": refused})
    else:
        _say(found, refused)
    stays = any(not each.fits or (each.effects_left and not leave_effects) for each in found)
    return CONFLICT if refused or stays else OK


async def _bound(outlast: Outlast, agent: str, version: str, tenant: str) -> AsyncIterator[str]:
    """Answer the live tasks that are bound to a version."""
    for state in ("waiting", "queued", "running"):
        before = None
        while True:
            views = await outlast.list(tenant=tenant, agent=agent, state=state, before=before, limit=PAGE)
            for view in views:
                if view.version == version:
                    yield view.id
            if len(views) < PAGE:
                break
            before = views[-1].id


def _say(found: list[Rehearsal], refused: dict[str, str]) -> None:
    if not found and not refused:
        say("no live task is bound to that version")
    for each in found:
        fits = "adopted" if each.adopted else "fits" if each.fits else "does not fit"
        if each.fits and each.effects_left and not each.adopted:
            fits = "fits, and leaves effects over; look at them, then say --leave-effects"
        say_fields(
            [
                ("task", each.task),
                ("version", f"{each.from_version or 'not bound yet'} to {each.version}: {fits}"),
                ("answered", f"{each.met} operations of its journal"),
                ("differs", "; ".join(each.differences) or None),
                ("raised", each.failed),
                ("effects left", _warned(each.effects_left, "may have acted, and not asked for")),
                ("goes on at", ", ".join(each.goes_on_at) or ("its end" if each.ended else None)),
                ("left over", _warned(each.left_over, "done, and not asked for any more")),
                ("not reached", _warned(each.not_reached, "done, and asked for later, or never")),
            ]
        )
    for task, why in refused.items():
        say(f"{task}: {why}")


def _warned(keys: tuple[str, ...], what: str) -> str | None:
    return f"{', '.join(keys)} ({what})" if keys else None
