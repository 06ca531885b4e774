"""PostgreSQL, SQLite in a file and in memory, and a model in plain Python answer alike over random programs.

What fails tells what was done, and fails again with the same command, since nothing here is random.
``OUTLAST_TEST_MODEL=2000`` carries out that many programs, and makes what fails small.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.contract.model.broken import BROKEN, Broken
from tests.contract.model.machine import Bench, machine_on, play
from tests.defects.catalogue import Patch

LONG = int(os.environ.get("OUTLAST_TEST_MODEL", "0"))
STEPS, LOOKS = 80, 200
"""How long programs are, and how many look for a fault at most."""
SETTINGS = settings(
    max_examples=LONG or 20,
    stateful_step_count=STEPS,
    phases=(Phase.generate, Phase.shrink) if LONG else (Phase.generate,),
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def bench(postgres_url: str, tmp_path: Path) -> Iterator[Bench]:
    """A bench on databases of this test's own."""
    made = Bench(postgres_url, tmp_path)
    yield made
    made.end()


def test_all_stores_answer_as_the_model_does(bench: Bench) -> None:
    run_state_machine_as_test(machine_on(bench), settings=SETTINGS)
    # A comparison is worth what it compares.
    assert {"Flushed accepted", "Flushed stale", "Settled settled", "Decided decided"} <= bench.seen
    if LONG:
        refused = ("key_held", "key_done", "paused")
        assert {*(f"refused {name}" for name in refused), "resumed True"} <= bench.seen
        assert {f"OutsidePosted {kind}" for kind in ("accepted", "replayed", "conflict")} <= bench.seen
        fired = ("fired", "replayed", "conflict", "skipped", "moved", "passed", "early")
        assert {f"Fired {kind}" for kind in fired} <= bench.seen
    assert len(bench.seen) > 40, sorted(bench.seen)


@pytest.mark.parametrize("name", BROKEN)
def test_the_model_sees_what_is_broken(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    bench = Bench()
    broken = BROKEN[name]
    broken.apply(Patch(monkeypatch))
    try:
        with pytest.raises(AssertionError, match="is not what the model says"):
            _look(bench, broken)
    finally:
        bench.end()


@pytest.mark.parametrize("name", [name for name, broken in BROKEN.items() if broken.function])
def test_what_is_broken_in_postgres_is_seen(bench: Bench, name: str) -> None:
    broken = BROKEN[name]
    bench.run(bench.redefine(broken.function, broken.old, broken.new))
    with pytest.raises(AssertionError, match=r"\bis not\b"):
        _look(bench, broken)


def _look(bench: Bench, broken: Broken) -> None:
    """Carry out programs until one shows the fault."""
    for seed in range(broken.seed, broken.seed + LOOKS):
        play(bench, seed, broken.weights, STEPS)
