"""Options that several commands share."""

from __future__ import annotations

import getpass
import os
from typing import Annotated

import typer

from outlast.settings import Settings

AsJson = Annotated[
    bool, typer.Option("--json", help="Answer JSON on standard output; say errors as JSON on standard error.")
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        envvar="OUTLAST_DATABASE_URL",
        show_envvar=True,
        help="postgresql://user:password@host/database, or sqlite:///file.db.",
    ),
]
Tenant = Annotated[str, typer.Option("--tenant", help="Whose tasks.")]
Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where your Outlast app is.")]


def choose_database(database_url: str | None) -> str:
    """Answer the URL to use, and put it where apps that name none of their own find it."""
    if database_url is not None:
        os.environ["OUTLAST_DATABASE_URL"] = database_url
    return Settings().database_url


def whoami() -> str:
    """Answer who runs the command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        return "cli"
