"""Tasks with budgets in the world; what the judge does not let pass is in ``tests.defects``."""

from __future__ import annotations

from tests.defects.worlds import SAVED

from outlast.testing.simulation import run_schedule


def test_no_intent_passes_a_bound() -> None:
    effects = 0
    lines: list[str] = []
    for seed in range(30):
        report = run_schedule(seed, tasks=1, faults=SAVED)
        assert not report.violations, report
        effects += report.effects
        lines += report.lines
    assert effects > 60
    assert sum("tried again" in line for line in lines) > 3
