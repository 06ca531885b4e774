"""The drill of change: every cell once on SQLite, some on PostgreSQL, and that a wrong one is red."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.drills.drilling import (
    Drill,
    chosen_by_pattern,
    invoices_are_told_apart,
    problems_of,
    refused_by_the_command,
)

from outlast.drills.change import instants
from outlast.drills.change.playing import play
from outlast.drills.change.report import run_drill
from outlast.drills.change.scene import Played, Scene
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


drilled = Drill(run_drill)


class TestTable:
    def test_names_are_names(self) -> None:
        invoices_are_told_apart(CELLS)

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
        chosen_by_pattern(chosen, CELLS, "undo/order")


class TestDrill:
    @pytest.mark.parametrize("store", ["sqlite", "postgres"])
    async def test_every_cell_is_as_the_table_has_it(
        self, folder: Path, store: str, request: pytest.FixtureRequest
    ) -> None:
        only = () if store == "sqlite" else SHORT
        postgres = request.getfixturevalue("bare_postgres_url") if store == "postgres" else None
        columns = ("family", "fault", "calls", "effects", "state", "settled_by", "ok")
        cells = await drilled.passed(*only, postgres=postgres, columns=columns)
        names = [f"{cell['family']}/{cell['fault']}" for cell in cells]
        assert names == [*(cell.name for cell in chosen(only)), "ledger/every_checker"]
        assert os.listdir(folder) == []

    async def test_what_is_not_as_the_table_has_it_is_red_and_the_others_are_played(
        self, folder: Path
    ) -> None:
        async def undoes_nothing(scene: Scene, cell: str) -> Played:
            task = await scene.regret(cell, "file_keyed")
            await scene.end(task)
            return Played(cell=cell, tasks=(task,))

        (calm,) = chosen(["retry/raised"])
        problems = await problems_of(play, calm, undoes_nothing, folder)
        assert problems["undoes_nothing"] == {"ends of its tasks": ["failed"]}
        assert problems["acts_behind_our_back"]["ends of its tasks"] == []

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
        refused_by_the_command("change", "undo/fire")
