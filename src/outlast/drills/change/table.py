"""What is right after each fault, and why: the table that the drill is judged by.

An entry reads ``calls/effects end``. calls: requests that reach the ticket service and would act there, those
that withdraw included; ``-`` where the play counts, since how many there are is a matter of time. end: of the
tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from outlast.drills import cells
from outlast.drills.cells import Right
from outlast.drills.change import (
    conversing,
    deploying,
    forking,
    instants,
    migrating,
    rolling,
    rounds,
    undoing,
)
from outlast.drills.change.scene import Played, Scene

__all__ = ["CELLS", "CHECKERS", "Cell", "Play", "chosen", "in_groups"]

Play = Callable[[Scene, str], Awaitable[Played | list[Played]]]
When = Literal["first", "beside", "doomed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(cells.Cell):
    """A row of the table.

    when: it begins before any other worker, in the order of the table; is played beside the others; or has a
    worker of its own that dies. Rows with one play that answers several are played together.
    """

    play: Play
    when: When
    right: Right


def _cell(
    family: str, fault: str, play: Play, right: str, what: str, why: str, when: When = "beside"
) -> Cell:
    return Cell(family=family, fault=fault, play=play, when=when, what=what, why=why, right=Right.read(right))


_SAME_KEY = "an undo is a call like any other: unknown, it is made again under its own key, and is there once"
_GOES_ON = "whoever goes on, goes on where the ledger ends"
_STOPS = "a task never goes on under code that its journal does not fit; under the old one it does"

CELLS: Final[tuple[Cell, ...]] = (
    # -- undo -----------------------------------------------------------------------------------------------
    _cell(
        "undo", "act_hang", undoing.answered_badly, "5/4 failed", "a withdrawal's answer is lost", _SAME_KEY
    ),
    _cell(
        "undo",
        "act_500",
        undoing.answered_badly,
        "5/4 failed",
        "a withdrawal is done, and answered by 500",
        _SAME_KEY,
    ),
    _cell(
        "undo",
        "act_drop",
        undoing.answered_badly,
        "5/4 failed",
        "a withdrawal is done, and the connection breaks",
        _SAME_KEY,
    ),
    _cell(
        "undo",
        "throttled",
        undoing.answered_badly,
        "5/4 failed",
        "a withdrawal is answered by 429",
        "what was refused before it was processed is made again after the wait",
    ),
    _cell(
        "undo",
        "killed_before_decision",
        undoing.killed,
        "4/4 failed",
        "the worker dies before the decision to undo is on disk",
        "the next attempt fails as this one did, and decides",
        "doomed",
    ),
    _cell(
        "undo",
        "killed_after_decision",
        undoing.killed,
        "4/4 failed",
        "the worker dies when the decision is on disk, and nothing undone",
        "the agent does not run again: the next attempt only undoes",
        "doomed",
    ),
    _cell(
        "undo",
        "killed_before_intent",
        undoing.killed,
        "4/4 failed",
        "the worker dies before the first withdrawal's intent is on disk",
        _GOES_ON,
        "doomed",
    ),
    _cell(
        "undo",
        "killed_after_intent",
        undoing.killed,
        "4/4 failed",
        "the worker dies when the first withdrawal's intent is on disk, and nothing sent",
        _SAME_KEY,
        "doomed",
    ),
    _cell(
        "undo",
        "killed_after_answer",
        undoing.killed,
        "5/4 failed",
        "the worker dies when the first withdrawal is answered, and nothing of that on disk",
        _SAME_KEY,
        "doomed",
    ),
    _cell(
        "undo",
        "order",
        undoing.order,
        "4/4 failed",
        "of two calls at once, the one that was asked for first is answered last",
        "undone is the newest success first, not the newest call",
    ),
    _cell(
        "undo",
        "unknown_settled",
        undoing.unknown_settled,
        "4/4 cancelled",
        "cancelled with undo while a call is unknown that can be asked about",
        "what is unknown is settled by evidence first, and then undone",
    ),
    _cell(
        "undo",
        "unknown_left",
        undoing.unknown_left,
        "3/3 cancelled",
        "cancelled with undo while a call is unknown that nobody can ask about",
        "what only a person can know is left to one, the rest is undone, and the end says so",
    ),
    _cell(
        "undo",
        "undo_left",
        undoing.undo_left,
        "6/6 failed",
        "the answer is lost of a withdrawal that nobody can ask about, in the middle of three",
        "one undo that is left to a person does not hide the others",
    ),
    _cell(
        "undo",
        "cancelled_with_undo",
        undoing.cancelled_with_undo,
        "4/4 cancelled",
        "a task that waits is cancelled with undo",
        "it is handed out once more, and only undoes",
    ),
    _cell(
        "undo",
        "cancelled_meanwhile",
        undoing.cancelled_meanwhile,
        "4/4 cancelled",
        "a task that has failed and undoes is cancelled without undo",
        "an undo that has begun comes to its end; what ends then was cancelled",
    ),
    # -- retry ----------------------------------------------------------------------------------------------
    _cell(
        "retry",
        "refused",
        rounds.after_failure,
        "2/1 succeeded",
        "the call was refused as often as it may be tried",
        "what was never processed is made again under its key",
    ),
    _cell(
        "retry",
        "declined",
        rounds.after_failure,
        "1/0 failed",
        "the call was declined",
        "a no for business reasons stays one; it is not asked again",
    ),
    _cell(
        "retry",
        "raised",
        rounds.after_failure,
        "1/1 succeeded",
        "the agent raised behind its call",
        "the journal stands, the function runs again",
    ),
    _cell(
        "retry",
        "failed_step",
        rounds.after_failure,
        "1/1 succeeded",
        "a step failed behind the call",
        "a failed step is opened again, what succeeded before it is not",
    ),
    _cell(
        "retry",
        "deadline",
        rounds.after_deadline,
        "1/1 succeeded",
        "the task's time was over while it waited",
        "the next round has a time of its own",
    ),
    _cell(
        "retry",
        "cancelled",
        rounds.after_cancel,
        "1/1 succeeded",
        "the task was cancelled by mistake",
        "a cancel ends a round, and what it left stands",
    ),
    _cell(
        "retry",
        "crash_loop",
        rounds.after_crashes,
        "1/1 succeeded",
        "three workers died of the task",
        "a task that is parked keeps its journal",
        "doomed",
    ),
    _cell(
        "retry",
        "undone",
        undoing.retry_refused,
        "4/4 failed",
        "the task has undone what it did",
        "its journal says that the effects stand, and they do not: refused",
    ),
    # -- fork -----------------------------------------------------------------------------------------------
    *(
        _cell(
            "fork",
            f"{side}_{effect}",
            play,
            "1/1 succeeded",
            f"forked from {side} a call of a {effect} tool",
            why,
        )
        for side, play, reasons in (
            (
                "before",
                forking.before,
                (
                    "the key that was sent is taken over, and asked about: nothing is sent again",
                    "the call is taken over as unknown, looked up, and found",
                    "the call is taken over as unknown, and a person says what it has done",
                ),
            ),
            ("after", forking.after, ("the fork has it in its journal",) * 3),
        )
        for effect, why in zip(("keyed", "queryable", "manual"), reasons, strict=True)
    ),
    _cell(
        "fork",
        "unsettled",
        forking.unsettled,
        "1/1 succeeded",
        "forked from behind a call of which nobody knows",
        "a prefix with anything unsettled is refused, until it is settled",
    ),
    # -- deploys --------------------------------------------------------------------------------------------
    *(
        _cell(
            "deploy",
            fault,
            deploying.deploy,
            "3/3 succeeded",
            f"an operation is {fault} by a deploy under the same version, and back again",
            _STOPS,
        )
        for fault in ("renamed", "inserted", "swapped", "removed")
    ),
    _cell(
        "deploy",
        "adopt_fits",
        deploying.deploy,
        "4/4 succeeded",
        "a version adopts a task whose journal it fits",
        "it goes on under the new code, and nothing is done again",
    ),
    _cell(
        "deploy",
        "adopt_differs",
        deploying.deploy,
        "3/3 succeeded",
        "a version would adopt a task whose journal it does not fit",
        "the difference is shown, and the task stays where it is",
    ),
    _cell(
        "deploy",
        "adopt_running",
        deploying.deploy,
        "3/3 succeeded",
        "a version would adopt a task that runs under the old one",
        "refused: nobody takes a task from under its worker",
    ),
    _cell(
        "deploy",
        "rolling_upgrade",
        rolling.roll,
        "- succeeded",
        "new workers come beside the old ones under load, and the old ones go",
        "every task ends under the version that it began with, and no attempt is lost",
    ),
    _cell(
        "deploy",
        "rolling_downgrade",
        rolling.roll,
        "- succeeded",
        "the new workers go again, with tasks of theirs in flight, and come back",
        "what nobody serves waits, is seen to wait, and costs no attempt",
    ),
    _cell(
        "deploy",
        "schema_change",
        migrating.schema_change,
        "32/32 succeeded",
        "columns are added to the hottest tables with tasks in flight",
        "a migration that only adds stops nobody",
    ),
    # -- schedules ------------------------------------------------------------------------------------------
    _cell(
        "schedule",
        "two_processes",
        instants.two_processes,
        "0/0 succeeded",
        "every worker waits for one instant of eight schedules",
        "an instant is one task, however many look",
    ),
    _cell(
        "schedule",
        "spring",
        instants.spring,
        "0/0 succeeded",
        "the clocks go forward over the instant",
        "it fires in the moment of the change; hours are real ones",
        "first",
    ),
    _cell(
        "schedule",
        "autumn",
        instants.autumn,
        "0/0 succeeded",
        "the clocks go back, and the instant comes twice",
        "it fires the first time; what is hourly fires in both",
        "first",
    ),
    _cell(
        "schedule",
        "frozen_at_the_instant",
        instants.frozen_at_the_instant,
        "0/0 succeeded",
        "a worker freezes when it is about to fire, and thaws when another has",
        "the schedule has moved on, and the late one changes nothing",
        "first",
    ),
    # -- outside sessions -----------------------------------------------------------------------------------
    _cell(
        "outside",
        "claimed_twice",
        conversing.claimed_twice,
        "0/0 succeeded",
        "two tasks claim one session",
        "a session is held by one live task; the other is told by whom",
    ),
    _cell(
        "outside",
        "three_ways",
        conversing.three_ways,
        "0/0 succeeded",
        "an event comes by callback, by poll and by webhook, at once",
        "one event, one signal, to the one task that holds the session",
    ),
)
"""The table."""

CHECKERS: Final = _cell(
    "ledger",
    "every_checker",
    undoing.order,
    "- -",
    "after all of it, every checker looks at the store and at the ticket service's log",
    "what must be true at any moment is true now",
)
"""Judged at the end; nothing of it is played."""

_TOGETHER: Final = (deploying.deploy, rolling.roll)


def chosen(patterns: Sequence[str]) -> tuple[Cell, ...]:
    """Answer the cells that fit one of the patterns (``undo/order``, ``fork``, ``*/killed_*``)."""
    return cells.chosen(CELLS, patterns)


def in_groups(rows: Sequence[Cell]) -> list[list[Cell]]:
    """Put cells together that are played together."""
    groups: dict[object, list[Cell]] = {}
    for cell in rows:
        groups.setdefault(cell.play if cell.play in _TOGETHER else cell.fault, []).append(cell)
    return list(groups.values())
