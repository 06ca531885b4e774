"""Running the drill of the other side, and telling how it went."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from outlast.drills import running
from outlast.drills.otherside.playing import play
from outlast.drills.otherside.table import CELLS, chosen

__all__ = ["run_drill"]


async def run_drill(
    *, postgres: str | None, seed: int | None, only: Sequence[str], json: bool, console: Console
) -> int:
    """Play the table, judge it, and tell; answer the exit code, 0 only when all is right.

    postgres: None for an SQLite file, ``embedded``, or the URL of a server to make a database on. seed: of
    the order; a new one for None. only: cells, as ``ledger``, ``gateway/frozen`` or ``*/killed_*``. json:
    print one JSON object and nothing else. Raises ConfigurationError for a database or a cell that there is
    not. Leaves no process behind, and no file unless a cell failed.
    """
    return await running.run(
        play,
        chosen(only),
        running.listed("told"),
        only=only,
        known=f"cells are {', '.join(cell.name for cell in CELLS)}",
        judge="the logs of the services and every checker",
        # Every checker.
        beside=1,
        postgres=postgres,
        seed=seed,
        json=json,
        console=console,
    )
