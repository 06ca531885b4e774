"""Cancels: around completion, while a call is in flight, of whole families, of code that cannot be told."""

from __future__ import annotations

import asyncio

from outlast.drills.people.scene import STEADY, Played, Scene, invoice_of
from outlast.drills.stage import Check
from outlast.errors import TaskEnded
from outlast.testing.pids import lives
from outlast.testing.recorder import Rule

__all__ = ["answer_of", "deadline_ignored", "family", "finals", "in_flight", "process_step", "storm"]

_FINAL = ("task.succeeded", "task.failed", "task.cancelled")
_STORM = 40
_AGREES = {
    ("cancelled cancelled", "cancelled"),
    ("requested running", "cancelled"),
    ("ended succeeded", "succeeded"),
}
"""What a cancel may be answered, and how the task ends then."""


async def answer_of(scene: Scene, task: str) -> str:
    """Cancel a task; answer what was answered, in a few words."""
    try:
        reply = await scene.app.cancel(task, reason="drill", by="kim")
    except TaskEnded as error:
        return f"ended {error.state}"
    return f"{reply.kind} {reply.state}"


async def finals(scene: Scene, task: str) -> list[str]:
    """Answer a task's final events."""
    return [event.kind for event in await scene.app.stored_events(task) if event.kind in _FINAL]


async def storm(scene: Scene, cell: str) -> Played:
    """Cancel many tasks at random moments around their last commit."""
    wrong: list[object] = []
    ends: set[str] = set()

    async def one(number: int) -> None:
        seconds = scene.chance.uniform(0.0, 0.2)
        task = await scene.submit("works", {"seconds": seconds}, pool=STEADY)
        await asyncio.sleep(scene.chance.uniform(0.0, 0.5))
        answer = await answer_of(scene, task)
        view = await scene.end(task)
        ends.add(view.state)
        last = await finals(scene, task)
        if (answer, view.state) not in _AGREES or last != [f"task.{view.state}"]:
            wrong.append((number, answer, view.state, last))

    await asyncio.gather(*(one(number) for number in range(_STORM)))
    return Played(
        cell=cell,
        checks=(
            Check(what="answers that do not agree with the end", expected=[], seen=wrong),
            Check(what="other ends", expected=set(), seen=ends - {"cancelled", "succeeded"}),
        ),
    )


async def in_flight(scene: Scene, cell: str) -> Played:
    """Cancel while a call is under way whose answer does not come within the grace time."""
    rule = Rule().on(method="POST", invoice=invoice_of(cell))
    await scene.recorder.hold(cell, rule, at="acted")
    task = await scene.call(cell, "plain", "1", "2")
    operation = f"{task}:act-1"
    await scene.recorder.wait_for(method="POST", key=operation, held=cell, timeout=40.0)
    answer = await answer_of(scene, task)
    ended = await scene.end(task)
    queued = [one.id for one in await scene.app.operations.list(task=task, state="unknown")]
    await scene.recorder.release(cell)
    (call,) = await scene.posts(cell)
    await scene.app.operations.settle(
        operation, "happened", reason="it is on the list", by="kim", result={"id": call.ticket, "amount": "1"}
    )
    settled, _ = await scene.app.operations.show(operation)
    after = await scene.app.get(task)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="the answer", expected="requested running", seen=answer),
            Check(what="the end", expected=("cancelled", 1), seen=(ended.state, ended.effects_open)),
            Check(what="open in the ledger", expected=[operation], seen=queued),
            Check(
                what="settled later",
                expected=("succeeded", "person:kim"),
                seen=(settled.state, settled.settled_by),
            ),
            Check(what="the task after that", expected="cancelled", seen=after.state),
            Check(what="its final events", expected=["task.cancelled"], seen=await finals(scene, task)),
        ),
    )


async def family(scene: Scene, cell: str) -> Played:
    """Cancel a task whose children have children."""
    root = await scene.submit("tree", {"depth": 2, "width": 2})

    async def all_there() -> list[str] | None:
        found, level = [root], [root]
        for _ in range(2):
            level = [one.id for parent in level for one in await scene.app.list(parent=parent)]
            found += level
        states = [(await scene.app.get(task)).state for task in found]
        return found if len(found) == 7 and set(states) == {"waiting"} else None

    tasks = await scene.until(all_there, "the family never waited as a whole")
    answer = await answer_of(scene, root)
    for task in tasks:
        await scene.end(task)
    ends = [await finals(scene, task) for task in tasks]
    return Played(
        cell=cell,
        tasks=tasks,
        checks=(
            Check(what="the answer", expected="cancelled cancelled", seen=answer),
            Check(what="their final events", expected=[["task.cancelled"]] * 7, seen=ends),
        ),
    )


async def process_step(scene: Scene, cell: str) -> Played:
    """Cancel a step in a process of its own that computes and never looks up."""
    task = await scene.submit("computes", {"invoice": invoice_of(cell), "folder": str(scene.folder)})
    pid = await marked(scene, cell, attempt=1)
    answer = await answer_of(scene, task)
    await scene.end(task)
    await process_gone(scene, pid)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="the answer", expected="requested running", seen=answer),
            Check(what="its attempts", expected=["cancelled"], seen=await scene.attempts(task)),
        ),
    )


async def marked(scene: Scene, cell: str, *, attempt: int) -> int:
    """Wait until the process of a computing step has begun; answer its number."""
    mark = scene.folder / f"computes-{attempt}-{invoice_of(cell)}"

    async def look() -> int | None:
        return int(mark.read_text()) if mark.exists() else None

    return await scene.until(look, f"the step's process of attempt {attempt} never began")


async def process_gone(scene: Scene, pid: int) -> None:
    """Wait until a process is gone."""

    async def look() -> bool | None:
        return None if lives(pid) else True

    await scene.until(look, f"process {pid} of a step runs on")


async def deadline_ignored(scene: Scene, cell: str) -> Played:
    """A task whose time is over; its agent swallows every cancellation and goes on to call."""
    input = {"invoice": invoice_of(cell), "over_s": 3.0}
    task = await scene.submit("stubborn", input, deadline=8.0)
    await scene.recorder.wait_for(method="POST", key=f"{task}:act-1", ended=True, timeout=40.0)
    scene.restart.in_time(cell)
    view = await scene.end(task)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(
                what="why it failed",
                expected="deadline_exceeded",
                seen=None if view.error is None else view.error["code"],
            ),
            Check(what="sent", expected=["1"], seen=await scene.sent(cell)),
        ),
    )
