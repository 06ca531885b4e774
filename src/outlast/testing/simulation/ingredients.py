"""What a world can have beside workers, clients and those who meddle; each comes with a judge of its own.

Purpose: a part of the system that not every schedule needs, and that none pays for which does not have it.

Identity: the names of the faults that bring it in; ``mixed`` draws them from a seed, apart from all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from outlast.testing.simulation.adopting import Adopting
from outlast.testing.simulation.budgeting import Budgeting
from outlast.testing.simulation.people import People
from outlast.testing.simulation.relay import Relays
from outlast.testing.simulation.ruling import Ruling
from outlast.testing.simulation.switching import Switching
from outlast.testing.simulation.timetable import Timetable
from outlast.testing.simulation.weather import Faults
from outlast.testing.simulation.world import World

__all__ = ["INGREDIENTS", "Ingredient", "ingredients_of", "mixed"]

SHARE = 0.25
"""Of how many crowded schedules of the world's own mixture each ingredient is a part."""
INGREDIENTS: tuple[dict[str, Any], ...] = (
    {"relays": 2, "broker": 0.3},
    {"schedules": 2},
    {"adopts": 2},
    {"rules": 2},
    {"switches": 2},
    {"budgets": 2},
)
"""Every ingredient, as fields of faults."""


class Ingredient(Protocol):
    """One ingredient of one world."""

    def start(self) -> Sequence[asyncio.Task[Any]]:
        """Let it begin; answer those of whom the world waits before it heals for good."""
        ...

    def heal(self) -> None:
        """From now on nothing goes wrong here by itself."""
        ...

    async def rest(self) -> None:
        """Wait until nothing is left to do here; the workers are there yet. Asked when the world has healed,
        and again when every task has ended."""
        ...

    def leave(self) -> None:
        """End what goes on by itself; say so where it is gone already."""
        ...

    def judge(self, dump: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
        """Tell every promise that was broken, from the dump of the end and from what was seen."""
        ...


def ingredients_of(world: World, faults: Faults, people: People) -> list[Ingredient]:
    """Make the ingredients that faults name."""
    made: list[Ingredient] = []
    if faults.relays:
        made.append(Relays(world, faults))
    if faults.schedules:
        made.append(Timetable(world, faults))
    if faults.adopts:
        made.append(Adopting(world, faults, people))
    if faults.rules:
        made.append(Ruling(world, faults, people))
    if faults.switches:
        made.append(Switching(world, faults))
    if faults.budgets:
        made.append(Budgeting(world, faults, people))
    return made


def mixed(random: Random) -> dict[str, Any]:
    """Draw which ingredients a crowded schedule has, as fields of its faults."""
    drawn: dict[str, Any] = {}
    for ingredient in INGREDIENTS:
        if random.random() < SHARE:
            drawn |= ingredient
    return drawn
