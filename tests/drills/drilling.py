"""What the tests of all drills do: run one, play cells that are wrong, and look at what is said of them."""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from typer.testing import CliRunner

from outlast.cli.main import command_line
from outlast.drills.following import Following, Played, invoice_of
from outlast.drills.judging import Judged

Run = Callable[..., Awaitable[int]]
SEED = 5


class Drill:
    """A drill to be tested. run: its ``run_drill``."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def __call__(
        self, *only: str, postgres: str | None = None, as_json: bool = True
    ) -> tuple[int, str]:
        """Run it; answer its exit code and what it said."""
        said = io.StringIO()
        console = Console(file=said, width=140)
        code = await self._run(postgres=postgres, seed=SEED, only=only, json=as_json, console=console)
        return code, said.getvalue()

    async def passed(self, *only: str, postgres: str | None, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Run it, and look that all is right and is told in JSON; answer its cells. columns: of each."""
        code, said = await self(*only, postgres=postgres)
        seen: dict[str, Any] = json.loads(said)
        assert code == 0, said
        assert list(seen) == ["verdict", "seed", "cells"]
        assert (seen["verdict"], seen["seed"]) == ("pass", SEED)
        cells: list[dict[str, Any]] = seen["cells"]
        assert {tuple(cell) for cell in cells} == {tuple(columns)}
        return cells


def refused_by_the_command(drill: str, cell: str) -> None:
    """Look that the command refuses a cell that there is not."""
    answer = CliRunner().invoke(command_line(["drill"]), ["drill", drill, "--only", cell, "--json"])
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert json.loads(answer.stderr)["error"]["code"] == "configuration_error"


# -- plays that are wrong ------------------------------------------------------------------------------------


async def never_ends(scene: Following, cell: str) -> Played:
    raise TimeoutError("its task is still waiting (signal)")


async def acts_behind_our_back(scene: Following, cell: str) -> Played:
    ticket = {"invoice": invoice_of(cell), "amount": "1"}
    async with httpx2.AsyncClient(trust_env=False) as client:
        await client.post(f"{scene.recorder.url}/tickets", json=ticket)
    return Played(cell=cell)


async def problems_of(play: Any, calm: Any, wrong: Any, folder: Path) -> dict[str, dict[str, Any]]:
    """Play a cell that is right, and beside it, in its place in the table, one that is wrong, one that never
    ends, and one that acts behind our back; answer what is not right, by cell.

    play: the drill's. wrong: the play of the wrong one, whose name it has.
    """
    plays = (wrong, never_ends, acts_behind_our_back)
    cells = [replace(calm, fault=each.__name__, play=each) for each in plays]
    judged: Sequence[Judged[Any]] = await play([calm, *cells], None, SEED, folder, Console(quiet=True))
    found = {
        each.cell.fault: {check.what: check.seen for check in each.checks if not check.holds}
        for each in judged
    }
    assert found[calm.fault] == {}
    assert found["never_ends"]["the cell"] == "TimeoutError: its task is still waiting (signal)"
    assert list(found["every_checker"]) == ["effects are accounted for"]
    (violation,) = found["every_checker"]["effects are accounted for"]
    assert "was made without a key" in violation
    return found


def invoices_are_told_apart(cells: Sequence[Any]) -> None:
    """Look that cells have names of their own, and that no one's calls are taken for another's."""
    assert len(cells) >= 20
    assert len({cell.fault for cell in cells}) == len({cell.name for cell in cells}) == len(cells)
    # A cell's calls are found by its invoice.
    invoices = [invoice_of(cell.fault) for cell in cells]
    assert not [(a, b) for a in invoices for b in invoices if a != b and b.startswith(f"{a}-")]


def chosen_by_pattern(chosen: Any, cells: Sequence[Any], one: str) -> None:
    """Look that cells are chosen by name, by family and by neither. one: of the table."""
    family, _, fault = one.partition("/")
    for pattern in (one, f"*/{fault}"):
        assert [cell.name for cell in chosen([pattern])] == [one]
    whole = [cell.name for cell in cells if cell.name.startswith(f"{family}/")]
    for pattern in (family, f"{family}/*"):
        assert [cell.name for cell in chosen([pattern])] == whole
    assert chosen([]) == cells
    assert chosen([f"nobody/{fault}"]) == ()
