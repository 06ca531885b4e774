"""Judging: what the ticket services logged and the store holds, against the table."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

from outlast.core.retry import parse_retry_after
from outlast.drills.effects.matrix import Cell
from outlast.drills.effects.scene import CALL, Played, Scene
from outlast.drills.judging import Judged
from outlast.drills.stage import Check
from outlast.testing.recorder import Call
from outlast.views import OperationView

__all__ = ["judge"]

_SLACK_S = 0.02
"""The other side's clock is read a moment after it has sent its answer."""


async def judge(scene: Scene, played: Played) -> Judged[Cell]:
    """Judge one cell, when nothing of it is under way any more; its state is its operation's, ``none`` where
    there is none."""
    cell, right = played.cell, played.cell.right
    calls = await scene.acts(cell)
    effects = _effects(calls)
    operation = await _operation(scene, played)
    ends = [(await scene.app.get(task)).state for task in played.tasks]
    state, settled_by = _settled(scene, cell, operation)
    checks = [
        Check(what="calls", expected=right.calls, seen=len(calls)),
        Check(what="effects", expected=right.effects, seen=effects),
        Check(what="the operation's state", expected=right.end, seen=state),
        Check(what="settled by", expected="/".join(sorted(right.by)), seen=settled_by)
        if settled_by not in right.by
        else Check(what="settled by", expected=settled_by, seen=settled_by),
        Check(what="ends of its tasks", expected=[right.end] * len(ends or [""]), seen=ends),
        Check(what="keys of its calls", expected=True, seen=_keys_fit(calls, played)),
        *_waits(calls),
        *played.checks,
    ]
    if right.person:
        waiting = scene.clerk.waiting.get(cell.name)
        seen = None if waiting is None else waiting.calls
        checks.append(Check(what="calls while it waited for a person", expected=1, seen=seen))
    return Judged(
        cell=cell,
        calls=len(calls),
        effects=effects,
        columns={"state": state, "settled_by": settled_by},
        checks=checks,
    )


def _effects(calls: Sequence[Call]) -> int:
    """Count distinct effects: a note that is put twice is one, two tickets are two."""
    made = [(call.effect, call.ticket, call.body_digest) for call in calls if call.effect is not None]
    noted = {effect for effect in made if effect[0] == "noted"}
    return len(noted) + sum(effect[0] != "noted" for effect in made)


async def _operation(scene: Scene, played: Played) -> OperationView | None:
    """Answer the operation that called; of two tasks that did the same, either may be the one."""
    views = [
        view
        for task in played.tasks
        for view in await scene.app.operations.list(task=task)
        if view.kind == "tool" and view.key == CALL
    ]
    return max(views, key=lambda view: view.attempt, default=None)


def _settled(scene: Scene, cell: Cell, operation: OperationView | None) -> tuple[str, str]:
    if operation is None:
        return "none", "nobody"
    waiting = scene.clerk.waiting.get(cell.name)
    by = operation.settled_by or ""
    if operation.state not in ("succeeded", "failed"):
        return operation.state, "nobody"
    if by.startswith("person") or (waiting is not None and waiting.verdict is not None):
        return operation.state, "person"
    return operation.state, "settler" if by == "settler" else "worker"


def _keys_fit(calls: Sequence[Call], played: Played) -> bool:
    """Whether one key stands for one operation; only a read may ask under a second one."""
    keys = {call.key for call in calls}
    return len(keys) <= 1 or played.cell.effect == "read"


def _waits(calls: Sequence[Call]) -> list[Check]:
    """Whether every wait that the other side asked for was kept."""
    checks = []
    for one, following in itertools.pairwise(calls):
        rule = json.loads(one.misbehaved or "{}")
        wait_s = parse_retry_after(rule.get("headers", {}).get("Retry-After"), one.ended_at or 0.0)
        if wait_s is not None and one.ended_at is not None:
            kept = following.arrived_at >= one.ended_at + wait_s - _SLACK_S
            checks.append(Check(what=f"a wait of {wait_s:.2f} s kept", expected=True, seen=kept))
    return checks
