"""One database, the ticket service, and worker processes that die on request."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.crashes.app import TICKETS_URL, build

from outlast.app import Outlast
from outlast.drills.fleet import Fleet, Process
from outlast.handle import TaskHandle
from outlast.testing.checkers import Violation, check_all
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Call, Recorder
from outlast.views import TaskView

ROOT = Path(__file__).parents[2]
PATIENCE_S = 40.0


@dataclass(slots=True)
class Scene:
    """Everything that a crash test plays with."""

    url: str
    recorder: Recorder
    fleet: Fleet
    app: Outlast
    accepted: list[TaskHandle] = field(default_factory=list)

    def worker(self, name: str, *probe: Trigger, **settings: Any) -> Process:
        """Start a worker process."""
        given = json.dumps({"name": name, **settings})
        return self.fleet.start(name, "tests.crashes.worker", given, probe=probe, environ=self._environ)

    def client(self, name: str, *probe: Trigger, key: str, pool: str, invoice: str) -> Process:
        """Start a process that submits one task."""
        return self.fleet.start(
            name, "tests.crashes.client", key, pool, invoice, probe=probe, environ=self._environ
        )

    def beside(self, name: str, *probe: Trigger, key: str, pool: str, invoice: str) -> Process:
        """Start a process that submits two tasks beside a worker of its own."""
        return self.fleet.start(
            name, "tests.crashes.beside", key, pool, invoice, probe=probe, environ=self._environ
        )

    async def submit(self, agent: str, input: dict[str, Any], **options: Any) -> TaskHandle:
        """Submit a task, and remember that it was accepted."""
        handle = await self.app.submit(agent, input, **options)
        self.accepted.append(handle)
        return handle

    async def fired(self, schedule: str) -> TaskHandle:
        """Wait for the one task of a schedule, and remember that it was accepted."""
        async with asyncio.timeout(PATIENCE_S):
            while (task := (await self.app.schedules.get(schedule)).last_task) is None:
                await self.app.store.wakes.wait("events", 1.0)
        handle = TaskHandle(self.app, "default", task, replayed=False)
        self.accepted.append(handle)
        return handle

    async def ended(self, *handles: TaskHandle) -> list[TaskView]:
        """Wait for the ends of tasks."""
        return list(
            await asyncio.gather(*(self.app.wait(handle.id, timeout=PATIENCE_S) for handle in handles))
        )

    async def ends(self, handle: TaskHandle) -> list[str | None]:
        """Answer how a task's attempts ended."""
        return [one.end for one in await self.app.attempts(handle.id)]

    async def violations(self, *, quiet: bool = True, earlier: Any = None) -> list[Violation]:
        """Ask every checker."""
        return check_all(
            await self.app.store.dump(),
            accepted=[(handle.tenant, handle.id) for handle in self.accepted],
            recorder=[asdict(call) for call in await self.recorder.log()],
            quiet=quiet,
            earlier=earlier,
        )

    async def posts(self) -> dict[str, list[Call]]:
        """Answer the ticket service's POSTs by key."""
        found: dict[str, list[Call]] = {}
        for call in await self.recorder.log():
            if call.method == "POST":
                found.setdefault(str(call.key), []).append(call)
        return found

    @property
    def _environ(self) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {"OUTLAST_DATABASE_URL": self.url, TICKETS_URL: self.recorder.url, "PYTHONPATH": path}


async def gathered(work: Sequence[Any], most: int) -> list[Any]:
    """Run coroutines side by side, a few at a time: processes of a test share two cores."""
    places = asyncio.Semaphore(most)

    async def one(each: Any) -> Any:
        async with places:
            return await each

    return list(await asyncio.gather(*(one(each) for each in work)))


def make_app(url: str, recorder: Recorder) -> Outlast:
    """Make the app that this process submits and looks with."""
    return build(url, recorder.url)
