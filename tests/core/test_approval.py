"""The judgement over policy, standing rules and decisions: every order, every bound."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core.approval import (
    Allow,
    Ask,
    Deny,
    StandingRule,
    check_bounds,
    covers,
    judge,
    read_answer,
)
from outlast.errors import InvalidRequest

ASK = Ask("over the limit")
ALLOWS = StandingRule(number=4, verdict="allow", bounds={"amount": {"max": 100}})
DENIES = StandingRule(number=7, verdict="deny", bounds={"amount": {"min": 90}})


@pytest.mark.parametrize(
    ("policy", "rules", "amount", "decided", "verdict", "by"),
    [
        (Allow(), (), 50, None, "allow", "policy"),
        (ASK, (), 50, None, "ask", "policy"),
        (Deny("no"), (), 50, None, "deny", "policy"),
        # Policy's no stands against everybody.
        (Deny("no"), (ALLOWS,), 50, None, "deny", "policy"),
        (Deny("no"), (), 50, "approved", "deny", "policy"),
        (Deny("no"), (ALLOWS,), 50, "approved", "deny", "policy"),
        # A decision about this very call beats a standing rule, either way.
        (ASK, (DENIES,), 95, "approved", "allow", "person"),
        (ASK, (ALLOWS,), 50, "rejected", "deny", "person"),
        (Allow(), (ALLOWS,), 50, "rejected", "deny", "person"),
        # Rules: no beats yes, and a rule counts only inside its bounds.
        (ASK, (ALLOWS,), 50, None, "allow", "rule 4"),
        (ASK, (ALLOWS,), 101, None, "ask", "policy"),
        (ASK, (ALLOWS, DENIES), 95, None, "deny", "rule 7"),
        (ASK, (DENIES, ALLOWS), 95, None, "deny", "rule 7"),
        (Allow(), (DENIES,), 95, None, "deny", "rule 7"),
        (Allow(), (DENIES,), 89, None, "allow", "policy"),
        # What cannot be compared opens nothing.
        (ASK, (ALLOWS,), "a lot", None, "ask", "policy"),
        (Allow(), (DENIES,), "a lot", None, "deny", "rule 7"),
    ],
)
def test_judgement(policy: Any, rules: Any, amount: Any, decided: Any, verdict: str, by: str) -> None:
    judged = judge(policy, rules, {"amount": amount}, decided)
    assert (judged.verdict, judged.by) == (verdict, by)
    assert (judged.ask is policy) == (verdict == "ask")


@given(
    st.sampled_from([Allow(), ASK, Deny("no")]),
    st.lists(st.sampled_from([ALLOWS, DENIES]), max_size=4),
    st.one_of(st.integers(0, 200), st.text(max_size=3), st.none()),
    st.sampled_from([None, "approved", "rejected"]),
)
def test_order_of_rules_never_matters(policy: Any, rules: Any, amount: Any, decided: Any) -> None:
    arguments = {"amount": amount}
    one, other = judge(policy, rules, arguments, decided), judge(policy, rules[::-1], arguments, decided)
    assert one.verdict == other.verdict
    if decided == "rejected" or isinstance(policy, Deny):
        assert one.verdict == "deny"


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (True, Allow()),
        (False, Deny("policy does not allow it")),
        ("over by 38.50", Ask("over by 38.50")),
        (Deny(""), Deny("policy does not allow it")),
        (ASK, ASK),
    ],
)
def test_answers_of_a_policy(answer: object, read: object) -> None:
    assert read_answer(answer) == read


@pytest.mark.parametrize(
    "answer",
    [
        None,
        1,
        0,
        "",
        "  ",
        {"allow": True},
        Allow,
        Ask(""),
        Ask("x", quorum=0),
        Ask("x", quorum=21),
        Ask("x", roles="approver"),  # type: ignore[arg-type]
        Ask("x", roles=("",)),
        Ask("x", expires=0),
        Ask("x", expires="300000d"),
    ],
)
def test_no_answer_allows_nothing(answer: object) -> None:
    with pytest.raises(InvalidRequest):
        read_answer(answer)


@pytest.mark.parametrize(
    ("bounds", "arguments", "inside"),
    [
        ({}, {}, True),
        ({"amount": {"max": 100}}, {"amount": 100}, True),
        ({"amount": {"max": 100}}, {"amount": "100.00"}, True),
        ({"amount": {"max": 100}}, {"amount": "100.01"}, False),
        ({"amount": {"max": 0.1}}, {"amount": "0.1"}, True),
        ({"amount": {"min": 5, "max": 9}}, {"amount": 4}, False),
        ({"amount": {"max": 100}}, {}, None),
        ({"amount": {"max": 100}}, {"amount": True}, None),
        ({"amount": {"max": 100}}, {"amount": "NaN"}, None),
        ({"amount": {"max": 100}}, {"amount": [1]}, None),
        ({"who": {"equals": "ana"}, "amount": {"max": 1}}, {"who": "bob", "amount": "?"}, False),
        ({"who": {"one_of": ["ana", "bob"]}}, {"who": "bob"}, True),
        ({"who": {"one_of": []}}, {"who": "bob"}, False),
        ({"sure": {"equals": True}}, {"sure": 1}, False),
        ({"amount": {"equals": "118.50"}}, {"amount": "118.5"}, True),
    ],
)
def test_bounds(bounds: Any, arguments: Any, inside: Any) -> None:
    assert covers(bounds, arguments) is inside


@pytest.mark.parametrize(
    "bounds",
    [
        [],
        None,
        {"amount": 5},
        {"amount": {}},
        {"amount": {"below": 5}},
        {"amount": {"max": "x"}},
        {"": {"max": 1}},
        {"amount": {"one_of": 5}},
        {"amount": {"max": float("nan")}},
    ],
)
def test_bad_bounds_are_refused(bounds: Any) -> None:
    with pytest.raises(InvalidRequest):
        check_bounds(bounds)


def test_good_bounds_are_taken() -> None:
    given = {"amount": {"max": 100, "min": "0.5"}, "who": {"one_of": ["ana"]}}
    assert check_bounds(given) == given
