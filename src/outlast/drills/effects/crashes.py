"""Faults of the worker while the other side holds its answers: killed then, or frozen until it is too late.

One worker process carries the calls of all effect classes; the service holds every answer at a barrier, so
that the worker can be stopped while all of them stand between the act and the outcome.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from outlast.drills.effects.matrix import Cell
from outlast.drills.effects.scene import CALL, PATIENCE_S, Played, Scene
from outlast.drills.fleet import Process
from outlast.drills.stage import Check
from outlast.testing.recorder import Rule

__all__ = ["play"]


async def play(scene: Scene, cells: Sequence[Cell]) -> list[Played]:
    """Play all cells of one fault."""
    fault = cells[0].fault.name
    async with scene.dooming(fault) as worker:
        tasks = await _held(scene, cells, fault)
        await _stop(worker, fault)
        if fault != "late_refusal":
            await scene.release(fault)
    if fault == "late_refusal":
        await _second_attempt(scene, cells, tasks, worker)
    for task in tasks.values():
        await scene.end(task)
    if fault == "late_answer":
        worker.thaw()
        for task in tasks.values():
            await scene.late(task)
    how = Check(what="how its worker ended", expected="SIGKILL", seen=worker.ending)
    checks = (how,) if fault == "killed" else ()
    return [Played(cell=cell, tasks=(tasks[cell.name],), checks=checks) for cell in cells]


async def _held(scene: Scene, cells: Sequence[Cell], name: str) -> dict[str, str]:
    """Submit all cells and wait until the service holds the call of each; answer their tasks."""
    for cell in cells:
        if name == "late_refusal":
            await scene.hold(cell, name, Rule.refuse(422), at="arrived")
            await scene.hold(cell, _second(name), Rule(), at="arrived")
        else:
            await scene.hold(cell, name, Rule(), at="acted")
    tasks = {cell.name: await scene.submit(cell, pool=name) for cell in cells}
    for cell in cells:
        await _stands(scene, cell, tasks[cell.name], name)
    return tasks


async def _stands(scene: Scene, cell: Cell, task: str, barrier: str) -> None:
    key = f"{task}:{CALL}"
    await scene.recorder(cell).wait_for(method=cell.method, key=key, held=barrier, timeout=PATIENCE_S)


async def _stop(worker: Process, fault: str) -> None:
    if fault == "killed":
        worker.kill()
        await worker.exited()
    else:
        worker.send(signal.SIGSTOP)
        await worker.stopped()


async def _second_attempt(
    scene: Scene, cells: Sequence[Cell], tasks: dict[str, str], worker: Process
) -> None:
    """Let every second attempt begin, then the first one's refusal arrive, then the second one end."""
    fault = cells[0].fault.name
    for cell in cells:
        if cell.right.person:
            scene.clerk.order(cell, "send_again")
    await asyncio.gather(*(_stands(scene, cell, tasks[cell.name], _second(fault)) for cell in cells))
    await scene.release(fault)
    worker.thaw()
    for task in tasks.values():
        await scene.late(task)
    await scene.release(_second(fault))


def _second(fault: str) -> str:
    return f"{fault}-again"
