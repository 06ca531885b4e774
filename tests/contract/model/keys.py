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
    """What an operation has of a key. state: held, in doubt or done; until: end of its window, of one that is
    done."""

    name: tuple[str, str, str]
    mode: str
    window_us: int | None
    state: str = "held"
    until: int | None = None


class Keys:
    """What every operation has of a key, and what its last intent asked for."""

    def __init__(self) -> None:
        self.rows: dict[Of, Holding] = {}
        self.asked: dict[Of, BusinessKey | None] = {}

    def refusal(self, of: Of, asked: BusinessKey, *, repeat: bool, now: int) -> str | None:
        """Say why an operation may not have a key: another has it."""
        there = list(self._others(of, asked))
        if any(row.until is None for _, row in there):
            return "key_held"
        return "key_done" if not repeat and any((row.until or 0) > now for _, row in there) else None

    def take(self, of: Of, asked: BusinessKey | None, now: int) -> None:
        """Let an operation hold this key and no other; what stands for nothing any more is forgotten."""
        self.give_up(of)
        self.asked[of] = asked
        if asked is not None:
            for other, row in list(self._others(of, asked)):
                if (row.until or FOR_GOOD) <= now:
                    del self.rows[other]
            name = (of[0], asked.tool, asked.value)
            self.rows[of] = Holding(name=name, mode=asked.mode, window_us=asked.window_us)

    def end(self, of: Of, state: str, now: int) -> None:
        """Follow an outcome: a success under ``once`` stands for its window, another end gives the key up."""
        row = self.rows.get(of)
        if row is None or row.state == "done":
            return
        if state == "succeeded" and row.mode == "once":
            row.state, row.until = "done", FOR_GOOD if row.window_us is None else now + row.window_us
        elif state in ("succeeded", "failed"):
            del self.rows[of]

    def give_up(self, of: Of) -> None:
        """Give up what an operation holds."""
        if of in self.rows and self.rows[of].state != "done":
            del self.rows[of]

    def doubt(self, of: Of) -> None:
        """Let an operation have the key of its last intent beside whoever has it: nobody knows whether it was
        used."""
        asked = self.asked.get(of)
        if asked is not None:
            name = (of[0], asked.tool, asked.value)
            self.rows[of] = Holding(name=name, mode=asked.mode, window_us=asked.window_us, state="doubt")

    def copy(self, of: Of, to: Of) -> None:
        """Keep of a copied operation what its last intent asked for."""
        self.asked[to] = self.asked.get(of)

    def _others(self, of: Of, asked: BusinessKey) -> Iterator[tuple[Of, Holding]]:
        name = (of[0], asked.tool, asked.value)
        yield from ((other, row) for other, row in self.rows.items() if row.name == name and other != of)
