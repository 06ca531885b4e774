"""Signals and callbacks: before, during and after a wait is on record, repeated, altered, too late."""

from __future__ import annotations

import asyncio

from outlast.drills.people.scene import Played, Scene
from outlast.drills.stage import Check
from outlast.errors import InvalidToken, SignalConflict, TaskEnded
from outlast.testing.probes import Trigger

__all__ = ["callback_abused", "killed_before_the_take", "signal_after", "signal_before", "signals_repeated"]


async def signal_before(scene: Scene, cell: str) -> Played:
    """Send it before the task has come to wait for it."""
    task = await scene.submit("listens", {"count": 2, "pause_s": 0.8})
    for word in ("one", "two"):
        await scene.app.signal(task, "news", word)
    told = await scene.told(task)
    return Played(cell=cell, tasks=(task,), checks=(Check(what="told", expected=["one", "two"], seen=told),))


async def signal_after(scene: Scene, cell: str) -> Played:
    """Send it when the wait is on record and nobody lives."""
    task = await scene.submit("listens", {"count": 2, "pause_s": 0.0})
    await scene.suspended(task, "signal")
    await scene.restart.dead(cell)
    for word in ("one", "two"):
        await scene.app.signal(task, "news", word)
    await scene.restart.back(cell)
    told = await scene.told(task)
    return Played(cell=cell, tasks=(task,), checks=(Check(what="told", expected=["one", "two"], seen=told),))


async def signals_repeated(scene: Scene, cell: str) -> Played:
    """Send one signal again and again under one key, before, while and after every worker dies."""
    task = await scene.submit("listens", {"count": 2, "pause_s": 0.0})
    await scene.suspended(task, "signal")

    async def send(data: str, key: str) -> str:
        try:
            return (await scene.app.signal(task, "news", data, key=key)).kind
        except SignalConflict:
            return "conflict"

    answers = list(await asyncio.gather(*(send("one", "k1") for _ in range(5))))
    await scene.restart.dead(cell)
    answers += [await send("one", "k1"), await send("another", "k1")]
    await scene.restart.back(cell)
    await scene.suspended(task, "signal")
    answers.append(await send("one", "k1"))
    answers.append(await send("two", "k2"))
    told = await scene.told(task)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(
                what="answers",
                expected=["accepted", *["replayed"] * 5, "conflict", "replayed", "accepted"],
                seen=[*sorted(answers[:5]), *answers[5:]],
            ),
            Check(what="told", expected=["one", "two"], seen=told),
        ),
    )


async def killed_before_the_take(scene: Scene, cell: str) -> Played:
    """Kill the worker that has read the signal and has not yet put on record that it did."""
    async with scene.dooming(cell, Trigger(point="waits.before_take", action="kill")) as worker:
        task = await scene.submit("listens", {"count": 2, "pause_s": 0.0}, pool=cell)
        await scene.app.signal(task, "news", "one")
        await worker.exited()
    await scene.app.signal(task, "news", "two")
    told = await scene.told(task)
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(what="how its worker ended", expected="SIGKILL", seen=worker.ending),
            Check(what="told", expected=["one", "two"], seen=told),
        ),
    )


async def callback_abused(scene: Scene, cell: str) -> Played:
    """Answer a callback twice, otherwise, with an altered token, and another one too late."""
    task = await scene.submit("calls_back", {})
    tokens = (await scene.reached(task, "progress")).data
    first, second = tokens["first"], tokens["second"]
    await scene.suspended(task, "signal")
    await scene.restart.dead(cell)

    async def answer(token: str, data: object) -> str:
        try:
            return (await scene.app.answer_callback(token, data)).kind
        except (InvalidToken, SignalConflict, TaskEnded) as error:
            return error.code

    altered = first[:-2] + ("AA" if first[-2:] != "AA" else "BB")
    answers = [
        await answer(first, {"paid": True}),
        await answer(first, {"paid": True}),
        await answer(first, {"paid": False}),
        await answer(altered, {"paid": True}),
    ]
    await scene.restart.back(cell)
    told = await scene.told(task)
    # A repeat of what was accepted stays one; what is new comes too late for a task that has ended.
    answers += [await answer(first, {"paid": True}), await answer(second, 1)]
    return Played(
        cell=cell,
        tasks=(task,),
        checks=(
            Check(
                what="answers",
                expected=[
                    "accepted",
                    "replayed",
                    "signal_conflict",
                    "invalid_token",
                    "replayed",
                    "task_ended",
                ],
                seen=answers,
            ),
            Check(what="told", expected=[{"paid": True}, "none in time"], seen=told),
        ),
    )
