"""A change of the schema while workers run: what they write goes on, and so do those that begin later."""

from __future__ import annotations

import asyncio
from typing import Final

from outlast.drills.change.scene import Played, Scene, invoice_of
from outlast.drills.database import add_column
from outlast.drills.stage import Check

__all__ = ["schema_change"]

_TABLES: Final = ("tasks", "operations", "queue", "leases")
"""The hottest ones."""
_COLUMN: Final = "drill_note"
_LOAD: Final = 15


async def schema_change(scene: Scene, cell: str) -> Played:
    """Add columns to the hottest tables with tasks in flight, as a migration would that only adds."""
    tasks = [await _submitted(scene, cell, number) for number in range(_LOAD)]
    held = await scene.submit("rolls", {"invoice": invoice_of(cell, _LOAD), "waits": True})
    await scene.suspended(held, "signal")
    coming = asyncio.create_task(_come(scene, cell))
    for table in _TABLES:
        await _alter(scene, table)
    tasks += await coming
    later = await scene.worker("after-the-migration", cell)
    last = await scene.submit("rolls", {"invoice": invoice_of(cell, 99), "waits": False}, pool=cell)
    await scene.app.signal(held, "go")
    tasks += [held, last]
    for task in tasks:
        await scene.end(task)
    dump = await scene.app.store.dump()
    changed = [table for table in _TABLES if all(_COLUMN in row for row in dump[table])]
    return Played(
        cell=cell,
        tasks=tasks,
        checks=(
            Check(what="tables that were changed", expected=list(_TABLES), seen=changed),
            Check(
                what="attempts lost",
                expected=[],
                seen=[task for task in tasks if "lost" in await scene.attempts(task)],
            ),
            Check(what="whether workers still run", expected=True, seen=later.running),
        ),
    )


async def _submitted(scene: Scene, cell: str, number: int) -> str:
    return await scene.submit("rolls", {"invoice": invoice_of(cell, number), "waits": False})


async def _come(scene: Scene, cell: str) -> list[str]:
    tasks = []
    for number in range(_LOAD):
        tasks.append(await _submitted(scene, cell, _LOAD + 1 + number))
        await asyncio.sleep(scene.chance.uniform(0.0, 0.1))
    return tasks


async def _alter(scene: Scene, table: str) -> None:
    """Add a column, however long others hold the table. Raises TimeoutError."""

    async def once() -> bool | None:
        return await add_column(scene.database_url, table, _COLUMN) or None

    await scene.until(once, f"table {table} could not be changed")
