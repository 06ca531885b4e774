"""Running the drill of effects, and telling how it went."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from outlast.core.operation import EFFECTS
from outlast.drills import running
from outlast.drills.effects.matrix import CHECKERS, FAULTS, Cell, chosen
from outlast.drills.effects.playing import play
from outlast.drills.judging import Judged

__all__ = ["run_drill"]


async def run_drill(
    *, postgres: str | None, seed: int | None, only: Sequence[str], json: bool, console: Console
) -> int:
    """Play the matrix, judge it by the table, and tell; answer the exit code, 0 only when all is right.

    postgres: None for an SQLite file, ``embedded``, or the URL of a server to make a database on. seed: of
    order and jitter; a new one for None. only: cells, as ``keyed/frozen``, ``manual/*`` or ``*/killed``.
    json: print one JSON object and nothing else. Raises ConfigurationError for a database or a cell that
    there is not. Leaves no process behind, and no file unless a cell failed.
    """
    return await running.run(
        play,
        chosen(only),
        _table,
        only=only,
        known=f"faults are {', '.join(fault.name for fault in FAULTS)}",
        judge="the ticket services' own logs and every checker",
        # Every checker.
        beside=1,
        postgres=postgres,
        seed=seed,
        json=json,
        console=console,
    )


def _table(judged: Sequence[Judged[Cell]]) -> Group:
    by_name = {each.cell.name: each for each in judged}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("fault", no_wrap=True)
    shown = [effect for effect in EFFECTS if any(each.cell.effect == effect for each in judged)]
    for effect in shown:
        table.add_column(effect, no_wrap=True)
    for fault in FAULTS:
        row = [by_name.get(f"{effect}/{fault.name}") for effect in shown]
        if any(row):
            table.add_row(fault.name, *("" if each is None else _entry(each) for each in row))
    table.add_row(CHECKERS.fault.name, running.counts(by_name[CHECKERS.name]))
    legend = Text("calls/effects, and who settled where the worker alone did not", style="dim")
    return Group(table, legend)


def _entry(judged: Judged[Cell]) -> Text:
    who = judged.columns["settled_by"]
    return running.counts(judged, "" if who == "worker" else f" {who}")
