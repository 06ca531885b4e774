"""The long proof goes on where it was cut, and says which code did how many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docs.prove import schedules, storms
from docs.prove.kept import CHANGED, Kept

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
        self.kept = Kept(path)
        monkeypatch.setattr(schedules, "run_apart", self.run_apart)
        monkeypatch.setattr(schedules, "code_now", lambda: self.code)

    def run_apart(self, pieces: Iterable[Piece], *, jobs: int) -> Iterator[tuple[Piece, Tally]]:
        for first, count in pieces:
            if len(self.done) >= self.cut_after:
                raise KeyboardInterrupt
            self.done.append((first, count))
            told = ["it broke"] * self.broken
            yield (first, count), Tally(schedules=count, broken=self.broken, told=told, seen=self.seen)

    def prove(self, first: int, count: int, *, afresh: bool = False) -> bool:
        """Ask for so many schedules, with what is kept from before."""
        return schedules.prove(self.kept, first=first, count=count, jobs=1, afresh=afresh)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What is on record."""
        return self.kept.rows("simulation")


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
    runs.code = f"abc{CHANGED}"
    runs.prove(1, 200)
    runs.prove(1, 400)
    assert [row["schedules"] for row in runs.rows] == [200, 200]


def test_what_broke_stands_until_other_code_has_played_it_without(runs: Runs) -> None:
    runs.broken = 1
    assert not runs.prove(1, 300)
    assert not runs.prove(1, 300)
    assert runs.done == [(1, 200), (201, 100)]
    runs.code = "def"
    assert not runs.prove(1, 300)
    runs.broken = 0
    assert not runs.prove(1, 400)
    assert runs.done[2:] == [(1, 200), (201, 100), (301, 100)]
    runs.code = "ghi"
    assert runs.prove(1, 400)
    assert runs.done[5:] == [(1, 200), (201, 100)]
    assert [(row["code"], row["violations"], row["ranges"]) for row in runs.rows] == [
        ("abc", 2, [[1, 300]]),
        ("def", 2, [[1, 400]]),
        ("ghi", 0, [[1, 300]]),
    ]
    runs.code = "jkl"
    assert runs.prove(1, 400)
    assert len(runs.done) == 7


def test_what_broke_is_forgotten_when_all_is_done_afresh(runs: Runs) -> None:
    runs.broken = 1
    assert not runs.prove(1, 10)
    runs.broken = 0
    assert runs.prove(1, 20, afresh=True)
    assert [row["violations"] for row in runs.rows] == [0]


def test_what_no_row_has_come_through_makes_it_void(runs: Runs) -> None:
    runs.seen.faults.discard("relay crash")
    assert not runs.prove(1, 10)
    runs.seen.faults.add("relay crash")
    assert runs.prove(1, 20)


class Drill:
    """Stands in for the drill: each portion has some of what it was asked for; keeps what was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.kept = Kept(path)
        self.asked: list[tuple[int, storms.Wanted]] = []
        self.cut_after = 1_000_000
        self.code = "abc"
        self.violations: list[dict[str, Any]] = []
        monkeypatch.setattr(storms, "_play", self.play)
        monkeypatch.setattr(storms, "code_now", lambda: self.code)

    def play(self, wanted: storms.Wanted, store: str, seed: int) -> dict[str, Any]:
        if len(self.asked) >= self.cut_after:
            raise KeyboardInterrupt
        self.asked.append((seed, wanted))
        number = len(self.asked)
        return {
            "verdict": "fail" if self.violations else "pass",
            "seed": seed,
            "store": store,
            "campaigns": 2,
            "seeds": [seed, seed + 1],
            "storm_s": 30.0,
            "misfortunes": {"kill_worker": 3},
            "families": {"kills": 3, "pauses": 2, "restarts": 1 if store == "postgres" else 0},
            "not_played": {},
            "accepted": 10,
            "tasks": {"succeeded": 10},
            "tasks_per_s": float(number),
            "calls": 20,
            "effects": 10,
            "answers_lost": 1,
            "history": 5,
            "rest_s": float(10 - number),
            "takeover_s": {"short": {"tasks": 4, "p50": 1.0 * number, "p99": 5.0 - number}},
            "judges": {"events_are_dense": len(self.violations)},
            "violations": self.violations,
        }

    def prove(self, store: str, kills: int, *, restarts: int = 0, afresh: bool = False) -> bool:
        """Ask for so many kills, with what is kept from before."""
        wanted = storms.Wanted(seconds=1.0, kills=kills, pauses=1, restarts=restarts)
        return storms.prove(self.kept, store, wanted, seed=100, afresh=afresh)

    def told(self, store: str) -> list[dict[str, Any]]:
        """What is on record of a store."""
        return [row["told"] for row in self.kept.rows(storms.part_of(store))]


@pytest.fixture
def drill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Drill:
    """What is played instead of storms."""
    return Drill(monkeypatch, tmp_path / "prove.json")


def test_storms_go_on_where_they_were_cut(drill: Drill) -> None:
    drill.cut_after = 2
    with pytest.raises(KeyboardInterrupt):
        drill.prove("sqlite", 9)
    drill.cut_after = 1_000
    assert drill.prove("sqlite", 9)
    assert [seed for seed, _ in drill.asked] == [100, 102, 104]
    (told,) = drill.told("sqlite")
    assert (told["campaigns"], told["families"], told["storm_s"]) == (
        6,
        {"kills": 9, "pauses": 6, "restarts": 0},
        90.0,
    )
    assert drill.prove("sqlite", 9)
    assert len(drill.asked) == 3


def test_a_portion_is_asked_for_at_a_time(drill: Drill) -> None:
    drill.prove("postgres", 100, restarts=10)
    assert {(wanted.kills, wanted.restarts) for _, wanted in drill.asked} == {(5, 1), (5, 0), (4, 0), (1, 0)}


def test_storms_are_told_together(drill: Drill) -> None:
    drill.prove("sqlite", 6)
    (told,) = drill.told("sqlite")
    assert told["tasks_per_s"] == 1.5
    assert told["rest_s"] == 9.0
    assert told["takeover_s"] == {"short": {"tasks": 8, "p50": 2.0, "p99": 4.0}}
    assert (told["misfortunes"], told["judges"]) == ({"kill_worker": 6}, {"events_are_dense": 0})


def test_storms_by_other_code_have_a_row_of_their_own(drill: Drill) -> None:
    drill.prove("sqlite", 3)
    drill.code = "def"
    drill.prove("sqlite", 9)
    assert [told["campaigns"] for told in drill.told("sqlite")] == [2, 4]


def test_storms_that_broke_something_count_once_other_code_has_played_them_again(drill: Drill) -> None:
    assert drill.prove("sqlite", 3)
    drill.violations = [{"seed": 102, "judge": "events_are_dense", "text": "one is missing"}]
    assert not drill.prove("sqlite", 9)
    assert [told["campaigns"] for told in drill.told("sqlite")] == [2]
    drill.violations = []
    assert not drill.prove("sqlite", 9)
    assert [seed for seed, _ in drill.asked] == [100, 102]
    drill.code = "def"
    assert drill.prove("sqlite", 9)
    assert [seed for seed, _ in drill.asked] == [100, 102, 102, 104]
    assert drill.asked[2] == drill.asked[1]
    assert [told["campaigns"] for told in drill.told("sqlite")] == [2, 4]
    assert [one["again"] for row in drill.kept.rows("storms on sqlite") for one in row["broken"]] == ["def"]


def test_the_first_storm_may_break_something(drill: Drill) -> None:
    drill.violations = [{"seed": 100, "judge": "events_are_dense", "text": "one is missing"}]
    assert not drill.prove("sqlite", 9)
    assert drill.told("sqlite") == [None]
    drill.violations = []
    assert drill.prove("sqlite", 9, afresh=True)


def test_the_parts_leave_each_other_alone(drill: Drill, runs: Runs) -> None:
    runs.prove(1, 200)
    drill.prove("sqlite", 3)
    drill.prove("postgres", 3, restarts=1)
    assert [row["schedules"] for row in runs.rows] == [200]
    assert [told["store"] for told in (*drill.told("sqlite"), *drill.told("postgres"))] == [
        "sqlite",
        "postgres",
    ]
