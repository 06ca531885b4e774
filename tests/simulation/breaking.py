"""What the tests of judges share: something is broken, and schedules run until it is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast.testing.simulation import Faults, database, run_schedule

Break = Callable[[pytest.MonkeyPatch], None]


def shows(monkeypatch: pytest.MonkeyPatch, broken: Break, seen: str, faults: Faults) -> None:
    """Break something, and look that a judge says so within 300 schedules."""
    # How long a calm schedule is has to be known before anything is broken.
    run_schedule(0, faults=faults)
    broken(monkeypatch)
    found: set[str] = set()
    for seed in range(300):
        found.update(run_schedule(seed, faults=faults).violations)
        if any(seen in each for each in found):
            break
    database._idle.clear()
    assert any(seen in each for each in found), found
