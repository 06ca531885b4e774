"""A dump to be shown to the checkers, whole or broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from outlast.testing.checkers import Call, check_all


@dataclass
class Exhibit:
    """A dump with one task of each fate, and all that goes with it."""

    dump: dict[str, list[dict[str, Any]]]
    tasks: dict[str, str]
    accepted: list[tuple[str, str]]
    calls: list[Call]
    earlier: dict[str, list[dict[str, Any]]] | None = None
    published: list[tuple[str, str, str]] | None = None
    quiet: bool = False
    tools: list[str] | None = None
    keys: dict[str, str] = field(default_factory=dict)

    def rows(self, table: str, fate: str) -> list[dict[str, Any]]:
        """Answer the rows of one task."""
        name = "id" if table == "tasks" else "task"
        return [row for row in self.dump[table] if row[name] == self.tasks[fate]]

    def check(self) -> list[Any]:
        return check_all(
            self.dump,
            accepted=self.accepted,
            recorder=self.calls,
            tools=self.tools,
            published=self.published,
            earlier=self.earlier,
            quiet=self.quiet,
        )


Break = Callable[[Exhibit], object]
Broken = list[tuple[str, str, Break]]


def into(broken: Broken) -> Callable[[str, str], Callable[[Break], Break]]:
    """Make the decorator that registers a way to break a dump, the checker that must see it, and words of
    what it says."""

    def breaks(checker: str, text: str) -> Callable[[Break], Break]:
        def register(how: Break) -> Break:
            broken.append((checker, text, how))
            return how

        return register

    return breaks


def names(broken: Broken) -> list[str]:
    """Answer names for tests, one a way."""
    return [how.__name__.strip("_") for _, _, how in broken]


def seen_by(exhibit: Exhibit, checker: str) -> list[str]:
    """Answer what one checker says."""
    return [violation.text for violation in exhibit.check() if violation.promise == checker]
