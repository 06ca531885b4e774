"""What commands answer: JSON for programs, lines and tables for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast.cli.failing import masked
from outlast.core import values

MAX_ANSWER_BYTES: Final = 1 << 30
OPERATION_VALUES: Final = ("arguments", "result")
"""What is read of an operation only where it is shown alone."""
STYLES: Final = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "unknown": "bold red",
    "running": "cyan",
    "waiting": "magenta",
}


def say(text: str) -> None:
    """Print one line for people."""
    typer.echo(masked(text))


def say_json(value: Any) -> None:
    """Print one JSON document on one line."""
    typer.echo(values.encode(value, limit=MAX_ANSWER_BYTES, what="answer"))


def listed(view: Any, without: Sequence[str]) -> dict[str, Any]:
    """Answer the fields of a view as a list shows it, without those that were not read."""
    return {name: value for name, value in asdict(view).items() if name not in without}


def say_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; into a pipe, without cutting anything."""
    wide = not sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, no_wrap=wide, overflow="fold")
    for row in rows:
        table.add_row(*[_cell(value) for value in row])
    # Cells may hold what users sent: Text, unlike markup, prints it as it is.
    Console(width=10_000 if wide else None, highlight=False).print(table)


def say_fields(fields: Sequence[tuple[str, Any]]) -> None:
    """Print names and values, one a line; what is None is left out."""
    shown = [(name, value) for name, value in fields if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        say(f"{name:<{width}}  {plain(value)}")


def plain(value: Any) -> str:
    """Write a value as text for people."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, str):
        return value
    return values.encode(value, limit=MAX_ANSWER_BYTES, what="answer")


def _cell(value: Any) -> Text:
    text = masked(plain(value))
    return Text(text, style=STYLES.get(text, ""))
