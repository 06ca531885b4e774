"""The model's business keys: what a call is about in the business's own words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outlast.store.entries import BusinessKey

Of = tuple[str, str, str]
"""Tenant, task and key of an operation."""

FOR_GOOD = (1 << 63) - 1


@dataclass
class Holding:
    """Who has a key. until: end of its window, of one that is done; None while it is held."""

    of: Of
    mode: str
    window_us: int | None
    until: int | None = None


class Keys:
    """Every key of every tenant, under (tenant, tool, value)."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str], Holding] = {}

    def refusal(self, of: Of, asked: BusinessKey, *, repeat: bool, now: int) -> str | None:
        """Say why an operation may not have a key: another has it."""
        there = self.rows.get((of[0], asked.tool, asked.value))
        if there is None or there.of == of:
            return None
        if there.until is None:
            return "key_held"
        return "key_done" if there.until > now and not repeat else None

    def take(self, of: Of, asked: BusinessKey | None) -> None:
        """Let an operation hold this key and no other."""
        self.give_up(of)
        if asked is not None:
            name = (of[0], asked.tool, asked.value)
            self.rows[name] = Holding(of=of, mode=asked.mode, window_us=asked.window_us)

    def end(self, of: Of, state: str, now: int) -> None:
        """Follow an outcome: a success under ``once`` stands for its window, another end gives the key up."""
        for name, row in self._held(of):
            if state == "succeeded" and row.mode == "once":
                row.until = FOR_GOOD if row.window_us is None else now + row.window_us
            elif state in ("succeeded", "failed"):
                del self.rows[name]

    def give_up(self, of: Of) -> None:
        """Give up what an operation holds."""
        for name, _ in self._held(of):
            del self.rows[name]

    def doubt(self, of: Of) -> None:
        """Let an operation hold again what was done: nobody knows any more whether it was."""
        for row in self.rows.values():
            if row.of == of:
                row.until = None

    def _held(self, of: Of) -> Iterator[tuple[tuple[str, str, str], Holding]]:
        yield from [(name, row) for name, row in self.rows.items() if row.of == of and row.until is None]
