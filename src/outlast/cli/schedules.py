"""``outlast schedules``: what fires tasks by the clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

import typer

from outlast.cli import options
from outlast.cli.direct import database
from outlast.cli.failing import command
from outlast.cli.loading import load_app
from outlast.cli.printing import plain, say, say_fields, say_json, say_table
from outlast.core import ids, schedule
from outlast.errors import InvalidKey, InvalidSchedule, ScheduleNotFound
from outlast.schedules import ScheduleRequest, ScheduleView

app = typer.Typer(no_args_is_help=True, help="What fires tasks by the clock.")

Missed = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip"]
Id = Annotated[str, typer.Argument(metavar="SCHEDULE", help="A schedule's id.")]
Why = Annotated[str, typer.Option(help="Why; kept in the audit trail.")]
By = Annotated[str | None, typer.Option(help="Who says so; you by default.")]
Revision = Annotated[
    int | None, typer.Option(min=0, help="The revision that you saw; 4 when another stands.")
]
CronText = Annotated[
    str | None, typer.Option(help='Five fields, as in "30 2 * * 1-5"; or @daily and its like.')
]
Zone = Annotated[str | None, typer.Option(help="The IANA time zone of --cron. [UTC]")]
Every = Annotated[str | None, typer.Option(help="An interval: 90s, 15m, 1h30m.")]
At = Annotated[str | None, typer.Option(help="One instant, with a zone: 2027-01-01T09:00:00+01:00.")]


@app.command("list")
@command
async def list_schedules(
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")] = 100,
    after: Annotated[str, typer.Option(help="Above this id, for the next page.")] = "",
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """List a tenant's schedules by id.

    Example: outlast schedules list --limit 20
    """
    ids.check_name(tenant, "tenant")
    async with database(database_url) as outlast:
        views = await outlast.schedules.list(tenant=tenant, after=after, limit=limit)
    following = views[-1].id if len(views) == limit else None
    if as_json:
        say_json({"items": views, "next": following})
        return
    if not views:
        say("no schedules")
        return
    say_table(
        ["schedule", "agent", "when", "next", "last", "fired", "state"],
        [
            [view.id, view.agent, _when(view), view.next_at, view.last_at, view.fired, _state(view)]
            for view in views
        ],
    )
    if following:
        say(f"more: --after {following}")


@app.command("show")
@command
async def show_schedule(
    schedule: Id,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a schedule as it stands.

    Example: outlast schedules show nightly
    """
    async with database(database_url) as outlast:
        view = await outlast.schedules.get(_known(schedule), tenant=tenant)
    _said(view, as_json=as_json)


@app.command("put")
@command
async def put_schedule(
    target: options.Target,
    schedule: Id,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="A registered agent's name.")],
    input: options.Input = "{}",
    cron: CronText = None,
    zone: Zone = None,
    every: Every = None,
    at: At = None,
    missed: Annotated[
        Missed, typer.Option(help="Of firings over a minute late: none, one for all, or each.")
    ] = "once",
    max_missed: Annotated[int, typer.Option(help="With --missed all: only the newest so many.")] = 100,
    overlap: Annotated[
        Overlap, typer.Option(help="skip: submit nothing while the last task of the schedule lives.")
    ] = "allow",
    jitter: Annotated[str | None, typer.Option(help="Tasks start up to so much later.")] = None,
    user: Annotated[str | None, typer.Option(help="For whom, within the tenant.")] = None,
    pool: Annotated[str | None, typer.Option(help="Which workers.")] = None,
    priority: Annotated[int, typer.Option(help="Higher goes first, from -1000 to 1000.")] = 0,
    deadline: Annotated[str | None, typer.Option(help="To be over so long after it fired.")] = None,
    version: Annotated[str | None, typer.Option(help="The version to bind to.")] = None,
    reason: Why = "",
    by: By = None,
    revision: Annotated[
        int | None, typer.Option(min=0, help="The revision that you saw, 0 for a schedule that must be new.")
    ] = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a schedule, or put this one in the place of another of its id.

    One of --cron, --every and --at says when. The same again changes nothing.

    Example: outlast schedules put app:app nightly report --cron "30 2 * * *" --zone Europe/Berlin
    """
    request = ScheduleRequest(
        id=schedule,
        agent=agent,
        input=options.json_object(input),
        cron=cron,
        zone=zone,
        every=every,
        at=_at(at),
        missed=missed,
        max_missed=max_missed,
        overlap=overlap,
        jitter=jitter,
        tenant=tenant,
        user=user,
        pool=pool,
        priority=priority,
        deadline=deadline,
        version=version,
        by=by or options.whoami(),
        reason=reason,
        revision=revision,
    )
    options.choose_database(database_url)
    async with load_app(target) as outlast:
        kind, view = await outlast.schedules.apply(request)
    if as_json:
        say_json({"schedule": view, "put": kind})
    else:
        upcoming = f", next at {plain(view.next_at)}" if view.next_at else ""
        say(f"{kind}: {view.id} (revision {view.revision}){upcoming}")


@app.command("delete")
@command
async def delete_schedule(
    schedule: Id,
    reason: Why = "",
    by: By = None,
    revision: Revision = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete a schedule; tasks that it fired go on.

    Example: outlast schedules delete nightly --reason "replaced by the stream"
    """
    async with database(database_url) as outlast:
        await outlast.schedules.delete(
            _known(schedule), tenant=tenant, by=by or options.whoami(), reason=reason, revision=revision
        )
    if as_json:
        say_json({"deleted": {"tenant": tenant, "id": schedule}})
    else:
        say(f"deleted: {schedule}")


@app.command("pause")
@command
async def pause_schedule(
    schedule: Id,
    reason: Why,
    by: By = None,
    revision: Revision = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Fire no more, until it is resumed; tasks that it fired go on.

    Example: outlast schedules pause nightly --reason "the ledger is being closed"
    """
    async with database(database_url) as outlast:
        view = await outlast.schedules.pause(
            _known(schedule), reason=reason, tenant=tenant, by=by or options.whoami(), revision=revision
        )
    if as_json:
        say_json({"schedule": view})
    else:
        say(f"paused: {schedule}")


@app.command("resume")
@command
async def resume_schedule(
    schedule: Id,
    reason: Why = "",
    by: By = None,
    revision: Revision = None,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Fire again, from the first instant ahead; what passed meanwhile is not made up for.

    Example: outlast schedules resume nightly
    """
    async with database(database_url) as outlast:
        view = await outlast.schedules.resume(
            _known(schedule), reason=reason, tenant=tenant, by=by or options.whoami(), revision=revision
        )
    if as_json:
        say_json({"schedule": view})
    else:
        say(f"goes on: {schedule}" + (f", next at {plain(view.next_at)}" if view.next_at else ""))


@app.command("next")
@command
async def preview_schedule(
    schedule: Annotated[str | None, typer.Argument(metavar="[SCHEDULE]", help="A schedule's id.")] = None,
    cron: CronText = None,
    zone: Zone = None,
    every: Every = None,
    at: At = None,
    count: Annotated[int, typer.Option(min=1, max=1_000, help="So many instants.")] = 5,
    tenant: options.Tenant = "default",
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Say when a schedule fires next, or when one would with these times; nothing is stored.

    Example: outlast schedules next --cron "30 2 * * *" --zone Europe/Berlin --count 10
    """
    tried = (cron, zone, every, at)
    if schedule is not None and any(each is not None for each in tried):
        raise InvalidSchedule("name a schedule, or try times out, not both")
    async with database(database_url) as outlast:
        if schedule is not None:
            zone = (await outlast.schedules.get(_known(schedule), tenant=tenant)).zone
            found = await outlast.schedules.preview(schedule, tenant=tenant, count=count)
        else:
            found = await outlast.schedules.preview(
                cron=cron, zone=zone, every=every, at=_at(at), count=count
            )
    if as_json:
        say_json({"items": found, "next": None})
    elif found:
        _say_instants(found, zone)
    else:
        say("it fires no more")


def _known(id: str) -> str:
    """Take a schedule's id. Raises ScheduleNotFound for what cannot be one."""
    try:
        return schedule.check_id(id)
    except InvalidKey:
        raise ScheduleNotFound(f"no schedule {id[:100]!r}") from None


def _at(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidSchedule(f"--at {text!r} is no instant; write 2027-01-01T09:00:00+01:00") from None


def _say_instants(instants: Sequence[datetime], zone: str | None) -> None:
    if zone is None:
        for each in instants:
            say(plain(each))
        return
    local = [each.astimezone(ZoneInfo(zone)).isoformat(timespec="seconds") for each in instants]
    say_table(["UTC", zone], [[each, there] for each, there in zip(instants, local, strict=True)])


def _when(view: ScheduleView) -> str:
    if view.cron is not None:
        return f"{view.cron} {view.zone}"
    return f"every {view.every:g} s" if view.every is not None else f"once at {plain(view.at)}"


def _state(view: ScheduleView) -> str:
    if view.paused is not None:
        return f"paused: {view.paused}"
    return "over" if view.next_at is None else ""


def _said(view: ScheduleView, *, as_json: bool) -> None:
    if as_json:
        say_json({"schedule": view})
        return
    say_fields(
        [
            ("schedule", view.id),
            ("agent", f"{view.agent}@{view.version}" if view.version else view.agent),
            ("when", _when(view)),
            ("state", _state(view) or None),
            ("next", view.next_at),
            ("last", view.last_at),
            ("last task", view.last_task),
            ("fired", view.fired),
            ("skipped", view.skipped or None),
            ("missed", f"all, at most {view.max_missed}" if view.missed == "all" else view.missed),
            ("overlap", view.overlap),
            ("jitter", f"{view.jitter:g} s" if view.jitter else None),
            ("pool", view.pool),
            ("priority", view.priority or None),
            ("user", view.user),
            ("deadline", f"{view.deadline:g} s" if view.deadline is not None else None),
            ("input", view.input),
            ("note", view.note),
            ("noted", view.noted_at),
            ("revision", view.revision),
            ("changed", view.changed_at),
            ("by", view.changed_by),
        ]
    )
