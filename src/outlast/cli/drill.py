"""``outlast drill``: faults done on purpose to real processes, judged by the other side's own log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from outlast.cli import options
from outlast.cli.failing import command
from outlast.cli.loading import load_app
from outlast.errors import ConfigurationError, InvalidInput

app = typer.Typer(no_args_is_help=True, help="Faults done on purpose, with a verdict.")


def _cells(name: str) -> Any:
    return typer.Option(help=f"Cells as {name}; * stands for any. Can be given again.", metavar=name)


Seed = Annotated[int | None, typer.Option(help="Of order and jitter; a new one each time by default.")]
Postgres = Annotated[
    str | None,
    typer.Option(help="Run on PostgreSQL: a URL, or 'embedded' for one of its own. Default: SQLite."),
]
OfEffects = Annotated[list[str] | None, _cells("EFFECT/FAULT")]
OfFamilies = Annotated[list[str] | None, _cells("FAMILY/FAULT")]


@app.callback()
def _drill() -> None:
    """Faults done on purpose, with a verdict."""


@app.command("effects")
@command
async def drill_effects(
    seed: Seed = None, postgres: Postgres = None, only: OfEffects = None, as_json: options.AsJson = False
) -> int:
    """Try every effect class against every fault; succeeds only when each cell is as it must be.

    Example: outlast drill effects --only 'manual/*' --seed 7
    """
    from outlast.drills.effects.report import run_drill

    return await run_drill(
        postgres=postgres, seed=seed, only=only or [], json=as_json, console=Console(highlight=False)
    )


@app.command("people")
@command
async def drill_people(
    seed: Seed = None, postgres: Postgres = None, only: OfFamilies = None, as_json: options.AsJson = False
) -> int:
    """Try approvals, waits and cancels against every fault; succeeds only when each cell is as it must be.

    Example: outlast drill people --only 'cancel/*' --seed 7
    """
    from outlast.drills.people.report import run_drill

    return await run_drill(
        postgres=postgres, seed=seed, only=only or [], json=as_json, console=Console(highlight=False)
    )


@app.command("change")
@command
async def drill_change(
    seed: Seed = None, postgres: Postgres = None, only: OfFamilies = None, as_json: options.AsJson = False
) -> int:
    """Undo, retry, fork and deploy against every fault; succeeds only when each cell is as it must be.

    Example: outlast drill change --only 'undo/*' --seed 7
    """
    from outlast.drills.change.report import run_drill

    return await run_drill(
        postgres=postgres, seed=seed, only=only or [], json=as_json, console=Console(highlight=False)
    )


@app.command("otherside")
@command
async def drill_otherside(
    seed: Seed = None, postgres: Postgres = None, only: OfFamilies = None, as_json: options.AsJson = False
) -> int:
    """Try middleware, gateway and ledger alone against every fault; succeeds only when each cell is as it
    must be.

    Example: outlast drill otherside --only 'ledger/*' --seed 7
    """
    from outlast.drills.otherside.report import run_drill

    return await run_drill(
        postgres=postgres, seed=seed, only=only or [], json=as_json, console=Console(highlight=False)
    )


@app.command("storm")
@command
async def drill_storm(
    seed: Annotated[
        int | None, typer.Option(help="Of the first campaign; a new one each time by default.")
    ] = None,
    postgres: Postgres = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="Of storm, at least; bringing up, resting and judging come on top.")
    ] = 60.0,
    kills: Annotated[int, typer.Option(min=0, help="Go on until so many processes were killed.")] = 0,
    pauses: Annotated[int, typer.Option(min=0, help="... so many were frozen.")] = 0,
    restarts: Annotated[
        int, typer.Option(min=0, help="... the database was down so often; with --postgres embedded.")
    ] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Misfortunes; * stands for any. Can be given again.", metavar="MISFORTUNE"),
    ] = None,
    timers: Annotated[
        Literal["short", "shipped"] | None,
        typer.Option(
            help="'short', or 'shipped' for the defaults; by default one campaign in ten has these."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 3,
    target: Annotated[
        str | None,
        typer.Option(
            "--app", help="Pass over your own app, on a database of the drill's.", metavar="MODULE:APP"
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="With --app: the agent that tasks are for.")] = None,
    input: Annotated[str, typer.Option(help="With --app: their input, as JSON.")] = "{}",
    report: Annotated[Path | None, typer.Option(help="Write the report to this file, in Markdown.")] = None,
    as_json: options.AsJson = False,
) -> int:
    """Let everything go wrong at once, under load; succeeds only when nothing is broken after it.

    Example: outlast drill storm --seconds 300 --postgres embedded --report storm.md
    """
    from outlast.drills.storm.agents import Theirs
    from outlast.drills.storm.report import Asked, drawn_seed, run_drill

    theirs = None
    if target is not None:
        known = sorted({name for name, _ in load_app(target).registry.agents})
        if ":" not in target or agent not in known:
            raise ConfigurationError(f"say --app module:app, and --agent with one of {', '.join(known)}")
        theirs = Theirs(app=target, agent=agent, input=_object(input))
    asked = Asked(
        postgres=postgres,
        seed=drawn_seed(seed),
        seconds=seconds,
        wanted={"kills": kills, "pauses": pauses, "restarts": restarts},
        timers=timers,
        only=only or [],
        workers=workers,
        theirs=theirs,
    )
    return await run_drill(asked, report=report, json=as_json, console=Console(highlight=False))


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"--input is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput("--input is an object: the agent's parameters by name")
    return value
