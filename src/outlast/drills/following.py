"""Submitting a drill's tasks and waiting for what becomes of them: what scenes with one ticket service share.

Whatever is waited for is looked for until it is there; what never comes is a TimeoutError that says what.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from outlast.drills import looking
from outlast.drills.dooming import Dooming
from outlast.drills.fleet import FleetError, Process
from outlast.drills.stage import Check
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.recorder import Call, Recorder
from outlast.views import EventView, TaskView

__all__ = ["STEADY", "Following", "Played", "invoice_of", "posts_of", "served_at"]

STEADY: Final = "steady"
"""The pool of the cells whose workers stay alive, or all die together."""


def invoice_of(cell: str, number: int | None = None) -> str:
    """Answer what a cell's calls are about, and how they are found in the log. number: of several."""
    return f"INV-{cell}" if number is None else f"INV-{cell}-{number}"


def posts_of(log: Sequence[Call], cell: str) -> list[Call]:
    """Answer the calls of a cell in a log that would act."""
    own = invoice_of(cell)
    found = []
    for call in log:
        invoice = call.body.get("invoice") if isinstance(call.body, dict) else None
        if call.method == "POST" and isinstance(invoice, str):
            rest = invoice.removeprefix(own) if invoice.startswith(own) else None
            if rest == "" or (rest is not None and rest[0] == "-"):
                found.append(call)
    return found


async def served_at(server: Process, *, patience_s: float) -> str:
    """Wait until an API process says where it listens. Raises FleetError, TimeoutError."""

    async def look() -> str | None:
        if not server.running:
            raise FleetError(f"{server.name} ended ({server.ending}) before it served; see {server.log}")
        for line in server.log.read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                said = json.loads(line)
                if said.get("event") == "serving":
                    return str(said["url"])
        return None

    return await looking.until(look, f"{server.name} never served; see {server.log}", patience_s=patience_s)


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
class Following(Dooming):
    """Everything that any fault is played with; see ``Dooming``.

    folder: for files of the drill. submitted: every task that was accepted.
    """

    recorder: Recorder
    folder: Path
    submitted: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> list[tuple[str, str]]:
        """Tenant and id of every task that was accepted."""
        return [(DEFAULT_TENANT, task) for task in self.submitted]

    # -- tasks -----------------------------------------------------------------------------------------------

    async def submit(self, agent: str, input: dict[str, Any], *, pool: str = STEADY, **options: Any) -> str:
        """Submit a task; answer its id."""
        handle = await self.app.submit(agent, input, pool=pool, **options)
        self.submitted.append(handle.id)
        return handle.id

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

    async def now_us(self) -> int:
        """Answer the database's clock."""
        return (await self.app.store.health()).now

    # -- the other side --------------------------------------------------------------------------------------

    async def posts(self, cell: str) -> list[Call]:
        """Answer the calls of a cell that would act, as the service logged them."""
        return posts_of(await self.recorder.log(), cell)

    # -- processes -------------------------------------------------------------------------------------------

    async def listens(self, server: Process) -> str:
        """Wait until an API process says where it listens. Raises FleetError, TimeoutError."""
        return await served_at(server, patience_s=self.patience_s)

    async def quieten(self) -> None:
        """Wait until nothing is on its way any more, then stop every process in good order."""

        async def quiet() -> bool | None:
            dump = await self.app.store.dump()
            busy = any(row["state"] in ("queued", "running") for row in dump["tasks"])
            return None if busy or dump["posts"] else True

        with contextlib.suppress(TimeoutError):
            await looking.until(quiet, "it never was quiet", patience_s=self.patience_s / 2)
        for process in self.fleet.processes:
            if process.running:
                process.thaw()
        await asyncio.gather(*(each.stop() for each in self.fleet.processes if each.running))
