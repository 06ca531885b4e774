"""Whoever waits for a task's end is told of it at once, and in the end even where every hint is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import Outlast, TaskContext
from outlast.engine.worker import Worker
from outlast.errors import LeaseLost, StoreUnavailable, TaskCancelled, TaskFailed, TaskNotFound
from outlast.handle import TaskHandle
from outlast.store.contract import Store
from outlast.store.entries import EndAttempt
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


async def one_over_and_one_that_waits(house: House) -> tuple[TaskHandle, TaskHandle]:
    """Have one task end, and another suspend."""
    house.start()
    over = await ended(house, "quick")
    lives = await house.app.submit("patient")
    await house.waits(lives, "signal")
    return over, lives


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
        """At most that: neither events nor whole tasks are read for it, and mostly its worker tells."""
        watching.start(poll_s=NEVER_S, sweep_s=NEVER_S)
        await (await watching.app.submit("quick")).result(PATIENCE_S)
        watched.asked.clear()
        await (await watching.app.submit("quick")).result(PATIENCE_S)
        read = {name for name in watched.asked if name.startswith("read_") or name.startswith("list_")}
        assert read <= {"read_ends"}
        # Where the hint of the earlier end is still on its way.
        assert watched.asked["read_ends"] <= 1


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
        over, lives = await one_over_and_one_that_waits(watching)
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

    async def test_of_a_task_that_was_just_accepted_and_is_over_already(
        self, watching: House, watched: Watched, tail: Tail
    ) -> None:
        """Nobody looks at once, since it is mostly told; where it is not, somebody looks soon."""
        over, lives = await one_over_and_one_that_waits(watching)
        watched.wakes = Deaf()
        first = asyncio.create_task(tail.end("default", lives.id))
        async with asyncio.timeout(PATIENCE_S):
            await watched.has_read.wait()
            watched.has_read.clear()
            second = asyncio.create_task(tail.end("default", over.id, new=True))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not watched.has_read.is_set()
            assert (await second) is not None
        first.cancel()
        await tail.close()

    async def test_of_a_task_that_was_just_accepted_where_nobody_listens_yet(
        self, watching: House, tail: Tail
    ) -> None:
        watching.start()
        over = await ended(watching, "quick")
        async with asyncio.timeout(PATIENCE_S):
            assert (await tail.end("default", over.id, new=True)) is not None
        await tail.close()

    async def test_reading_ends_once_nobody_has_waited_for_a_while(
        self, watching: House, watched: Watched
    ) -> None:
        watching.start()
        over = await ended(watching, "quick")
        watched.wakes = Deaf()
        tail = Tail(watched, poll_s=0.05)
        assert (await tail.end("default", over.id)) is not None
        reader = tail._reader
        assert reader is not None
        assert not reader.done(), "the next may come soon"
        await asyncio.wait_for(reader, PATIENCE_S)
        assert (await tail.end("default", over.id)) is not None
        await tail.close()


class TestASuccessThatItsWorkerTells:
    """A worker of the same app says what it has brought to disk; nobody looks, and nothing else hints."""

    @pytest.fixture
    async def deaf(self, watching: House, watched: Watched) -> House:
        """An app that looks for an end once, when it is asked for, and hears of nothing."""
        watched.wakes = Deaf()
        watching.app._tail = Tail(watched, poll_s=NEVER_S)
        return watching

    async def test_is_not_looked_for(self, deaf: House, watched: Watched) -> None:
        handle = await deaf.app.submit("quick")
        waiting = asyncio.create_task(handle.result(PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            await watched.has_read.wait()
        deaf.start(poll_s=0.05)
        assert await waiting == (7, "days")
        assert watched.asked["read_ends"] == 1

    async def test_is_told_when_it_is_on_disk(self, deaf: House, watched: Watched) -> None:
        reached, go_on = asyncio.Event(), asyncio.Event()
        flush = watched._store.flush

        async def flushing(*args: Any, **more: Any) -> Any:
            reached.set()
            await go_on.wait()
            return await flush(*args, **more)

        watched.flush = flushing  # type: ignore[attr-defined]
        handle = await deaf.app.submit("quick")
        waiting = asyncio.create_task(handle.result(PATIENCE_S))
        deaf.start(poll_s=0.05)
        async with asyncio.timeout(PATIENCE_S):
            await reached.wait()
        assert not waiting.done()
        go_on.set()
        assert await waiting == (7, "days")

    @pytest.mark.parametrize(
        ("other", "error"), [("cancelled", None), (None, LeaseLost("somebody else holds it"))]
    )
    async def test_is_not_told_where_the_store_says_otherwise(
        self, watching: House, other: str | None, error: Exception | None
    ) -> None:
        told: list[EndRow] = []
        worker = Worker(watching.app.registry, watching.store, ended=told.append)
        run: Any = SimpleNamespace(
            tenant="default", task="task_1", claimed=SimpleNamespace(agent="quick", version="1")
        )
        for ending, refused in ((success("1"), (other, error)), (failure(), (None, None))):
            teller = worker.teller(run, ending)
            if teller is not None:
                teller(*refused)
        assert told == []
        teller = worker.teller(run, success("2"))
        assert teller is not None
        teller(None, None)
        assert [(end.task, end.state, end.result) for end in told] == [("task_1", "succeeded", "2")]

    async def test_of_another_loop_is_left_to_its_look(self, watching: House) -> None:
        tail, other = Tail(watching.store), asyncio.new_event_loop()
        waiting = other.create_future()
        tail._ends[TaskRef(tenant="default", task="task_1")] = {waiting: False}
        tail.told(
            EndRow(
                tenant="default", task="task_1", agent="quick", version="1", state="succeeded",
                result="1", error=None,
            )
        )  # fmt: skip
        assert not waiting.done()
        other.close()


def success(result: str) -> EndAttempt:
    """Make the ending of a task that succeeded."""
    return EndAttempt(attempt_end="succeeded", task_state="succeeded", result=result)


def failure() -> EndAttempt:
    """Make the ending of a task that failed."""
    return EndAttempt(attempt_end="failed", task_state="failed", error='{"code": "agent_error"}')


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
