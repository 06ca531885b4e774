"""Misfortunes that are aimed: they fall on whoever has just committed an intent."""

from __future__ import annotations

from outlast.testing.simulation import Faults, run_schedule


def test_an_aimed_misfortune_falls_between_an_intent_and_its_outcome() -> None:
    near = fell = 0
    for seed in range(60):
        report = run_schedule(seed, faults=Faults(crashes=1, aimed=1.0))
        assert not report.violations, report
        said = [line.split(" ", 1)[1] for line in report.lines]
        place = next((i for i, line in enumerate(said) if line.endswith(" crash")), None)
        if place is None:
            # The task has one intent, and some are aimed at its second or third.
            continue
        fell += 1
        name = said[place].split()[0]
        flushed = [line for line in said[:place] if line.startswith(f"{name} flush")]
        near += "CommitIntent" in flushed[-1]
    assert fell > 10
    assert near > 0.7 * fell


def test_what_is_not_aimed_falls_anywhere() -> None:
    faults = Faults(crashes=3)
    assert run_schedule(1, faults=faults).lines == run_schedule(1, faults=Faults(crashes=3, aimed=0.0)).lines
