"""What may follow an unknown outcome: one pure function that the worker, the settler and ``operations plan``
share.

Purpose: an unknown is settled by evidence, by a resend where that is declared and provably safe, or by a
person; never by a guess.

What an attempt itself answered, however late, is the best evidence there is, and is looked at before anybody
is asked. Answers that contradict each other, or a settlement, are for a person.

What a gateway saw is nearly as good. That a request was answered as done says that the operation may not be
taken for absent; what its result was only the other side can tell.

Absence is weak evidence. It counts only when the other side was asked after the last attempt's deadline plus
the time in which an effect becomes visible there. Even then a resend needs more: the old sender must be
unable to send any more.
"""

from __future__ import annotations

from typing import Literal

from outlast.core.operation import AFTER_UNKNOWN
from outlast.core.passages import Seen
from outlast.core.record import record

Answer = Literal["found", "different", "several", "absent", "no_evidence"]
"""What ``find`` came back with: the effect of this operation; one of other content; more than one; none;
nothing usable."""

Late = Literal["happened", "did_not_happen", "no_result", "contradictory"]
"""What answers that came late say of the last attempt: what became of it; that it happened, with a result
that cannot be stored; one thing and its opposite."""

Action = Literal["happened", "did_not_happen", "send_again", "ask", "wait", "person"]

ASK_AGAIN_S = (1, 2, 4, 8, 16)
"""Seconds between questions that brought no evidence; after the last one a person is asked."""


LEFT_ALONE = "the other side asked to be left alone"
TURNS_US = 1_000_000
"""After a wait that held for many, their questions come within this time."""
TURNS_AGE_US = 3_600_000_000
"""Calls that are older than this are the oldest of them alike."""


@record
class Open:
    """An operation whose last attempt has no known outcome. Instants and durations in microseconds.

    deadline_at: of the last attempt. sender_gone: whoever made it is known to be unable to send any more
    (its body returned, its end was observed, or a gateway stands between). may_send: the retry policy allows
    another attempt. can_find: the tool can look its effect up. unusable: questions so far that brought no
    evidence, in a row. late: what answers on record say of the last attempt, None where there are none.
    must_happen: it undoes something, so that it is not over when it did not happen. seen: what a gateway saw
    of it; ``nothing`` only of a tool all of whose requests go through one. held_until: until when the other
    side wants to be left alone by everybody, None where it wants no more than usual.
    """

    effect: str
    first_intent_at: int
    deadline_at: int
    timeout_us: int
    key_window_us: int | None
    visible_within_us: int | None
    can_find: bool
    sender_gone: bool
    may_send: bool
    unusable: int = 0
    late: Late | None = None
    must_happen: bool = False
    seen: Seen | None = None
    held_until: int | None = None

    @property
    def answered(self) -> bool:
        """Whether the last attempt is known to be over, whatever its deadline."""
        return self.late is not None or self.seen == "nothing"


@record
class Asked:
    """The answer to a question that was asked at an instant of the database's clock.

    wait_us: how long the other side wants to be left alone, where it said so instead of answering.
    """

    answer: Answer
    at: int
    wait_us: int | None = None


@record
class Plan:
    """What comes next, and why. at: instant of a wait, None otherwise."""

    action: Action
    why: str
    at: int | None = None


def plan(operation: Open, now: int, asked: Asked | None = None) -> Plan:
    """Decide what follows for an unknown operation.

    now: the database's clock. asked: the answer just received, None where nobody has been asked in this turn.
    Pure and total: every combination has one answer.
    """
    decided = _plan(operation, now, asked)
    if decided.action == "did_not_happen" and operation.must_happen:
        return Plan(action="person", why=f"{decided.why}; what it was to undo still stands")
    return decided


def _plan(operation: Open, now: int, asked: Asked | None) -> Plan:
    rule = AFTER_UNKNOWN[operation.effect]
    if operation.late is not None:
        return _of_late(operation.late)
    if operation.seen == "nothing":
        return Plan(
            action="did_not_happen", why="all that it sent went through a gateway, and none of it was done"
        )
    if rule.call_again:
        if operation.may_send:
            return Plan(action="send_again", why=f"{operation.effect}: making the call again does no harm")
        return Plan(action="person", why="the retry policy allows no further attempt")
    if not rule.may_ask:
        acted = "; a gateway saw it answered as done" if operation.seen == "acted" else ""
        return Plan(
            action="person", why=f"the tool is declared manual: it is never sent again by itself{acted}"
        )
    key_known = rule.resend_with_key and _inside_window(operation, now)
    if operation.can_find and asked is None:
        if operation.held_until is not None:
            return Plan(action="wait", at=_in_turn(operation, operation.held_until), why=LEFT_ALONE)
        return Plan(action="ask", why="the other side can be asked")
    if asked is not None and asked.answer in ("found", "different", "several"):
        return _of_find(asked.answer)
    if asked is not None and asked.wait_us is not None:
        return Plan(action="wait", at=now + asked.wait_us, why=LEFT_ALONE)
    if key_known and operation.may_send:
        return Plan(action="send_again", why="the other side deduplicates by this key, inside its window")
    if asked is None:
        return Plan(action="person", why="no further send is allowed, and the other side cannot be asked")
    if asked.answer == "no_evidence":
        return _ask_again(operation, now)
    return _of_absence(operation, asked)


def _in_turn(operation: Open, until: int) -> int:
    """Answer when it is asked about after a wait that holds for many: the oldest call first."""
    age = min(max(0, until - operation.first_intent_at), TURNS_AGE_US)
    return until + TURNS_US - TURNS_US * age // TURNS_AGE_US


def _of_late(late: Late) -> Plan:
    if late == "happened":
        return Plan(action="happened", why="an answer that came late says that it happened")
    if late == "did_not_happen":
        return Plan(action="did_not_happen", why="an answer that came late says that it did not happen")
    if late == "no_result":
        return Plan(
            action="person", why="an answer that came late says that it happened; its result cannot be stored"
        )
    return Plan(action="person", why="answers that came late contradict what is on record")


def _inside_window(operation: Open, now: int) -> bool:
    """Whether an attempt that begins now ends inside the time in which the other side knows the key."""
    window = operation.key_window_us
    return window is not None and now + operation.timeout_us <= operation.first_intent_at + window


def _of_find(answer: Answer) -> Plan:
    if answer == "found":
        return Plan(action="happened", why="the other side holds this very effect")
    if answer == "different":
        return Plan(action="person", why="the other side holds an effect of other content under this name")
    return Plan(action="person", why="the other side holds several effects that it could be")


def _ask_again(operation: Open, now: int) -> Plan:
    if operation.unusable < len(ASK_AGAIN_S):
        at = now + ASK_AGAIN_S[operation.unusable] * 1_000_000
        return Plan(action="wait", at=at, why="the question brought no evidence; it is asked again")
    return Plan(action="person", why=f"{operation.unusable + 1} questions brought no evidence")


def _of_absence(operation: Open, asked: Asked) -> Plan:
    if operation.seen == "acted":
        return Plan(action="person", why="absent, although a gateway saw it answered as done")
    if operation.visible_within_us is None:
        return Plan(
            action="person", why="absent, and nobody has declared when an effect becomes visible there"
        )
    counts_at = operation.deadline_at + operation.visible_within_us
    if asked.at < counts_at:
        return Plan(action="wait", at=counts_at, why="absent, which does not count before it must be visible")
    if not operation.sender_gone:
        return Plan(action="person", why="absent, but whoever sent it may still be able to send")
    if operation.may_send:
        return Plan(
            action="send_again", why="absent when it had to be visible, and its sender cannot send any more"
        )
    return Plan(
        action="did_not_happen", why="absent when it had to be visible, and its sender cannot send any more"
    )
