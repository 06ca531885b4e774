"""Setting the stage of the drill, and playing all cells on it at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx2
from rich.console import Console
from rich.text import Text

from outlast.app import Outlast
from outlast.drills.database import database
from outlast.drills.fleet import Fleet
from outlast.drills.judging import Judged, judge_the_store
from outlast.drills.otherside.agents import FOLDER, HOST, REBOUND, TICKETS_URL, build
from outlast.drills.otherside.judge import judge
from outlast.drills.otherside.passing import Names
from outlast.drills.otherside.scene import Played, Scene
from outlast.drills.otherside.table import CHECKERS, Cell
from outlast.drills.running import FAULTS_OF_PLAY, end_with_sigterm, play_all
from outlast.drills.stage import Check
from outlast.gateway import Gateway, GatewaySettings
from outlast.gateway.serving import Server
from outlast.testing.recorder import Recorder

__all__ = ["play"]

AT_ONCE = 6
"""Cells that are played at the same time: each has processes of its own."""


async def play(
    cells: Sequence[Cell], postgres: str | None, seed: int, folder: Path, console: Console
) -> list[Judged[Cell]]:
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
        chance = random.Random(seed)
        secret = f"{chance.getrandbits(256):064x}"
        app = build(store.url, recorder.url, folder, secret=secret)
        await app.open(migrate=True)
        stack.push_async_callback(app.close)
        gateway = await stack.enter_async_context(_gateway(app, recorder))
        scene = Scene(
            app=app,
            url=store.url,
            gateway=gateway,
            recorder=recorder,
            fleet=await stack.enter_async_context(Fleet(folder)),
            folder=folder,
            environ={
                "OUTLAST_DATABASE_URL": store.url,
                "OUTLAST_SECRET": secret,
                "OUTLAST_GATEWAY_URL": gateway,
                TICKETS_URL: recorder.url,
                FOLDER: str(folder),
            },
            chance=chance,
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
        judged = [judge(scene, cell, played[cell.fault], log) for cell in cells]
        return [*judged, await judge_the_store(app.store, CHECKERS, log)]


@contextlib.asynccontextmanager
async def _gateway(app: Outlast, recorder: Recorder) -> AsyncIterator[str]:
    """Serve a gateway before the ticket service; answer where."""
    allow = tuple(f"http://{host}:{recorder.port}" for host in (HOST, REBOUND))
    settings = GatewaySettings(listen="127.0.0.1:0", allow=allow, ranges=("127.0.0.1/32",))
    gateway = Gateway(app.store, app.secret, settings, resolver=Names())
    server, ready = Server(gateway, settings.listen, grace_s=1), asyncio.Event()
    serving = asyncio.create_task(server.run_until_stopped(ready.set))
    await ready.wait()
    try:
        yield server.url
    finally:
        server.stop()
        await serving
        await gateway.close()


async def _play(scene: Scene, cells: Sequence[Cell]) -> dict[str, Played]:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(cell: Cell) -> Played:
        assert cell.play is not None
        async with room:
            return await cell.play(scene, cell.fault)

    def failed(cell: str, check: Check) -> Played:
        return Played(cell=cell, told=("broken",), checks=(check,))

    return await play_all(
        [[cell] for cell in cells],
        one,
        failed,
        chance=scene.chance,
        tell=scene.tell,
        faults=(*FAULTS_OF_PLAY, httpx2.HTTPError),
    )
