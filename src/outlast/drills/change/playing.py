"""Setting the stage of the drill, and playing all cells on it, at once where they are independent."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from outlast.drills.change.agents import SIDE_BY_SIDE, Place, build
from outlast.drills.change.judge import judge
from outlast.drills.change.scene import STEADY, Beginning, Played, Scene
from outlast.drills.change.table import CHECKERS, Cell, in_groups
from outlast.drills.database import database
from outlast.drills.fleet import Fleet
from outlast.drills.judging import Judged, judge_the_store
from outlast.drills.running import end_with_sigterm, play_all
from outlast.drills.stage import Check
from outlast.testing.recorder import Recorder

__all__ = ["play"]

PATIENCE_S: Final = 90.0
"""A cell may have to wait for the processes of all the others."""


async def play(
    cells: Sequence[Cell], postgres: str | None, seed: int, folder: Path, console: Console
) -> list[Judged[Cell]]:
    """Play cells and judge them; answer them in the order given, and the store after them.

    folder: for the store, the logs of the processes and of the ticket service. Raises ConfigurationError,
    RecorderError, ServerError, StoreUnavailable.
    """
    end_with_sigterm()
    chance = random.Random(seed)
    async with contextlib.AsyncExitStack() as stack:
        status = stack.enter_context(console.status("starting the ticket service and the store"))
        recorder = await stack.enter_async_context(Recorder(database=folder / "tickets.db"))
        store = await stack.enter_async_context(database(postgres, folder))
        place = Place(tickets=recorder.url)
        app = build(store.url, Place(tickets=recorder.url, generation=SIDE_BY_SIDE))
        await app.open(migrate=True)
        stack.push_async_callback(app.close)
        fleet = await stack.enter_async_context(Fleet(folder))
        groups = in_groups(cells)
        scene = Scene(
            app=app,
            recorder=recorder,
            fleet=fleet,
            chance=chance,
            environ={
                "OUTLAST_DATABASE_URL": store.url,
                "OUTLAST_SECRET": f"{chance.getrandbits(256):064x}",
                "OUTLAST_API_KEYS": "",
                **place.environ(),
            },
            folder=folder,
            tell=lambda what: status.update(Text(what)),
            doomed_left=sum(group[0].when == "doomed" for group in groups),
            patience_s=PATIENCE_S,
            database_url=store.url,
            beginning=Beginning([group[0].fault for group in groups if group[0].when == "first"]),
        )
        console.print(f"store: {store.shown}", style="dim", markup=False)
        played = await _play(scene, groups)
        scene.tell("stopping everything, and looking at what is left")
        await scene.quieten()
        log = await recorder.log()
        judged = [await judge(scene, cell, played[cell.fault], log) for cell in cells]
        whole = await judge_the_store(
            app.store, CHECKERS, log, accepted=scene.accepted, settled_by="checkers"
        )
        return [*judged, whole]


async def _play(scene: Scene, groups: Sequence[list[Cell]]) -> dict[str, Played]:
    async def one(cell: Cell) -> Played | list[Played]:
        try:
            if cell.when == "first":
                await scene.beginning.turn(cell.fault)
            else:
                await scene.beginning.all_over()
            return await cell.play(scene, cell.fault)
        finally:
            await scene.beginning.over(cell.fault)

    async def workers() -> None:
        await scene.beginning.all_over()
        await asyncio.gather(*(scene.worker(f"worker-{letter}", STEADY) for letter in "AB"))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(workers())
        return await play_all(groups, one, _broken, chance=scene.chance, tell=scene.tell)


def _broken(cell: str, check: Check) -> Played:
    return Played(cell=cell, checks=(check,))
