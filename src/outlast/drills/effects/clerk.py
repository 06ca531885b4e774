"""The drill's person: looks at the reconciliation queue and settles what nothing else can, truthfully.

The truth is the ticket service's book. The clerk never guesses either: only what the queue says needs a
person is settled, and only as the book has it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from outlast.app import Outlast
from outlast.drills.effects.book import acts
from outlast.drills.effects.matrix import CELLS, Cell
from outlast.errors import SettlementConflict
from outlast.store.reconciling import OpenState
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.recorder import Recorder
from outlast.views import OperationView

__all__ = ["Clerk", "Waiting"]

Verdict = Literal["happened", "did_not_happen", "send_again"]
_LOOK_S = 0.2


@dataclass(slots=True, kw_only=True)
class Waiting:
    """An operation that waited for a person.

    calls: seen by the other side at that moment. why: as the queue says it. verdict: what the person
    recorded, None so far.
    """

    calls: int
    why: str
    verdict: Verdict | None = None


class Clerk:
    """Settle what needs a person. keys, plain: the two ticket services, whose logs are the book."""

    def __init__(self, app: Outlast, keys: Recorder, plain: Recorder) -> None:
        self._app = app
        self._keys = keys
        self._plain = plain
        self._cells = {cell.tool: cell for cell in CELLS}
        self._kept_off: set[str] = set()
        self._orders: dict[str, Verdict] = {}
        self._news = asyncio.Event()
        self.waiting: dict[str, Waiting] = {}
        """By the name of the cell."""

    def keep_off(self, cell: Cell) -> None:
        """Leave a cell's operation alone, and only note that it waits."""
        self._kept_off.add(cell.name)

    def allow(self, cell: Cell) -> None:
        """Settle a cell's operation after all, should it still wait."""
        self._kept_off.discard(cell.name)

    def order(self, cell: Cell, verdict: Verdict) -> None:
        """Decide a cell's operation so as soon as it is unknown, whatever else might still be learnt."""
        self._orders[cell.name] = verdict

    async def queued(self, cell: Cell, timeout: float) -> Waiting:
        """Wait until a cell's operation needs a person. Raises TimeoutError."""
        try:
            async with asyncio.timeout(timeout):
                while cell.name not in self.waiting:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise TimeoutError("its operation never waited for a person") from None
        return self.waiting[cell.name]

    async def keep(self) -> None:
        """Look at the queue for ever; end by cancelling."""
        while True:
            for operation in await self._app.operations.list(state="unknown", limit=1000):
                cell = self._cells.get(operation.name)
                if cell is not None:
                    await self._look(cell, operation)
            await asyncio.sleep(_LOOK_S)

    async def _look(self, cell: Cell, operation: OperationView) -> None:
        state = await self._app.store.read_open(DEFAULT_TENANT, operation.task, operation.key)
        ordered = self._orders.get(cell.name)
        if state is None or not (state.needs_person or ordered):
            return
        calls = await acts(cell, self._keys, self._plain)
        waiting = self._notice(cell, state, len(calls))
        if cell.name in self._kept_off or waiting.verdict is not None:
            return
        made = [call for call in calls if call.effect is not None]
        verdict: Verdict = ordered or ("happened" if made else "did_not_happen")
        try:
            await self._app.operations.settle(
                operation.id,
                verdict,
                reason="ordered by the drill" if ordered else "as the ticket service's book has it",
                by="drill",
                result={"id": made[0].ticket} if verdict == "happened" else None,
                turn=operation.turn,
                forced=ordered is not None,
            )
        except SettlementConflict:
            # It may still be under way, or somebody else was faster: the next look tells.
            return
        waiting.verdict = verdict

    def _notice(self, cell: Cell, state: OpenState, calls: int) -> Waiting:
        if cell.name not in self.waiting:
            self.waiting[cell.name] = Waiting(calls=calls, why=state.why)
            self._news.set()
        return self.waiting[cell.name]
