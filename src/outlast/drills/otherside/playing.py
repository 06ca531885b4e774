"""Setting the stage of the drill, and playing all cells on it at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from pathlib import Path

import httpx2
from rich.console import Console
from rich.text import Text

from outlast.drills.database import database
from outlast.drills.fleet import Fleet
from outlast.drills.otherside.judge import Judged, judge, judge_the_store
from outlast.drills.otherside.scene import Played, Scene
from outlast.drills.otherside.script import TICKETS_URL, build
from outlast.drills.otherside.table import Cell
from outlast.drills.running import FAULTS_OF_PLAY, broken, end_with_sigterm
from outlast.testing.recorder import Recorder

__all__ = ["play"]

AT_ONCE = 6
"""Cells that are played at the same time: each has processes of its own."""


async def play(
    cells: Sequence[Cell], postgres: str | None, seed: int, folder: Path, console: Console
) -> list[Judged]:
    """Play cells and judge them; answer them in the order given, and the store after them.

    folder: for the store, the logs of the processes and of the services. Raises ConfigurationError,
    RecorderError, ServerError, StoreUnavailable.
    """
    end_with_sigterm()
    async with contextlib.AsyncExitStack() as stack:
        status = stack.enter_context(console.status("starting the ticket service and the store"))
        recorder = await stack.enter_async_context(Recorder(database=folder / "tickets.db"))
        # Whatever is sent twice is there twice.
        await recorder.configure(dedupe=False)
        store = await stack.enter_async_context(database(postgres, folder))
        app = build(store.url, recorder.url)
        await app.open(migrate=True)
        stack.push_async_callback(app.close)
        scene = Scene(
            app=app,
            url=store.url,
            recorder=recorder,
            fleet=await stack.enter_async_context(Fleet(folder)),
            folder=folder,
            environ={"OUTLAST_DATABASE_URL": store.url, TICKETS_URL: recorder.url},
            chance=random.Random(seed),
            tell=lambda what: status.update(Text(what)),
        )
        scene.log.touch()
        console.print(f"store: {store.shown}", style="dim", markup=False)
        try:
            played = await _play(scene, cells)
        finally:
            for client in scene.clients:
                await client.aclose()
        scene.tell("stopping everything, and looking at what is left")
        await asyncio.gather(*(each.stop() for each in scene.fleet.processes if each.running))
        log = await recorder.log()
        judged = [judge(scene, cell, played[cell.name], log) for cell in cells]
        return [*judged, await judge_the_store(scene, log)]


async def _play(scene: Scene, cells: Sequence[Cell]) -> dict[str, Played]:
    order = list(cells)
    scene.chance.shuffle(order)
    played: dict[str, Played] = {}
    room = asyncio.Semaphore(AT_ONCE)

    async def one(cell: Cell) -> None:
        assert cell.play is not None
        async with room:
            try:
                played[cell.name] = await cell.play(scene, cell.fault)
            except (*FAULTS_OF_PLAY, httpx2.HTTPError) as error:
                played[cell.name] = Played(cell=cell.fault, told=("broken",), checks=(broken(error),))
        scene.tell(f"{len(order) - len(played)} of {len(order)} to go")

    async with asyncio.TaskGroup() as tasks:
        for cell in order:
            tasks.create_task(one(cell))
    return played
