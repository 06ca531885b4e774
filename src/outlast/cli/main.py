"""The ``outlast`` command."""

from __future__ import annotations

from typing import Annotated

import typer

import outlast
from outlast.cli import (
    approvals,
    changing,
    check,
    control,
    demo,
    dev,
    drill,
    gateway,
    migrate,
    operations,
    rules,
    schedules,
    serve,
    versions,
    worker,
)
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


for each in (dev.dev, demo.demo, serve.serve, worker.worker, gateway.gateway, migrate.migrate, check.check):
    app.command()(each)
app.add_typer(drill.app, name="drill")
app.add_typer(changing.app, name="tasks")
app.add_typer(versions.app, name="versions")
app.add_typer(operations.app, name="operations")
app.add_typer(approvals.app, name="approvals")
app.add_typer(rules.app, name="rules")
app.add_typer(schedules.app, name="schedules")
app.add_typer(control.pause, name="pause")
app.add_typer(control.audit, name="audit")


def main() -> None:
    """Run the command line of this process."""
    app(prog_name="outlast")
