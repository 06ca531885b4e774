"""The drill of people: every cell once on SQLite, some on PostgreSQL, and that a wrong one is red."""

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
from outlast.drills.people.playing import play
from outlast.drills.people.report import run_drill
from outlast.drills.people.scene import Played, Scene, invoice_of
from outlast.drills.people.table import CELLS, Cell, chosen, in_groups
from outlast.errors import ConfigurationError

SHORT = (
    "approval/everyone_dies",
    "approval/amount_changed",
    "approval/decision_replayed",
    "approval/fifty_decisions",
    "approval/at_the_expiry",
    "approval/*_at_the_brink",
    "rule/rule_withdrawn",
    "wait/signal*",
    "wait/child_at_the_brink",
    "wait/wrong_clock",
    "cancel/storm",
    "cancel/frozen_before_intent",
    "cancel/family",
    "lease/*",
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
    def test_no_entry_allows_a_call_without_its_effect(self, cell: Cell) -> None:
        assert cell.right.calls == cell.right.effects
        if cell.family == "rule" or (cell.family == "approval" and cell.right.calls is not None):
            assert cell.right.end == "succeeded"

    def test_cells_that_are_played_together_go_the_same_way(self) -> None:
        groups = in_groups(CELLS)
        assert {len(group) for group in groups} == {1, 2, 3}
        assert all(len({cell.when for cell in group}) == 1 for group in groups)

    def test_cells_are_chosen_by_pattern(self) -> None:
        assert [cell.name for cell in chosen(["cancel/storm"])] == ["cancel/storm"]
        assert {cell.family for cell in chosen(["wait"])} == {"wait"}
        assert chosen([]) == CELLS
        assert chosen(["nobody/storm"]) == ()


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
            assert list(cell) == ["family", "fault", "calls", "effects", "state", "decided_by", "ok"]
            assert cell["calls"] == cell["effects"]
        assert os.listdir(folder) == []

    async def test_what_is_not_as_the_table_has_it_is_red_and_the_others_are_played(
        self, folder: Path
    ) -> None:
        (calm,) = chosen(["wait/signal_before"])

        async def sends_without_asking(scene: Scene, cell: str) -> Played:
            task = await scene.call(cell, "plain")
            await scene.end(task)
            return Played(cell=cell, tasks=(task,))

        async def never_ends(scene: Scene, cell: str) -> Played:
            raise TimeoutError("its task is still waiting (approval)")

        async def acts_behind_our_back(scene: Scene, cell: str) -> Played:
            ticket = {"invoice": invoice_of(cell), "amount": "1"}
            async with httpx2.AsyncClient(trust_env=False) as client:
                await client.post(f"{scene.recorder.url}/tickets", json=ticket)
            return Played(cell=cell)

        plays = (sends_without_asking, never_ends, acts_behind_our_back)
        cells = [replace(calm, fault=play.__name__, play=play) for play in plays]
        judged = await play([calm, *cells], None, 5, folder, Console(quiet=True))
        problems = {
            each.cell.fault: {check.what: check.seen for check in each.checks if not check.holds}
            for each in judged
        }
        assert problems["signal_before"] == {}
        assert problems["sends_without_asking"] == {"calls": 1, "effects": 1}
        assert problems["never_ends"]["the cell"] == "TimeoutError: its task is still waiting (approval)"
        assert problems["acts_behind_our_back"]["calls"] == 1
        assert list(problems["every_checker"]) == ["effects are accounted for"]
        (violation,) = problems["every_checker"]["effects are accounted for"]
        assert "was made without a key" in violation

    async def test_a_cell_that_there_is_not(self, folder: Path) -> None:
        with pytest.raises(ConfigurationError, match="no cell fits cancel/fire; cells are approval/everyone"):
            await drilled("cancel/fire")
        assert os.listdir(folder) == []

    def test_the_command_says_so_too(self) -> None:
        answer = CliRunner().invoke(app, ["drill", "people", "--only", "cancel/fire", "--json"])
        assert answer.exit_code == 2
        assert answer.stdout == ""
        assert json.loads(answer.stderr)["error"]["code"] == "configuration_error"
