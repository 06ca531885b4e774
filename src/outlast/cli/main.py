"""The ``outlast`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Final

import typer

import outlast
from outlast.cli.failing import EXIT_HELP, Commands

_COMMANDS: Final = ("dev", "demo", "serve", "worker", "gateway", "migrate", "check")
"""Each in the module of its name."""
_GROUPS: Final = {
    "drill": "drill:app",
    "tasks": "changing:app",
    "versions": "versions:app",
    "operations": "operations:app",
    "approvals": "approvals:app",
    "rules": "rules:app",
    "schedules": "schedules:app",
    "pause": "control:pause",
    "audit": "control:audit",
}
"""Where the commands of a group are."""


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"outlast {outlast.__version__}")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run AI-agent tasks that outlive their process."""


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """Make the command line; where the arguments begin with a command or a group, of that alone.

    All commands together cost as much as everything else that a short command does.
    """
    app = typer.Typer(
        name="outlast",
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=EXIT_HELP,
    )
    app.callback()(_main)
    names = [*_COMMANDS, *_GROUPS]
    for name in [arguments[0]] if arguments and arguments[0] in names else names:
        module, _, attribute = _GROUPS.get(name, f"{name}:{name}").partition(":")
        found = getattr(import_module(f"outlast.cli.{module}"), attribute)
        if name in _GROUPS:
            app.add_typer(found, name=name)
        else:
            app.command()(found)
    return app


def main() -> None:
    """Run the command line of this process."""
    command_line(sys.argv[1:])(prog_name="outlast")
