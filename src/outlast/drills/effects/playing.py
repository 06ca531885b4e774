"""Setting the stage of the drill, and playing all cells on it, at once where they are independent."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import httpx2
from rich.console import Console
from rich.text import Text

from outlast.drills.database import database
from outlast.drills.effects import answers, crashes, frozen, repeats
from outlast.drills.effects.agents import Places, build
from outlast.drills.effects.clerk import Clerk
from outlast.drills.effects.judge import judge
from outlast.drills.effects.matrix import CHECKERS, Cell
from outlast.drills.effects.scene import STEADY, Played, Scene
from outlast.drills.fleet import Fleet
from outlast.drills.judging import Judged, judge_the_store
from outlast.drills.running import FAULTS_OF_PLAY, broken, end_with_sigterm
from outlast.testing.recorder import Recorder

__all__ = ["play"]


async def play(
    cells: Sequence[Cell], postgres: str | None, seed: int, folder: Path, console: Console
) -> list[Judged[Cell]]:
    """Play cells and judge them; answer them in the order given, and last what every checker says.

    folder: for the store, the logs of the processes and of the ticket services. Raises ConfigurationError,
    RecorderError, ServerError, StoreUnavailable.
    """
    end_with_sigterm()
    async with contextlib.AsyncExitStack() as stack:
        status = stack.enter_context(console.status("starting the ticket services and the store"))
        keys = await stack.enter_async_context(Recorder(database=folder / "tickets-keys.db"))
        plain = await stack.enter_async_context(Recorder(database=folder / "tickets-plain.db"))
        await plain.configure(dedupe=False)
        closed = stack.enter_context(socket.socket())
        # Bound but not listening: the port is ours, and refuses everybody.
        closed.bind(("127.0.0.1", 0))
        places = Places(keys=keys.url, plain=plain.url, closed=f"http://127.0.0.1:{closed.getsockname()[1]}")
        store = await stack.enter_async_context(database(postgres, folder))
        app = build(store.url, places)
        await app.open(migrate=True)
        stack.push_async_callback(app.close)
        fleet = await stack.enter_async_context(Fleet(folder))
        clerk = Clerk(app, keys, plain)
        scene = Scene(
            app=app,
            keys=keys,
            plain=plain,
            places=places,
            fleet=fleet,
            clerk=clerk,
            chance=random.Random(seed),
            environ={"OUTLAST_DATABASE_URL": store.url, **places.environ()},
            tell=lambda what: status.update(Text(what)),
        )
        prepared = await _prepare(scene, cells)
        clerking = asyncio.create_task(clerk.keep())
        try:
            return await _play(scene, cells, prepared, store.shown, console)
        finally:
            clerking.cancel()
            await asyncio.gather(clerking, return_exceptions=True)


async def _prepare(scene: Scene, cells: Sequence[Cell]) -> int:
    """Make the tickets that idempotent tools put their notes on; answer how many calls are no tool's."""
    async with httpx2.AsyncClient(base_url=scene.plain.url, trust_env=False) as client:
        for cell in cells:
            if cell.effect == "idempotent":
                made = await client.post("/tickets", json={"invoice": cell.invoice, "amount": "1"})
                scene.tickets[cell.name] = made.json()["id"]
    return len(scene.tickets)


async def _play(
    scene: Scene, cells: Sequence[Cell], prepared: int, store: str, console: Console
) -> list[Judged[Cell]]:
    console.print(f"store: {store}", style="dim", markup=False)
    order = list(cells)
    scene.chance.shuffle(order)
    played: dict[str, Played] = {}
    left = len(order)

    def done(*results: Played) -> None:
        nonlocal left
        for result in results:
            played[result.cell.name] = result
            left -= 1
        scene.tell(f"{left} of {len(order)} cells to go")

    async def one(cell: Cell, play: Callable[[Scene, Cell], Awaitable[Played]]) -> None:
        try:
            done(await play(scene, cell))
        except FAULTS_OF_PLAY as error:
            done(Played(cell=cell, checks=(broken(error),)))

    async def group(those: Sequence[Cell]) -> None:
        try:
            done(*await crashes.play(scene, those))
        except FAULTS_OF_PLAY as error:
            done(*(Played(cell=cell, checks=(broken(error),)) for cell in those))

    calm = [cell for cell in order if cell.fault.family in ("answers", "repeats")]
    if calm:
        workers = await asyncio.gather(*(scene.steady(f"worker-{letter}", STEADY) for letter in "AB"))
        plays = {"answers": answers.play, "repeats": repeats.play}
        await asyncio.gather(*(one(cell, plays[cell.fault.family]) for cell in calm))
        # The drill has two cores to spare for the next act.
        await asyncio.gather(*(worker.stop() for worker in workers))
    ices = [cell for cell in order if cell.fault.family == "frozen"]
    groups: dict[str, list[Cell]] = {}
    for cell in order:
        if cell.fault.family == "crashes":
            groups.setdefault(cell.fault.name, []).append(cell)
    scene.doomed_left = len(ices) + len(groups)
    await asyncio.gather(*(one(cell, frozen.play) for cell in ices), *map(group, groups.values()))
    judged = [await judge(scene, played[cell.name]) for cell in cells]
    log = [*await scene.keys.log(), *(await scene.plain.log())[prepared:]]
    return [*judged, await judge_the_store(scene.app.store, CHECKERS, log, settled_by="checkers")]
