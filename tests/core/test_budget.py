"""Budgets as pure values: what is read, what is written, what is passed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from outlast.core.acceptance import Accept, Reject, read_verdict
from outlast.core.budget import Budget, Usage, cost_text, passed, read_budget, read_cost, read_usage
from outlast.errors import InvalidRequest


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"operations": 0},
        {"operations": 3, "tokens": 2**53 - 1, "cost": "12.50", "depth": 1},
        {"cost": "0.000000000001"},
        {"cost": "1000000000000000"},
    ],
)
def test_what_is_stored_reads_back_the_same(given: dict[str, Any]) -> None:
    read = read_budget(given)
    assert read.stored() == given
    assert read_budget(read.stored()) == read == read_budget(read)


def test_none_bounds_nothing() -> None:
    assert read_budget({"tokens": None, "cost": None}) == Budget()


@pytest.mark.parametrize(
    ("given", "text"), [(1, "1"), (0.1, "0.1"), ("1e2", "100"), (Decimal("1.10"), "1.10"), ("-0", "0")]
)
def test_amounts_are_taken_as_they_are_written(given: Any, text: str) -> None:
    assert cost_text(read_cost(given)) == text


@pytest.mark.parametrize(
    "given",
    [True, None, "", "one", "NaN", "Infinity", float("nan"), -1, "1e15.5", "1000000000000001", "1e-13"],
)
def test_what_is_no_amount_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_cost(given)


def test_usage_adds_up_exactly() -> None:
    spent = sum((Usage(tokens=1, cost=Decimal("0.1")) for _ in range(10)), Usage())
    assert spent == Usage(tokens=10, cost=Decimal("1.0"))
    assert read_usage(spent.stored()) == spent
    assert not Usage()
    assert Usage(tokens=1)


@pytest.mark.parametrize(
    ("budget", "spent", "operations", "new", "bound"),
    [
        (Budget(), Usage(tokens=9), 9, True, None),
        (Budget(operations=2), Usage(), 1, True, None),
        (Budget(operations=2), Usage(), 2, True, "operations"),
        (Budget(operations=2), Usage(), 2, False, None),
        (Budget(tokens=5), Usage(tokens=4), 9, True, None),
        (Budget(tokens=5), Usage(tokens=5), 9, False, "tokens"),
        (Budget(tokens=0), Usage(), 0, True, "tokens"),
        (Budget(cost=Decimal("1")), Usage(cost=Decimal("0.99")), 0, True, None),
        (Budget(cost=Decimal("1")), Usage(cost=Decimal("1.00")), 0, True, "cost"),
    ],
)
def test_a_bound_holds_back_what_comes_after_it(
    budget: Budget, spent: Usage, operations: int, new: bool, bound: str | None
) -> None:
    held = passed(budget, spent, operations, new=new)
    assert (held and held.bound) == bound


@pytest.mark.parametrize(
    ("answer", "verdict", "reason"),
    [
        (True, "accepted", ""),
        (False, "rejected", "the check says no"),
        ("too short", "rejected", "too short"),
        (Accept("fine"), "accepted", "fine"),
        (Reject("x" * 3000, [1]), "rejected", "x" * 2000),
    ],
)
def test_answers_of_a_check_are_read(answer: Any, verdict: str, reason: str) -> None:
    read = read_verdict(answer)
    assert (read.verdict, read.reason) == (verdict, reason)


@pytest.mark.parametrize("answer", [None, 1, "", [], object()])
def test_what_says_nothing_is_no_verdict(answer: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_verdict(answer)
