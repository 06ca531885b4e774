"""What every drill does around its play: a folder, a seed, an end that leaves nothing, and the verdict.

A drill is a table of cells, each a fault with what is right after it. Whatever goes wrong while one is played
makes it red, and the others are played all the same.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from rich.console import Console, RenderableType
from rich.text import Text

from outlast.drills.fleet import FleetError
from outlast.drills.stage import Check
from outlast.errors import OutlastError
from outlast.testing.recorder import RecorderError
from outlast.testing.servers import ServerError

__all__ = ["FAULTS_OF_PLAY", "Judged", "Right", "broken", "end_with_sigterm", "fits", "problems", "run"]

FAULTS_OF_PLAY: Final = (OutlastError, FleetError, RecorderError, TimeoutError, OSError)
"""What a cell that is played may raise, and is red by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """What is right in one cell; None where the play says it."""

    calls: int | None
    effects: int | None
    end: str | None

    @classmethod
    def read(cls, text: str) -> Right:
        """Read an entry of the table."""
        counts, end = text.split()
        calls, _, effects = counts.partition("/")
        return cls(
            calls=None if calls == "-" else int(calls),
            effects=None if calls == "-" else int(effects),
            end=None if end == "-" else end,
        )


class Judged(Protocol):
    """A cell as it was seen."""

    @property
    def name(self) -> str:
        """How people name it, and ``--only``."""
        ...

    @property
    def what(self) -> str:
        """What is done."""
        ...

    @property
    def why(self) -> str:
        """Why the table says what it says."""
        ...

    @property
    def checks(self) -> Sequence[Check]:
        """What was looked at."""
        ...

    @property
    def ok(self) -> bool:
        """Whether all is as the table has it."""
        ...

    def as_json(self) -> dict[str, Any]:
        """Answer the cell for programs."""
        ...


J = TypeVar("J", bound=Judged)
Play = Callable[[int, Path, Console], Awaitable[Sequence[J]]]
"""Plays a drill with a seed, in a folder; tells on a console how far it is."""


def fits(name: str, patterns: Sequence[str]) -> bool:
    """Whether a cell's name (``keyed/frozen``) fits one of the patterns (``keyed``, ``*/frozen``), or there
    are none."""
    return not patterns or any(fnmatchcase(name, each if "/" in each else f"{each}/*") for each in patterns)


def broken(error: BaseException) -> Check:
    """Answer the check of a cell that did not get to its end."""
    # The rest may be a whole log.
    said = str(error).partition("\n")[0]
    return Check(what="the cell", expected="played to its end", seen=f"{type(error).__name__}: {said}")


def end_with_sigterm() -> None:
    """Let an ordinary kill end the drill as Ctrl-C does: its processes first."""
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)


async def run(
    play: Play[J],
    table: Callable[[Sequence[J]], RenderableType],
    *,
    cells: int,
    judge: str,
    seed: int | None,
    json: bool,
    console: Console,
) -> int:
    """Play a drill and tell how it went; answer the exit code, 0 only when all is right.

    table: shows the cells to people. judge: by whose word they were judged. seed: a new one for None. json:
    print one JSON object and nothing else. Leaves no process behind, and no file unless a cell is wrong.
    """
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="outlast-drill-"))
    keep = False
    started = time.monotonic()
    try:
        shown = Console(quiet=True) if json else console
        shown.print(f"{cells} cells, seed {seed}", style="dim", markup=False)
        judged = await play(seed, folder, shown)
        keep = not all(each.ok for each in judged)
        if json:
            _print_json(judged, seed, console)
        else:
            console.print(table(judged))
            _conclude(judged, judge, time.monotonic() - started, folder, console)
        return 1 if keep else 0
    except (RecorderError, ServerError) as error:
        Console(stderr=True).print(f"the drill cannot be played here: {error}", markup=False)
        return 1
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _conclude(judged: Sequence[Judged], judge: str, seconds: float, folder: Path, console: Console) -> None:
    failed = [each for each in judged if not each.ok]
    for each in failed:
        console.print(Text(f"\n{each.name}: {each.what}", style="bold red"))
        console.print(f"  {each.why}", style="dim", markup=False)
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
    text = f"{len(judged)} cells by {judge}, {seconds:.0f} s"
    console.print(Text.assemble(("PASS  ", "bold green"), text))


def problems(checks: Sequence[Check]) -> list[dict[str, str]]:
    """Answer what was not kept, for programs."""
    return [
        {"what": check.what, "expected": repr(check.expected), "seen": repr(check.seen)}
        for check in checks
        if not check.holds
    ]


def _print_json(judged: Sequence[Judged], seed: int, console: Console) -> None:
    cells = []
    for each in judged:
        cell = each.as_json()
        if not each.ok:
            cell["problems"] = problems(each.checks)
        cells.append(cell)
    verdict = "pass" if all(each.ok for each in judged) else "fail"
    console.file.write(json.dumps({"verdict": verdict, "seed": seed, "cells": cells}) + "\n")
    console.file.flush()
