"""Switches in the world; what the judge does not let pass is in ``tests.defects``."""

from __future__ import annotations

from tests.defects.worlds import SWITCHED

from outlast.testing.simulation import run_schedule
from outlast.testing.simulation.agents import AGENTS


def test_nothing_begins_while_a_switch_stands_and_all_goes_on_after_it() -> None:
    thrown = 0
    for seed in range(30):
        report = run_schedule(seed, tasks=3, faults=SWITCHED, agents=AGENTS)
        assert not report.violations, report
        thrown += sum(line.split()[2] == "pause" for line in report.lines if len(line.split()) > 2)
    assert thrown > 100
