"""What a blocked twin is: of which verb, what is held, what becomes of it, and where it is played."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.races.holding import start

from outlast.store.records import Claimed, Entry
from outlast.testing.store_suite.scene import Reopen, Scene


@dataclass(frozen=True)
class Place:
    """Where a twin is played."""

    scene: Scene
    url: str
    reopen: Reopen


@dataclass(frozen=True)
class Blocked:
    """A blocked twin: of which verb, what is held, and what becomes of it."""

    verb: str
    row: str
    then: str
    play: Callable[[Place], Awaitable[None]]

    @property
    def name(self) -> str:
        """Its name among the tests."""
        return f"{self.verb}-{self.row}-{self.then}"


Register = Callable[[Callable[[Place], Awaitable[None]]], None]


def into(found: list[Blocked]) -> Callable[[str, str, str], Register]:
    """Make the decorator that registers blocked twins."""

    def blocked(verb: str, row: str, then: str) -> Register:
        def register(play: Callable[[Place], Awaitable[None]]) -> None:
            found.append(Blocked(verb=verb, row=row, then=then, play=play))

        return register

    return blocked


def flushing(scene: Scene, claimed: Claimed, entry: Entry) -> Any:
    """Begin to write an entry."""
    return start(scene.store.flush(scene.batch(scene.writes(claimed, entry)), now=scene.now))
