"""The world's own mixture: which schedule a seed stands for, where nobody asks for one of their own.

Purpose: most faults show where little goes on, in one corner of one shape; some only where everything happens
at once. A schedule of the first kind costs a fifth or less of one of the second, so that most are small.

Identity: the seed. How big a schedule is, what it has if it is big, and what it has if it is small are drawn
apart, so that each can change without the others.

State: none.

Not covered: how often each shape, fault and ingredient meets each other one; a run says what it came through
(``coverage``).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, Final

from outlast.testing.simulation.agents import AGENTS
from outlast.testing.simulation.ingredients import INGREDIENTS, mixed
from outlast.testing.simulation.weather import Faults

__all__ = ["crowded", "name_of_mixture", "narrow", "varied"]

CROWDED: Final = 0.09
"""Share of schedules in which everything may happen at once: over 1,600 of 20,000."""
AIMED: Final = 0.5
"""Share of misfortunes on workers, in small schedules, that fall between an intent and its outcome: most
awaits are of those who look whether there is anything to do."""
FITTED: Final = 0.2
"""Share of the small ones whose shape and misfortunes were chosen for each other."""
WITH_ANOTHER: Final = 0.3
"""Share of the small ones that have a second misfortune."""
WITH_MORE: Final = 0.04
"""Share of the small ones that have an ingredient."""
PAIRS: Final = 0.15
"""Share of the small ones that have two tasks, and so two who want the same slot, key or signal."""
SLOW: Final = 0.1
"""Share of all schedules in which some verbs of the store take seconds."""
AT_THE_BRINK: Final = 0.06
"""Share of the small ones in which intents are held up on their way to the gate."""
THROTTLED: Final = 0.12
"""Share of all schedules in which the tool service wants to be left alone at times."""
SHAPES: Final = tuple(
    shape for shape in AGENTS for _ in range(1 if shape in {"asker", "attentive", "family", "fan"} else 3)
)
"""Shapes of the tasks of a small schedule; those that do much in one task come less often."""
MISFORTUNES: Final[tuple[dict[str, Any], ...]] = (
    {"crashes": 1},
    {"crashes": 1},
    {"crashes": 1},
    {"crashes": 3},
    {"freezes": 1},
    {"freezes": 1},
    {"freezes": 1},
    {"drains": 1},
    {"clock_steps": 1},
    {"store": 0.1},
    {"store": 0.1},
    {"store": 0.2},
    {"tools": 0.5},
    {"tools": 0.5},
    {"tools": 0.5},
    {"hints": 0.3},
    {"hints": 0.3},
    {"cancels": 1},
    {"cancels": 1},
    {"retries": 1, "cancels": 1},
    {"forks": 1},
)
"""What a small schedule has one or two of; what is here more than once comes more often."""


FITTING: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("asker", {"crashes": 1}),
    ("asker", {"hints": 0.3}),
    ("attentive", {"hints": 0.3}),
    ("booker", {"crashes": 2, "tools": 0.3}),
    ("booker", {"freezes": 2}),
    ("booker", {"tools": 0.7}),
    ("exclusive", {"crashes": 1}),
    ("family", {"cancels": 1}),
    ("family", {"freezes": 1, "store": 0.2}),
    ("fan", {"drains": 2, "cancels": 1}),
    ("racer", {"tools": 0.5, "cancels": 1}),
    ("transfer", {"crashes": 2}),
    ("undone", {"tools": 0.5}),
)
"""Shapes, and misfortunes that meet them where it hurts most."""

BRINKS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("undone", {"cancels": 1, "tools": 0.7}),
    ("undone", {"cancels": 2, "tools": 0.5}),
    ("asker", {}),
    ("refund", {"rules": 4, "drains": 1}),
)
"""Shapes and misfortunes of these: what is posted meanwhile has to matter at the gate."""


def varied(seed: int) -> dict[str, Any]:
    """Draw the arguments of the schedule that a seed stands for, for ``run_schedule``.

    Most are ``narrow``; a fixed share is ``crowded``, so that a run comes through every move and fault.
    """
    return crowded(seed) if Random(f"{seed}/size").random() < CROWDED else narrow(seed)


def narrow(seed: int) -> dict[str, Any]:
    """Draw a small schedule: two workers, one or two tasks, and one or two misfortunes, each of which may
    fall at any await."""
    # Drawn apart, so that all others stay what they were.
    brink = Random(f"{seed}/brink")
    if brink.random() < AT_THE_BRINK:
        shape, fitting = brink.choice(BRINKS)
        faults = Faults(brink=0.9, **fitting)
        return {"workers": 2, "tasks": 1, "faults": _worse(seed, faults), "agents": (shape,)}
    random = Random(f"{seed}/narrow")
    if random.random() < FITTED:
        shape, fitting = random.choice(FITTING)
        # Whoever wants a business key has to meet somebody who wants it too.
        tasks = 2 if shape == "exclusive" else 1
        return {
            "workers": 2,
            "tasks": tasks,
            "faults": _worse(seed, Faults(aimed=AIMED, **fitting)),
            "agents": (shape,),
        }
    tasks = 2 if random.random() < PAIRS else 1
    drawn: dict[str, Any] = {"aimed": AIMED, **random.choice(MISFORTUNES)}
    if random.random() < WITH_ANOTHER:
        drawn |= random.choice(MISFORTUNES)
    if random.random() < WITH_MORE:
        drawn |= random.choice(INGREDIENTS)
    return {
        "workers": 2,
        "tasks": tasks,
        "faults": _worse(seed, Faults(**drawn)),
        "agents": tuple(sorted({random.choice(SHAPES) for _ in range(tasks)})),
    }


def crowded(seed: int) -> dict[str, Any]:
    """Draw a schedule with tasks of any shape.

    Most of them have every fault at once and people who meddle; some are calmer, so that what goes wrong only
    in good weather is seen as well.
    """
    random = Random(f"{seed}/varied")
    kind = random.random()
    if kind < 0.7:
        faults = Faults.turmoil()
    elif kind < 0.8:
        faults = replace(Faults.one_crash(), cancels=1, forks=1)
    elif kind < 0.84:
        faults = Faults(crashes=8)
    elif kind < 0.92:
        faults = Faults(freezes=2, store=0.15, hints=0.5)
    else:
        faults = Faults(drains=2, cancels=1, retries=1, forks=1)
    return {
        "workers": random.choice((2, 2, 3)),
        "tasks": random.choice((1, 2, 2, 3)),
        # Drawn apart, so that a schedule that has none of it stays the schedule that it was.
        "faults": _worse(seed, replace(faults, **mixed(Random(f"{seed}/ingredients")))),
        "agents": AGENTS,
    }


def _worse(seed: int, faults: Faults) -> Faults:
    """Add what any schedule may have, each drawn apart."""
    return _throttled(seed, _slowed(seed, faults))


def _throttled(seed: int, faults: Faults) -> Faults:
    """Have the tool service ask to be left alone, in a share of all schedules."""
    random = Random(f"{seed}/throttled")
    return replace(faults, throttled=random.choice((0.2, 0.5))) if random.random() < THROTTLED else faults


def _slowed(seed: int, faults: Faults) -> Faults:
    """Have some verbs of the store take long, in a share of all schedules."""
    random = Random(f"{seed}/slow")
    return replace(faults, slow=random.choice((0.05, 0.2))) if random.random() < SLOW else faults


@cache
def name_of_mixture() -> str:
    """Name this mixture by what it draws: whoever goes on with a run looks whether it is the same."""
    drawn = repr([varied(seed) for seed in range(1, 501)])
    return hashlib.sha256(drawn.encode()).hexdigest()[:8]
