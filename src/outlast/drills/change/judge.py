"""Judging: what the ticket service logged and the store holds, against the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from outlast.drills.change.scene import Played, Scene, posts_of
from outlast.drills.change.table import Cell
from outlast.drills.judging import Judged
from outlast.drills.stage import Check
from outlast.testing.recorder import Call

__all__ = ["judge"]


async def judge(scene: Scene, cell: Cell, played: Played, log: Sequence[Call]) -> Judged[Cell]:
    """Judge one cell, when nothing of it is under way any more.

    Its state is that of its tasks; ``settled_by`` says who settled what was unknown, most of all a person;
    the worker alone otherwise.
    """
    right = cell.right
    calls = posts_of(log, cell.fault)
    made = [call for call in calls if call.effect is not None]
    ends = sorted({(await scene.app.get(task)).state for task in played.tasks})
    twice = [key for key, count in Counter(call.key for call in made).items() if count > 1]
    checks = [
        Check(what="effects made twice under one key", expected=[], seen=twice),
        Check(what="ends of its tasks", expected=[right.end], seen=ends),
        *played.checks,
    ]
    if right.calls is not None:
        checks[:0] = [
            Check(what="calls", expected=right.calls, seen=len(calls)),
            Check(what="effects", expected=right.effects, seen=len(made)),
        ]
    return Judged(
        cell=cell,
        calls=len(calls),
        effects=len(made),
        columns={
            "state": "/".join(ends) or "none",
            "settled_by": await _settled_by(scene, played),
        },
        checks=checks,
    )


async def _settled_by(scene: Scene, played: Played) -> str:
    who = {
        (view.settled_by or "worker").partition(":")[0]
        for task in played.tasks
        for view in await scene.app.operations.list(task=task)
    }
    return next((each for each in ("person", "settler", "worker") if each in who), "nobody")
