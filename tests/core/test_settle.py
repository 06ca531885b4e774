"""What may follow an unknown: every row of the table, and what no row may ever say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, get_args

import pytest

from outlast.core.operation import AFTER_UNKNOWN, EFFECTS
from outlast.core.settle import ASK_AGAIN_S, LEFT_ALONE, Action, Answer, Asked, Late, Open, Plan, plan

SECOND = 1_000_000
SENT = 1_700_000_000 * SECOND
TIMEOUT = 10 * SECOND
DEADLINE = SENT + TIMEOUT
NOW = DEADLINE + 60 * SECOND
ANSWERS: tuple[Answer | None, ...] = (None, *get_args(Answer))
LATE: tuple[Late | None, ...] = (None, *get_args(Late))
WINDOWS = {"none": None, "open": 3600 * SECOND, "over": 30 * SECOND}
VISIBLE = {"none": None, "over": 20 * SECOND, "ahead": 100 * SECOND}
"""``over``: an effect must be visible by now, so absence counts."""
UNUSABLE = (0, 1, len(ASK_AGAIN_S) - 1, len(ASK_AGAIN_S), len(ASK_AGAIN_S) + 3)


class Row(NamedTuple):
    """One row of the table."""

    effect: str
    answer: Answer | None
    window: str
    may_send: bool
    sender_gone: bool
    visible: str
    unusable: int
    can_find: bool
    late: Late | None

    @property
    def operation(self) -> Open:
        return Open(
            effect=self.effect,
            first_intent_at=SENT,
            deadline_at=DEADLINE,
            timeout_us=TIMEOUT,
            key_window_us=WINDOWS[self.window],
            visible_within_us=VISIBLE[self.visible],
            can_find=self.can_find,
            sender_gone=self.sender_gone,
            may_send=self.may_send,
            unusable=self.unusable,
            late=self.late,
        )

    @property
    def asked(self) -> Asked | None:
        return None if self.answer is None else Asked(answer=self.answer, at=NOW)

    @property
    def absence_counts(self) -> bool:
        return self.answer == "absent" and self.visible == "over"

    def plan(self) -> Plan:
        return plan(self.operation, NOW, self.asked)


def rows() -> Iterator[Row]:
    """Yield every combination."""
    both = (False, True)
    for values in itertools.product(EFFECTS, ANSWERS, WINDOWS, both, both, VISIBLE, UNUSABLE, both, LATE):
        yield Row(*values)


def expected(row: Row) -> Action:
    """Say by the house's rules, in their own order, what a row must say."""
    if row.late in ("happened", "did_not_happen"):
        return row.late
    if row.late is not None:
        return "person"
    if row.effect in ("read", "idempotent"):
        return "send_again" if row.may_send else "person"
    if row.effect == "manual":
        return "person"
    if row.answer is None and row.can_find:
        return "ask"
    if row.answer == "found":
        return "happened"
    if row.answer in ("different", "several"):
        return "person"
    # Nobody is there to be asked, or the question brought no effect to light.
    if row.effect == "keyed" and row.window == "open" and row.may_send:
        return "send_again"
    if row.answer == "no_evidence":
        return "wait" if row.unusable < len(ASK_AGAIN_S) else "person"
    if row.answer == "absent" and row.visible == "ahead":
        return "wait"
    if row.absence_counts and row.sender_gone:
        return "send_again" if row.may_send else "did_not_happen"
    return "person"


TABLE = tuple(rows())


def test_the_table_is_whole() -> None:
    assert len(TABLE) == len(set(TABLE)) == 5 * 6 * 3 * 2 * 2 * 3 * 5 * 2 * 5
    assert set(AFTER_UNKNOWN) == set(EFFECTS)


def test_every_row_says_what_the_rules_say() -> None:
    assert [
        (row, row.plan().action, expected(row)) for row in TABLE if row.plan().action != expected(row)
    ] == []


def test_what_undoes_something_is_never_given_up_by_itself_and_decided_alike_otherwise() -> None:
    for row in TABLE:
        said = plan(replace(row.operation, must_happen=True), NOW, row.asked)
        wanted = expected(row)
        assert said.action == ("person" if wanted == "did_not_happen" else wanted), row
        if wanted != "did_not_happen":
            assert said == row.plan()


def test_every_row_has_an_action_and_a_reason() -> None:
    for row in TABLE:
        said = row.plan()
        assert said.action in get_args(Action), row
        assert said.why, row
        assert (said.at is not None) == (said.action == "wait"), row


def test_every_action_is_said_somewhere() -> None:
    assert {row.plan().action for row in TABLE} == set(get_args(Action))


def test_what_is_manual_is_never_sent_again_or_given_up_by_itself() -> None:
    said = {row.plan().action for row in TABLE if row.effect == "manual"}
    assert said == {"person", "happened", "did_not_happen"}
    unheard = {row.plan().action for row in TABLE if row.effect == "manual" and row.late is None}
    assert unheard == {"person"}


def test_what_is_queryable_is_sent_again_only_after_counted_absence_of_a_dead_sender() -> None:
    sent = [row for row in TABLE if row.effect == "queryable" and row.plan().action == "send_again"]
    assert sent != []
    assert all(row.absence_counts and row.sender_gone and row.may_send for row in sent)


def test_what_is_keyed_is_sent_again_only_inside_its_window_or_like_what_is_queryable() -> None:
    sent = [row for row in TABLE if row.effect == "keyed" and row.plan().action == "send_again"]
    assert sent != []
    assert all(row.window == "open" or (row.absence_counts and row.sender_gone) for row in sent)


def test_nothing_is_sent_again_that_may_not_be_sent() -> None:
    assert [row for row in TABLE if row.plan().action == "send_again" and not row.may_send] == []


def test_nothing_is_given_up_unless_its_attempt_said_so_or_it_is_absent_and_its_sender_gone() -> None:
    gone = [row for row in TABLE if row.plan().action == "did_not_happen"]
    assert gone != []
    unheard = [row for row in gone if row.late is None]
    assert unheard != []
    assert all(row.absence_counts and row.sender_gone for row in unheard)
    assert {row.late for row in gone} == {None, "did_not_happen"}


def test_what_an_attempt_answered_late_is_heard_before_anybody_is_asked() -> None:
    heard = [row for row in TABLE if row.late is not None]
    assert {row.plan().action for row in heard} == {"happened", "did_not_happen", "person"}


def test_nothing_happened_without_evidence() -> None:
    happened = [row for row in TABLE if row.plan().action == "happened"]
    assert all(row.late == "happened" or row.answer == "found" for row in happened)


def test_nobody_is_asked_who_cannot_be_and_nobody_twice_in_a_turn() -> None:
    asked = [row for row in TABLE if row.plan().action == "ask"]
    assert all(row.can_find and row.answer is None for row in asked)


def test_contradicting_effects_are_for_a_person() -> None:
    found = [row for row in TABLE if row.answer in ("different", "several") and row.late is None]
    asking = [row for row in found if row.effect in ("keyed", "queryable", "manual")]
    assert {row.plan().action for row in asking} == {"person"}


def test_knowing_more_of_the_sender_never_takes_a_resend_away() -> None:
    for row in TABLE:
        if row.plan().action == "send_again":
            assert row._replace(sender_gone=True).plan().action == "send_again", row


# -- at the edges ------------------------------------------------------------------------------------

KEYED = Row("keyed", None, "open", True, False, "none", 0, False, None).operation
QUERYABLE = Row("queryable", "absent", "none", True, True, "over", 0, True, None).operation


@pytest.mark.parametrize(("early", "action"), [(1, "send_again"), (0, "send_again"), (-1, "person")])
def test_a_resend_with_its_key_has_to_end_inside_the_window(early: int, action: str) -> None:
    """An attempt that begins now may arrive as late as its deadline."""
    assert KEYED.key_window_us is not None
    last = SENT + KEYED.key_window_us - TIMEOUT
    assert plan(KEYED, last - early).action == action


@pytest.mark.parametrize(("early", "action"), [(1, "wait"), (0, "send_again"), (-1, "send_again")])
def test_absence_counts_from_the_instant_on_at_which_an_effect_is_visible(early: int, action: str) -> None:
    assert QUERYABLE.visible_within_us is not None
    counts_at = DEADLINE + QUERYABLE.visible_within_us
    said = plan(QUERYABLE, counts_at + 5 * SECOND, Asked(answer="absent", at=counts_at - early))
    assert (said.action, said.at) == (action, counts_at if action == "wait" else None)


def test_it_is_the_instant_of_the_question_that_counts_not_of_its_answer() -> None:
    counts_at = DEADLINE + (QUERYABLE.visible_within_us or 0)
    said = plan(QUERYABLE, counts_at + 3600 * SECOND, Asked(answer="absent", at=SENT))
    assert (said.action, said.at) == ("wait", counts_at)


def test_absence_is_counted_from_the_last_attempts_deadline() -> None:
    later = replace(QUERYABLE, deadline_at=NOW)
    assert plan(later, NOW, Asked(answer="absent", at=NOW)).at == NOW + (QUERYABLE.visible_within_us or 0)


def test_a_window_of_none_is_no_window() -> None:
    assert plan(replace(KEYED, key_window_us=None), SENT).action == "person"


@pytest.mark.parametrize("unusable", range(len(ASK_AGAIN_S)))
def test_questions_without_evidence_are_asked_again_ever_later(unusable: int) -> None:
    said = plan(replace(QUERYABLE, unusable=unusable), NOW, Asked(answer="no_evidence", at=NOW))
    assert (said.action, said.at) == ("wait", NOW + ASK_AGAIN_S[unusable] * SECOND)


def test_after_the_last_of_them_a_person_is_asked() -> None:
    assert list(ASK_AGAIN_S) == sorted(set(ASK_AGAIN_S))
    silent = replace(QUERYABLE, unusable=len(ASK_AGAIN_S))
    said = plan(silent, NOW, Asked(answer="no_evidence", at=NOW))
    assert said.action == "person"
    assert str(len(ASK_AGAIN_S) + 1) in said.why


def test_nobody_is_asked_who_wants_to_be_left_alone_and_those_sent_first_are_asked_first_after_that() -> None:
    until, ages = NOW + 9 * SECOND, (0, 1, 60, 3_599, 3_600, 9_999)
    plans = []
    for row in TABLE:
        held = plan(replace(row.operation, held_until=until), NOW, row.asked)
        free = plan(row.operation, NOW, row.asked)
        assert held == free or (free.action, held.action) == ("ask", "wait")
        assert held.action != "ask"
    for age in ages:
        sent_at = until - age * SECOND
        operation = replace(TABLE[0].operation, effect="queryable", can_find=True, late=None)
        plans.append(plan(replace(operation, first_intent_at=sent_at, held_until=until), NOW))
    assert {one.why for one in plans} == {LEFT_ALONE}
    instants = [one.at or 0 for one in plans]
    assert instants == sorted(instants, reverse=True)
    assert len(set(instants)) == len(ages) - 1
    assert (instants[0], instants[-1]) == (until + SECOND, until)


def test_an_effect_class_that_does_not_exist_is_a_fault() -> None:
    with pytest.raises(KeyError):
        plan(replace(KEYED, effect="sometimes"), NOW)
