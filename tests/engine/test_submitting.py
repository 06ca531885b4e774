"""Callers go together into few transactions, and none of those grows beyond its bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import TaskContext
from outlast.store.contract import Store
from outlast.store.records import Submission
from outlast.submitting import GROUP, Request

MEGABYTE = 1 << 20
LARGE = {"text": "x" * 1_000_000}
TOGETHER = 8
"""So many of them are within a transaction's bound."""


class Watched:
    """A store that notes what was submitted together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.batches: list[list[Submission]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, batch: Sequence[Submission], **more: Any) -> Any:
        self.batches.append(list(batch))
        return await self._store.submit(batch, **more)


@pytest.fixture
async def watched(store: Store) -> Watched:
    """The store, watched."""
    return Watched(store)


@pytest.fixture
async def watching(watched: Watched) -> Any:
    """An open app over the watched store."""
    made = House(watched)  # type: ignore[arg-type]

    @made.app.agent
    async def echo(task: TaskContext, text: str = "") -> str:
        return text

    async with made:
        yield made


@pytest.mark.parametrize("how", ["one by one", "together"])
async def test_large_inputs_are_stored_in_several_transactions(
    watching: House, watched: Watched, how: str
) -> None:
    count = 2 * TOGETHER + 3
    async with asyncio.timeout(PATIENCE_S):
        if how == "together":
            handles = list(await watching.app.submit_many([Request(agent="echo", input=LARGE)] * count))
        else:
            handles = await asyncio.gather(*(watching.app.submit("echo", LARGE) for _ in range(count)))
    assert [one.task for batch in watched.batches for one in batch] == [handle.id for handle in handles]
    assert [len(batch) for batch in watched.batches] == [TOGETHER, TOGETHER, 3]
    assert {len((await handle.get()).input["text"]) for handle in handles} == {len(LARGE["text"])}


@pytest.mark.parametrize("how", ["one by one", "together"])
async def test_small_ones_are_stored_by_the_thousand(watching: House, watched: Watched, how: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        if how == "together":
            await watching.app.submit_many([Request(agent="echo")] * (GROUP + 1))
        else:
            await asyncio.gather(*(watching.app.submit("echo") for _ in range(GROUP + 1)))
    assert [len(batch) for batch in watched.batches] == [GROUP, 1]


@pytest.mark.parametrize("store_kind", ["postgres"], indirect=True)
async def test_large_batches_of_several_callers_are_not_put_together(watching: House, backdoor: Any) -> None:
    """Where the store itself lets callers go together."""
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(
            *(watching.app.submit_many([Request(agent="echo", input=LARGE)] * 3) for _ in range(9))
        )
    rows = await backdoor.run("select sum(octet_length(input)), count(*) from inputs group by xmin::text")
    assert sum(count for _, count in rows) == 27
    assert max(size for size, _ in rows) <= 9 * MEGABYTE
