"""A worker that freezes after its last look at its lease and sends when it thaws, long after others acted."""

from __future__ import annotations

import asyncio

from outlast.drills.effects.matrix import Cell
from outlast.drills.effects.scene import CALL, PATIENCE_S, Played, Scene
from outlast.drills.stage import Check
from outlast.testing.probes import Trigger

__all__ = ["play"]

_POINT = "http.before_send"
_SETTLED_S = 10.0
"""How long the late answer may take to settle what waits, before the person does."""


async def play(scene: Scene, cell: Cell) -> Played:
    """Play one cell with a worker of its own."""
    sends_once = cell.right.calls == 1
    async with scene.dooming(f"frozen_{cell.effect}", Trigger(point=_POINT, action="freeze")) as worker:
        if sends_once:
            scene.clerk.keep_off(cell)
        task = await scene.submit(cell, pool=f"frozen_{cell.effect}")
        await worker.says(_POINT)
        await worker.stopped()
    checks = []
    if sends_once:
        # Nothing may follow from absence while the old sender may still send.
        await _until_stuck(scene, cell, task)
        seen = len(await scene.acts(cell))
        checks.append(Check(what="calls before the thaw", expected=0, seen=seen))
    else:
        await scene.end(task)
    worker.thaw()
    await scene.recorder(cell).wait_for(
        calls=cell.right.calls + sum(check.seen for check in checks),
        method=cell.method,
        key=f"{task}:{CALL}",
        ended=True,
        timeout=PATIENCE_S,
    )
    await scene.late(task)
    if sends_once:
        try:
            await scene.app.wait(task, timeout=_SETTLED_S)
        except TimeoutError:
            scene.clerk.allow(cell)
            await scene.end(task)
    return Played(cell=cell, tasks=(task,), checks=checks)


async def _until_stuck(scene: Scene, cell: Cell, task: str) -> None:
    """Wait until a cell's operation needs a person, or its task ended although it should not have."""
    waits = (
        asyncio.ensure_future(scene.clerk.queued(cell, PATIENCE_S)),
        asyncio.ensure_future(scene.end(task)),
    )
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
