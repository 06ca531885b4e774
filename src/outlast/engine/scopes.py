"""Identity of operations: stable keys, taken when a call is made.

A key is given by the caller, or counted per name inside a scope: ``<scope/><name>#<n>``. A scope belongs to
one asyncio task; a counted name asked for from another one is refused, since the order of two asyncio tasks
is not the same on every run.
"""

from __future__ import annotations

import asyncio
import re
from contextvars import Context, ContextVar, copy_context
from typing import Any
from weakref import ref

from outlast.core import ids
from outlast.errors import AmbiguousOperation, InvalidKey

_COUNTED = re.compile(r"#\d+(/|$)")


class Scope:
    """A place in which names are counted.

    path: ends with ``/`` unless it is the root's, which is empty. owner: its asyncio task, which holds the
    scope by its context, and which the scope does not hold, so that both are freed when the task is over;
    None where nobody may count.
    """

    __slots__ = ("_counts", "_owner", "path")

    def __init__(self, path: str, owner: asyncio.Task[Any] | None) -> None:
        self.path = path
        self._counts: dict[str, int] = {}
        self._owner = None if owner is None else ref(owner)

    def count(self, name: str) -> str:
        """Take the next key of a counted name. Raises AmbiguousOperation outside the owning asyncio task."""
        owner = None if self._owner is None else self._owner()
        # Of the running loop, since a thread that was left behind runs none.
        if owner is None or asyncio.current_task() is not owner:
            raise AmbiguousOperation(
                f"{name} was called without key= from an asyncio task that does not own its scope, so its"
                " identity would depend on timing; run branches with task.gather(), or give each call a key="
            )
        number = self._counts.get(name, 0) + 1
        self._counts[name] = number
        key = f"{self.path}{name}#{number}"
        return ids.check_operation_key(key) if self.path else key


_current: ContextVar[Scope | None] = ContextVar("outlast_scope", default=None)


def enter(scope: Scope) -> None:
    """Make a scope current for this asyncio task and what is made from it."""
    _current.set(scope)


def current() -> Scope:
    """Answer the current scope. Raises AmbiguousOperation outside any."""
    scope = _current.get()
    if scope is None:
        raise AmbiguousOperation("the task context was used outside its own agent function")
    return scope


class Inside:
    """A scope made current for the length of a ``with`` block in the same asyncio task."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __enter__(self) -> Scope:
        self._token = _current.set(self._scope)
        return self._scope

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


class Race:
    """A race between branches; a branch is told by its context that the race is over. within: the race that
    it is a part of."""

    __slots__ = ("over", "within")

    def __init__(self, within: Race | None) -> None:
        self.over = False
        self.within = within


_race: ContextVar[Race | None] = ContextVar("outlast_race", default=None)


def race() -> Race | None:
    """Answer the race that this code is a branch of."""
    return _race.get()


def join(race: Race) -> None:
    """Make this asyncio task, and what is made from it, a branch of a race."""
    _race.set(race)


def outside_races() -> Context | None:
    """Answer a context for work that several branches may wait for: this one, without its race; None for
    this one as it is."""
    if _race.get() is None:
        return None
    context = copy_context()
    context.run(_race.set, None)
    return context


def lost() -> bool:
    """Answer whether this branch, or one that it is a part of, is in a race that is over: another was
    first."""
    race = _race.get()
    while race is not None:
        if race.over:
            return True
        race = race.within
    return False


def take(name: str, key: str | None) -> str:
    """Answer the key of an operation made now: the one given, or the next of its name.

    Raises InvalidKey for a given key that breaks its rules or looks like a counted one.
    """
    if key is None:
        return current().count(name)
    ids.check_operation_key(key)
    if _COUNTED.search(key):
        raise InvalidKey(
            f"operation key {key!r} looks like a counted name (it holds '#<number>'); choose another"
        )
    return key
