"""Trying again after each kind of failure: what succeeded is not done again."""

from __future__ import annotations

from typing import Final

from outlast.drills.change.scene import STEADY, Played, Scene, invoice_of
from outlast.drills.stage import Check
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Rule

__all__ = ["after_cancel", "after_crashes", "after_deadline", "after_failure"]

_DEADLINE_S: Final = 6.0
_DEATHS: Final = 3
_HOW: Final = {"refused": "ends", "declined": "ends", "raised": "raises", "failed_step": "step"}
_CODES: Final = {
    "refused": "tool_failed",
    "declined": "tool_rejected",
    "raised": "agent_error",
    "failed_step": "step_failed",
}


async def _submitted(scene: Scene, cell: str, how: str, *, tool: str = "file", pool: str = STEADY) -> str:
    return await scene.submit("tries", {"invoice": invoice_of(cell), "tool": tool, "how": how}, pool=pool)


async def _tried_again(scene: Scene, cell: str, task: str, code: str, *, go: bool = False) -> Played:
    """Wait for the failure, open the next round, and wait for its end."""
    first = await scene.end(task)
    opened = await scene.app.retry(task, reason="the fault is found", by="drill")
    if go:
        await scene.app.signal(task, "go")

    async def over() -> bool | None:
        view = await scene.app.get(task)
        return True if view.round == 2 and view.ended_at is not None else None

    await scene.until(over, "its second round never ended")
    posts = await scene.posts(cell)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="why it failed", expected=code, seen=(first.error or {}).get("code")),
            Check(what="the round that was opened", expected=2, seen=opened),
            Check(what="keys of its calls", expected={f"{task}:file"}, seen={call.key for call in posts}),
        ),
    )


async def after_failure(scene: Scene, cell: str) -> Played:
    """Fail as the cell says, and be tried again."""
    if cell == "refused":
        await scene.plan(cell, Rule.refuse(503), path="/tickets")
    elif cell == "declined":
        await scene.plan(cell, Rule.refuse(422), path="/tickets")
    tool = "file_once" if cell == "refused" else "file"
    task = await _submitted(scene, cell, _HOW[cell], tool=tool)
    return await _tried_again(scene, cell, task, _CODES[cell])


async def after_deadline(scene: Scene, cell: str) -> Played:
    """Let a task's time run out while it waits."""
    input = {"invoice": invoice_of(cell), "tool": "file", "how": "waits"}
    task = await scene.submit("tries", input, deadline=_DEADLINE_S)
    return await _tried_again(scene, cell, task, "deadline_exceeded", go=True)


async def after_cancel(scene: Scene, cell: str) -> Played:
    """Cancel a task, without undo, and think better of it."""
    task = await _submitted(scene, cell, "waits")
    await scene.suspended(task, "signal")
    await scene.app.cancel(task, reason="by mistake", by="drill")
    return await _tried_again(scene, cell, task, "cancelled", go=True)


async def after_crashes(scene: Scene, cell: str) -> Played:
    """Let the task's worker die in three attempts one after the other, so that it is parked."""
    dies = Trigger(point="worker.loaded", action="kill")
    try:
        task = await _submitted(scene, cell, "ends", pool=cell)
        endings = []
        for _ in range(_DEATHS):
            worker = await scene.doomed(cell, dies)
            await worker.exited(timeout=scene.patience_s)
            endings.append(worker.ending)
    finally:
        await scene.gone()
    played = await _tried_again(scene, cell, task, "crash_loop")
    how = Check(what="how its workers ended", expected=["SIGKILL"] * _DEATHS, seen=endings)
    return Played(cell=cell, tasks=played.tasks, checks=(how, *played.checks))
