"""The table of a drill: its cells, each a fault with what is right after it, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

__all__ = ["Cell", "Named", "Right", "chosen"]


class Named(Protocol):
    """What any cell says of itself."""

    @property
    def name(self) -> str:
        """How people name it, and ``--only``."""
        ...

    @property
    def what(self) -> str:
        """What is done."""
        ...

    @property
    def why(self) -> str:
        """Why the table says what it says."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """How programs name it."""
        ...


C = TypeVar("C", bound=Named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A row of a table. what: is done. why: the table says so."""

    family: str
    fault: str
    what: str
    why: str

    @property
    def name(self) -> str:
        """How people name it, and ``--only``."""
        return f"{self.family}/{self.fault}"

    @property
    def labels(self) -> Mapping[str, str]:
        """How programs name it."""
        return {"family": self.family, "fault": self.fault}


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """What is right in one cell; None where the play says it."""

    calls: int | None
    effects: int | None
    end: str | None

    @classmethod
    def read(cls, text: str) -> Right:
        """Read an entry of the table."""
        counts, end = text.split()
        calls, _, effects = counts.partition("/")
        return cls(
            calls=None if calls == "-" else int(calls),
            effects=None if calls == "-" else int(effects),
            end=None if end == "-" else end,
        )


def chosen(cells: Sequence[C], patterns: Sequence[str]) -> tuple[C, ...]:
    """Answer the cells that fit one of the patterns (``keyed``, ``keyed/frozen``, ``*/frozen``), all of them
    for none."""
    return tuple(cell for cell in cells if not patterns or any(_fits(cell.name, one) for one in patterns))


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern if "/" in pattern else f"{pattern}/*")
