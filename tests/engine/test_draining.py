"""A worker that stops: what it still waits for."""

from __future__ import annotations

import asyncio
from typing import Any

from outlast.engine.registry import Registry
from outlast.engine.settings import WorkerSettings
from outlast.engine.worker import Worker


async def turns() -> None:
    """Let everything that can go on go on."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_comes_of_late_work_is_waited_for_too() -> None:
    """An answer that comes after its lease is refused by the store, and kept as evidence after that."""
    store: Any = object()
    worker = Worker(Registry(), store, WorkerSettings())
    answered, refused, kept = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer() -> None:
        await answered.wait()
        worker.straggle(asyncio.create_task(keep()))

    async def keep() -> None:
        refused.set()
        await kept.wait()

    worker.straggle(asyncio.create_task(answer()))
    draining = asyncio.create_task(worker._drain())
    await turns()
    answered.set()
    await refused.wait()
    await turns()
    assert not draining.done()
    kept.set()
    await draining


async def test_a_stop_gives_up_what_never_ends(monkeypatch: Any) -> None:
    monkeypatch.setattr("outlast.engine.worker.LATE_S", 0.01)
    store: Any = object()
    worker = Worker(Registry(), store, WorkerSettings(grace_s=0.01))
    never = asyncio.create_task(asyncio.Event().wait())
    worker.straggle(never)
    await worker._drain()
    assert not never.done()
    never.cancel()
