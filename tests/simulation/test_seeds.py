"""Schedules that once found a fault, so that each is looked for ever after.

A seed names a schedule of the code as it is; as the code goes on, these become others of the same kind. Each
fault has a test of its own besides, at the place where it was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlast.testing.simulation import Faults, crowded, narrow, run_schedule


def _as_it_was(given: dict[str, Any]) -> dict[str, Any]:
    """Take out what the mixture draws since these were found, so that each goes on to be what it was."""
    return {**given, "faults": replace(given["faults"], throttled=0.0)}


@pytest.mark.parametrize(
    "seed",
    [
        82,  # a fork had what was cut in a race, and not who was first: racing again, it failed of that
        236,  # the same, with another task beside it
        3,  # a fork was carried out when the workers had gone: the world did not wait for it
        133,  # a child's end was posted as the workers went: nor for that
        297,  # a race was lost while a fork took a call over, which was told as failed although it stands
        454,  # a fork failed of what a person had found of its call, and the judge did not know
        469,  # a worker looked for what it does not know of, too late, and gave back what was claimed since
        547,  # the other task tried again what had failed when it was forked, the judge took it as repeated
        702,  # a no to a resend stood for ever, although a person wanted it sent again
        748,  # the same as 454, with a business key
        753,  # approvers changed a call twice, and both went under one key
        1012,  # a fork made what its source had given up, and the judge took it for its source's
        1050,  # a decision was heard before there was a wait for it, and slept through
        1137,  # the same as 3, with other tasks
        1345,  # the same as 753, by way of a fork
        1444,  # the judge took for a fork's what its source made when it was denied to the fork
        2544,  # of two unknowns that an undo waited for the second was settled first, and never heard of
        3495,  # a step was tried again with its task, which the judge took for a record that changed
        65718,  # a read had failed, an answer came late that it had not, and people were asked about it
        8695,  # a person said of an undo that had no time left that it did not happen: it had no deadline
        8091,  # the operator wanted sent again, for ever, what a rule denied by then
        103320,  # a worker was stopped while a flush of its was never answered: the world did not wait for it
        728565,  # an undo was begun before it was heard that a later call is settled, and is the next to undo
        701561,  # a task slept longer by what the end of its attempt had taken on its way
        528724,  # a worker heard of a rule that allows a call before it heard that a person had refused it
        77296,  # code that ended by a failure on record did not fit, and its task could be adopted by nobody
        142060,  # a task was given back before its first turn, and waited for a session that nobody trusted
        70282,  # all workers waited for answers that would not come, and the keeper of schedules did not
    ],
)
def test_what_was_found_once_is_not_found_again(seed: int) -> None:
    report = run_schedule(seed, **_as_it_was(crowded(seed)))
    assert not report.violations, report


@pytest.mark.parametrize(
    "seed",
    [
        12931,  # a renewal was never answered, and its worker had to open another session in a quiet system
        8853,  # two renewals were told that a session was gone, and the one opened since was given up
        96525,  # a person wanted sent again what another had refused, and the judge remembered the refusal
        247495,  # a call was sent a millisecond before the deadline, and its outcome counted as lost
        24272,  # a person opened in vain and still waited when all had ended, which the world did not await
        336461,  # a worker stopped a second after its late answer was refused, and before that was kept
    ],
)
def test_what_was_found_once_in_a_small_schedule_is_not_found_again(seed: int) -> None:
    report = run_schedule(seed, **_as_it_was(narrow(seed)))
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
