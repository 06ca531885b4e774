"""Schedules that once found a fault, so that each is looked for ever after.

A seed names a schedule of the code as it is; as the code goes on, these become others of the same kind. Each
fault has a test of its own besides, at the place where it was.
"""

from __future__ import annotations

import pytest

from outlast.testing.simulation import Faults, run_schedule, varied


@pytest.mark.parametrize(
    "seed",
    [
        82,  # a fork had what was cut in a race, and not who was first: racing again, it failed of that
        236,  # the same, with another task beside it
        297,  # a fork's call that was taken over, and lost its race meanwhile, was told as never made
        133,  # the workers were stopped before the last child's end was told
    ],
)
def test_what_was_found_once_is_not_found_again(seed: int) -> None:
    report = run_schedule(seed, **varied(seed))
    assert not report.violations, report


@pytest.mark.parametrize(
    ("shape", "seed"),
    [
        ("asker", 11),  # a resend whose question had expired was never asked about again
        ("asker", 61),  # the same after a rejection
        ("asker", 17),  # a decision was heard before its question was known to be on disk, and waited for
        ("family", 29),  # the workers were stopped before the last child's end was told
    ],
)
def test_what_was_found_once_in_one_shape_is_not_found_again(shape: str, seed: int) -> None:
    report = run_schedule(seed, tasks=2, faults=Faults.everything(), agents=(shape,))
    assert not report.violations, report
