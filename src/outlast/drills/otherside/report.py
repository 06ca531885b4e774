"""Running the drill of the other side, and telling how it went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast.drills import running
from outlast.drills.otherside.judge import Judged
from outlast.drills.otherside.playing import play
from outlast.drills.otherside.table import CELLS, chosen
from outlast.errors import ConfigurationError

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
    cells = chosen(only)
    if not cells:
        raise ConfigurationError(
            f"no cell fits {', '.join(only)}; cells are {', '.join(cell.name for cell in CELLS)}"
        )

    async def played(seed: int, folder: Path, shown: Console) -> list[Judged]:
        return await play(cells, postgres, seed, folder, shown)

    return await running.run(
        played,
        _table,
        cells=len(cells) + 1,
        judge="the logs of the services and every checker",
        seed=seed,
        json=json,
        console=console,
    )


def _table(judged: Sequence[Judged]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("fault", "calls/effects", "told"):
        table.add_column(column, no_wrap=True)
    for each in judged:
        sign, style = ("✓", "green") if each.ok else ("✗", "bold red")
        counts = Text.assemble((f"{sign} ", style), f"{each.calls}/{each.effects}")
        table.add_row(each.name, counts, each.told)
    return table
