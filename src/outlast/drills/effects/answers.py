"""Faults of the answer: the call arrives or not, acts or not, and what comes back cannot be trusted."""

from __future__ import annotations

import math
import time
from email.utils import formatdate

from outlast.drills.effects.matrix import Cell
from outlast.drills.effects.scene import Played, Scene
from outlast.testing.recorder import Rule

__all__ = ["play"]

_LAG_MS = 60_000
"""How far the replica lags behind that answers the first query."""


async def play(scene: Scene, cell: Cell) -> Played:
    """Play one cell: the first call meets the fault, all later ones an honest service."""
    await scene.jitter()
    await scene.plan(cell, *_rules(cell.fault.name))
    if cell.fault.name == "stale_query":
        stale = Rule.stale(_LAG_MS).on(method="GET", invoice=cell.invoice, times=1)
        await scene.recorder(cell).plan(stale)
    task = await scene.submit(cell)
    await scene.end(task)
    return Played(cell=cell, tasks=(task,))


def _rules(fault: str) -> tuple[Rule, ...]:
    match fault:
        case "act_drop" | "stale_query":
            return (Rule.act_then_reset(),)
        case "act_hang":
            return (Rule.act_then_hang(),)
        case "act_500":
            return (Rule.act_then_answer(500),)
        case "act_half":
            return (Rule.act_then_half(),)
        case "swallowed":
            return (Rule.hang(),)
        case "refused":
            return ()  # the tool knocks at a closed port first
        case "throttled_seconds":
            return (Rule.refuse(429, retry_after="1"),)
        case "throttled_date":
            # Whole seconds: a date has no others.
            return (Rule.refuse(429, retry_after=formatdate(math.ceil(time.time()) + 2, usegmt=True)),)
        case "unavailable":
            return (Rule.refuse(503),)
        case _:
            raise ValueError(f"{fault} is no fault of the answer")
