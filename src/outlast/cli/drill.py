"""``outlast drill``: faults done on purpose to real processes, judged by the other side's own log."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from outlast.cli import options
from outlast.cli.failing import command

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
