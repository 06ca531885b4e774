"""Running the drill of effects, and telling how it went."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast.core.operation import EFFECTS
from outlast.drills.effects.judge import Judged
from outlast.drills.effects.matrix import FAULTS, chosen
from outlast.drills.effects.playing import play
from outlast.errors import ConfigurationError
from outlast.testing.recorder import RecorderError
from outlast.testing.servers import ServerError

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
    cells = chosen(only)
    if not cells:
        raise ConfigurationError(
            f"no cell fits {', '.join(only)}; faults are {', '.join(f.name for f in FAULTS)}"
        )
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="outlast-drill-"))
    keep = False
    started = time.monotonic()
    try:
        shown = Console(quiet=True) if json else console
        shown.print(f"{len(cells)} cells, seed {seed}", style="dim", markup=False)
        judged = await play(cells, postgres, seed, folder, shown)
        keep = not all(each.ok for each in judged)
        if json:
            _print_json(judged, seed, console)
        else:
            _show(judged, time.monotonic() - started, folder, console)
        return 1 if keep else 0
    except (RecorderError, ServerError) as error:
        Console(stderr=True).print(f"the drill cannot be played here: {error}", markup=False)
        return 1
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


# -- telling -------------------------------------------------------------------------------------------------


def _show(judged: Sequence[Judged], seconds: float, folder: Path, console: Console) -> None:
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
    console.print(table)
    console.print("calls/effects, and who settled where the worker alone did not", style="dim")
    failed = [each for each in judged if not each.ok]
    for each in failed:
        console.print(Text(f"\n{each.cell.name}: {each.cell.fault.what}", style="bold red"))
        console.print(f"  {each.cell.fault.why}", style="dim", markup=False)
        for check in each.checks:
            if not check.holds:
                console.print(
                    f"  {check.what}: expected {check.expected!r}, seen {check.seen!r}", markup=False
                )
    console.print()
    if failed:
        text = f"{len(failed)} of {len(judged)} cells are wrong; everything is kept in {folder}"
        console.print(Text.assemble(("FAIL  ", "bold red"), text))
        return
    text = f"{len(judged)} cells by the ticket services' own logs, {seconds:.0f} s"
    console.print(Text.assemble(("PASS  ", "bold green"), text))


def _entry(judged: Judged) -> Text:
    sign, style = ("✓", "green") if judged.ok else ("✗", "bold red")
    who = "" if judged.settled_by == "worker" else f" {judged.settled_by}"
    return Text.assemble((f"{sign} ", style), f"{judged.calls}/{judged.effects}{who}")


def _print_json(judged: Sequence[Judged], seed: int, console: Console) -> None:
    cells = []
    for each in judged:
        cell = each.as_json()
        if not each.ok:
            cell["problems"] = [
                {"what": check.what, "expected": repr(check.expected), "seen": repr(check.seen)}
                for check in each.checks
                if not check.holds
            ]
        cells.append(cell)
    verdict = "pass" if all(each.ok for each in judged) else "fail"
    console.file.write(json.dumps({"verdict": verdict, "seed": seed, "cells": cells}) + "\n")
    console.file.flush()
