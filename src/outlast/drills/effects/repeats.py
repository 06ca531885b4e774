"""Faults of asking twice: a model that repeats itself under a new call id, and two tasks that do the same."""

from __future__ import annotations

import asyncio

from outlast.drills.effects.matrix import Cell
from outlast.drills.effects.scene import CALL, Played, Scene
from outlast.drills.stage import Check
from outlast.testing.recorder import Rule

__all__ = ["play"]

_SLOW_MS = 600
"""How long the first call takes to be answered, so that its twin comes meanwhile."""


async def play(scene: Scene, cell: Cell) -> Played:
    """Play one cell; both callers must be told of the same effect."""
    await scene.jitter()
    if cell.fault.name == "second_id":
        tasks = [await scene.submit(cell, calls=(CALL, "toolu_2"))]
    else:
        await scene.plan(cell, Rule.act_then_late(_SLOW_MS))
        tasks = list(await asyncio.gather(*(scene.submit(cell, copy=copy) for copy in (1, 2))))
    for task in tasks:
        await scene.end(task)
    views = [await scene.app.get(task) for task in tasks]
    told = [_ticket(one) for view in views for one in (view.result or [])]
    same = Check(
        what="answers, and different tickets in them", expected=(2, 1), seen=(len(told), len(set(told)))
    )
    return Played(cell=cell, tasks=tasks, checks=() if cell.effect == "read" else (same,))


def _ticket(result: object) -> object:
    return result.get("id") if isinstance(result, dict) else None
