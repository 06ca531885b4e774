"""Schedules in the world; what the book does not let pass is in ``tests.defects``."""

from __future__ import annotations

from tests.defects.worlds import KEPT

from outlast.testing.simulation import Faults, run_schedule


def test_every_instant_fires_once_whatever_becomes_of_workers() -> None:
    fired = 0
    for seed in range(30):
        report = run_schedule(seed, tasks=1, faults=KEPT)
        assert not report.violations, report
        fired += sum("fire_schedules" in line for line in report.lines)
    assert fired > 60


def test_what_is_on_time_is_not_passed_over() -> None:
    """A look that comes some seconds late leaves nothing out, however few missed firings are made up for."""
    for seed in (10, 17, 21):
        faults = Faults.parse("crashes=2,freezes=1,clock_steps=2,store=0.05,tools=0.3,schedules=2")
        report = run_schedule(seed, faults=faults)
        assert not report.violations, report
