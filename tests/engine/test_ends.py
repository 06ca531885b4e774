"""Whoever waits for a task's end is told of it at once, and in the end even where every hint is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import Outlast, TaskContext
from outlast.errors import StoreUnavailable, TaskCancelled, TaskFailed, TaskNotFound
from outlast.handle import TaskHandle
from outlast.store.contract import Store
from outlast.store.records import TaskRef
from outlast.store.rows import EndRow
from outlast.streams.tail import ENDS, Tail

NEVER_S = 3600.0


class Deaf:
    """Hints that all are lost; each wait is over after its time."""

    async def wait(self, topic: str, timeout: float) -> bool:
        await asyncio.sleep(timeout)
        return False

    def hint(self, topic: str) -> None:
        """Tell nobody."""


class Watched:
    """A store that counts what is asked of it, holds back an answer about ends, or is away."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.wakes: Any = store.wakes
        self.asked: Counter[str] = Counter()
        self.away = False
        self.holds = False
        self.has_read = asyncio.Event()
        self.go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(self._store, name)

    async def read_ends(self, refs: Sequence[TaskRef]) -> list[EndRow]:
        self.asked["read_ends"] += 1
        if self.away:
            self.has_read.set()
            raise StoreUnavailable("away")
        rows = await self._store.read_ends(refs)
        self.has_read.set()
        if self.holds:
            await self.go_on.wait()
        return rows


def agents(app: Outlast) -> None:
    @app.agent
    async def quick(task: TaskContext) -> tuple[int, str]:
        return 7, "days"

    @app.agent
    async def broken(task: TaskContext) -> None:
        raise ValueError("no such day")

    @app.agent
    async def patient(task: TaskContext) -> Any:
        return await task.wait("go")


@pytest.fixture
async def watched(store: Store) -> Watched:
    """The store, watched."""
    return Watched(store)


@pytest.fixture
async def watching(watched: Watched) -> Any:
    """An open app over the watched store."""
    made = House(watched)
    agents(made.app)
    async with made:
        yield made
        await made.app._following().close()


async def ended(house: House, agent: str) -> TaskHandle:
    """Have a task end, and wait for it in the old way: by its events."""
    handle = await house.app.submit(agent)
    async with asyncio.timeout(PATIENCE_S):
        async for _ in handle.events():
            pass
    return handle


class TestResults:
    """``Outlast.result`` and ``Outlast.wait``."""

    async def test_are_typed_and_told_apart(self, watching: House) -> None:
        watching.start()
        assert await (await watching.app.submit("quick")).result(PATIENCE_S) == (7, "days")
        with pytest.raises(TaskFailed, match="no such day") as failed:
            await (await watching.app.submit("broken")).result(PATIENCE_S)
        assert failed.value.failure_code == "agent_error"
        waits = await watching.app.submit("patient")
        await watching.waits(waits, "signal")
        await waits.cancel("enough")
        with pytest.raises(TaskCancelled, match="enough"):
            await waits.result(PATIENCE_S)

    async def test_of_nothing_are_not_waited_for(self, watching: House) -> None:
        handle = await watching.app.submit("quick", tenant="another")
        for tenant, task in (("default", handle.id), ("another", "task_0000000000e008000000000000")):
            with pytest.raises(TaskNotFound):
                await watching.app.result(task, tenant=tenant)
            with pytest.raises(TaskNotFound):
                await watching.app.wait(task, tenant=tenant)

    async def test_of_a_task_that_is_tried_again_are_those_of_its_next_round(self, watching: House) -> None:
        watching.start()
        handle = await ended(watching, "broken")
        (worker, _) = watching.workers[0]
        worker.stop()
        await watching.app.retry(handle.id, reason="again")
        again = asyncio.create_task(handle.result(PATIENCE_S))
        view = asyncio.create_task(watching.app.wait(handle.id, timeout=PATIENCE_S))
        await watching.stop()
        watching.start()
        with pytest.raises(TaskFailed):
            await again
        assert (await view).round == 2

    async def test_do_not_outlast_their_time(self, watching: House) -> None:
        handle = await watching.app.submit("quick")
        with pytest.raises(TimeoutError):
            await handle.result(0.05)
        with pytest.raises(TimeoutError):
            await watching.app.wait(handle.id, timeout=0.05)
        # Nobody waits any longer, and nothing is asked for nobody.
        assert watching.app._following()._ends == {}

    async def test_ask_for_the_end_alone(self, watching: House, watched: Watched) -> None:
        """At each hint once: neither events nor whole tasks are read for it."""
        watching.start(poll_s=NEVER_S, sweep_s=NEVER_S)
        await (await watching.app.submit("quick")).result(PATIENCE_S)
        watched.asked.clear()
        await (await watching.app.submit("quick")).result(PATIENCE_S)
        read = {name for name in watched.asked if name.startswith("read_") or name.startswith("list_")}
        assert read == {"read_ends"}
        # When it is asked for, then told of: the submit, the claim, the step, the end.
        assert watched.asked["read_ends"] <= 5


class TestNoEndIsMissed:
    """With nothing but hints to go by: no look comes by itself within an hour."""

    @pytest.fixture
    def tail(self, watched: Watched) -> Tail:
        """A reader that never looks without a hint."""
        return Tail(watched, poll_s=NEVER_S)

    async def test_that_comes_between_a_look_and_its_answer(
        self, watching: House, watched: Watched, tail: Tail
    ) -> None:
        handle = await watching.app.submit("quick")
        watched.holds = True
        waiting = asyncio.create_task(tail.end("default", handle.id))
        async with asyncio.timeout(PATIENCE_S):
            await watched.has_read.wait()
            # What was read, and is not answered yet, says that it is queued.
            watching.start()
            async for _ in handle.events():
                pass
            await watching.stop()
            watched.go_on.set()
            end = await waiting
        assert end is not None
        assert end.state == "succeeded"
        await tail.close()

    async def test_that_is_asked_for_while_a_look_goes_on(
        self, watching: House, watched: Watched, tail: Tail
    ) -> None:
        watching.start()
        over = await ended(watching, "quick")
        lives = await watching.app.submit("patient")
        await watching.waits(lives, "signal")
        watched.holds = True
        first = asyncio.create_task(tail.end("default", lives.id))
        async with asyncio.timeout(PATIENCE_S):
            await watched.has_read.wait()
            second = asyncio.create_task(tail.end("default", over.id))
            await asyncio.sleep(0)
            watched.go_on.set()
            assert (await second) is not None
        first.cancel()
        await tail.close()

    async def test_of_more_tasks_than_are_asked_for_together(
        self, watching: House, watched: Watched, tail: Tail
    ) -> None:
        watching.start()
        handle = await ended(watching, "quick")
        async with asyncio.timeout(PATIENCE_S):
            ends = await asyncio.gather(
                *(tail.end("default", f"task_{number:026}") for number in range(2 * ENDS)),
                tail.end("default", handle.id),
            )
        assert ends[:-1] == [None] * (2 * ENDS)
        assert ends[-1] is not None
        assert watched.asked["read_ends"] >= 3
        await tail.close()


class TestWithoutHints:
    """Every hint is lost: polling brings everything to its end."""

    async def test_a_task_still_ends_and_is_told(self, watching: House, watched: Watched) -> None:
        watched.wakes = Deaf()
        watching.start(poll_s=0.05)
        assert await (await watching.app.submit("quick")).result(PATIENCE_S) == (7, "days")
        view = await watching.app.wait((await watching.app.submit("quick")).id, timeout=PATIENCE_S)
        assert view.state == "succeeded"

    async def test_it_is_asked_for_no_more_often_than_it_polls(
        self, watching: House, watched: Watched
    ) -> None:
        watched.wakes = Deaf()
        tail = Tail(watched, poll_s=0.2)
        handle = await watching.app.submit("patient")
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tail.end("default", handle.id), 0.7)
        assert watched.asked["read_ends"] <= 1 + (loop.time() - began) / 0.2
        await tail.close()


class TestAStoreThatIsAway:
    async def test_says_so_to_who_asks_first(self, watching: House, watched: Watched) -> None:
        handle = await watching.app.submit("quick")
        watched.away = True
        with pytest.raises(StoreUnavailable):
            await handle.result(PATIENCE_S)
        with pytest.raises(StoreUnavailable):
            await watching.app.wait(handle.id, timeout=PATIENCE_S)

    async def test_is_waited_for_by_who_was_answered_before(self, watching: House, watched: Watched) -> None:
        handle = await watching.app.submit("quick")
        waiting = asyncio.create_task(handle.result(PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            await watched.has_read.wait()
            watched.has_read.clear()
            # Its answer is taken in before the store goes away.
            await watching.app.get(handle.id)
            watched.away = True
            watched.wakes.hint("events")
            await watched.has_read.wait()
            assert not waiting.done()
            watched.away = False
            watching.start()
            assert await waiting == (7, "days")
