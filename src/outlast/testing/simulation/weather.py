"""What may go wrong in a world, how often, and the dice that say when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, Literal

StoreFault = Literal["none", "refused", "lost", "silent", "late", "slow"]
ToolFault = Literal[
    "none", "refused", "dropped", "unavailable", "reset", "silent", "late", "twice", "throttled"
]
WaitForm = Literal["seconds", "date", "senseless"]
"""How a service says for how long it wants to be left alone; senseless: no time at all, or beyond a
century."""
Kind = Literal["crash", "freeze", "clock_step", "drain"]
"""What may fall on a worker."""

_SLOW_SHARE = 0.25
_STORE_FAULTS: tuple[StoreFault, ...] = (
    "refused", "refused", "refused", "lost", "lost", "lost", "silent", "late",
)  # fmt: skip
_TOOL_FAULTS: tuple[ToolFault, ...] = (
    "refused", "dropped", "unavailable", "reset", "silent", "late", "twice",
)  # fmt: skip
_WAIT_FORMS: tuple[WaitForm, ...] = ("seconds", "seconds", "date", "date", "senseless")
_LONGEST_WAIT_S = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What a schedule draws its misfortunes from.

    crashes, freezes, clock_steps, drains: how many fall on workers, each at an await of its own. aimed: share
    of these that fall on one within a few awaits of its committing an intent. store: share of verbs that are
    refused, done with their answer lost, or done after their caller gave up. slow: share of verbs that are
    done and answered, seconds later. tools: share of calls to the tool service that fail on the way, act
    without an answer, or arrive late. hints: share of wake-up hints that get lost. spell_s: for how long
    after the start store, tools and hints misbehave; crashes are bound to the work instead. cancels, retries,
    forks: how often people cancel a task, try one again that has ended badly, and fork one, at moments of
    their own. relays: how many publish the outbox; broker: share of messages that get lost on the way to the
    broker or are not confirmed. schedules: how many people keep schedules. adopts: how many tasks have code
    that changes, and are moved to another version. rules: how many tasks live under policy that fails and
    rules that change. switches: how many people throw switches. budgets: how many tasks may only spend so
    much. throttled: share of calls to the tool service that it refuses, since it wants to be left alone for a
    while. brink: share of undos, and of calls that somebody has allowed, whose intents are under way
    to the gate for seconds, while everything else goes on.
    """

    crashes: int = 0
    freezes: int = 0
    clock_steps: int = 0
    drains: int = 0
    aimed: float = 0.0
    store: float = 0.0
    slow: float = 0.0
    tools: float = 0.0
    hints: float = 0.0
    spell_s: float = 12.0
    cancels: int = 0
    retries: int = 0
    forks: int = 0
    relays: int = 0
    broker: float = 0.0
    schedules: int = 0
    adopts: int = 0
    rules: int = 0
    switches: int = 0
    budgets: int = 0
    throttled: float = 0.0
    brink: float = 0.0

    @property
    def strikes(self) -> int:
        """How many misfortunes fall at awaits of their own."""
        return self.crashes + self.freezes + self.clock_steps + self.drains

    @property
    def store_is_unwell(self) -> bool:
        """Whether the store may fail or dawdle, so that a worker that lives may lose its lease."""
        return bool(self.store or self.slow)

    @classmethod
    def calm(cls) -> Faults:
        """Nothing goes wrong."""
        return cls()

    @classmethod
    def one_crash(cls) -> Faults:
        """One worker dies, at any await."""
        return cls(crashes=1)

    @classmethod
    def everything(cls) -> Faults:
        """All kinds, in the same schedule, with people who let the tasks alone."""
        return cls(crashes=2, freezes=1, clock_steps=1, drains=1, store=0.05, tools=0.3, hints=0.2)

    @classmethod
    def turmoil(cls) -> Faults:
        """Everything, and people who cancel, try again and fork."""
        return replace(cls.everything(), cancels=1, retries=1, forks=1)

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Read what ``spell`` wrote, or a preset. Raises ValueError."""
        presets = {
            "calm": cls.calm,
            "one_crash": cls.one_crash,
            "everything": cls.everything,
            "turmoil": cls.turmoil,
        }
        if text in presets:
            return presets[text]()
        known: dict[str, type[int] | type[float]] = {
            each.name: int if isinstance(each.default, int) else float for each in fields(cls)
        }
        given: dict[str, Any] = {}
        for part in text.split(","):
            name, mark, value = part.strip().partition("=")
            if not mark or name not in known:
                raise ValueError(
                    f"{part!r}: faults are {', '.join(presets)}, or name=value of {', '.join(known)}"
                )
            given[name] = known[name](value)
        return replace(cls(), **given)

    def spell(self) -> str:
        """Write these faults so that ``parse`` reads them."""
        given = [(each.name, getattr(self, each.name)) for each in fields(self)]
        return ",".join(f"{name}={value}" for name, value in given)


class Weather:
    """Throws the dice for latencies and passing faults. ``calm`` ends the faults, not the latencies."""

    def __init__(self, faults: Faults, random: Random, waits: Random, brink: Random) -> None:
        self._faults = faults
        self._draw = random.random
        # Of their own, so that a schedule that has none of them stays the schedule that it was.
        self._waits, self._brink = waits, brink
        self.stormy = True
        self.played: set[str] = set()
        """The faults that were played so far, by kind."""

    def calm(self) -> None:
        """From now on nothing goes wrong by itself."""
        self.stormy = False

    def hop(self) -> float:
        """Virtual seconds that one way takes: mostly none, so that the order alone is drawn; else some
        milliseconds."""
        draw = self._draw
        return 0.02 * draw() ** 3 if draw() < _SLOW_SHARE else 0.0

    def way(self) -> float:
        """Virtual seconds that a request to the outside is under way."""
        return 0.05 * self._draw() ** 2

    def between(self, low: float, high: float) -> float:
        """Draw a number of seconds."""
        return low + (high - low) * self._draw()

    def store_fault(self) -> StoreFault:
        """What becomes of the next verb."""
        if not self.stormy:
            return "none"
        fault: StoreFault = "none"
        if (share := self._faults.store) and (draw := self._draw() / share) < 1:
            fault = _STORE_FAULTS[int(draw * len(_STORE_FAULTS))]
        elif self._faults.slow and self._draw() < self._faults.slow:
            fault = "slow"
        if fault != "none":
            self.played.add(f"store {fault}")
        return fault

    def at_the_brink(self) -> bool:
        """Whether the next intent takes seconds until it is at its gate."""
        share = self._faults.brink
        takes_long = bool(share) and self.stormy and self._brink.random() < share
        if takes_long:
            self.played.add("intent at the brink")
        return takes_long

    def tool_fault(self) -> ToolFault:
        """What becomes of the next call to the tool service."""
        if not self.stormy:
            return "none"
        if (share := self._faults.throttled) and self._waits.random() < share:
            self.played.add("tool throttled")
            return "throttled"
        if not (share := self._faults.tools):
            return "none"
        draw = self._draw() / share
        if draw >= 1:
            return "none"
        fault = _TOOL_FAULTS[int(draw * len(_TOOL_FAULTS))]
        self.played.add(f"tool {fault}")
        return fault

    def wait(self) -> tuple[WaitForm, int, int]:
        """Draw how the service says that it wants to be left alone, by which status, and for how many
        seconds."""
        form = self._waits.choice(_WAIT_FORMS)
        self.played.add(f"wait {form}")
        return form, self._waits.choice((429, 503)), self._waits.randint(1, _LONGEST_WAIT_S)

    def senseless(self, waits: Sequence[str]) -> str:
        """Draw what the service says that means nothing."""
        return self._waits.choice(waits)

    def hint_lost(self) -> bool:
        """Whether the next wake-up hint gets lost."""
        share = self._faults.hints
        lost = bool(share) and self.stormy and self._draw() < share
        if lost:
            self.played.add("hint lost")
        return lost
