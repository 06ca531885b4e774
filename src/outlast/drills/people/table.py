"""What is right after each fault, and why: the table that the drill is judged by.

An entry reads ``calls/effects end``. calls: requests that reach the ticket service and would act there; ``-``
where only what happened can say (who won a race), and the play counts. end: of the tasks, ``-`` where they
may end in two ways and the play says which is right.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from outlast.drills import cells
from outlast.drills.cells import Right
from outlast.drills.people import asking, cancelling, clocks, deciding, freezing, racing, ruling, waiting
from outlast.drills.people.scene import Played, Scene

__all__ = ["CELLS", "CHECKERS", "Cell", "Play", "Right", "chosen", "in_groups"]

Play = Callable[[Scene, str], Awaitable[Played | list[Played]]]
When = Literal["restart", "after", "hurried", "own", "doomed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(cells.Cell):
    """A row of the table.

    when: it goes through the ``restart`` of everything; is played ``after`` it; has to be in time then
    (``hurried``); starts processes of its ``own``, when nobody is in a hurry; or a worker that is ``doomed``
    to die or freeze. Rows with one play are played together.
    """

    play: Play
    when: When
    right: Right


def _cell(family: str, fault: str, play: Play, when: When, right: str, what: str, why: str) -> Cell:
    return Cell(family=family, fault=fault, play=play, when=when, what=what, why=why, right=Right.read(right))


CELLS: Final[tuple[Cell, ...]] = (
    # -- approvals ------------------------------------------------------------------------------------------
    _cell(
        "approval",
        "everyone_dies",
        asking.everyone_dies,
        "restart",
        "1/1 succeeded",
        "every process dies while the supervisor is asked, who agrees meanwhile",
        "a question and a decision are on disk; the decision stands for exactly what was shown",
    ),
    _cell(
        "approval",
        "killed_while_asking",
        freezing.killed_while_asking,
        "doomed",
        "1/1 succeeded",
        "the worker dies when the question is on disk, and the decision comes before its lease is over",
        "a decision is posted to the task, not to a worker",
    ),
    _cell(
        "approval",
        "amount_changed",
        asking.amount_changed,
        "restart",
        "1/1 succeeded",
        "the agent wants another amount after the restart",
        "changed arguments need a new decision, and the old one stays unused",
    ),
    _cell(
        "approval",
        "tool_changed",
        asking.tool_changed,
        "restart",
        "1/1 succeeded",
        "the tool has a new version after the restart",
        "a deploy voids what was agreed to",
    ),
    _cell(
        "approval",
        "object_changed",
        asking.object_changed,
        "restart",
        "1/1 succeeded",
        "what the call is about has a new version after the restart",
        "a decision is for the version that was shown",
    ),
    _cell(
        "approval",
        "decision_replayed",
        deciding.decision_replayed,
        "after",
        "1/1 succeeded",
        "a used decision is sent again, by the same person and by another, while an equal call waits",
        "one decision, one effect; no decision is for whatever is pending",
    ),
    _cell(
        "approval",
        "doubled_click",
        deciding.doubled_click,
        "after",
        "1/1 succeeded",
        "the supervisor clicks again and again, and the next proposal is there by then",
        "a click is for the question that it was made on",
    ),
    _cell(
        "approval",
        "fifty_decisions",
        racing.fifty_decisions,
        "own",
        "- succeeded",
        "fifty people decide at once, by API, link and library, and half of the API processes are killed",
        "one compare-and-set decides; everybody else is told by whom",
    ),
    _cell(
        "approval",
        "at_the_expiry",
        deciding.at_the_expiry,
        "hurried",
        "- succeeded",
        "people decide within milliseconds of the expiry",
        "the database's clock says what was in time, for the decision as for its use",
    ),
    _cell(
        "approval",
        "approved_too_late",
        deciding.approved_too_late,
        "hurried",
        "0/0 succeeded",
        "agreed to in time, but the call cannot be made before that time is over",
        "a decision that was not used in time is void",
    ),
    _cell(
        "approval",
        "no_is_not_silence",
        asking.no_is_not_silence,
        "restart",
        "0/0 succeeded",
        "one question is rejected, another one's time goes by, while nobody lives",
        "a rejection and an expiry are different, final, and told apart",
    ),
    _cell(
        "approval",
        "policy_missing",
        deciding.policy_missing,
        "after",
        "1/1 succeeded",
        "policy cannot be loaded when the task starts, and can be later",
        "without policy nothing runs, and the task waits",
    ),
    _cell(
        "approval",
        "policy_withdrawn",
        asking.policy_withdrawn,
        "restart",
        "0/0 succeeded",
        "policy is withdrawn between decision and intent, and forbids the call when it is back",
        "everything is checked again at every attempt; no decision opens what policy has closed",
    ),
    _cell(
        "approval",
        "parallel_questions",
        asking.parallel_questions,
        "restart",
        "3/3 succeeded",
        "two questions of one turn are answered in reverse order, the first answer with an edit, over a"
        " restart",
        "each answer reaches its own call; what needs no question is done once",
    ),
    _cell(
        "approval",
        "quorum_and_four_eyes",
        deciding.quorum_and_four_eyes,
        "after",
        "1/1 succeeded",
        "two people have to agree; the requester, a stranger and the same person twice try",
        "who may decide, and how many, is part of the question",
    ),
    _cell(
        "approval",
        "too_large_to_show",
        deciding.too_large_to_show,
        "after",
        "0/0 succeeded",
        "arguments that are too large to show",
        "what nobody can read, nobody can agree to",
    ),
    _cell(
        "approval",
        "person_answers",
        asking.person_answers,
        "restart",
        "0/0 succeeded",
        "two people answer the agent's own question at once while nobody lives",
        "the first answer counts, and is the agent's on every replay",
    ),
    _cell(
        "approval",
        "decision_at_the_brink",
        freezing.at_the_brink,
        "own",
        "1/1 succeeded",
        "the decision comes in the very moment in which the task suspends",
        "a suspension that has not seen a fact becomes a wake-up",
    ),
    # -- standing rules --------------------------------------------------------------------------------------
    _cell(
        "rule",
        "rejected_although",
        ruling.rejected_although,
        "after",
        "0/0 succeeded",
        "a standing rule allows the tool, and a person rejects one call",
        "the decision on one call beats the rule",
    ),
    _cell(
        "rule",
        "approved_although",
        ruling.approved_although,
        "after",
        "1/1 succeeded",
        "a standing rule denies the tool, and a person agrees to one call",
        "the decision on one call beats the rule",
    ),
    _cell(
        "rule",
        "rule_withdrawn",
        ruling.rule_withdrawn,
        "after",
        "1/1 succeeded",
        "a standing rule is withdrawn while two calls are held back",
        "the rules are asked again in the transaction of the intent",
    ),
    # -- waits ----------------------------------------------------------------------------------------------
    _cell(
        "wait",
        "signal_before",
        waiting.signal_before,
        "after",
        "0/0 succeeded",
        "signals come before the task waits for them",
        "a signal is stored whether anybody waits or not",
    ),
    _cell(
        "wait",
        "signal_at_the_brink",
        freezing.at_the_brink,
        "own",
        "0/0 succeeded",
        "the signal comes in the very moment in which the task suspends",
        "a suspension that has not seen a fact becomes a wake-up",
    ),
    _cell(
        "wait",
        "signal_after",
        waiting.signal_after,
        "restart",
        "0/0 succeeded",
        "signals come while nobody lives",
        "signals are kept in order over every restart",
    ),
    _cell(
        "wait",
        "signals_repeated",
        waiting.signals_repeated,
        "restart",
        "0/0 succeeded",
        "one signal is sent again and again under one key, before and after it was taken",
        "one key, one signal, for as long as the task is kept",
    ),
    _cell(
        "wait",
        "killed_before_the_take",
        waiting.killed_before_the_take,
        "doomed",
        "0/0 succeeded",
        "the worker dies between reading a signal and taking it on record",
        "what is not taken on record lies there for the next attempt",
    ),
    _cell(
        "wait",
        "child_at_the_brink",
        freezing.at_the_brink,
        "own",
        "0/0 succeeded",
        "the child ends in the very moment in which its parent suspends",
        "a suspension that has not seen a fact becomes a wake-up",
    ),
    _cell(
        "wait",
        "callback_abused",
        waiting.callback_abused,
        "restart",
        "0/0 succeeded",
        "a callback is answered twice, otherwise, with an altered token, and too late",
        "the first answer stands, a repeat is one, and nothing else is taken",
    ),
    _cell(
        "wait",
        "wrong_clock",
        clocks.wrong_clock,
        "own",
        "0/0 succeeded",
        "a worker's clock is an hour ahead, then an hour behind, with every kind of time limit in use",
        "all that is stored is decided by the database's clock",
    ),
    # -- cancel ---------------------------------------------------------------------------------------------
    _cell(
        "cancel",
        "storm",
        cancelling.storm,
        "after",
        "0/0 -",
        "forty tasks are cancelled around their last commit",
        "cancel and completion race on one row, and the answer agrees with the end",
    ),
    _cell(
        "cancel",
        "frozen_before_the_end",
        freezing.frozen_before_the_end,
        "doomed",
        "0/0 cancelled",
        "the worker freezes between the last step and completion, and thaws when all are cancelled",
        "an acknowledged cancel is never turned into a success",
    ),
    _cell(
        "cancel",
        "in_flight",
        cancelling.in_flight,
        "after",
        "1/1 cancelled",
        "a call is under way, and its answer does not come within the grace time",
        "a task ends on time; what is unknown then stays in the ledger and is settled later",
    ),
    _cell(
        "cancel",
        "frozen_before_intent",
        freezing.frozen_before_intent,
        "doomed",
        "0/0 cancelled",
        "the worker is frozen just before an intent, and thaws when the task is cancelled",
        "after the acknowledgement no intent is admitted",
    ),
    _cell(
        "cancel",
        "family",
        cancelling.family,
        "after",
        "0/0 cancelled",
        "a task with children and grandchildren is cancelled",
        "children that are not detached end with their parents",
    ),
    _cell(
        "cancel",
        "process_step",
        cancelling.process_step,
        "own",
        "0/0 cancelled",
        "a step computes in a process of its own and never looks up",
        "its process is killed, and the call that would follow is never made",
    ),
    _cell(
        "cancel",
        "deadline_ignored",
        cancelling.deadline_ignored,
        "hurried",
        "1/1 failed",
        "the task's time is over, and its agent swallows every cancellation and calls again",
        "the task ends on time, and nothing that its code does later begins a call",
    ),
    # -- leases ---------------------------------------------------------------------------------------------
    _cell(
        "lease",
        "buffered",
        freezing.buffered,
        "doomed",
        "10/10 succeeded",
        "a worker has claimed ten tasks and begun none, and freezes until others have done them",
        "what is claimed and not begun is under the same lease; a late start is refused before any call",
    ),
    _cell(
        "lease",
        "process_outlives",
        freezing.frozen_before_intent,
        "doomed",
        "1/1 succeeded",
        "the worker freezes while a step of it computes in a process of its own, which runs on",
        "only the second attempt's call is made",
    ),
)
"""The table."""

CHECKERS: Final = _cell(
    "ledger",
    "every_checker",
    asking.everyone_dies,
    "after",
    "- -",
    "after all of it, every checker looks at the store and at the ticket service's log",
    "what must be true at any moment is true now",
)
"""Judged at the end; nothing of it is played."""


def chosen(patterns: Sequence[str]) -> tuple[Cell, ...]:
    """Answer the cells that fit one of the patterns (``cancel/storm``, ``wait``, ``*/signal_*``)."""
    return cells.chosen(CELLS, patterns)


def in_groups(rows: Sequence[Cell]) -> list[list[Cell]]:
    """Put cells together that are played together."""
    groups: dict[Play, list[Cell]] = {}
    for cell in rows:
        groups.setdefault(cell.play, []).append(cell)
    return list(groups.values())
