"""Workers that are killed or frozen at the worst moment, and thaw when others have acted long since."""

from __future__ import annotations

from outlast.drills import crew
from outlast.drills.people.cancelling import answer_of, finals, marked, process_gone
from outlast.drills.people.scene import AMOUNT, WORKER, Played, Scene, invoice_of
from outlast.drills.stage import Check
from outlast.testing.probes import Trigger

__all__ = ["at_the_brink", "buffered", "frozen_before_intent", "frozen_before_the_end", "killed_while_asking"]

_BRINK = "worker.before_suspend"
_BUFFER = 10
_STORM = 4


async def killed_while_asking(scene: Scene, cell: str) -> Played:
    """Kill the worker when its question is on disk, and agree before anybody has noticed its death."""
    async with scene.dooming(cell, Trigger(point="approvals.after_ask", action="kill")) as worker:
        task = await scene.call(cell, "file", pool=cell)
        await worker.exited()
        (asked,) = await scene.asked(task, suspended=False)
        await scene.decide(asked)
        state = (await scene.app.get(task)).state
    await scene.end(task)
    (used,) = await scene.approvals(task)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="how its worker ended", expected="SIGKILL", seen=worker.ending),
            Check(what="the task when it was decided", expected=True, seen=state in ("running", "queued")),
            Check(what="the decision", expected=(asked.id, "used"), seen=(used.id, used.state)),
            Check(what="its attempts", expected=["lost", "succeeded"], seen=await scene.attempts(task)),
        ),
    )


async def frozen_before_intent(scene: Scene, cell: str) -> list[Played]:
    """Freeze a worker with one task before its intent, which is cancelled, and one in a process's step."""
    cancelled, computes = "frozen_before_intent", "process_outlives"
    async with scene.dooming(cell, Trigger(point="effects.before_intent", action="freeze")) as worker:
        other = await scene.submit(
            "computes", {"invoice": invoice_of(computes), "folder": str(scene.folder)}, pool=cell
        )
        pid = await marked(scene, computes, attempt=1)
        task = await scene.call(cancelled, "plain", pool=cell)
        await worker.says("effects.before_intent")
        await worker.stopped()
        answer = await answer_of(scene, task)
    await scene.end(task)
    await scene.end(other)
    calls = len(await scene.posts(computes))
    worker.thaw()
    await process_gone(scene, pid)
    await worker.stop()
    return [
        Played(
            cell=cancelled,
            tasks=(task,),
            checks=(
                Check(what="the answer", expected="requested running", seen=answer),
                Check(what="its final events", expected=["task.cancelled"], seen=await finals(scene, task)),
            ),
        ),
        Played(
            cell=computes,
            tasks=(other,),
            checks=(
                Check(what="calls before the thaw", expected=1, seen=calls),
                Check(what="its attempts", expected=["lost", "succeeded"], seen=await scene.attempts(other)),
            ),
        ),
    ]


async def frozen_before_the_end(scene: Scene, cell: str) -> Played:
    """Freeze a worker between the last step and completion, and cancel everything that it has."""
    async with scene.dooming(cell, Trigger(point="worker.before_end", action="freeze")) as worker:
        tasks = [
            await scene.submit("works", {"seconds": 0.5 if place == 0 else 5.0}, pool=cell)
            for place in range(_STORM)
        ]
        for task in tasks:
            await scene.reached(task, "attempt.started")
        await worker.says("worker.before_end")
        await worker.stopped()
        answers = [await answer_of(scene, task) for task in tasks]
    for task in tasks:
        await scene.end(task)
    worker.thaw()
    await worker.stop()
    ends = [await finals(scene, task) for task in tasks]
    return Played(
        cell=cell,
        tasks=tasks,
        checks=(
            Check(what="the answers", expected=["requested running"] * _STORM, seen=answers),
            Check(what="their final events", expected=[["task.cancelled"]] * _STORM, seen=ends),
        ),
    )


async def buffered(scene: Scene, cell: str) -> Played:
    """Freeze a worker that has claimed ten tasks and begun none, until others have done them."""
    try:
        tasks = [await scene.call(cell, "plain", number=number, pool=cell) for number in range(_BUFFER)]
        worker = await scene.doomed(cell, Trigger(point="worker.claimed", action="freeze"))
        await worker.says("worker.claimed")
        await worker.stopped()
        held = [(await scene.app.get(task)).state for task in tasks]
    finally:
        await scene.gone()
    for task in tasks:
        await scene.end(task)
    worker.thaw()
    await worker.stop()
    attempts = [await scene.attempts(task) for task in tasks]
    return Played(
        cell=cell,
        tasks=tasks,
        checks=(
            Check(what="claimed and not begun", expected=["running"] * _BUFFER, seen=held),
            Check(what="their attempts", expected=[["lost", "succeeded"]] * _BUFFER, seen=attempts),
            Check(
                what="the keys of their calls",
                expected={f"{task}:act-1" for task in tasks},
                seen={call.key for call in await scene.posts(cell)},
            ),
        ),
    )


async def at_the_brink(scene: Scene, cell: str) -> list[Played]:
    """Freeze a worker in the moment of suspending, three times: a signal, a decision and a child's end come
    then."""
    freezes = [Trigger(point=_BRINK, action="freeze", nth=nth) for nth in (1, 2, 3)]
    worker = await crew.start(scene.fleet, WORKER, "brink", (cell,), "calm", *freezes, environ=scene.environ)

    async def brink(nth: int) -> None:
        await worker.says(_BRINK, nth=nth, timeout=crew.PATIENCE_S)
        await worker.stopped()

    listens = await scene.submit("listens", {"count": 1, "pause_s": 0.0}, pool=cell)
    await brink(1)
    await scene.app.signal(listens, "news", "one")
    worker.thaw()
    heard = await scene.told(listens)

    calls = await scene.call("decision_at_the_brink", "file", pool=cell)
    await brink(2)
    (asked,) = await scene.asked(calls, suspended=False)
    await scene.decide(asked)
    worker.thaw()
    told = await scene.told(calls)

    parent = await scene.submit("waits_for_child", {}, pool=cell)
    await brink(3)
    (child,) = await scene.app.list(parent=parent)
    await scene.app.signal(child.id, "news", "two")
    await scene.end(child.id)

    async def delivered() -> bool | None:
        rows = (await scene.app.store.dump())["posts"]
        return None if any(row["task"] == parent for row in rows) else True

    await scene.until(delivered, "the child's end was never delivered")
    worker.thaw()
    result = await scene.told(parent)
    # All attempts but the last one were given up for a wait, and no lease was lost.
    ends = {task: await scene.attempts(task) for task in (listens, calls, parent)}
    await worker.stop()

    def one(name: str, task: str, expected: object, seen: object) -> Played:
        lost = [end for end in ends[task] if end == "lost"]
        return Played(
            cell=name,
            tasks=(task,),
            checks=(
                Check(what="told", expected=expected, seen=seen),
                Check(what="attempts lost", expected=[], seen=lost),
            ),
        )

    return [
        one("signal_at_the_brink", listens, ["one"], heard),
        one("decision_at_the_brink", calls, [AMOUNT], told),
        one("child_at_the_brink", parent, ["two"], result),
    ]
