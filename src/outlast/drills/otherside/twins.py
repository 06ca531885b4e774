"""Twins of one request: that race, die, freeze, come late, or say something else."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httpx2

from outlast.drills.otherside.scene import Played, Scene, label
from outlast.drills.stage import Check

__all__ = [
    "after_retention",
    "another_client",
    "at_once",
    "frozen_first",
    "given_back",
    "killed_after",
    "killed_before",
    "older_epoch",
    "other_content",
    "racing",
]

TWINS: Final = 200
RETENTION_S: Final = 6.0
"""Of the service ``narrow``: long enough that a repeat on a loaded machine comes within it."""


async def racing(scene: Scene, cell: str) -> Played:
    """Send two hundred twins at once, to two processes."""
    services = await asyncio.gather(scene.service("one"), scene.service("two"))
    answers = await asyncio.gather(*(services[number % 2].post(cell) for number in range(TWINS)))
    firsts = sum("idempotent-replayed" not in answer.headers for answer in answers)
    return Played(
        cell=cell,
        told=[label(answer) for answer in answers],
        checks=(
            Check(what="different answers", expected=1, seen=len({answer.content for answer in answers})),
            Check(what="answers that are no repeat", expected=1, seen=firsts),
        ),
    )


async def at_once(scene: Scene, cell: str) -> Played:
    """Send twins that do not wait while the first works."""
    service = await scene.service("narrow-patient", timeout="60s", retention="1h")
    first = asyncio.create_task(service.post(cell, door=cell))
    await service.began(cell)
    twins = await asyncio.gather(*(service.post(cell, door=cell) for _ in range(20)))
    await service.open(cell)
    told = [label(answer) for answer in (await first, *twins)]
    waits = {twin.headers.get("retry-after") for twin in twins}
    return Played(cell=cell, told=told, checks=(Check(what="Retry-After", expected={"1"}, seen=waits),))


async def _killed(scene: Scene, cell: str, **body: Any) -> Played:
    dying, heir = await asyncio.gather(scene.service(f"doomed-{cell}"), scene.service("heir"))
    try:
        told = [label(await dying.post(cell, **body))]
    except httpx2.HTTPError:
        told = ["nothing"]
    await dying.process.exited()
    taken = await heir.post(cell, **body)
    again = await heir.post(cell, **body)
    return Played(
        cell=cell,
        told=[*told, label(taken), label(again)],
        checks=(
            Check(what="how the first ended", expected="SIGKILL", seen=dying.process.ending),
            Check(what="takeovers that the handler was told of", expected=1, seen=taken.json()["takeover"]),
        ),
    )


async def killed_before(scene: Scene, cell: str) -> Played:
    """Kill the process of the first before it acts."""
    return await _killed(scene, cell, die_before=True)


async def killed_after(scene: Scene, cell: str) -> Played:
    """Kill the process of the first after it has acted, before it answers."""
    return await _killed(scene, cell, then="die")


async def frozen_first(scene: Scene, cell: str) -> Played:
    """Freeze the process of the first after it has acted, until another has taken over, and thaw it."""
    frozen, heir = await asyncio.gather(scene.service(f"doomed-{cell}"), scene.service("heir"))
    first = asyncio.create_task(frozen.post(cell, then="freeze"))
    await frozen.process.stopped()
    taken = await heir.post(cell, then="freeze")
    frozen.process.thaw()
    thawed = await first
    again = await heir.post(cell, then="freeze")
    return Played(
        cell=cell,
        told=[label(taken), label(thawed), label(again)],
        checks=(
            Check(what="what the thawed one answers", expected=taken.content, seen=thawed.content),
            Check(what="what is kept", expected=taken.content, seen=again.content),
        ),
    )


async def other_content(scene: Scene, cell: str) -> Played:
    """Send another amount under the same key."""
    service = await scene.service("one")
    answers = [await service.post(cell, amount=amount) for amount in ("118.50", "180.00", "118.50")]
    return Played(cell=cell, told=[label(answer) for answer in answers])


async def older_epoch(scene: Scene, cell: str) -> Played:
    """Send for a task under epoch 2, and then, under other keys too, as the worker that lost it."""
    service = await scene.service("two")
    told = []
    for epoch, key in ((2, cell), (1, cell), (1, f"{cell}-2"), (2, cell)):
        headers = {"Outlast-Task": f"task-{cell}", "Outlast-Epoch": str(epoch)}
        told.append(label(await service.post(cell, key=key, headers=headers)))
    return Played(
        cell=cell,
        told=told,
        checks=(
            Check(
                what="answers in turn",
                expected=["201", "stale_epoch", "stale_epoch", "replayed_201"],
                seen=told,
            ),
        ),
    )


async def after_retention(scene: Scene, cell: str) -> Played:
    """Send a key again while it is known, and again when its time is over."""
    service = await scene.service("narrow")
    told = [label(await service.post(cell)) for _ in range(2)]
    await asyncio.sleep(RETENTION_S + 0.2)
    told.append(label(await service.post(cell)))
    return Played(
        cell=cell,
        told=told,
        checks=(Check(what="answers in turn", expected=["201", "replayed_201", "201"], seen=told),),
    )


async def another_client(scene: Scene, cell: str) -> Played:
    """Use one key as two clients."""
    service = await scene.service("one")
    told = [label(await service.post(cell, headers={"X-Client": name})) for name in ("a", "b", "a")]
    return Played(cell=cell, told=told)


async def given_back(scene: Scene, cell: str) -> Played:
    """Answer 503 the first time, which says that nothing was processed."""
    service = await scene.service("one")
    told = [label(await service.post(cell, unavailable=True)) for _ in range(3)]
    return Played(
        cell=cell,
        told=told,
        checks=(Check(what="answers in turn", expected=["503", "201", "replayed_201"], seen=told),),
    )
