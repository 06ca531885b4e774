"""The ``outlast`` command."""

from __future__ import annotations

from typing import Annotated

import typer

import outlast
from outlast.cli import demo, migrate, worker
from outlast.cli.failing import EXIT_HELP

app = typer.Typer(
    name="outlast",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_HELP,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"outlast {outlast.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run AI-agent tasks that outlive their process."""


for each in (demo.demo, worker.worker, migrate.migrate):
    app.command()(each)


def main() -> None:
    """Run the command line of this process."""
    app(prog_name="outlast")
