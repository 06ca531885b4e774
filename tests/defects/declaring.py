"""How a deliberate fault is declared: what it breaks, from outside, and in which world it shows.

Functions are replaced and SQL statements changed in memory; the product has no switch for any of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from outlast.store.sqlite.transaction import SQL

__all__ = ["DEFECTS", "Defect", "Patch", "defect", "nothing"]


class Patch:
    """Breaks things until it is undone. It is a pytest.MonkeyPatch that knows statements."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace a function, by one that takes what it takes, or a value; it has to be there."""
        before = getattr(owner, name)
        if inspect.isroutine(before) and inspect.isroutine(value):
            assert takes(value, before), f"what is to replace {name} does not take what {name} takes"
        self._monkeypatch.setattr(owner, name, value)

    def sql(self, name: str, old: str, new: str) -> None:
        """Change a part of a statement, which has to be in it; parameters must stay."""
        text = SQL[name]
        assert old in text, f"{name} does not say {old!r}"
        self._monkeypatch.setitem(SQL, name, text.replace(old, new))


def takes(function: Callable[..., Any], given: Callable[..., Any]) -> bool:
    """Whether a function can be called as another one is: with all of its parameters."""
    parameters = inspect.signature(given).parameters.values()
    positional = [
        one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    named = {one.name: one for one in parameters if one.kind is one.KEYWORD_ONLY}
    try:
        inspect.signature(function).bind(*positional, **named)
    except TypeError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A deliberate fault. says: what it does. apply: how. world: where it shows in a corner only, what a
    schedule of the world's own mixture has if it is in that corner.

    seen: a part of what a judge has to say of it; what other judges say does not count then. quick: whether
    it falls within a few schedules, so that every run of the tests can show it.
    """

    name: str
    says: str
    apply: Callable[[Patch], None]
    world: dict[str, Any] = field(default_factory=dict)
    seen: str = ""
    quick: bool = False


DEFECTS: dict[str, Defect] = {}
"""Every deliberate fault by its name."""


def defect(
    says: str, *, seen: str = "", quick: bool = False, **world: Any
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a fault under its function's name."""

    def register(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name = apply.__name__
        assert name not in DEFECTS, name
        DEFECTS[name] = Defect(name=name, says=says, apply=apply, world=world, seen=seen, quick=quick)
        return apply

    return register


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing, whatever is asked: in place of what is to be left out."""
    return None
