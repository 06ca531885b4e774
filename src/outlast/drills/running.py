"""What every drill does around its play: a folder, a seed, an end that leaves nothing, and the verdict.

Whatever goes wrong while a cell is played makes it red, and the others are played all the same.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from outlast.drills.cells import Named
from outlast.drills.fleet import FleetError
from outlast.drills.judging import Judged
from outlast.drills.stage import Check
from outlast.errors import ConfigurationError, OutlastError
from outlast.testing.recorder import RecorderError
from outlast.testing.servers import ServerError

__all__ = [
    "FAULTS_OF_PLAY",
    "Folder",
    "broken",
    "counts",
    "end_with_sigterm",
    "folder_of",
    "listed",
    "play_all",
    "problems",
    "run",
    "unplayable",
]

FAULTS_OF_PLAY: Final = (OutlastError, FleetError, RecorderError, TimeoutError, OSError)
"""What a cell that is played may raise, and is red by."""

C = TypeVar("C", bound=Named)
Play = Callable[[Sequence[C], str | None, int, Path, Console], Awaitable[Sequence[Judged[C]]]]
"""Plays cells on a database, with a seed, in a folder; tells on a console how far it is."""


class Played(Protocol):
    """What a cell left behind, by its fault."""

    cell: str


class Faulty(Protocol):
    """A cell, as those who play it name it."""

    @property
    def fault(self) -> str:
        """What happens in it."""
        ...


P = TypeVar("P", bound=Played)
F = TypeVar("F", bound=Faulty)


def broken(error: BaseException) -> Check:
    """Answer the check of a cell that did not get to its end."""
    # The rest may be a whole log.
    said = str(error).partition("\n")[0]
    return Check(what="the cell", expected="played to its end", seen=f"{type(error).__name__}: {said}")


@dataclass(slots=True)
class Folder:
    """Where a drill writes. keep: whether what is there is still there after it."""

    path: Path
    keep: bool = False


@contextmanager
def folder_of(name: str) -> Iterator[Folder]:
    """Make a folder for a drill, which is gone after it unless it is to be kept."""
    folder = Folder(Path(tempfile.mkdtemp(prefix=f"outlast-{name}-")))
    try:
        yield folder
    finally:
        if not folder.keep:
            shutil.rmtree(folder.path, ignore_errors=True)


def unplayable(name: str, error: Exception) -> int:
    """Say on the standard error stream that a drill cannot be played here; answer the exit code."""
    Console(stderr=True).print(f"the {name} cannot be played here: {error}", markup=False)
    return 1


def end_with_sigterm() -> None:
    """Let an ordinary kill end the drill as Ctrl-C does: its processes first."""
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)


async def play_all(
    groups: Sequence[Sequence[F]],
    play: Callable[[F], Awaitable[P | list[P]]],
    failed: Callable[[str, Check], P],
    *,
    chance: random.Random,
    tell: Callable[[str], None],
    faults: tuple[type[BaseException], ...] = FAULTS_OF_PLAY,
) -> dict[str, P]:
    """Play groups of cells at once, in an order of the seed; answer what each left behind, by its fault.

    play: plays a group, which is told by its first cell. failed: makes of a check what a cell leaves behind
    that did not get to its end. faults: what it raises then.
    """
    order = list(groups)
    chance.shuffle(order)
    played: dict[str, P] = {}
    left = len(order)

    async def one(group: Sequence[F]) -> None:
        nonlocal left
        try:
            found = await play(group[0])
            played.update({each.cell: each for each in (found if isinstance(found, list) else [found])})
        except faults as error:
            played.update({cell.fault: failed(cell.fault, broken(error)) for cell in group})
        left -= 1
        tell(f"{left} of {len(order)} to go")

    async with asyncio.TaskGroup() as tasks:
        for group in order:
            tasks.create_task(one(group))
    return played


async def run(
    play: Play[C],
    cells: Sequence[C],
    show: Callable[[Sequence[Judged[C]]], RenderableType],
    *,
    only: Sequence[str],
    known: str,
    judge: str,
    beside: int = 0,
    postgres: str | None,
    seed: int | None,
    json: bool,
    console: Console,
) -> int:
    """Play a drill and tell how it went; answer the exit code, 0 only when all is right.

    cells: those of its table that are played; only: how they were asked for. known: what could have been
    asked for. show: shows the cells to people. judge: by whose word they were judged. beside: how many more
    are judged that nobody plays. seed: a new one for None. json: print one JSON object and nothing else.
    Raises ConfigurationError for no cells and for a database that there is not. Leaves no process behind, and
    no file unless a cell is wrong.
    """
    if not cells:
        raise ConfigurationError(f"no cell fits {', '.join(only)}; {known}")
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    started = time.monotonic()
    shown = Console(quiet=True) if json else console
    with folder_of("drill") as folder:
        shown.print(f"{len(cells) + beside} cells, seed {seed}", style="dim", markup=False)
        try:
            judged = await play(cells, postgres, seed, folder.path, shown)
        except (RecorderError, ServerError) as error:
            return unplayable("drill", error)
        folder.keep = not all(each.ok for each in judged)
        if json:
            _print_json(judged, seed, console)
        else:
            console.print(show(judged))
            _conclude(judged, judge, time.monotonic() - started, folder.path, console)
        return 1 if folder.keep else 0


def counts(judged: Judged[C], more: str = "") -> Text:
    """Show to people whether a cell is right, and how often what happened. more: is told beside it."""
    sign, style = ("✓", "green") if judged.ok else ("✗", "bold red")
    return Text.assemble((f"{sign} ", style), f"{judged.calls}/{judged.effects}{more}")


def listed(*headers: str) -> Callable[[Sequence[Judged[C]]], Table]:
    """Make what shows cells to people, one a line. headers: of what is told besides their counts."""

    def show(judged: Sequence[Judged[C]]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for header in ("fault", "calls/effects", *headers):
            table.add_column(header, no_wrap=True)
        for each in judged:
            table.add_row(each.cell.name, counts(each), *each.columns.values())
        return table

    return show


def _conclude(
    judged: Sequence[Judged[C]], judge: str, seconds: float, folder: Path, console: Console
) -> None:
    failed = [each for each in judged if not each.ok]
    for each in failed:
        console.print(Text(f"\n{each.cell.name}: {each.cell.what}", style="bold red"))
        console.print(f"  {each.cell.why}", style="dim", markup=False)
        for check in each.problems:
            console.print(f"  {check.what}: expected {check.expected!r}, seen {check.seen!r}", markup=False)
    console.print()
    if failed:
        text = f"{len(failed)} of {len(judged)} cells are wrong; everything is kept in {folder}"
        console.print(Text.assemble(("FAIL  ", "bold red"), text))
        return
    text = f"{len(judged)} cells by {judge}, {seconds:.0f} s"
    console.print(Text.assemble(("PASS  ", "bold green"), text))


def problems(checks: Sequence[Check]) -> list[dict[str, str]]:
    """Answer what was not kept, for programs."""
    return [
        {"what": check.what, "expected": repr(check.expected), "seen": repr(check.seen)}
        for check in checks
        if not check.holds
    ]


def _print_json(judged: Sequence[Judged[C]], seed: int, console: Console) -> None:
    cells = []
    for each in judged:
        cell = each.as_json()
        if not each.ok:
            cell["problems"] = problems(each.checks)
        cells.append(cell)
    verdict = "pass" if all(each.ok for each in judged) else "fail"
    console.file.write(json.dumps({"verdict": verdict, "seed": seed, "cells": cells}) + "\n")
    console.file.flush()
