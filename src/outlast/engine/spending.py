"""What one task has spent of its budget, as its run sees it.

Purpose: no step, call or child begins that its task's budget does not allow.

Identity: an operation counts once, by its key, from its first record on, however often it is tried; one that
is under way counts beforehand. A call that a fork takes over is one of the fork's. The budget's own refusals
and the check of the task's result do not count. Usage is what the tools said of their attempts
(``ToolCall.spent``).

State: summed over the journal when the task is loaded, kept in memory after that so that a reload would count
the same; on record with each outcome.

Failure by failure: a bound is passed: the operation is recorded as failed (``budget_exceeded``), so that
every replay sees the same, and nothing of it was sent. Killed between a call and its outcome: what that
attempt had spent is not known, as its outcome is not. A step is cut short, and leaves no record: it does not
count.

Not covered: what is under way at the same time as the call that passes a bound; bounds on several tasks
together. What undoes something is never held back.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlast.core import values
from outlast.core.acceptance import CHECK_KEY
from outlast.core.budget import NOTHING, Budget, Passed, Usage, passed, read_budget, read_usage
from outlast.errors import BudgetExceeded
from outlast.store.records import OperationRow

COUNTED = ("step", "tool", "model", "child")


class Spending:
    """The budget of a task, and what it has spent."""

    def __init__(self, budget: str | None, depth: int, operations: Iterable[OperationRow]) -> None:
        self.budget = Budget() if budget is None else read_budget(values.decode(budget))
        self.bounded = budget is not None
        self.usage = NOTHING
        self._depth = depth
        self._counted: set[str] = set()
        if self.bounded:
            for row in operations:
                if row.kind in COUNTED and row.key != CHECK_KEY and not _held_back(row):
                    self._counted.add(row.key)
                if row.usage is not None:
                    self.usage += usage_of(row)

    def begin(self, key: str) -> Passed | None:
        """Count an operation, unless a bound holds it back."""
        if not self.bounded:
            return None
        held = passed(self.budget, self.usage, len(self._counted), new=key not in self._counted)
        if held is None:
            self._counted.add(key)
        return held

    def forget(self, key: str) -> None:
        """Count an operation no more: the budget holds it back, or it was cut short and is not on record."""
        self._counted.discard(key)

    def begin_child(self, key: str) -> Passed | None:
        """Count a child, unless a bound holds it back."""
        if not self.bounded:
            return None
        most = self.budget.depth
        if most is not None and self._depth >= most:
            return Passed(
                bound="depth", message=f"the task may have {most - self._depth} generations below it"
            )
        return self.begin(key)

    def spend(self, usage: Usage) -> None:
        """Count what a call has spent."""
        self.usage += usage

    def of_child(self) -> str | None:
        """Answer the budget of a child: how deep it may go on; the other bounds are each task's own."""
        if self.budget.depth is None:
            return None
        return values.encode(Budget(depth=self.budget.depth).stored())


def usage_of(row: OperationRow | None) -> Usage:
    """Read what an operation's attempts have spent."""
    return NOTHING if row is None or row.usage is None else read_usage(values.decode(row.usage))


def _held_back(row: OperationRow) -> bool:
    """Whether an operation was refused by the budget itself."""
    return bool(row.error) and values.decode(row.error or "{}").get("code") == BudgetExceeded.code
