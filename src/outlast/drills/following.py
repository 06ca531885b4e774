"""Submitting a drill's tasks, waiting for what becomes of them, and doomed workers: what scenes share.

Whatever is waited for is looked for until it is there; what never comes is a TimeoutError that says what.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from outlast.app import Outlast
from outlast.drills import crew
from outlast.drills.crew import PATIENCE_S
from outlast.drills.fleet import Fleet, FleetError, Process
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Call, Recorder
from outlast.views import EventView, TaskView

__all__ = ["STEADY", "Following", "invoice_of", "posts_of"]

T = TypeVar("T")
STEADY: Final = "steady"
"""The pool of the cells whose workers stay alive, or all die together."""
_LOOK_S: Final = 0.1


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


@dataclass(slots=True, kw_only=True)
class Following:
    """Everything that any fault is played with.

    environ: what processes need. chance: seeded; order and jitter come from it. folder: for files of the
    drill. submitted: every task that was accepted. doomed_left: groups that have not yet got their worker to
    its end. pools: theirs. patience_s: how long to wait for what has to come.
    """

    WORKER: ClassVar[str]
    """The module that is run as a worker."""

    app: Outlast
    recorder: Recorder
    fleet: Fleet
    chance: random.Random
    environ: dict[str, str]
    folder: Path
    tell: Callable[[str], None]
    submitted: list[str] = field(default_factory=list)
    doomed_left: int = 0
    pools: list[str] = field(default_factory=list)
    patience_s: float = PATIENCE_S

    # -- tasks -----------------------------------------------------------------------------------------------

    async def submit(self, agent: str, input: dict[str, Any], *, pool: str = STEADY, **options: Any) -> str:
        """Submit a task; answer its id."""
        handle = await self.app.submit(agent, input, pool=pool, **options)
        self.submitted.append(handle.id)
        return handle.id

    async def end(self, task: str) -> TaskView:
        """Wait for a task's end. Raises TimeoutError."""
        try:
            return await self.app.wait(task, timeout=self.patience_s)
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
            async with asyncio.timeout(self.patience_s):
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

    # -- the other side --------------------------------------------------------------------------------------

    async def posts(self, cell: str) -> list[Call]:
        """Answer the calls of a cell that would act, as the service logged them."""
        return posts_of(await self.recorder.log(), cell)

    # -- workers ---------------------------------------------------------------------------------------------

    async def doomed(self, pool: str, *probe: Trigger) -> Process:
        """Start the worker of a pool of its own, to be killed or frozen, and wait until it serves."""
        self.pools.append(pool)
        return await crew.start(
            self.fleet, self.WORKER, f"doomed-{pool}", (pool,), "doomed", *probe, environ=self.environ
        )

    async def listens(self, server: Process) -> str:
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

        return await self.until(look, f"{server.name} never served; see {server.log}")

    @contextlib.asynccontextmanager
    async def dooming(self, pool: str, *probe: Trigger) -> AsyncIterator[Process]:
        """Start a doomed worker, whose end comes within the block, and say so after it."""
        try:
            yield await self.doomed(pool, *probe)
        finally:
            await self.gone()

    async def gone(self) -> None:
        """Say that one doomed worker is dead or frozen.

        The last to say so brings in the successor, which must not find the task of one that still lives.
        """
        self.doomed_left -= 1
        if self.doomed_left == 0 and self.pools:
            self.tell("the doomed are gone; their successor begins")
            await self.succeed(*dict.fromkeys(self.pools))

    async def succeed(self, *pools: str) -> None:
        """Start the successor of the doomed workers."""
        raise NotImplementedError

    async def quieten(self) -> None:
        """Wait until nothing is on its way any more, then stop every process in good order."""

        async def quiet() -> bool | None:
            dump = await self.app.store.dump()
            busy = any(row["state"] in ("queued", "running") for row in dump["tasks"])
            return None if busy or dump["posts"] else True

        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.until(quiet, "it never was quiet"), self.patience_s / 2)
        for process in self.fleet.processes:
            if process.running:
                process.thaw()
        await asyncio.gather(*(each.stop() for each in self.fleet.processes if each.running))
