"""Judging: what the ticket service logged and the store holds, against the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from outlast.drills.judging import Judged
from outlast.drills.people.scene import Played, Scene, posts_of
from outlast.drills.people.table import Cell
from outlast.drills.stage import Check
from outlast.testing.recorder import Call

__all__ = ["judge"]


async def judge(scene: Scene, cell: Cell, played: Played, log: Sequence[Call]) -> Judged[Cell]:
    """Judge one cell, when nothing of it is under way any more.

    Its state is that of its tasks; ``decided_by`` says who decided on its calls, if anybody did.
    """
    right = cell.right
    calls = posts_of(log, cell.fault)
    made = [call for call in calls if call.effect == "created"]
    wanted = right.calls if played.calls is None else played.calls
    ends = sorted({(await scene.app.get(task)).state for task in played.tasks})
    twice = [key for key, count in Counter(call.key for call in calls).items() if count > 1]
    checks = [
        Check(what="calls", expected=wanted, seen=len(calls)),
        Check(what="effects", expected=wanted if right.effects is None else right.effects, seen=len(made)),
        Check(what="calls made twice", expected=[], seen=twice),
        *played.checks,
    ]
    if right.end is not None:
        checks.append(Check(what="ends of its tasks", expected=[right.end], seen=ends))
    return Judged(
        cell=cell,
        calls=len(calls),
        effects=len(made),
        columns={
            "state": "/".join(ends) or ("either" if right.end is None else "none"),
            "decided_by": await _decided_by(scene, played),
        },
        checks=checks,
    )


async def _decided_by(scene: Scene, played: Played) -> str:
    states = [one.state for task in played.tasks for one in await scene.approvals(task)]
    if any(state in ("used", "rejected", "approved") for state in states):
        return "person"
    return "time" if "expired" in states else "nobody"
