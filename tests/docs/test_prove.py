"""The long proof goes on where it was cut, and says which code did how many."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from docs import prove
from outlast.testing.simulation.coverage import FAULTS, PROMISED, Coverage
from outlast.testing.simulation.runs import Tally

Piece = tuple[int, int]


class Runs:
    """Stands in for the schedules; keeps which seeds were run, and may be cut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.done: list[Piece] = []
        self.cut_after = 1_000_000
        self.broken = 0
        self.code = "abc"
        self.seen = Coverage(set(PROMISED), set(FAULTS))
        self.path = path
        monkeypatch.setattr(prove, "run_apart", self.run_apart)
        monkeypatch.setattr(prove, "RESULT", path)
        monkeypatch.setattr(prove, "_code", lambda: self.code)

    def run_apart(self, pieces: Iterable[Piece], *, jobs: int) -> Iterator[tuple[Piece, Tally]]:
        for first, count in pieces:
            if len(self.done) >= self.cut_after:
                raise KeyboardInterrupt
            self.done.append((first, count))
            told = ["it broke"] * self.broken
            yield (first, count), Tally(schedules=count, broken=self.broken, told=told, seen=self.seen)

    def prove(self, first: int, count: int, *, afresh: bool = False) -> bool:
        """Ask for so many schedules, with what is kept from before."""
        asked = Namespace(seed=first, schedules=count, jobs=1, afresh=afresh)
        kept = json.loads(self.path.read_text()) if self.path.exists() else {}
        return prove.simulate(kept, asked, {"measured": "today"})

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What is on record."""
        rows: list[dict[str, Any]] = json.loads(self.path.read_text())["simulation"]
        return rows


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    """What is run instead of schedules."""
    return Runs(monkeypatch, tmp_path / "prove.json")


def test_it_goes_on_where_it_was_cut(runs: Runs) -> None:
    runs.cut_after = 25
    with pytest.raises(KeyboardInterrupt):
        runs.prove(1, 12_000)
    assert [row["ranges"] for row in runs.rows] == [[[1, 4_000]]]
    runs.done.clear()
    runs.cut_after = 1_000
    assert runs.prove(1, 12_000)
    assert runs.done[0] == (4_001, 200)
    assert [(row["schedules"], row["ranges"]) for row in runs.rows] == [(12_000, [[1, 12_000]])]
    runs.done.clear()
    assert runs.prove(1, 12_000)
    assert not runs.done


def test_more_seeds_are_added_to_those_done(runs: Runs) -> None:
    runs.prove(301, 100)
    runs.prove(1, 600)
    assert runs.done == [(301, 100), (1, 200), (201, 100), (401, 200)]
    assert runs.rows[0]["ranges"] == [[1, 600]]


def test_other_code_goes_on_in_a_row_of_its_own(runs: Runs) -> None:
    runs.prove(1, 400)
    runs.code = "def"
    runs.prove(1, 1_000)
    assert [(row["code"], row["schedules"], row["ranges"]) for row in runs.rows] == [
        ("abc", 400, [[1, 400]]),
        ("def", 600, [[401, 1_000]]),
    ]


def test_code_with_changes_is_never_the_same_code(runs: Runs) -> None:
    runs.code = f"abc{prove.CHANGED}"
    runs.prove(1, 200)
    runs.prove(1, 400)
    assert [row["schedules"] for row in runs.rows] == [200, 200]


def test_what_broke_before_it_was_cut_stays_broken(runs: Runs) -> None:
    runs.broken = 1
    assert not runs.prove(1, 10)
    runs.broken = 0
    runs.code = "def"
    assert not runs.prove(1, 20)
    assert [row["violations"] for row in runs.rows] == [1, 0]
    assert runs.prove(1, 20, afresh=True)
    assert [row["code"] for row in runs.rows] == ["def"]


def test_what_no_row_has_come_through_makes_it_void(runs: Runs) -> None:
    runs.seen.faults.discard("relay crash")
    assert not runs.prove(1, 10)
    runs.seen.faults.add("relay crash")
    assert runs.prove(1, 20)
