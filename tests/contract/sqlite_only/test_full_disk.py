"""A file that cannot grow: what is refused, and that all goes on when there is room again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import apsw
import pytest

from outlast.errors import StoreUnavailable
from outlast.store.records import Submission
from outlast.store.sqlite import SqliteStore
from outlast.store.sqlite.scratch import Rooms
from outlast.testing.checkers import check_all
from outlast.testing.store_suite.scene import Scene


@pytest.fixture
def rooms() -> Iterator[Rooms]:
    made = Rooms()
    yield made
    apsw.connection_hooks.pop()


@pytest.fixture
async def store(rooms: Rooms, sqlite_url: str) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(sqlite_url)
    await made.migrate()
    await made.open()
    yield made
    await made.close()


async def test_what_finds_no_room_is_refused_and_nothing_of_it_is_there(
    store: SqliteStore, rooms: Rooms
) -> None:
    scene = Scene(store=store, now=(await store.health()).now)
    claimed = await scene.running()
    rooms.limit(True)
    accepted: list[Submission] = []

    async def submit() -> None:
        while len(accepted) < 500:
            accepted.append(await scene.submit(input='"' + "x" * 2_000 + '"'))

    async def write() -> None:
        while True:
            await scene.write(claimed, scene.step(result='"' + "x" * 2_000 + '"'))

    for work in (submit, write):
        with pytest.raises(
            StoreUnavailable,
            match=r"no room to write to .*: make room there, and what waits goes on by itself",
        ):
            await work()
    dump = await store.dump()
    assert len(dump["tasks"]) == len(accepted) + 1
    assert check_all(dump, accepted=accepted) == []
    rooms.limit(False)
    await scene.submit(input='"' + "x" * 2_000 + '"')
    assert (await scene.task(claimed)).state == "running"
