"""Reading the two ticket services' logs: the calls of one cell."""

from __future__ import annotations

from outlast.drills.effects.matrix import Cell
from outlast.testing.recorder import Call, Recorder

__all__ = ["acts", "service_of"]


def service_of(cell: Cell, keys: Recorder, plain: Recorder) -> Recorder:
    """Answer the ticket service that a cell's tool talks to. keys: honours keys; plain: ignores them."""
    return keys if cell.effect == "keyed" else plain


async def acts(cell: Cell, keys: Recorder, plain: Recorder) -> list[Call]:
    """Answer the calls of a cell that would act, as they arrived; queries count for ``read`` alone."""
    log = await service_of(cell, keys, plain).log()
    return [call for call in log if call.method == cell.method and _invoice(call) == cell.invoice]


def _invoice(call: Call) -> object:
    return call.body.get("invoice") if isinstance(call.body, dict) else call.query.get("invoice")
