"""Setting the stage of the drill, and playing all cells on it, at once where they are independent.

Acts: some cells are brought to where they wait for people, and every worker is killed; then the next workers
begin, and the others are played beside them, those that start processes when those in a hurry are done; then
everything is stopped, and judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from outlast.drills.database import database
from outlast.drills.fleet import Fleet
from outlast.drills.judging import Judged, judge_the_store
from outlast.drills.people.agents import Place, build
from outlast.drills.people.judge import judge
from outlast.drills.people.restart import Restart
from outlast.drills.people.scene import STEADY, Played, Scene
from outlast.drills.people.table import CHECKERS, Cell, in_groups
from outlast.drills.running import end_with_sigterm, play_all
from outlast.drills.stage import Check
from outlast.testing.recorder import Recorder

__all__ = ["play"]


async def play(
    cells: Sequence[Cell], postgres: str | None, seed: int, folder: Path, console: Console
) -> list[Judged[Cell]]:
    """Play cells and judge them; answer them in the order given, and the store after them.

    folder: for the store, the logs of the processes and of the ticket service. Raises ConfigurationError,
    RecorderError, ServerError, StoreUnavailable.
    """
    end_with_sigterm()
    chance = random.Random(seed)
    secret = f"{chance.getrandbits(256):064x}"
    async with contextlib.AsyncExitStack() as stack:
        status = stack.enter_context(console.status("starting the ticket service and the store"))
        recorder = await stack.enter_async_context(Recorder(database=folder / "tickets.db"))
        await recorder.configure(dedupe=False)
        store = await stack.enter_async_context(database(postgres, folder))
        place = Place(tickets=recorder.url, folder=folder)
        app = build(store.url, place, secret=secret)
        await app.open(migrate=True)
        stack.push_async_callback(app.close)
        fleet = await stack.enter_async_context(Fleet(folder))
        groups = in_groups(cells)
        scene = Scene(
            app=app,
            recorder=recorder,
            fleet=fleet,
            restart=Restart(
                [group[0].fault for group in groups if group[0].when == "restart"],
                [group[0].fault for group in groups if group[0].when == "hurried"],
            ),
            chance=chance,
            environ={
                "OUTLAST_DATABASE_URL": store.url,
                "OUTLAST_SECRET": secret,
                "OUTLAST_API_KEYS": "",
                **place.environ(),
            },
            folder=folder,
            tell=lambda what: status.update(Text(what)),
            doomed_left=sum(group[0].when == "doomed" for group in groups),
        )
        console.print(f"store: {store.shown}", style="dim", markup=False)
        played = await _play(scene, groups)
        scene.tell("stopping everything, and looking at what is left")
        await scene.quieten()
        log = await recorder.log()
        judged = [await judge(scene, cell, played[cell.fault], log) for cell in cells]
        whole = await judge_the_store(
            app.store, CHECKERS, log, accepted=scene.accepted, decided_by="checkers"
        )
        return [*judged, whole]


async def _play(scene: Scene, groups: Sequence[list[Cell]]) -> dict[str, Played]:
    async def one(cell: Cell) -> Played | list[Played]:
        try:
            if cell.when != "restart":
                await scene.restart.back()
            if cell.when in ("own", "doomed"):
                await scene.restart.calm()
            return await cell.play(scene, cell.fault)
        finally:
            scene.restart.leave(cell.fault)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_restart(scene))
        return await play_all(groups, one, _broken, chance=scene.chance, tell=scene.tell)


def _broken(cell: str, check: Check) -> Played:
    return Played(cell=cell, checks=(check,))


async def _restart(scene: Scene) -> None:
    """Let one generation of workers bring cells to where they wait, kill all of it, and start the next."""
    first = await asyncio.gather(*(scene.steady(f"worker-{name}1", STEADY, generation=1) for name in "AB"))
    await scene.restart.all_ready()
    scene.tell("every worker dies")
    for worker in first:
        worker.kill()
    for worker in first:
        await worker.exited()
    await scene.restart.all_done([worker.ending for worker in first])
    await asyncio.gather(*(scene.steady(f"worker-{name}2", STEADY, generation=2) for name in "AB"))
    scene.restart.served()
