"""What a fault is played with: the store, the ticket service, worker processes, and people who decide."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from outlast.app import Outlast
from outlast.drills import crew
from outlast.drills.crew import PATIENCE_S
from outlast.drills.fleet import Fleet, Process
from outlast.drills.people.restart import Restart
from outlast.drills.stage import Check
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Call, Recorder
from outlast.views import ApprovalView, EventView, TaskView

__all__ = ["AMOUNT", "BOSS", "STEADY", "WORKER", "Played", "Scene", "invoice_of"]

T = TypeVar("T")
STEADY: Final = "steady"
"""The pool of the cells whose workers stay alive, or all die together."""
WORKER: Final = "outlast.drills.people.worker"
BOSS: Final = "boss"
AMOUNT: Final = "118.50"
_LOOK_S: Final = 0.1


def invoice_of(cell: str, number: int | None = None) -> str:
    """Answer what a cell's calls are about, and how they are found in the log. number: of several."""
    return f"INV-{cell}" if number is None else f"INV-{cell}-{number}"


@dataclass(slots=True, kw_only=True)
class Played:
    """What a fault left behind.

    tasks: what has to end as the table has it. calls: how many are right, where only what happened can say.
    checks: those of this fault, on top of the table.
    """

    cell: str
    tasks: Sequence[str] = ()
    calls: int | None = None
    checks: Sequence[Check] = ()


@dataclass(slots=True, kw_only=True)
class Scene:
    """Everything that a fault is played with.

    environ: what processes need. chance: seeded; order and jitter come from it. folder: see ``Place``.
    submitted: every task that was accepted. doomed_left: groups that have not yet got their worker to its
    end. pools: theirs.
    """

    app: Outlast
    recorder: Recorder
    fleet: Fleet
    restart: Restart
    chance: random.Random
    environ: dict[str, str]
    folder: Path
    tell: Callable[[str], None]
    submitted: list[str] = field(default_factory=list)
    doomed_left: int = 0
    pools: list[str] = field(default_factory=list)

    # -- tasks -----------------------------------------------------------------------------------------------

    async def submit(self, agent: str, input: dict[str, Any], *, pool: str = STEADY, **options: Any) -> str:
        """Submit a task; answer its id."""
        handle = await self.app.submit(agent, input, pool=pool, **options)
        self.submitted.append(handle.id)
        return handle.id

    async def call(
        self,
        cell: str,
        tool: str,
        *amounts: str,
        number: int | None = None,
        again: str | None = None,
        pool: str = STEADY,
        user: str | None = None,
        **more: Any,
    ) -> str:
        """Submit a task that calls a tool once for each amount, and answer its id.

        number: of several tasks of the cell. again: the amount that it wants after the restart instead. more:
        further arguments of the tool.
        """

        def one(place: int, amount: str) -> dict[str, Any]:
            arguments = {"invoice": invoice_of(cell, number), "amount": amount, **more}
            return {"tool": tool, "key": f"act-{place}", "arguments": arguments}

        planned = [one(place, amount) for place, amount in enumerate(amounts or (AMOUNT,), 1)]
        input = {"calls": planned, "again": [] if again is None else [one(1, again)]}
        return await self.submit("calls", input, pool=pool, user=user)

    async def end(self, task: str) -> TaskView:
        """Wait for a task's end. Raises TimeoutError."""
        try:
            return await self.app.wait(task, timeout=PATIENCE_S)
        except TimeoutError:
            view = await self.app.get(task)
            raise TimeoutError(f"its task is still {view.state} ({view.reason})") from None

    async def told(self, task: str) -> Any:
        """Wait for a task's end; answer its result."""
        return (await self.end(task)).result

    async def suspended(self, task: str, reason: str) -> TaskView:
        """Wait until a task waits for a reason and holds no worker. Raises TimeoutError."""

        async def look() -> TaskView | None:
            view = await self.app.get(task)
            return view if (view.state, view.reason) == ("waiting", reason) else None

        return await self.until(look, f"a task never waited for {reason}")

    async def events(self, task: str, kind: str) -> list[EventView]:
        """Answer a task's events of a kind."""
        return [event for event in await self.app.stored_events(task) if event.kind == kind]

    async def reached(self, task: str, kind: str) -> EventView:
        """Wait for a task's first event of a kind. Raises TimeoutError."""

        async def look() -> EventView | None:
            return next(iter(await self.events(task, kind)), None)

        return await self.until(look, f"a task never came to {kind}")

    async def attempts(self, task: str) -> list[str]:
        """Answer how a task's attempts ended, in order."""
        return [attempt.end or "running" for attempt in await self.app.attempts(task)]

    async def until(self, look: Callable[[], Awaitable[T | None]], otherwise: str) -> T:
        """Look until there is an answer. Raises TimeoutError."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    seen = await look()
                    if seen is not None:
                        return seen
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise TimeoutError(otherwise) from None

    async def now_us(self) -> int:
        """Answer the database's clock."""
        return (await self.app.store.health()).now

    # -- people ----------------------------------------------------------------------------------------------

    async def approvals(self, task: str) -> list[ApprovalView]:
        """Answer everything that people were asked about a task, whatever became of it, oldest first."""
        return list(await self.app.approvals.list(task=task, state=None))

    async def asked(self, task: str, count: int = 1, *, suspended: bool = True) -> list[ApprovalView]:
        """Wait until people are asked so many things about a task at once; answer them, oldest first.

        suspended: wait until the task has given up its worker as well.
        """

        async def look() -> list[ApprovalView] | None:
            pending = await self.app.approvals.list(task=task)
            return list(pending) if len(pending) == count else None

        found = await self.until(look, f"nobody was asked {count} things")
        if suspended:
            await self.suspended(task, "approval")
        return found

    async def decide(
        self,
        approval: ApprovalView,
        verdict: Literal["approve", "reject"] = "approve",
        *,
        by: str = BOSS,
        arguments: Mapping[str, Any] | None = None,
        roles: Sequence[str] = ("approver",),
    ) -> ApprovalView:
        """Decide on what was shown. Raises as ``Approvals.decide``."""
        return await self.app.approvals.decide(
            approval.id,
            verdict,
            fingerprint=approval.fingerprint,
            by=by,
            reason="agreed" if verdict == "approve" else "no",
            arguments=arguments,
            roles=roles,
        )

    # -- the other side --------------------------------------------------------------------------------------

    async def posts(self, cell: str) -> list[Call]:
        """Answer the calls of a cell that would act, as the service logged them."""
        return posts_of(await self.recorder.log(), cell)

    async def sent(self, cell: str) -> list[str]:
        """Answer the amounts that were sent, in order."""
        return [call.body["amount"] for call in await self.posts(cell)]

    # -- workers ---------------------------------------------------------------------------------------------

    async def steady(self, name: str, *pools: str, generation: int) -> Process:
        """Start a worker that stays, and wait until it serves."""
        environ = {**self.environ, "OUTLAST_DRILL_GENERATION": str(generation)}
        return await crew.start(self.fleet, WORKER, name, pools, "steady", environ=environ)

    async def doomed(self, pool: str, *probe: Trigger) -> Process:
        """Start the worker of a pool of its own, to be killed or frozen, and wait until it serves."""
        self.pools.append(pool)
        return await crew.start(
            self.fleet, WORKER, f"doomed-{pool}", (pool,), "doomed", *probe, environ=self.environ
        )

    async def gone(self) -> None:
        """Say that one doomed worker is dead or frozen.

        The last to say so brings in the successor, which must not find the task of one that still lives.
        """
        self.doomed_left -= 1
        if self.doomed_left == 0 and self.pools:
            self.tell("the doomed are gone; their successor begins")
            await self.steady("successor", *self.pools, generation=2)


def posts_of(log: Sequence[Call], cell: str) -> list[Call]:
    """Answer the calls of a cell in a log."""
    own = invoice_of(cell)
    found = []
    for call in log:
        invoice = call.body.get("invoice") if isinstance(call.body, dict) else None
        if call.method == "POST" and isinstance(invoice, str):
            rest = invoice.removeprefix(own) if invoice.startswith(own) else None
            if rest == "" or (rest is not None and rest[0] == "-"):
                found.append(call)
    return found
