"""Operations of a register, and the search for an order that explains them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["UNKNOWN", "Model", "Operation", "Register", "State", "Unknown", "stuck_at"]


class Unknown:
    """No answer came; nobody knows whether the operation took effect."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN: Final = Unknown()
Register = tuple[str, str]
State = Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one client asked of a register, and was told. answered_at: infinite where no answer came."""

    client: str
    register: Register
    asked: tuple[Any, ...]
    invoked_at: float
    answer: Hashable = UNKNOWN
    answered_at: float = math.inf

    def __str__(self) -> str:
        asked = " ".join(str(one) for one in self.asked)
        until = "open" if self.answer is UNKNOWN else f"{self.answered_at:.3f}"
        return f"{self.client}: {asked} -> {self.answer!r} [{self.invoked_at:.3f}, {until}]"


Model = Callable[[State, tuple[Any, ...], Hashable], Iterable[State]]
"""Answers every state after an operation that was answered so, none where it cannot have been. An answer that
is ``UNKNOWN`` stands for every one that there may have been."""


def stuck_at(operations: Sequence[Operation], model: Model, initial: State) -> tuple[Operation, ...]:
    """Look for an order that explains a register's operations; answer none if there is one.

    Otherwise those that could have come next where the longest try got stuck, and do not fit there.
    """
    ordered = sorted(operations, key=lambda one: one.invoked_at)
    answered = sum(1 << place for place, one in enumerate(ordered) if one.answer is not UNKNOWN)
    seen: set[tuple[int, State]] = {(0, initial)}
    tries: list[tuple[int, State]] = [(0, initial)]
    longest = -1
    stuck: tuple[Operation, ...] = ()
    while tries:
        done, state = tries.pop()
        if done & answered == answered:
            return ()
        following = _following(ordered, done)
        for place in reversed(following):
            one = ordered[place]
            for after in model(state, one.asked, one.answer):
                reached = (done | 1 << place, after)
                if reached not in seen:
                    seen.add(reached)
                    tries.append(reached)
        length = (done & answered).bit_count()
        if length > longest:
            longest, stuck = length, tuple(ordered[place] for place in following)
    return tuple(one for one in stuck if one.answer is not UNKNOWN)


def _following(ordered: Sequence[Operation], done: int) -> list[int]:
    """Answer the places of what may come next: whatever was invoked before any other had been answered."""
    found: list[int] = []
    first_answer = math.inf
    for place, one in enumerate(ordered):
        if done >> place & 1:
            continue
        if one.invoked_at > first_answer:
            break
        found.append(place)
        first_answer = min(first_answer, one.answered_at)
    return [place for place in found if ordered[place].invoked_at <= first_answer]
