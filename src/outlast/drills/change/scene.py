"""What a fault is played with: the store, the ticket service, workers of every generation of the code."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from outlast.drills import crew
from outlast.drills.change.agents import OLD
from outlast.drills.fleet import Process
from outlast.drills.following import STEADY, Following, Played, invoice_of, posts_of
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Call, Rule
from outlast.views import OperationView

__all__ = ["STEADY", "WORKER", "Beginning", "Played", "Scene", "filed", "invoice_of", "posts_of", "withdrawn"]

WORKER: Final = "outlast.drills.change.worker"
_AT_ONCE: Final = 3
"""Workers that begin at once; more of them would only wait for one another."""


class Beginning:
    """Let cells do what has to be done while no other worker lives, one after the other.

    cells: their names, in order.
    """

    def __init__(self, cells: Sequence[str]) -> None:
        self._cells = list(cells)
        self._moved = asyncio.Condition()

    async def turn(self, cell: str) -> None:
        """Wait until it is a cell's turn."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._cells[:1] == [cell])

    async def over(self, cell: str) -> None:
        """Say that a cell needs to be alone no more. Idempotent."""
        async with self._moved:
            if cell in self._cells:
                self._cells.remove(cell)
            self._moved.notify_all()

    async def all_over(self) -> None:
        """Wait until every cell has said so."""
        async with self._moved:
            await self._moved.wait_for(lambda: not self._cells)


@dataclass(slots=True, kw_only=True)
class Scene(Following):
    """Everything that a fault is played with; see ``Following``.

    database_url: of the store, for the change of its schema. beginning: what comes before every worker.
    """

    WORKER: ClassVar[str] = WORKER

    database_url: str
    beginning: Beginning
    _starting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    # -- workers ---------------------------------------------------------------------------------------------

    async def worker(
        self,
        name: str,
        *pools: str,
        generation: int = OLD,
        fate: crew.Fate = "steady",
        probe: Sequence[Trigger] = (),
    ) -> Process:
        """Start a worker of a generation of the code, and wait until it serves."""
        environ = {**self.environ, "OUTLAST_DRILL_GENERATION": str(generation)}
        async with self._starting:
            return await crew.start(self.fleet, WORKER, name, pools, fate, *probe, environ=environ)

    async def doomed(self, pool: str, *probe: Trigger) -> Process:
        """Start the worker of a pool of its own, to be killed or frozen, and wait until it serves."""
        self.pools.append(pool)
        return await self.worker(f"doomed-{pool}", pool, fate="doomed", probe=probe)

    async def succeed(self, *pools: str) -> None:
        """Start the successor of the doomed workers."""
        await self.worker("successor", *pools)

    # -- tasks -----------------------------------------------------------------------------------------------

    async def regret(
        self, cell: str, *tools: str, waits: bool = False, pool: str = STEADY, **options: Any
    ) -> str:
        """Submit a task that files a ticket with each tool, then fails, or waits until it is cancelled."""
        input = {"invoice": invoice_of(cell), "tools": list(tools), "waits": waits}
        return await self.submit("regrets", input, pool=pool, **options)

    async def operation(self, task: str, key: str) -> OperationView:
        """Read one operation of a task."""
        view, _ = await self.app.operations.show(f"{task}:{key}")
        return view

    async def a_persons(self, task: str, key: str) -> bool:
        """Say whether an operation lies before people, as an item of the reconciliation queue."""
        (place,) = await self.app.operations.places([f"{task}:{key}"])
        return place is not None and place.needs_person

    async def settled(self, task: str, key: str, result: Any = None) -> str:
        """Be the person who knows that an operation has happened; answer its state after that."""
        view = await self.app.operations.settle(
            f"{task}:{key}", "happened", reason="it is on the list", by="drill", result=result
        )
        return view.state

    async def undone(self, task: str) -> Any:
        """Wait for a task's end; answer what that says of its undo."""
        view = await self.end(task)
        return (view.error or {}).get("compensation")

    # -- the other side --------------------------------------------------------------------------------------

    async def hold(self, cell: str, *, path: str = "/tickets", nth: int = 1) -> None:
        """Keep the answer of a cell's nth call at a barrier of the cell's name."""
        rule = Rule().on(path=path, invoice=invoice_of(cell), nth=nth)
        await self.recorder.hold(cell, rule, at="acted")

    async def held(self, cell: str) -> None:
        """Wait until a cell's call stands at its barrier."""
        await self.recorder.wait_for(held=cell, timeout=self.patience_s)

    async def plan(self, cell: str, rule: Rule, *, path: str) -> None:
        """Let the next call of a cell to a path meet a rule."""
        await self.recorder.plan(rule.on(path=path, invoice=invoice_of(cell)))


def filed(posts: Sequence[Call]) -> list[str]:
    """Answer the amounts of the tickets that calls have made, in order."""
    return [str(call.body["amount"]) for call in posts if call.effect == "created"]


def withdrawn(posts: Sequence[Call]) -> list[str]:
    """Answer the amounts of the tickets that calls have withdrawn, in order."""
    amounts = {call.ticket: str(call.body["amount"]) for call in posts if call.effect == "created"}
    return [amounts.get(call.ticket, "?") for call in posts if call.effect == "withdrawn"]
