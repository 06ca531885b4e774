"""What a fault is played with: the store, the two ticket services, worker processes, and the person."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from outlast.drills import crew, looking
from outlast.drills.crew import PATIENCE_S
from outlast.drills.dooming import Dooming
from outlast.drills.effects.agents import Places
from outlast.drills.effects.book import acts, service_of
from outlast.drills.effects.clerk import Clerk
from outlast.drills.effects.matrix import Cell
from outlast.drills.fleet import Process
from outlast.drills.stage import Check
from outlast.testing.recorder import Call, Recorder, Rule
from outlast.views import EvidenceView

__all__ = ["CALL", "PATIENCE_S", "STEADY", "Played", "Scene"]

CALL = "toolu_1"
"""The id of the call that a cell is about; it is the operation's key."""
STEADY = "steady"
"""The pool of the cells whose workers stay alive."""


@dataclass(slots=True, kw_only=True)
class Played:
    """What a fault left behind. tasks: the first one holds the operation in question. checks: those of this
    fault, on top of the table."""

    cell: Cell
    tasks: Sequence[str] = ()
    checks: Sequence[Check] = ()


@dataclass(slots=True, kw_only=True)
class Scene(Dooming):
    """Everything that a fault is played with; see ``Dooming``.

    tickets: the ticket of each idempotent cell, made beforehand.
    """

    WORKER: ClassVar[str] = "outlast.drills.effects.worker"

    keys: Recorder
    plain: Recorder
    places: Places
    clerk: Clerk
    tickets: dict[str, str] = field(default_factory=dict)

    # -- the other side --------------------------------------------------------------------------------------

    def recorder(self, cell: Cell) -> Recorder:
        """Answer the ticket service that a cell's tool talks to."""
        return service_of(cell, self.keys, self.plain)

    async def plan(self, cell: Cell, *rules: Rule) -> None:
        """Let the next calls of a cell meet the rules, one each."""
        fitting = [rule.on(method=cell.method, invoice=cell.invoice) for rule in rules]
        await self.recorder(cell).plan(*fitting)

    async def hold(self, cell: Cell, name: str, rule: Rule, *, at: str) -> None:
        """Keep the next call of a cell at a barrier, ``arrived`` or ``acted``."""
        fitting = rule.on(method=cell.method, invoice=cell.invoice)
        await self.recorder(cell).hold(name, fitting, at="acted" if at == "acted" else "arrived")

    async def release(self, name: str) -> None:
        """Open a barrier in both services."""
        for recorder in (self.keys, self.plain):
            await recorder.release(name)

    async def acts(self, cell: Cell) -> list[Call]:
        """Answer the calls of a cell that would act, as the service logged them."""
        return await acts(cell, self.keys, self.plain)

    # -- tasks -----------------------------------------------------------------------------------------------

    async def jitter(self) -> None:
        """Wait a random moment, so that cells meet in another order with every seed."""
        await asyncio.sleep(self.chance.uniform(0.0, 0.3))

    async def submit(
        self, cell: Cell, *, pool: str = STEADY, calls: Sequence[str] = (CALL,), copy: int = 1
    ) -> str:
        """Submit the task of a cell; answer its id."""
        handle = await self.app.submit(
            "act",
            {
                "tool": cell.tool,
                "invoice": cell.invoice,
                "ticket": self.tickets.get(cell.name, ""),
                "call_ids": list(calls),
            },
            key=f"{cell.name}-{copy}",
            pool=pool,
        )
        return handle.id

    async def late(self, task: str) -> EvidenceView:
        """Wait for the evidence that a late answer of the first attempt left. Raises TimeoutError."""

        async def look() -> EvidenceView | None:
            _, evidence = await self.app.operations.show(f"{task}:{CALL}")
            return next((one for one in evidence if one.source == "late" and one.attempt == 1), None)

        otherwise = "no evidence was kept of the late answer"
        return await looking.until(look, otherwise, patience_s=self.patience_s / 2)

    # -- workers ---------------------------------------------------------------------------------------------

    async def steady(self, name: str, *pools: str) -> Process:
        """Start a worker that stays, and wait until it serves."""
        return await crew.start(self.fleet, self.WORKER, name, pools, "steady", environ=self.environ)

    async def succeed(self, *pools: str) -> None:
        """Start the successors of the doomed workers."""
        await asyncio.gather(*(self.steady(f"successor-{letter}", *pools) for letter in "AB"))
