"""The drill of change: every cell once on SQLite, some on PostgreSQL, and that a wrong one is red."""

from __future__ import annotations

import io
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from rich.console import Console
from typer.testing import CliRunner

from outlast.cli.main import app
from outlast.drills.change import instants
from outlast.drills.change.playing import play
from outlast.drills.change.report import run_drill
from outlast.drills.change.scene import Played, Scene, invoice_of
from outlast.drills.change.table import CELLS, Cell, chosen, in_groups
from outlast.errors import ConfigurationError

SHORT = (
    "undo/act_drop",
    "undo/killed_after_intent",
    "undo/unknown_*",
    "undo/cancelled_*",
    "retry/refused",
    "retry/deadline",
    "fork/before_*",
    "fork/unsettled",
    "deploy/*",
    "schedule/*",
    "outside/claimed_twice",
)
"""What is played on PostgreSQL: where the two stores differ most."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's drill keeps its files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


async def drilled(*only: str, postgres: str | None = None, seed: int = 5) -> tuple[int, str]:
    said = io.StringIO()
    code = await run_drill(postgres=postgres, seed=seed, only=only, json=True, console=Console(file=said))
    return code, said.getvalue()


class TestTable:
    def test_names_are_names(self) -> None:
        assert len(CELLS) >= 20
        assert len({cell.fault for cell in CELLS}) == len({cell.name for cell in CELLS}) == len(CELLS)
        # A cell's calls are found by its invoice, and must not be taken for another's.
        invoices = [invoice_of(cell.fault) for cell in CELLS]
        assert not [(a, b) for a in invoices for b in invoices if a != b and b.startswith(f"{a}-")]

    @pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
    def test_no_entry_allows_an_effect_that_is_not_undone_or_wanted(self, cell: Cell) -> None:
        right = cell.right
        if right.calls is None or right.effects is None:
            assert cell.fault in ("rolling_upgrade", "rolling_downgrade")
            return
        assert right.calls - right.effects in (0, 1)
        if cell.family == "undo" and cell.fault not in ("unknown_left",):
            # As many withdrawals as tickets.
            assert right.effects % 2 == 0
        if cell.family == "fork":
            assert (right.calls, right.effects) == (1, 1)

    def test_cells_that_are_played_together_go_the_same_way(self) -> None:
        groups = in_groups(CELLS)
        assert {len(group) for group in groups} == {1, 2, 7}
        assert all(len({cell.when for cell in group}) == 1 for group in groups)

    def test_cells_are_chosen_by_pattern(self) -> None:
        assert [cell.name for cell in chosen(["undo/order"])] == ["undo/order"]
        assert {cell.family for cell in chosen(["fork"])} == {"fork"}
        assert chosen([]) == CELLS
        assert chosen(["nobody/order"]) == ()


class TestDrill:
    @pytest.mark.parametrize("store", ["sqlite", "postgres"])
    async def test_every_cell_is_as_the_table_has_it(
        self, folder: Path, store: str, request: pytest.FixtureRequest
    ) -> None:
        only = () if store == "sqlite" else SHORT
        postgres = request.getfixturevalue("bare_postgres_url") if store == "postgres" else None
        code, said = await drilled(*only, postgres=postgres)
        seen: dict[str, Any] = json.loads(said)
        assert code == 0, said
        assert list(seen) == ["verdict", "seed", "cells"]
        assert (seen["verdict"], seen["seed"]) == ("pass", 5)
        names = [f"{cell['family']}/{cell['fault']}" for cell in seen["cells"]]
        assert names == [*(cell.name for cell in chosen(only)), "ledger/every_checker"]
        for cell in seen["cells"]:
            assert list(cell) == ["family", "fault", "calls", "effects", "state", "settled_by", "ok"]
        assert os.listdir(folder) == []

    async def test_what_is_not_as_the_table_has_it_is_red_and_the_others_are_played(
        self, folder: Path
    ) -> None:
        (calm,) = chosen(["retry/raised"])

        async def undoes_nothing(scene: Scene, cell: str) -> Played:
            task = await scene.regret(cell, "file_keyed")
            await scene.end(task)
            return Played(cell=cell, tasks=(task,))

        async def never_ends(scene: Scene, cell: str) -> Played:
            raise TimeoutError("its task is still waiting (operator)")

        async def acts_behind_our_back(scene: Scene, cell: str) -> Played:
            ticket = {"invoice": invoice_of(cell), "amount": "1"}
            async with httpx2.AsyncClient(trust_env=False) as client:
                await client.post(f"{scene.recorder.url}/tickets", json=ticket)
            return Played(cell=cell)

        plays = (undoes_nothing, never_ends, acts_behind_our_back)
        cells = [replace(calm, fault=play.__name__, play=play) for play in plays]
        judged = await play([calm, *cells], None, 5, folder, Console(quiet=True))
        problems = {
            each.cell.fault: {check.what: check.seen for check in each.checks if not check.holds}
            for each in judged
        }
        assert problems["raised"] == {}
        assert problems["undoes_nothing"] == {"ends of its tasks": ["failed"]}
        assert problems["never_ends"]["the cell"] == "TimeoutError: its task is still waiting (operator)"
        assert problems["acts_behind_our_back"]["ends of its tasks"] == []
        assert list(problems["every_checker"]) == ["effects are accounted for"]
        (violation,) = problems["every_checker"]["effects are accounted for"]
        assert "was made without a key" in violation

    async def test_an_instant_that_is_fired_otherwise_is_red(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(instants, "_ZONE", "UTC")
        code, said = await drilled("schedule/autumn")
        assert code == 1
        (cell, _) = json.loads(said)["cells"]
        assert [each["what"] for each in cell["problems"]][:1] == ["instants of autumn-daily"]

    async def test_a_cell_that_there_is_not(self, folder: Path) -> None:
        with pytest.raises(ConfigurationError, match="no cell fits undo/fire; cells are undo/act_hang"):
            await drilled("undo/fire")
        assert os.listdir(folder) == []

    def test_the_command_says_so_too(self) -> None:
        answer = CliRunner().invoke(app, ["drill", "change", "--only", "undo/fire", "--json"])
        assert answer.exit_code == 2
        assert answer.stdout == ""
        assert json.loads(answer.stderr)["error"]["code"] == "configuration_error"
