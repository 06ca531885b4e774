"""Undoing, with every fault in the middle of it: what was done is undone once, the newest first."""

from __future__ import annotations

from typing import Final

from outlast.drills.change.scene import Played, Scene, filed, invoice_of, withdrawn
from outlast.drills.stage import Check
from outlast.errors import EffectsUndone
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Rule

__all__ = [
    "answered_badly",
    "cancelled_meanwhile",
    "cancelled_with_undo",
    "killed",
    "order",
    "retry_refused",
    "undo_left",
    "unknown_left",
    "unknown_settled",
]

_WITHDRAW: Final = "/tickets/*/withdraw"
_RULES: Final = {
    "act_hang": Rule.act_then_hang(),
    "act_500": Rule.act_then_answer(500),
    "act_drop": Rule.act_then_reset(),
    "throttled": Rule.refuse(429, retry_after="1"),
}
# The first two passes are of the tickets, the third is of the first withdrawal.
_KILLS: Final = {
    "killed_before_decision": Trigger(point="undo.before_decision", action="kill"),
    "killed_after_decision": Trigger(point="undo.after_decision", action="kill"),
    "killed_before_intent": Trigger(point="effects.before_intent", action="kill", nth=3),
    "killed_after_intent": Trigger(point="effects.after_intent", action="kill", nth=3),
    "killed_after_answer": Trigger(point="http.after_answer", action="kill", nth=3),
}


def _complete(*keys: str) -> dict[str, object]:
    return {"state": "complete", "undone": list(keys), "left": []}


async def _undone(scene: Scene, cell: str, task: str, *more: Check) -> Played:
    """Check that two tickets were withdrawn, the newest first, and that the task says so."""
    said = await scene.undone(task)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="what its end says", expected=_complete("file-2", "file-1"), seen=said),
            Check(what="withdrawn, in order", expected=["2", "1"], seen=withdrawn(await scene.posts(cell))),
            *more,
        ),
    )


async def answered_badly(scene: Scene, cell: str) -> Played:
    """Let the first withdrawal meet a fault of the answer."""
    await scene.plan(cell, _RULES[cell], path=_WITHDRAW)
    # Only what hangs is to run out of time.
    tool = "file_soon" if cell == "act_hang" else "file"
    return await _undone(scene, cell, await scene.regret(cell, tool, tool))


async def killed(scene: Scene, cell: str) -> Played:
    """Kill the worker that undoes."""
    trigger = _KILLS[cell]
    async with scene.dooming(cell, trigger) as worker:
        task = await scene.regret(cell, "file", "file", pool=cell)
        await worker.says(trigger.point, timeout=scene.patience_s)
        await worker.exited()
    how = Check(what="how its worker ended", expected="SIGKILL", seen=worker.ending)
    return await _undone(scene, cell, task, how)


async def order(scene: Scene, cell: str) -> Played:
    """File two tickets at once; the one that was asked for first is answered last."""
    await scene.recorder.hold(cell, Rule().on(path="/tickets", invoice=invoice_of(cell)), at="acted")
    task = await scene.submit("regrets_both", {"invoice": invoice_of(cell)})
    await scene.held(cell)
    (late,) = filed([call for call in await scene.posts(cell) if call.held == cell])

    async def other() -> bool | None:
        done = await scene.events(task, "operation.succeeded")
        return True if done else None

    await scene.until(other, "the other ticket was never answered")
    await scene.recorder.release(cell)
    said = await scene.undone(task)
    soon = "1" if late == "2" else "2"
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="what its end says", expected=_complete(f"file-{late}", f"file-{soon}"), seen=said),
            Check(
                what="withdrawn, in order",
                expected=[late, soon],
                seen=withdrawn(await scene.posts(cell)),
            ),
        ),
    )


async def cancelled_with_undo(scene: Scene, cell: str) -> Played:
    """Cancel a task that waits, and ask for undo."""
    task = await scene.regret(cell, "file", "file", waits=True)
    await scene.suspended(task, "signal")
    reply = await scene.app.cancel(task, reason="not needed", by="drill", undo=True)
    answer = Check(what="the answer", expected="requested", seen=reply.kind)
    return await _undone(scene, cell, task, answer)


async def cancelled_meanwhile(scene: Scene, cell: str) -> Played:
    """Cancel, without asking for undo, a task that has failed and undoes."""
    await scene.hold(cell, path=_WITHDRAW)
    task = await scene.regret(cell, "file", "file")
    await scene.held(cell)
    reply = await scene.app.cancel(task, reason="enough", by="drill")
    await scene.reached(task, "task.cancel_requested")
    await scene.recorder.release(cell)
    await scene.end(task)
    finals = [
        event.kind
        for event in await scene.app.stored_events(task)
        if event.kind in ("task.failed", "task.cancelled")
    ]
    return await _undone(
        scene,
        cell,
        task,
        Check(what="the answer", expected="requested", seen=reply.kind),
        Check(what="its final events", expected=["task.cancelled"], seen=finals),
    )


async def _cut(scene: Scene, cell: str, tool: str) -> str:
    """Cancel with undo while the second call is under way, whose answer does not come in time."""
    await scene.hold(cell, nth=2)
    task = await scene.regret(cell, "file", tool)
    await scene.held(cell)
    await scene.app.cancel(task, reason="not needed", by="drill", undo=True)
    return task


async def unknown_settled(scene: Scene, cell: str) -> Played:
    """Undo while nobody knows of a call that can be asked about."""
    task = await _cut(scene, cell, "file_queryable")
    played = await _undone(scene, cell, task)
    settled = await scene.operation(task, "file-2")
    await scene.recorder.release(cell)
    # By whoever asks first: its worker, or the settler while it has none.
    by_evidence = settled.settled_by in ("worker", "settler")
    seen = (settled.state, "by evidence" if by_evidence else settled.settled_by)
    check = Check(what="the call that was unknown", expected=("succeeded", "by evidence"), seen=seen)
    return Played(cell=cell, tasks=played.tasks, checks=(*played.checks, check))


async def unknown_left(scene: Scene, cell: str) -> Played:
    """Undo while nobody can know of a call: it is a person's, and the rest is undone."""
    task = await _cut(scene, cell, "file_manual")
    said = await scene.undone(task)
    view = await scene.app.get(task)
    left = await scene.a_persons(task, "file-2")
    posts = await scene.posts(cell)
    ticket = next(call.ticket for call in posts if call.effect == "created" and call.body["amount"] == "2")
    settled = await scene.settled(task, "file-2", {"id": ticket})
    await scene.recorder.release(cell)
    expected = {"state": "incomplete", "undone": ["file-1"], "left": ["file-2"]}
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="what its end says", expected=expected, seen=said),
            Check(what="effects that were open at its end", expected=1, seen=view.effects_open),
            Check(what="whether it lies before people", expected=True, seen=left),
            Check(what="withdrawn", expected=["1"], seen=withdrawn(posts)),
            Check(what="settled by a person", expected="succeeded", seen=settled),
        ),
    )


async def undo_left(scene: Scene, cell: str) -> Played:
    """Lose the answer of a withdrawal that nobody can ask about, in the middle of three."""
    await scene.recorder.plan(
        Rule.act_then_reset().on(path=_WITHDRAW, invoice=invoice_of(cell), nth=2),
    )
    task = await scene.regret(cell, "file", "file_for_good", "file")
    said = await scene.undone(task)
    left = await scene.a_persons(task, "file-2/undo")
    posts = await scene.posts(cell)
    settled = await scene.settled(task, "file-2/undo")
    expected = {"state": "incomplete", "undone": ["file-3", "file-1"], "left": ["file-2"]}
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="what its end says", expected=expected, seen=said),
            Check(what="whether it lies before people", expected=True, seen=left),
            Check(what="withdrawn, in order", expected=["3", "2", "1"], seen=withdrawn(posts)),
            Check(what="settled by a person", expected="succeeded", seen=settled),
        ),
    )


async def retry_refused(scene: Scene, cell: str) -> Played:
    """Try a task again whose effects were undone."""
    task = await scene.regret(cell, "file", "file")
    await scene.end(task)
    try:
        answer = f"round {await scene.app.retry(task, reason='again', by='drill')}"
    except EffectsUndone as error:
        answer = error.code
    view = await scene.app.get(task)
    return await _undone(
        scene,
        cell,
        task,
        Check(what="the answer", expected="effects_undone", seen=answer),
        Check(what="its round", expected=1, seen=view.round),
    )
