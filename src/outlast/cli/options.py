"""Options that several commands share."""

from __future__ import annotations

import getpass
import json
import os
import sys
from typing import Annotated, Any

import typer

from outlast.errors import InvalidInput, InvalidRequest
from outlast.settings import Settings

DEFAULT_PORT = 8700
"""Where the HTTP API is served unless said otherwise."""
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
Input = Annotated[
    str,
    typer.Option("--input", "-i", help="The agent's parameters as a JSON object; - reads them from stdin."),
]
Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where your Outlast app is.")]


def choose_database(database_url: str | None) -> str:
    """Answer the URL to use, and put it where apps that name none of their own find it."""
    if database_url is not None:
        os.environ["OUTLAST_DATABASE_URL"] = database_url
    return Settings().database_url


def json_object(text: str) -> dict[str, Any]:
    """Read what ``--input`` says. Raises InvalidInput, InvalidRequest."""
    if text == "-":
        text = sys.stdin.read()
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"--input is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidRequest("--input is a JSON object: the agent's parameters by name")
    return given


def whoami() -> str:
    """Answer who runs the command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        return "cli"
