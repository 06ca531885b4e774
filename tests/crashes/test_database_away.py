"""The database goes away and comes back while work is under way: nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.crashes.scene import Scene, make_app

from outlast.drills.fleet import Fleet
from outlast.testing.recorder import Recorder
from outlast.testing.servers import EmbeddedPostgres

TASKS = 12


@pytest.fixture(scope="module")
def server() -> AsyncIterator[EmbeddedPostgres]:
    """A PostgreSQL of this module's own, which flushes its commits and may be crashed."""
    with EmbeddedPostgres() as made:
        yield made  # type: ignore[misc]


@pytest.fixture
async def scene(server: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Scene]:
    """A scene on that server."""
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
