"""A server that takes no writes any more is left, by those as well who would only have read there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from outlast.errors import StoreUnavailable
from outlast.store.contract import Store
from outlast.store.postgres import PostgresStore
from outlast.store.records import ClaimRequest, Serves
from outlast.store.rows import TaskFilter
from outlast.testing.servers import EmbeddedPostgres


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedPostgres]:
    """A server that this module may change."""
    with EmbeddedPostgres(durable=False) as server:
        yield server


@pytest.fixture
async def own_store(own_server: EmbeddedPostgres) -> AsyncIterator[Store]:
    store = PostgresStore(own_server.create_database())
    await store.migrate()
    await store.open()
    yield store
    await store.close()


async def _demote(server: EmbeddedPostgres, setting: str) -> None:
    await asyncio.to_thread(server.sql, f"alter system set default_transaction_read_only = {setting}")
    await asyncio.to_thread(server.sql, "select pg_reload_conf()")


async def _until(told: bool, ask: Callable[[], Awaitable[object]]) -> None:
    """Ask until it is refused, or not any more: a reload is the server's to carry out."""
    async with asyncio.timeout(10):
        while True:
            try:
                await ask()
            except StoreUnavailable:
                if told:
                    return
            else:
                if not told:
                    return
            await asyncio.sleep(0.02)


async def test_a_view_and_an_empty_claim_are_not_taken_from_a_server_that_was_made_read_only(
    own_server: EmbeddedPostgres, own_store: Store
) -> None:
    async def look() -> object:
        return await own_store.list_tasks(TaskFilter(tenant="t"))

    async def claim() -> object:
        return await own_store.claim(
            ClaimRequest(session="nobody", pools=("p",), serves=(Serves(agent="a", version="1"),), limit=1)
        )

    for ask in (look, claim):
        await ask()
    await _demote(own_server, "on")
    try:
        for ask in (look, claim):
            # Each connection is told by itself, with its first answer after the change.
            await _until(True, ask)
            for _ in range(3):
                with pytest.raises(StoreUnavailable, match="takes no writes"):
                    await ask()
    finally:
        await _demote(own_server, "off")
    for ask in (look, claim):
        await _until(False, ask)
