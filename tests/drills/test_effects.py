"""The drill of effects in short: a cell of every kind, and that a wrong one is red."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.drills.drilling import Drill, refused_by_the_command

from outlast.core.operation import EFFECTS
from outlast.drills.effects import playing
from outlast.drills.effects.matrix import CELLS, FAULTS, Cell, chosen
from outlast.drills.effects.report import run_drill
from outlast.errors import ConfigurationError
from outlast.testing.recorder import Recorder

SHORT = (
    "idempotent/act_500",
    "keyed/act_drop",
    "keyed/throttled_seconds",
    "keyed/second_id",
    "keyed/killed",
    "queryable/swallowed",
    "queryable/stale_query",
    "queryable/frozen",
    "manual/act_hang",
    "manual/refused",
    "manual/twin_tasks",
    "manual/killed",
    "manual/frozen",
    "manual/late_refusal",
)


drilled = Drill(run_drill)


class TestTable:
    def test_it_has_every_class_in_every_row(self) -> None:
        assert len(CELLS) == len(FAULTS) * len(EFFECTS)
        assert len({cell.name for cell in CELLS}) == len({cell.tool for cell in CELLS}) == len(CELLS)

    @pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
    def test_no_entry_allows_a_second_effect(self, cell: Cell) -> None:
        assert cell.right.effects <= (0 if cell.effect == "read" else 1)
        if cell.effect in ("queryable", "manual") and cell.right.calls > 1:
            # Only where the first call is known to have done nothing.
            assert cell.fault.name in (
                "swallowed",
                "throttled_seconds",
                "throttled_date",
                "unavailable",
                "late_refusal",
            )

    def test_what_is_manual_is_sent_again_only_when_known_not_processed_or_by_order(self) -> None:
        again = {cell.fault.name for cell in CELLS if cell.effect == "manual" and cell.right.calls > 1}
        assert again == {"throttled_seconds", "throttled_date", "unavailable", "late_refusal"}

    def test_cells_are_chosen_by_pattern(self) -> None:
        assert [cell.name for cell in chosen(["keyed/frozen"])] == ["keyed/frozen"]
        assert len(chosen(["manual"])) == len(chosen(["manual/*"])) == len(FAULTS)
        assert len(chosen(["*/killed"])) == len(EFFECTS)
        assert chosen([]) == CELLS
        assert chosen(["nobody/frozen"]) == ()


class TestDrill:
    @pytest.mark.parametrize("store", ["sqlite", "postgres"])
    async def test_a_cell_of_every_kind_is_as_the_table_has_it(
        self, folder: Path, store: str, request: pytest.FixtureRequest
    ) -> None:
        postgres = request.getfixturevalue("bare_postgres_url") if store == "postgres" else None
        columns = ("effect", "fault", "calls", "effects", "state", "settled_by", "ok")
        cells = await drilled.passed(*SHORT, postgres=postgres, columns=columns)
        *cells, whole = cells
        assert {f"{cell['effect']}/{cell['fault']}" for cell in cells} == set(SHORT)
        assert {cell["effects"] for cell in cells} == {1}
        assert (whole["fault"], whole["state"]) == ("every_checker", "kept")
        assert os.listdir(folder) == []

    async def test_a_second_effect_is_red_and_said(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The judge is the service's log: one that forgets the key makes two tickets, whatever we store."""

        class Forgetful(Recorder):
            async def __aenter__(self) -> Recorder:
                await super().__aenter__()
                await self.configure(dedupe=False)
                return self

        monkeypatch.setattr(playing, "Recorder", Forgetful)
        code, said = await drilled("keyed/act_drop", "manual/refused", as_json=False)
        assert code == 1
        assert "keyed/act_drop: acts, then the connection breaks" in said
        assert "effects: expected 1, seen 2" in said
        assert "✓ 1/1" in said
        assert "effects are accounted for: expected []" in said
        assert "2 of 3 cells are wrong" in said
        (kept,) = os.listdir(folder)
        assert {"tickets-keys.db", "outlast.db"} <= set(os.listdir(folder / kept))

    async def test_a_fault_that_is_not_done_is_red(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def nothing(*_: Any, **__: Any) -> None:
            """Plan nothing."""

        monkeypatch.setattr(Recorder, "plan", nothing)
        code, said = await drilled("idempotent/act_drop", "manual/act_drop")
        assert code == 1
        seen = {cell["effect"]: cell for cell in json.loads(said)["cells"]}
        assert not seen["idempotent"]["ok"]
        assert {"what": "calls", "expected": "2", "seen": "1"} in seen["idempotent"]["problems"]
        # One call and one effect is right for manual, but nobody had to be asked.
        assert [each["what"] for each in seen["manual"]["problems"]] == [
            "settled by",
            "calls while it waited for a person",
        ]

    async def test_a_cell_that_there_is_not(self, folder: Path) -> None:
        with pytest.raises(ConfigurationError, match="no cell fits keyed/fire; faults are act_drop"):
            await drilled("keyed/fire")
        assert os.listdir(folder) == []

    def test_the_command_says_so_too(self) -> None:
        refused_by_the_command("effects", "keyed/fire")
