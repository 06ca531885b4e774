"""What a fault is played with: the store, the two ticket services, worker processes, and the person."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outlast.app import Outlast
from outlast.drills import crew
from outlast.drills.crew import PATIENCE_S
from outlast.drills.effects.agents import Places
from outlast.drills.effects.book import acts, service_of
from outlast.drills.effects.clerk import Clerk
from outlast.drills.effects.matrix import Cell
from outlast.drills.fleet import Fleet, Process
from outlast.drills.stage import Check
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Call, Recorder, Rule
from outlast.views import EvidenceView

__all__ = ["CALL", "PATIENCE_S", "STEADY", "Played", "Scene"]

CALL = "toolu_1"
"""The id of the call that a cell is about; it is the operation's key."""
STEADY = "steady"
"""The pool of the cells whose workers stay alive."""
WORKER = "outlast.drills.effects.worker"
LOOK_S = 0.1


@dataclass(slots=True, kw_only=True)
class Played:
    """What a fault left behind. tasks: the first one holds the operation in question. checks: those of this
    fault, on top of the table."""

    cell: Cell
    tasks: Sequence[str] = ()
    checks: Sequence[Check] = ()


@dataclass(slots=True, kw_only=True)
class Scene:
    """Everything that a fault is played with.

    environ: what worker processes need. chance: seeded; order and jitter come from it. tickets: the ticket of
    each idempotent cell, made beforehand. doomed_left: groups that have not yet got their worker to its end.
    """

    app: Outlast
    keys: Recorder
    plain: Recorder
    places: Places
    fleet: Fleet
    clerk: Clerk
    chance: random.Random
    environ: dict[str, str]
    tell: Callable[[str], None]
    tickets: dict[str, str] = field(default_factory=dict)
    doomed_left: int = 0
    pools: list[str] = field(default_factory=list)

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

    async def end(self, task: str) -> None:
        """Wait for a task's end. Raises TimeoutError."""
        try:
            await self.app.wait(task, timeout=PATIENCE_S)
        except TimeoutError:
            view = await self.app.get(task)
            raise TimeoutError(f"its task is still {view.state} ({view.reason})") from None

    async def late(self, task: str) -> EvidenceView:
        """Wait for the evidence that a late answer of the first attempt left. Raises TimeoutError."""
        try:
            async with asyncio.timeout(PATIENCE_S / 2):
                while True:
                    _, evidence = await self.app.operations.show(f"{task}:{CALL}")
                    for one in evidence:
                        if one.source == "late" and one.attempt == 1:
                            return one
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise TimeoutError("no evidence was kept of the late answer") from None

    # -- workers ---------------------------------------------------------------------------------------------

    async def steady(self, name: str, *pools: str) -> Process:
        """Start a worker that stays, and wait until it serves."""
        return await self._worker(name, pools, "steady")

    async def doomed(self, pool: str, *probe: Trigger) -> Process:
        """Start the worker of a pool of its own, to be killed or frozen, and wait until it serves."""
        self.pools.append(pool)
        return await self._worker(f"doomed-{pool}", (pool,), "doomed", *probe)

    async def _worker(self, name: str, pools: Sequence[str], fate: crew.Fate, *probe: Trigger) -> Process:
        return await crew.start(self.fleet, WORKER, name, pools, fate, *probe, environ=self.environ)

    async def gone(self) -> None:
        """Say that one doomed worker is dead or frozen.

        The last to say so brings in the successors, which must not find the task of one that still lives.
        """
        self.doomed_left -= 1
        if self.doomed_left == 0 and self.pools:
            self.tell("the doomed are gone; their successors begin")
            await asyncio.gather(*(self.steady(f"successor-{letter}", *self.pools) for letter in "AB"))
