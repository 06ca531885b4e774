"""Names: what the package exports, and what modules are called."""

from __future__ import annotations

from pathlib import Path

import outlast

SOURCE = Path(__file__).parents[2] / "src"
SAYS_NOTHING = {"common", "helper", "helpers", "misc", "util", "utils"}


def _place(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest: the order that the linter keeps too."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_exports_are_sorted_and_named_once() -> None:
    assert list(outlast.__all__) == sorted(set(outlast.__all__), key=_place)


def test_exports_exist() -> None:
    assert [name for name in outlast.__all__ if not hasattr(outlast, name)] == []


def test_modules_are_named_by_their_duty() -> None:
    named = [path for path in SOURCE.rglob("*.py") if {path.stem, path.parent.name} & SAYS_NOTHING]
    assert named == []
