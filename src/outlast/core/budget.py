"""What a task may spend, what it has spent, and which bound is passed.

Purpose: one pure reading of budgets, for the edge where they are given and for the run that keeps to them.

Units: operations are steps, calls and children that were begun, each once however often it is tried; tokens
are counted by whoever calls a model; cost is an exact decimal in whatever currency the app counts in; depth
is how many generations of children there may be below the task. What is spent to undo is not held back by a
budget, since stopping half-way would cost more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from outlast.core.record import record
from outlast.errors import InvalidRequest

BOUNDS: Final = ("operations", "tokens", "cost", "depth")
MOST: Final = 2**53 - 1
_MOST_COST: Final = Decimal(10) ** 15
_SMALLEST: Final = -12


@record
class Budget:
    """Bounds on what a task may spend; None bounds nothing."""

    operations: int | None = None
    tokens: int | None = None
    cost: Decimal | None = None
    depth: int | None = None

    def stored(self) -> dict[str, Any]:
        """Answer it as it is stored; only the bounds that there are."""
        said: dict[str, Any] = {
            "operations": self.operations,
            "tokens": self.tokens,
            "cost": None if self.cost is None else cost_text(self.cost),
            "depth": self.depth,
        }
        return {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a call, or a task, has spent."""

    tokens: int = 0
    cost: Decimal = field(default_factory=Decimal)

    def __add__(self, other: Usage) -> Usage:
        return Usage(tokens=self.tokens + other.tokens, cost=self.cost + other.cost)

    def __bool__(self) -> bool:
        return bool(self.tokens or self.cost)

    def stored(self) -> dict[str, Any]:
        """Answer it as it is stored."""
        return {"tokens": self.tokens, "cost": cost_text(self.cost)}


NOTHING: Final = Usage()
"""Nothing spent."""


@record
class Passed:
    """A bound that holds the next operation back. bound: its name."""

    bound: str
    message: str


def read_budget(given: Any) -> Budget:
    """Check a budget as a caller gives it, or as it is stored. Raises InvalidRequest with a pointer."""
    if isinstance(given, Budget):
        given = given.stored()
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"a budget is an object of {', '.join(BOUNDS)}, not {type(given).__name__}", pointer="/budget"
        )
    for name in given:
        if name not in BOUNDS:
            raise InvalidRequest(
                f"a budget has no bound {str(name)[:60]!r}; there are {', '.join(BOUNDS)}", pointer="/budget"
            )
    return Budget(
        operations=_count(given, "operations"),
        tokens=_count(given, "tokens"),
        cost=None if given.get("cost") is None else read_cost(given["cost"], pointer="/budget/cost"),
        depth=_count(given, "depth"),
    )


def _count(given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    return read_count(value, name, pointer=f"/budget/{name}")


def read_count(value: Any, what: str, *, pointer: str = "") -> int:
    """Check a number of things: a whole number from 0 on. Raises InvalidRequest."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise InvalidRequest(f"{what} must be a whole number from 0 on", pointer=pointer)
    return value


def read_cost(value: Any, *, pointer: str = "") -> Decimal:
    """Check an amount of money: a number, or its text. Raises InvalidRequest.

    A float is taken as it is written, so that 0.1 is a tenth.
    """
    number = None
    if isinstance(value, str | Decimal | int | float) and not isinstance(value, bool):
        try:
            number = Decimal(value if isinstance(value, Decimal | int) else str(value))
        except InvalidOperation:
            number = None
    if number is None or not number.is_finite() or not 0 <= number <= _MOST_COST:
        raise InvalidRequest(
            "cost must be an amount from 0 to 10^15, as a number or as its text", pointer=pointer
        )
    exponent = number.normalize().as_tuple().exponent
    if isinstance(exponent, int) and exponent < _SMALLEST:
        raise InvalidRequest("cost has at most 12 digits behind the point", pointer=pointer)
    return number.copy_abs()


def cost_text(cost: Decimal) -> str:
    """Write an amount without an exponent."""
    return f"{cost:f}"


def read_usage(stored: Mapping[str, Any]) -> Usage:
    """Read what was stored by ``Usage.stored``."""
    return Usage(tokens=int(stored.get("tokens", 0)), cost=Decimal(str(stored.get("cost", "0"))))


def passed(budget: Budget, spent: Usage, operations: int, *, new: bool) -> Passed | None:
    """Answer the bound that holds the next operation, or the next attempt at one, back.

    operations: those begun so far, without this one. new: this would be one more. What is spent is known only
    afterwards, so that the operation which passes a bound of tokens or cost is the last one.
    """
    if new and budget.operations is not None and operations >= budget.operations:
        return Passed(bound="operations", message=f"the task may make {budget.operations} operations")
    if budget.tokens is not None and spent.tokens >= budget.tokens:
        return Passed(
            bound="tokens", message=f"the task may spend {budget.tokens} tokens and has spent {spent.tokens}"
        )
    if budget.cost is not None and spent.cost >= budget.cost:
        most, so_far = cost_text(budget.cost), cost_text(spent.cost)
        return Passed(bound="cost", message=f"the task may cost {most} and has cost {so_far}")
    return None
