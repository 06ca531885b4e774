"""The world's own mixture: thousands of schedules in every run of the tests, each part with its own seeds.

Parts are shared among the suite's processes. Whichever comes last looks whether all of them together came
through every move and fault that the world promises: a run that did not is void, and fails.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from outlast.testing.simulation import crowded, narrow, varied
from outlast.testing.simulation.agents import AGENTS
from outlast.testing.simulation.coverage import FAULTS, PROMISED, Coverage
from outlast.testing.simulation.runs import SHOWN, Tally, run, run_apart
from outlast.testing.simulation.weather import Faults

SCHEDULES = int(os.environ.get("OUTLAST_TEST_SCHEDULES", "20000"))
LEAST = 4_000
SECONDS = float(os.environ.get("OUTLAST_TEST_SCHEDULES_SECONDS", "100"))
"""How many are played at most, and at least; and for how much processor time at most, beyond the least. A
core plays a hundred a second, some more, some fewer, and a run of the tests has ten minutes."""
PARTS = 40


@pytest.fixture
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run of the tests share, and no other run."""
    base = tmp_path_factory.getbasetemp()
    shelf = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "mixture"
    shelf.mkdir(exist_ok=True)
    return shelf


@pytest.mark.parametrize("part", range(PARTS))
def test_the_world_s_own_mixture_keeps_every_promise(part: int, shelf: Path) -> None:
    size, began, tally = SCHEDULES // PARTS, time.process_time(), Tally()
    while tally.schedules < size:
        if tally.schedules >= LEAST // PARTS and time.process_time() - began > SECONDS / PARTS:
            break
        tally.add(run(1 + part * size + tally.schedules, min(10, size - tally.schedules)))
    assert not tally.broken, "\n".join(tally.told)
    _put_down(tally, shelf / f"{part}.json")
    told = list(shelf.glob("*.json"))
    if len(told) < PARTS:
        return
    seen = Coverage()
    for path in told:
        found = json.loads(path.read_text())
        seen.add(map(tuple, found["moves"]), found["faults"])
    assert not seen.missing, f"void, since it has not seen: {seen.missing}"


def _put_down(tally: Tally, path: Path) -> None:
    """Write a part's coverage in one step, so that nobody reads half of it."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"moves": sorted(tally.seen.moves), "faults": sorted(tally.seen.faults)}))
    draft.replace(path)


def test_what_comes_of_a_run_does_not_depend_on_the_processes() -> None:
    alone, apart = run(1, 25), Tally()
    pieces = [(1, 10), (11, 10), (21, 5)]
    told = list(run_apart(pieces, jobs=2))
    for _, piece in told:
        apart.add(piece)
    assert [piece for piece, _ in told] == pieces
    assert apart == alone


def test_whoever_leaves_early_leaves_nobody_behind() -> None:
    seen = run_apart([(seed, 1) for seed in range(1, 200)], jobs=2)
    next(seen)
    assert multiprocessing.active_children()
    seen.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


def test_the_first_of_what_broke_is_told_whoever_ran_it() -> None:
    tally = Tally()
    for number in range(3):
        tally.add(Tally(schedules=10, broken=5, told=[f"{number}/{each}" for each in range(5)]))
    assert (tally.schedules, tally.broken) == (30, 15)
    assert tally.told == ["0/0", "0/1", "0/2", "0/3", "0/4", "1/0", "1/1", "1/2", "1/3", "1/4"]
    assert len(tally.told) == SHOWN


def test_a_fixed_share_of_the_mixture_is_crowded_and_the_rest_is_small() -> None:
    seeds = range(1, 20_001)
    drawn = [varied(seed) for seed in seeds]
    big = [given for seed, given in zip(seeds, drawn, strict=True) if given == crowded(seed)]
    small = [given for seed, given in zip(seeds, drawn, strict=True) if given == narrow(seed)]
    assert len(big) + len(small) == len(drawn)
    assert 1_600 < len(big) < 2_000
    assert all(given["agents"] == AGENTS for given in big)
    assert all(len(given["agents"]) <= given["tasks"] <= 2 for given in small)
    assert {shape for given in small for shape in given["agents"]} == set(AGENTS)
    # None of them is calm.
    assert all(given["faults"] != Faults.calm() for given in small)


def test_a_run_that_misses_anything_says_what() -> None:
    seen = Coverage()
    seen.add(PROMISED - {("task", "failed", "retry")}, FAULTS - {"relay crash"})
    assert seen.missing == ["task failed retry", "relay crash"]
