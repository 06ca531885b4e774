"""Forks before and after an effect, for tools of every class: one key, one effect."""

from __future__ import annotations

from typing import Final

from outlast.drills.change.scene import Played, Scene, invoice_of
from outlast.drills.stage import Check
from outlast.errors import OperationNotFound, UnsettledPrefix
from outlast.testing.recorder import Rule

__all__ = ["after", "before", "unsettled"]

_TOOL: Final = "file_"


async def _origin(scene: Scene, cell: str, tool: str) -> str:
    return await scene.submit("notes", {"invoice": invoice_of(cell), "tool": tool})


async def _forked(scene: Scene, task: str, key: str | None) -> str:
    handle = await scene.app.fork(task, before=key, reason="another way", by="drill")
    scene.submitted.append(handle.id)
    return handle.id


async def _judged(scene: Scene, cell: str, task: str, fork: str, *more: Check) -> Played:
    told = [await scene.told(each) for each in (task, fork)]
    operation = await scene.operation(fork, "file")
    return Played(
        cell=cell,
        tasks=(task, fork),
        checks=(
            Check(what="different answers that both were given", expected=1, seen=len(set(map(str, told)))),
            Check(
                what="the key in the fork's ledger", expected=f"{task}:file", seen=operation.idempotency_key
            ),
            *more,
        ),
    )


async def before(scene: Scene, cell: str) -> Played:
    """Fork from before an effect; the fork makes the same call."""
    effect = cell.removeprefix("before_")
    task = await _origin(scene, cell, _TOOL + effect)
    await scene.end(task)
    fork = await _forked(scene, task, "file")
    if effect == "manual":
        await scene.suspended(fork, "reconciliation")
        first = await scene.operation(task, "file")
        await scene.settled(fork, "file", first.result)
    return await _judged(scene, cell, task, fork)


async def after(scene: Scene, cell: str) -> Played:
    """Fork from behind an effect; the fork has it in its journal."""
    task = await _origin(scene, cell, _TOOL + cell.removeprefix("after_"))
    await scene.end(task)
    return await _judged(scene, cell, task, await _forked(scene, task, "note"))


async def unsettled(scene: Scene, cell: str) -> Played:
    """Fork from behind a call of which nobody knows; then somebody does."""
    await scene.plan(cell, Rule.act_then_hang(), path="/tickets")
    task = await _origin(scene, cell, "file_in_vain")
    await scene.suspended(task, "reconciliation")
    answers = []
    for key in (None, "note"):
        try:
            answers.append(await _forked(scene, task, key))
        except UnsettledPrefix as error:
            answers.append(f"{error.code} {', '.join(error.keys)}")
        except OperationNotFound as error:
            # What lies behind the call is not there yet.
            answers.append(error.code)
    (call,) = await scene.posts(cell)
    await scene.settled(task, "file", {"id": call.ticket})
    await scene.end(task)
    fork = await _forked(scene, task, "note")
    refused = Check(
        what="the answers", expected=["unsettled_prefix file", "operation_not_found"], seen=answers
    )
    return await _judged(scene, cell, task, fork, refused)
