"""``outlast demo``: the reimbursement story, with every crash window."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from outlast.cli import options
from outlast.cli.failing import command


@command
async def demo(
    postgres: Annotated[
        str | None,
        typer.Option(help="Run on PostgreSQL: a URL, or 'embedded' for one of its own. Default: SQLite."),
    ] = None,
    as_json: options.AsJson = False,
) -> int:
    """Show a task that survives every crash, against a real ticket service that keeps count.

    After the windows every checker is asked about the store and the service's log. With --json, `checkers`
    says how many were asked and what is not as it has to be (`problems`, empty when all is).

    Example: outlast demo --postgres embedded
    """
    from outlast.drills.reimbursement import run_demo

    return await run_demo(postgres=postgres, json=as_json, console=Console(highlight=False))
