"""The drill of the other side in short: a cell of every kind, and that a wrong one is red."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from tests.drills.drilling import Drill, chosen_by_pattern, refused_by_the_command

from outlast.drills.otherside import report
from outlast.drills.otherside.report import run_drill
from outlast.drills.otherside.scene import Played
from outlast.drills.otherside.table import CELLS, Right, chosen
from outlast.errors import ConfigurationError

SHORT = (
    "middleware/racing_twins",
    "middleware/killed_after_acting",
    "middleware/older_epoch",
    "middleware/large_answer",
    "middleware/store_away",
    "gateway/goes_through",
    "gateway/frozen_sender",
    "gateway/other_tenant",
    "gateway/rebound_name",
    "ledger/killed_before_outcome",
    "ledger/two_at_once",
    "ledger/frozen_block",
)


drilled = Drill(run_drill)


class TestTable:
    def test_it_has_enough_cells_and_every_family(self) -> None:
        assert len(CELLS) >= 20
        assert len({cell.name for cell in CELLS}) == len({cell.fault for cell in CELLS}) == len(CELLS)
        assert {cell.family for cell in CELLS} == {"middleware", "gateway", "ledger"}

    def test_a_second_effect_is_right_only_where_a_key_is_another(self) -> None:
        twice = {cell.fault for cell in CELLS if cell.right.effects > 1}
        assert twice == {"after_retention", "another_client"}

    def test_what_is_sent_is_given_in_order_of_the_alphabet(self) -> None:
        for cell in CELLS:
            assert cell.right.told == "+".join(sorted(set(cell.right.told.split("+"))))

    def test_cells_are_chosen_by_pattern(self) -> None:
        chosen_by_pattern(chosen, CELLS, "middleware/racing_twins")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_the_short_drill_is_green(kind: str, folder: Path, request: pytest.FixtureRequest) -> None:
    postgres = None if kind == "sqlite" else str(request.getfixturevalue("bare_postgres_url"))
    columns = ("family", "fault", "calls", "effects", "state", "ok")
    cells = await drilled.passed(*SHORT, postgres=postgres, columns=columns)
    assert [f"{one['family']}/{one['fault']}" for one in cells] == [
        *(cell.name for cell in CELLS if cell.name in SHORT),
        "store/every_checker",
    ]
    assert os.listdir(folder) == []


async def test_a_wrong_cell_is_red(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (right,) = chosen(["middleware/other_content"])
    wrong = dataclasses.replace(right, right=Right.read("2/2 201"))
    monkeypatch.setattr(report, "chosen", lambda _: (wrong,))
    code, said = await drilled()
    told = json.loads(said)
    assert (code, told["verdict"]) == (1, "fail")
    assert [one["what"] for one in told["cells"][0]["problems"]] == [
        "calls",
        "effects",
        "what callers were told",
    ]
    assert len(os.listdir(folder)) == 1


async def test_a_cell_that_breaks_is_red_and_the_others_are_played(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(scene: object, cell: str) -> Played:
        raise TimeoutError("it never came")

    first, second = chosen(["middleware/other_content", "middleware/another_client"])
    monkeypatch.setattr(report, "chosen", lambda _: (dataclasses.replace(first, play=breaks), second))
    code, said = await drilled()
    told = json.loads(said)
    assert code == 1
    assert [one["ok"] for one in told["cells"]] == [False, True, True]
    assert "it never came" in said


def test_an_unknown_cell_is_refused() -> None:
    refused_by_the_command("otherside", "nothing/*")


async def test_no_cell_fits() -> None:
    with pytest.raises(ConfigurationError, match="no cell fits x; cells are "):
        await drilled("x")
