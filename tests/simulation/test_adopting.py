"""Code that changes under its version; what its judge does not let pass is in ``tests.defects``."""

from __future__ import annotations

from tests.defects.worlds import MOVED

from outlast.testing.simulation import run_schedule


def test_what_stops_is_moved_to_what_fits() -> None:
    moves, lines, stopped = set(), [], 0
    for seed in range(30):
        report = run_schedule(seed, tasks=1, faults=MOVED)
        assert not report.violations, report
        moves |= report.moves
        lines += [line for line in report.lines if " was adopted by version " in line]
        stopped += any("version_in_use" in line for line in report.lines)
    assert {("task", "queued", "adopt"), ("task", "waiting", "adopt")} <= moves
    assert len([line for line in lines if line.endswith("while waiting")]) > 10
    # People tried it at the wrong moment as well.
    assert stopped > 10
