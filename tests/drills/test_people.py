"""The drill of people: every cell once on SQLite, some on PostgreSQL, and that a wrong one is red."""

from __future__ import annotations

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

from outlast.drills.people.playing import play
from outlast.drills.people.report import run_drill
from outlast.drills.people.scene import Played, Scene
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


drilled = Drill(run_drill)


class TestTable:
    def test_names_are_names(self) -> None:
        invoices_are_told_apart(CELLS)

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
        chosen_by_pattern(chosen, CELLS, "cancel/storm")


class TestDrill:
    @pytest.mark.parametrize("store", ["sqlite", "postgres"])
    async def test_every_cell_is_as_the_table_has_it(
        self, folder: Path, store: str, request: pytest.FixtureRequest
    ) -> None:
        only = () if store == "sqlite" else SHORT
        postgres = request.getfixturevalue("bare_postgres_url") if store == "postgres" else None
        columns = ("family", "fault", "calls", "effects", "state", "decided_by", "ok")
        cells = await drilled.passed(*only, postgres=postgres, columns=columns)
        names = [f"{cell['family']}/{cell['fault']}" for cell in cells]
        assert names == [*(cell.name for cell in chosen(only)), "ledger/every_checker"]
        assert [cell for cell in cells if cell["calls"] != cell["effects"]] == []
        assert os.listdir(folder) == []

    async def test_what_is_not_as_the_table_has_it_is_red_and_the_others_are_played(
        self, folder: Path
    ) -> None:
        async def sends_without_asking(scene: Scene, cell: str) -> Played:
            task = await scene.call(cell, "plain")
            await scene.end(task)
            return Played(cell=cell, tasks=(task,))

        (calm,) = chosen(["wait/signal_before"])
        problems = await problems_of(play, calm, sends_without_asking, folder)
        assert problems["sends_without_asking"] == {"calls": 1, "effects": 1}
        assert problems["acts_behind_our_back"]["calls"] == 1

    async def test_a_cell_that_there_is_not(self, folder: Path) -> None:
        with pytest.raises(ConfigurationError, match="no cell fits cancel/fire; cells are approval/everyone"):
            await drilled("cancel/fire")
        assert os.listdir(folder) == []

    def test_the_command_says_so_too(self) -> None:
        refused_by_the_command("people", "cancel/fire")
