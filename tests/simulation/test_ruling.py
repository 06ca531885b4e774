"""Policy and rules that change, in the world; what the judge does not let pass is in ``tests.defects``."""

from __future__ import annotations

from tests.defects.worlds import RULED

from outlast.testing.simulation import run_schedule


def test_nothing_is_sent_against_what_stands() -> None:
    effects = changed = 0
    played: set[str] = set()
    for seed in range(30):
        report = run_schedule(seed, tasks=1, faults=RULED)
        assert not report.violations, report
        effects += report.effects
        changed += sum(" put_rule" in line or " withdraw_rule" in line for line in report.lines)
        played |= report.played
    assert "policy away" in played
    assert changed > 150
    assert effects > 100
