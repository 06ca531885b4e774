"""Judging: what the services and the ticket service logged, and the store holds, against the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlast.drills.judging import Judged
from outlast.drills.otherside.scene import Played, Scene, invoice_of
from outlast.drills.otherside.table import Cell
from outlast.drills.stage import Check
from outlast.testing.recorder import Call

__all__ = ["judge"]


def judge(scene: Scene, cell: Cell, played: Played, log: Sequence[Call]) -> Judged[Cell]:
    """Judge one cell, when nothing of it is under way any more; its state is what its callers were told."""
    if cell.family == "middleware":
        words = [line["word"] for line in scene.lines(cell.fault)]
        calls, effects = words.count("began"), words.count("acted")
    else:
        own = [call for call in log if call.method == "POST" and _invoice(call) == invoice_of(cell.fault)]
        calls, effects = len(own), sum(call.effect == "created" for call in own)
    told = "+".join(sorted(set(played.told))) or "nothing"
    return Judged(
        cell=cell,
        calls=calls,
        effects=effects,
        columns={"state": told},
        checks=[
            Check(what="calls", expected=cell.right.calls, seen=calls),
            Check(what="effects", expected=cell.right.effects, seen=effects),
            Check(what="what callers were told", expected=cell.right.told, seen=told),
            *played.checks,
        ],
    )


def _invoice(call: Call) -> Any:
    return call.body.get("invoice") if isinstance(call.body, dict) else None
