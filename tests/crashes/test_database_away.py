"""The database goes away and comes back while work is under way: nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.crashes.scene import Scene, make_app

from outlast.drills.fleet import Fleet
from outlast.errors import StoreUnavailable
from outlast.testing.cramped import CrampedPostgres
from outlast.testing.recorder import Recorder
from outlast.testing.servers import EmbeddedPostgres, ServerError
from outlast.testing.small_disks import Room, why_not

TASKS = 12


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL of this module's own, which flushes its commits and may be crashed."""
    with EmbeddedPostgres() as made:
        yield made


@pytest.fixture
async def scene(server: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Scene]:
    """A scene on that server."""
    async with scene_on(server, tmp_path) as made:
        yield made


@asynccontextmanager
async def scene_on(server: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Scene]:
    """Make a scene on a server."""
    url = server.create_database()
    async with Recorder() as recorder, Fleet(tmp_path) as fleet:
        app = make_app(url, recorder)
        await app.open(migrate=True)
        try:
            yield Scene(url=url, recorder=recorder, fleet=fleet, app=app)
        finally:
            await app.close()


async def all_done(scene: Scene) -> None:
    views = await scene.ended(*scene.accepted)
    assert [view.state for view in views] == ["succeeded"] * len(views)
    posts = await scene.posts()
    assert {key for key in posts} == {f"{view.id}:create_ticket#1" for view in views}
    assert len(await scene.recorder.tickets()) == len(views)
    for process in scene.fleet.processes:
        assert await process.stop() == 0
    assert await scene.violations() == []


async def test_a_crash_of_the_server_loses_nothing(server: EmbeddedPostgres, scene: Scene) -> None:
    workers = [scene.worker(f"worker-{n}", lease_s=3.0) for n in range(2)]
    for number in range(TASKS):
        await scene.submit("stepwise", {"invoice": f"INV-{number}", "steps": 8})
    await asyncio.gather(*(worker.says("ready") for worker in workers))
    await scene.recorder.wait_for(calls=2, method="POST")
    await asyncio.to_thread(server.crash)
    await asyncio.to_thread(server.recover)
    await scene.submit("stepwise", {"invoice": "INV-after", "steps": 2})
    await all_done(scene)


async def test_cut_connections_cost_time_and_no_more(server: EmbeddedPostgres, scene: Scene) -> None:
    """Every connection of every duty, the one that listens included, five times in a row."""
    workers = [scene.worker(f"worker-{n}", lease_s=3.0) for n in range(2)]
    await asyncio.gather(*(worker.says("ready") for worker in workers))
    for number in range(TASKS):
        await scene.submit("stepwise", {"invoice": f"INV-{number}", "steps": 8})
        if number % 2:
            cut = await asyncio.to_thread(
                server.sql,
                "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                " where application_name like 'outlast%' and backend_type = 'client backend'",
            )
            assert int(cut) > 0
    await all_done(scene)


@pytest.mark.parametrize("room", ["data", "log"])
async def test_a_full_disk_loses_nothing_and_does_nothing_twice(room: Room, tmp_path: Path) -> None:
    """Whether statements are refused one by one, or the server stops and stays down until there is room."""
    if why := why_not():
        pytest.skip(why)
    with CrampedPostgres() as server:
        async with scene_on(server, tmp_path) as scene:
            workers = [scene.worker(f"worker-{n}", lease_s=3.0) for n in range(2)]
            await asyncio.gather(*(worker.says("ready") for worker in workers))
            await scene.submit("stepwise", {"invoice": "INV-before", "steps": 8})
            await scene.recorder.wait_for(calls=1, method="POST")
            await asyncio.to_thread(server.fill, room)
            if room == "log":
                with suppress(ServerError):
                    await asyncio.to_thread(server.sql, "select pg_switch_wal()")

            async def submit(number: int) -> None:
                invoice = {"invoice": f"INV-{number}-{'x' * 2_000}", "steps": 8}
                await scene.submit("stepwise", invoice, key=f"key-{number}")

            number = 0
            with suppress(StoreUnavailable):
                while True:
                    await submit(number)
                    number += 1
            assert "No space left on device" in server.log
            await asyncio.to_thread(server.empty)
            # Whether the refused one is there is not known to its client, who asks again.
            await submit(number)
            await all_done(scene)
