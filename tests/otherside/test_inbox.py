"""The inbox: an event is new once, in the consumer's own transaction, whoever else consumes it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import apsw
import asyncpg
import pytest
from tests.otherside.conftest import a_moment, somebody_waits

from outlast.errors import Busy, ConfigurationError, InvalidKey, SchemaOutdated
from outlast.otherside import inbox


class Consumer:
    """A consumer's connection: begins, commits and rolls back by itself."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._begun: Any = None

    async def begin(self, **options: Any) -> None:
        if isinstance(self.connection, apsw.Connection):
            await asyncio.to_thread(self.connection.execute, "begin immediate")
        else:
            self._begun = self.connection.transaction(**options)
            await self._begun.start()

    async def end(self, *, commit: bool = True) -> None:
        word = "commit" if commit else "rollback"
        if isinstance(self.connection, apsw.Connection):
            self.connection.execute(word)
        else:
            await getattr(self._begun, word)()

    async def consume(self, event: str, *, commit: bool = True, consumer: str = "") -> bool:
        await self.begin()
        new = await inbox.once(self.connection, event, consumer=consumer)
        await self.end(commit=commit)
        return new

    async def close(self) -> None:
        if isinstance(self.connection, apsw.Connection):
            self.connection.close()
        else:
            await self.connection.close(timeout=10)


@asynccontextmanager
async def consumers(url: str, count: int) -> AsyncIterator[list[Consumer]]:
    made = []
    for _ in range(count):
        if url.startswith("sqlite"):
            connection: Any = apsw.Connection(url.removeprefix("sqlite:///"))
            connection.set_busy_timeout(10_000)
        else:
            connection = await asyncpg.connect(url)
        made.append(Consumer(connection))
    try:
        yield made
    finally:
        for consumer in made:
            await consumer.close()


@pytest.fixture
async def two(url: str) -> AsyncIterator[tuple[Consumer, Consumer]]:
    async with consumers(url, 2) as (one, other):
        await inbox.prepare(one.connection)
        yield one, other


async def test_an_event_is_new_once_for_each_consumer(two: tuple[Consumer, Consumer]) -> None:
    one, other = two
    await inbox.prepare(other.connection)
    assert [await each.consume("evt-1") for each in (one, other, one)] == [True, False, False]
    assert [await one.consume("evt-1", consumer=name) for name in ("mail", "stock", "mail")] == [
        True,
        True,
        False,
    ]
    assert await one.consume("evt-2") is True


async def test_what_was_rolled_back_was_not_consumed(two: tuple[Consumer, Consumer]) -> None:
    one, other = two
    assert await one.consume("evt-1", commit=False) is True
    assert await other.consume("evt-1") is True


@pytest.mark.parametrize("commits", [True, False])
async def test_a_twin_waits_for_the_first(two: tuple[Consumer, Consumer], url: str, commits: bool) -> None:
    one, other = two
    await one.begin()
    assert await inbox.once(one.connection, "evt-1") is True
    twin = asyncio.create_task(other.consume("evt-1"))
    if url.startswith("postgres"):
        await somebody_waits(url)
    assert not twin.done()
    await one.end(commit=commits)
    assert await twin is not commits


async def test_of_many_twins_one_consumes(url: str) -> None:
    async with consumers(url, 8) as each:
        await inbox.prepare(each[0].connection)
        for event in ("evt-1", "evt-2", "evt-3"):
            seen = await asyncio.gather(*(one.consume(event) for one in each))
            assert sorted(seen) == [False] * 7 + [True]


async def test_sweeping_forgets_old_events(two: tuple[Consumer, Consumer]) -> None:
    one, _ = two
    await one.consume("evt-1")
    assert await inbox.sweep(one.connection) == 0
    await a_moment()
    assert await inbox.sweep(one.connection, keep="1us") == 1
    assert await one.consume("evt-1") is True


@pytest.mark.parametrize("event", ["", "e" * 256, "a\x00b", " ", "\ud800", None])
async def test_a_bad_event_id_is_refused(two: tuple[Consumer, Consumer], event: Any) -> None:
    one, _ = two
    await one.begin()
    with pytest.raises(InvalidKey):
        await inbox.once(one.connection, event)
    # The transaction is as good as before.
    assert await inbox.once(one.connection, "e" * 255) is True
    with pytest.raises(InvalidKey):
        await inbox.once(one.connection, "evt-1", consumer="two words")
    await one.end()


async def test_a_connection_without_a_transaction_is_refused(two: tuple[Consumer, Consumer]) -> None:
    with pytest.raises(ConfigurationError, match="transaction"):
        await inbox.once(two[0].connection, "evt-1")


async def test_another_kind_of_connection_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="object"):
        await inbox.once(object(), "evt-1")


async def test_without_tables_it_is_said_what_to_do(url: str) -> None:
    async with consumers(url, 1) as (one,):
        await one.begin()
        with pytest.raises(SchemaOutdated, match="prepare"):
            await inbox.once(one.connection, "evt-1")
        await one.end(commit=False)


async def test_a_twin_that_cannot_be_seen_makes_it_busy(bare_postgres_url: str) -> None:
    async with consumers(bare_postgres_url, 2) as (one, other):
        await inbox.prepare(one.connection)
        await other.begin(isolation="repeatable_read")
        await other.connection.fetchval("select 1 from outlast_otherside.inbox")
        assert await one.consume("evt-1") is True
        with pytest.raises(Busy):
            await inbox.once(other.connection, "evt-1")
        await other.end(commit=False)
        await one.begin()
        await inbox.once(one.connection, "evt-2")
        await other.connection.execute("set lock_timeout = '10ms'")
        await other.begin()
        with pytest.raises(Busy):
            await inbox.once(other.connection, "evt-2")
        await other.end(commit=False)
        await one.end()


async def test_in_sqlite_a_reader_that_would_write_is_told_to_begin_as_a_writer(sqlite_url: str) -> None:
    async with consumers(sqlite_url, 2) as (one, other):
        await inbox.prepare(one.connection)
        other.connection.set_busy_timeout(0)
        await one.begin()
        other.connection.execute("begin")
        with pytest.raises(Busy, match="begin immediate"):
            await inbox.once(other.connection, "evt-1")
        await one.end()
