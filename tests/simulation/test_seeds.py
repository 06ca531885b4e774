"""Schedules that once found a fault, so that each is looked for ever after.

A seed names a schedule of the code as it is; as the code goes on, these become others of the same kind. Each
fault has a test of its own besides, at the place where it was.
"""

from __future__ import annotations

import pytest

from outlast.testing.simulation import run_schedule, varied


@pytest.mark.parametrize(
    "seed",
    [
        82,  # a fork had what was cut in a race, and not who was first: racing again, it failed of that
        236,  # the same, with another task beside it
    ],
)
def test_what_was_found_once_is_not_found_again(seed: int) -> None:
    report = run_schedule(seed, **varied(seed))
    assert not report.violations, report
