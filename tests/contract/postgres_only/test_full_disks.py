"""A server whose disks are full, or which lets nobody in, is a server that is away: nothing is lost, nothing
is done twice, and all goes on when there is room."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest
from tests.server.desk import Desk

from outlast.drills import looking
from outlast.errors import StoreUnavailable
from outlast.store.postgres import PostgresStore, adapter, failures
from outlast.testing.cramped import CrampedPostgres
from outlast.testing.small_disks import Room, why_not
from outlast.testing.store_suite.scene import Scene, scene

__all__ = ["scene"]

LARGE = 200_000
"""Characters of a text for which a table has to grow, since nothing in it repeats."""


@pytest.fixture(scope="module")
def cramped() -> Iterator[CrampedPostgres]:
    """A server on disks of its own."""
    if why := why_not():
        pytest.skip(why)
    with CrampedPostgres() as server:
        yield server


@pytest.fixture
async def database_url(cramped: CrampedPostgres) -> AsyncIterator[str]:
    """The URL of a migrated database on it."""
    url = cramped.create_database()
    made = PostgresStore(url)
    await made.migrate()
    await made.close()
    yield url
    await asyncio.to_thread(cramped.empty)


async def refused(work: Any) -> str:
    """Answer what somebody is told who is told that the store is away."""
    with pytest.raises(StoreUnavailable) as raised:
        await work
    assert "\n" not in str(raised.value)
    return str(raised.value)


def incompressible(scene: Scene) -> str:
    """Make JSON text that takes its room on a disk."""
    return f'"{random.Random(scene.number()).randbytes(LARGE // 2).hex()}"'


async def fill(server: CrampedPostgres, room: Room) -> None:
    """Leave no room; of the log, not in its newest segment either."""
    await asyncio.to_thread(server.fill, room)
    if room == "log":
        with suppress(Exception):
            await asyncio.to_thread(server.sql, "select pg_switch_wal()")


@pytest.mark.parametrize("room", ["data", "log"])
async def test_the_very_same_batch_is_written_once_there_is_room(
    scene: Scene, store: PostgresStore, cramped: CrampedPostgres, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "DOUBT_SECONDS", 0.5)
    claimed = await scene.running()
    before = scene.step(events=(scene.event(),))
    await scene.write(claimed, before)
    await fill(cramped, room)
    steps = [scene.step(result=incompressible(scene), events=(scene.event(),)) for _ in range(8)]
    batch = scene.batch(scene.writes(claimed, *steps))
    await refused(store.flush(batch, now=scene.now))
    told = await refused(store.flush(batch, now=scene.now))
    if room == "data":
        assert "No space left on device (its disk is full: make room there" in told
        # What needs no room goes on meanwhile.
        assert [event.number for event in await scene.events(claimed)] == [1, 2, 3]
    await asyncio.to_thread(cramped.empty)
    for _ in range(2):
        [verdict] = await store.flush(batch, now=scene.now)
        assert (verdict.kind, verdict.refusals) == ("accepted", ())
    assert (await scene.operation(claimed, before.key)).result == before.result
    assert [(await scene.operation(claimed, step.key)).result for step in steps] == [s.result for s in steps]
    assert [event.number for event in await scene.events(claimed)] == list(range(1, 12))


@pytest.mark.parametrize("room", ["data", "log"])
async def test_a_submission_is_accepted_once_there_is_room(
    scene: Scene, store: PostgresStore, cramped: CrampedPostgres, room: Room
) -> None:
    kept = await scene.submit()
    await fill(cramped, room)
    record = scene.submission(agent=kept.agent, pool=kept.pool, input=incompressible(scene))
    for _ in range(2):
        await refused(store.submit([record]))
    await asyncio.to_thread(cramped.empty)
    verdicts = [(await store.submit([record]))[0] for _ in range(2)]
    assert [(one.kind, one.task) for one in verdicts] == [("accepted", record.task)] * 2
    assert len((await store.dump())["tasks"]) == 2


async def test_a_connection_is_used_again_after_a_full_disk(
    scene: Scene, store: PostgresStore, cramped: CrampedPostgres, database_url: str
) -> None:
    backends = "select string_agg(pid::text, ',' order by pid) from pg_stat_activity where datname = '{}'"
    asked = backends.format(database_url.rpartition("/")[2])
    first = await scene.submit()
    before = await asyncio.to_thread(cramped.sql, asked)
    await asyncio.to_thread(cramped.fill, "data")
    await refused(store.submit([scene.submission(agent=first.agent, input=incompressible(scene))]))
    await asyncio.to_thread(cramped.empty)
    await scene.submit(agent=first.agent, pool=first.pool)
    assert before
    assert await asyncio.to_thread(cramped.sql, asked) == before


async def test_clients_are_told_what_is_wrong_and_what_to_do(
    store: PostgresStore, scene: Scene, cramped: CrampedPostgres
) -> None:
    async with Desk(store) as desk:
        secret = incompressible(scene)
        key = {"Idempotency-Key": '"while-it-was-full"'}
        body = {"agent": "echo", "input": {"value": secret}}
        await fill(cramped, "data")

        async def told() -> Any:
            answer = await desk.client.post("/v1/tasks", json=body, headers=key)
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            # A server that could not go on begins anew first, and lets nobody in meanwhile.
            return None if "not yet accepting connections" in answer.json()["detail"] else answer

        answer = await looking.until(told, "the server did not come back", patience_s=30.0, every_s=0.1)
        assert (
            "its disk is full: make room there, and what waits goes on by itself" in answer.json()["detail"]
        )
        assert secret[1:40] not in answer.text
        await asyncio.to_thread(cramped.empty)
        assert (await desk.client.post("/v1/tasks", json=body, headers=key)).status_code == 202


async def test_a_database_that_lets_nobody_in_is_away(
    database_url: str, cramped: CrampedPostgres, scene: Scene
) -> None:
    name = database_url.rpartition("/")[2]
    store = PostgresStore(database_url)
    await store.open()
    await store.close()
    await asyncio.to_thread(cramped.sql, f"alter database {name} allow_connections false")
    try:
        store = PostgresStore(database_url)
        told = await refused(store.submit([scene.submission()]))
        assert "is not currently accepting connections" in told
    finally:
        await asyncio.to_thread(cramped.sql, f"alter database {name} allow_connections true")
    await store.submit([scene.submission()])
    await store.close()


async def test_a_connection_that_the_server_ends_is_replaced_whatever_the_reason(
    database_url: str, cramped: CrampedPostgres
) -> None:
    """A bound on the length of transactions ends it with an error of a class that is not about that."""
    name = database_url.rpartition("/")[2]
    await asyncio.to_thread(cramped.sql, f"alter database {name} set transaction_timeout = '300ms'")
    holder = await asyncpg.connect(database_url, server_settings={"transaction_timeout": "0"})
    store = PostgresStore(database_url)
    scene = Scene(store=store, now=(await store.health()).now)
    first = await scene.submit()
    await holder.execute("begin; lock table outlast.tasks in exclusive mode")
    told = await refused(store.submit([scene.submission(agent=first.agent, pool=first.pool)]))
    assert "transaction timeout" in told
    await holder.execute("rollback")
    await holder.close()
    await scene.submit(agent=first.agent, pool=first.pool)
    await store.close()


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (asyncpg.DiskFullError, "its disk is full: make room there"),
        (asyncpg.OutOfMemoryError, "its memory is used up: give it more"),
        (asyncpg.TooManyConnectionsError, "its connections are used up: raise max_connections"),
        (asyncpg.AdminShutdownError, ""),
        (asyncpg.CrashShutdownError, ""),
        (asyncpg.CannotConnectNowError, ""),
        (asyncpg.DuplicateFileError, ""),
        (asyncpg.PostgresIOError, ""),
    ],
)
def test_a_server_that_cannot_do_its_work_is_away(error: type[asyncpg.PostgresError], advice: str) -> None:
    told = failures.translate(error("it said so"), "postgresql://db")
    assert isinstance(told, StoreUnavailable)
    assert str(told).startswith(f"PostgreSQL at postgresql://db: it said so{advice and f' ({advice}'}")
