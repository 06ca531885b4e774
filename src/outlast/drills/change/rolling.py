"""Old and new workers side by side under load: an upgrade that rolls on, and one that rolls back."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from outlast.drills.change.agents import ROLLED
from outlast.drills.change.scene import Played, Scene, invoice_of
from outlast.drills.stage import Check
from outlast.views import TaskView

__all__ = ["roll"]

_POOL: Final = "rolling"
_UP, _DOWN = "rolling_upgrade", "rolling_downgrade"
_HELD: Final = 5
"""Tasks that are in flight over each change of the workers."""
_LOAD: Final = 10
"""Tasks that come in each phase beside them."""


async def roll(scene: Scene, _: str) -> list[Played]:
    """Bring in the new version beside the old, take the old away; then back again."""
    load = _Load(scene)
    old = await scene.worker("rolling-old", _POOL)
    held = await load.held(_UP)
    load.begin(_UP)
    new = await scene.worker("rolling-new", _POOL, generation=ROLLED)
    load.begin(_UP)
    await load.served("2")
    await old.stop()
    for task in held:
        await scene.app.signal(task, "go")
    await load.over(_UP)

    newer = await load.held(_DOWN)
    old = await scene.worker("rolling-old-again", _POOL)
    load.begin(_DOWN)
    await new.stop()
    for task in newer:
        await scene.app.signal(task, "go")
    load.begin(_DOWN)
    left = await load.left_for("2", _DOWN)
    stand = [(view.state, view.version) for view in [await scene.app.get(task) for task in newer]]
    needed = {
        (row.agent, row.version): (row.queued, row.served_by) for row in await scene.app.versions.list()
    }
    await scene.worker("rolling-new-again", _POOL, generation=ROLLED)
    await load.over(_DOWN)
    return [
        await load.judged(
            _UP,
            Check(
                what="versions of what was in flight",
                expected=["1"] * _HELD,
                seen=[(await scene.app.get(task)).version for task in held],
            ),
        ),
        await load.judged(
            _DOWN,
            Check(
                what="what was in flight, while nobody served it",
                expected=[("queued", "2")] * _HELD,
                seen=stand,
            ),
            Check(what="and how that was seen", expected=(left, 0), seen=needed.get(("rolls", "2"))),
            Check(
                what="attempts of what was in flight",
                expected=[["suspended", "succeeded"]] * _HELD,
                seen=[await scene.attempts(task) for task in newer],
            ),
        ),
    ]


class _Load:
    """Tasks that come all the time."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._tasks: dict[str, list[str]] = {_UP: [], _DOWN: []}
        self._coming: list[asyncio.Task[None]] = []

    async def held(self, cell: str) -> list[str]:
        """Submit tasks that wait for a signal; answer them once they do."""
        tasks = [await self._submit(cell, waits=True) for _ in range(_HELD)]
        for task in tasks:
            await self._scene.suspended(task, "signal")
        return tasks

    def begin(self, cell: str) -> None:
        """Let more tasks come from now on, while the drill goes on."""
        self._coming.append(asyncio.create_task(self._come(cell)))

    async def _come(self, cell: str) -> None:
        for _ in range(_LOAD):
            await self._submit(cell, waits=False)
            await asyncio.sleep(self._scene.chance.uniform(0.0, 0.1))

    async def _submit(self, cell: str, *, waits: bool) -> str:
        invoice = invoice_of(cell, len(self._tasks[cell]))
        task = await self._scene.submit("rolls", {"invoice": invoice, "waits": waits}, pool=_POOL)
        self._tasks[cell].append(task)
        return task

    async def served(self, version: str) -> None:
        """Wait until something has come to a version; more comes until it has."""

        async def look() -> bool | None:
            await self._submit(_UP, waits=False)
            views = [await self._scene.app.get(task) for task in self._tasks[_UP]]
            return True if any(view.version == version for view in views) else None

        await self._scene.until(look, f"nothing ever ran under version {version}")

    async def over(self, cell: str) -> None:
        """Wait until everything that came has ended."""
        await self._come_to_an_end()
        for task in self._tasks[cell]:
            await self._scene.end(task)

    async def left_for(self, version: str, cell: str) -> int:
        """Wait until everything has ended but what is bound to a version; answer how much that is."""
        await self._come_to_an_end()
        left = 0
        for task in self._tasks[cell]:

            async def look(task: str = task) -> TaskView | None:
                view = await self._scene.app.get(task)
                waits = (view.state, view.version) == ("queued", version)
                return view if waits or view.ended_at is not None else None

            view = await self._scene.until(look, "a task that is served did not end")
            left += view.ended_at is None
        return left

    async def _come_to_an_end(self) -> None:
        coming, self._coming = self._coming, []
        await asyncio.gather(*coming)

    async def judged(self, cell: str, *more: Check) -> Played:
        """Check that each task ran under one version from its first mark to its last, and lost nothing."""
        views = [await self._scene.app.get(task) for task in self._tasks[cell]]
        keys = Counter(call.key for call in await self._scene.posts(cell))
        return Played(
            cell=cell,
            tasks=self._tasks[cell],
            checks=(
                Check(what="tasks under two versions", expected=[], seen=_mixed(views)),
                Check(
                    what="both versions ran", expected={"1", "2"}, seen={str(view.version) for view in views}
                ),
                Check(
                    what="tasks without their one call, or with another's",
                    expected=set(),
                    seen={view.id for view in views if keys.get(f"{view.id}:file") != 1}
                    | {str(key) for key in keys if str(key).partition(":")[0] not in self._tasks[cell]},
                ),
                *more,
            ),
        )


def _mixed(views: list[TaskView]) -> list[object]:
    return [(view.id, view.version, view.result) for view in views if view.result != [view.version] * 2]
