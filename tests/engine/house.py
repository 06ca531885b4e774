"""An app and its workers in one process, with all that tests of the engine ask again and again."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from types import TracebackType
from typing import Any

from outlast import Outlast
from outlast.engine.settings import WorkerSettings
from outlast.engine.worker import Worker
from outlast.handle import TaskHandle
from outlast.store.contract import Store
from outlast.store.rows import OperationFilter
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.checkers import Violation, check_all
from outlast.testing.recorder import Recorder
from outlast.views import EventView, OperationView, QueueView, TaskView

PATIENCE_S = 20.0


class House:
    """An open app. Workers are quick to suspend, so that a wait is a replay."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.app = Outlast("tests", store=store)
        self.workers: list[tuple[Worker, asyncio.Task[None]]] = []

    async def __aenter__(self) -> House:
        await self.app.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def start(self, *, app: Outlast | None = None, **settings: Any) -> Worker:
        """Start a worker in this process. app: whose agents it serves, such as those of another deploy."""
        quick = {"poll_s": 0.05, "sweep_s": 0.05, "linger_s": 0.0, "grace_s": 2.0, "lease_s": 5.0}
        worker = (app or self.app).worker(WorkerSettings(**{**quick, **settings}))
        self.workers.append((worker, asyncio.create_task(worker.run())))
        return worker

    async def stop(self) -> None:
        """Stop every worker; a fault of one is raised."""
        workers, self.workers = self.workers, []
        for worker, _ in workers:
            worker.stop()
        for _, task in workers:
            async with asyncio.timeout(PATIENCE_S):
                await task

    def deploy(self) -> Outlast:
        """Make another app over the same store, for other code of the same agents."""
        return Outlast("tests", store=self.store, secret="s" * 32)

    async def submit(self, agent: Any, /, **input: Any) -> TaskHandle:
        """Submit a task."""
        return await self.app.submit(agent, input)

    async def run(self, agent: Any, /, **input: Any) -> TaskView:
        """Submit a task, start a worker if there is none, and wait for its end."""
        handle = await self.submit(agent, **input)
        if not self.workers:
            self.start()
        return await self.ended(handle)

    async def ended(self, handle: TaskHandle) -> TaskView:
        """Wait for a task's end."""
        return await self.app.wait(handle.id, timeout=PATIENCE_S)

    async def waits(self, handle: TaskHandle, reason: str) -> TaskView:
        """Wait until a task waits for a reason."""
        async with asyncio.timeout(PATIENCE_S):
            async for event in handle.events():
                if event.kind == "task.waiting" and event.data["reason"] == reason:
                    view = await handle.get()
                    if (view.state, view.reason) == ("waiting", reason):
                        return view
        raise AssertionError(f"the task ended without waiting for {reason}")

    async def reached(self, handle: TaskHandle, kind: str, *, after: int = 0) -> EventView:
        """Wait for a task's first event of a kind, and answer it. after: the last event before it."""
        async with asyncio.timeout(PATIENCE_S):
            async for event in handle.events(after=after):
                if event.kind == kind:
                    return event
        raise AssertionError(f"the task ended without {kind}")

    async def place(self, operation: str) -> QueueView | None:
        """Answer an operation's place in the reconciliation queue."""
        (place,) = await self.app.operations.places([operation])
        return place

    async def events(self, handle: TaskHandle) -> list[EventView]:
        """Answer a task's kept events."""
        return list(await self.app.stored_events(handle.id))

    async def operations(self, handle: TaskHandle | TaskView) -> dict[str, OperationView]:
        """Answer a task's ledger by key, with all values."""
        query = OperationFilter(tenant=DEFAULT_TENANT, task=handle.id)
        return {row.key: OperationView.of(row) for row in await self.store.list_operations(query)}

    async def violations(self, recorder: Recorder | None = None, *, quiet: bool = True) -> list[Violation]:
        """Ask every checker."""
        log = None if recorder is None else [asdict(call) for call in await recorder.log()]
        return check_all(await self.store.dump(), recorder=log, quiet=quiet)
