"""The app that the workloads run: one trivial step, ten of them, ten effectful ones, a call that people agree
to, children, and tasks that wait."""

from __future__ import annotations

import asyncio
from typing import Any

from outlast import Ask, Outlast, TaskContext, ToolCall
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

    @app.tool(effect="idempotent", approval=lambda number: Ask("each one"))
    async def touch_if_agreed(call: ToolCall, number: int) -> int:
        async with call.sending():
            return number

    @app.agent
    async def approved(task: TaskContext) -> int:
        return int(await task.call(touch_if_agreed, number=1))

    @app.agent
    async def fan_out(task: TaskContext, count: int) -> int:
        children = [task.spawn(one) for _ in range(count)]
        return sum(await asyncio.gather(*(child.result() for child in children)))

    @app.agent
    async def signalled(task: TaskContext) -> Any:
        return await task.wait("go")

    @app.agent
    async def napping(task: TaskContext) -> int:
        await task.sleep("1h")
        return 1

    return app


app: Any = make_app()
"""For ``outlast serve bench.apps:app`` in the HTTP measurement."""
