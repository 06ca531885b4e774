"""The app that the workloads run: one trivial step, ten of them, ten effectful ones, and a task that
waits."""

from __future__ import annotations

from typing import Any

from outlast import Outlast, TaskContext, ToolCall
from outlast.store.contract import Store


async def step() -> int:
    """Do as little as a step can."""
    return 1


def make_app(url: str | None = None, store: Store | None = None) -> Outlast:
    """Make the measured app over a URL or a store."""
    app = Outlast("bench", database_url=url, store=store)

    @app.tool(effect="idempotent")
    async def touch(call: ToolCall, number: int) -> int:
        async with call.sending():
            return number

    @app.agent
    async def one(task: TaskContext) -> int:
        return int(await task.step(step))

    @app.agent
    async def ten(task: TaskContext) -> int:
        total = 0
        for _ in range(10):
            total += await task.step(step)
        return total

    @app.agent
    async def effects(task: TaskContext) -> int:
        total = 0
        for number in range(10):
            total += await task.call(touch, number=number)
        return total

    @app.agent
    async def napping(task: TaskContext) -> int:
        await task.sleep("1h")
        return 1

    return app


app: Any = make_app()
"""For ``outlast serve bench.apps:app`` in the HTTP measurement."""
