"""The journal over real stores that are made to be slow, to refuse, or to be away for a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import pytest
from tests.engine.house import House

from outlast import TaskContext, ToolCall, WaitTimeout, WorkerSettings
from outlast.engine.journal import HALVES, TURNS, Journal
from outlast.errors import StoreUnavailable
from outlast.store.contract import BatchRejected
from outlast.store.entries import Batch, CommitIntent, EndAttempt, Flushed, RecordOperation

T = TypeVar("T")
Flush = Callable[..., Awaitable[list[Flushed]]]


def entries(batch: Batch, kind: type[Any]) -> list[Any]:
    return [entry for writes in batch.writes for entry in writes.entries if isinstance(entry, kind)]


class Between:
    """Stands between the journal and the store. before: called with each batch; what it raises is raised."""

    def __init__(self, house: House, before: Callable[[Batch], Awaitable[None]]) -> None:
        self._flush: Flush = house.store.flush
        self._before = before
        self.batches: list[Batch] = []
        house.store.flush = self.flush  # type: ignore[method-assign]

    async def flush(self, batch: Batch, **more: Any) -> list[Flushed]:
        self.batches.append(batch)
        await self._before(batch)
        return await self._flush(batch, **more)


async def test_a_batch_that_cannot_be_stored_fails_one_task_and_spares_its_neighbours(house: House) -> None:
    async def refuse(batch: Batch) -> None:
        for record in entries(batch, RecordOperation):
            if record.result is not None and "poison" in record.result:
                raise BatchRejected("the database objects to a value")

    seen = Between(house, refuse)

    def work(what: str) -> str:
        return what

    @house.app.agent
    async def agent(task: TaskContext, what: str) -> str:
        found: str = await task.step(work, what)
        await task.sleep(0.05)
        return found

    handles = [await house.submit(agent, what="poison" if n == 7 else f"fine {n}") for n in range(20)]
    house.start()
    views = [await house.ended(handle) for handle in handles]
    assert [view.state for view in views] == ["succeeded"] * 7 + ["failed"] + ["succeeded"] * 12
    error = views[7].error
    assert error is not None
    # What it had done and its end were in one batch, or not.
    assert error["code"] in ("journal_rejected", "result_unstorable")
    assert "poison" not in error["message"]
    assert views[7].attempts == 1
    assert max(len(batch.writes) for batch in seen.batches) > 1
    assert await house.violations() == []


@pytest.mark.parametrize("where", ["ending", "suspension", "outcome", "intent"])
async def test_a_refused_entry_ends_its_task_by_name_wherever_it_stands(house: House, where: str) -> None:
    refused: list[str] = []

    async def refuse(batch: Batch) -> None:
        for entry in [one for writes in batch.writes for one in writes.entries]:
            match where:
                case "ending":
                    bad = isinstance(entry, EndAttempt) and entry.task_state == "succeeded"
                case "suspension":
                    bad = isinstance(entry, EndAttempt) and entry.task_state == "waiting"
                case "outcome":
                    bad = getattr(entry, "result", None) == '"paid"'
                case _:
                    bad = isinstance(entry, CommitIntent)
            if bad:
                refused.append(where)
                raise BatchRejected("the database objects to a value")

    Between(house, refuse)

    @house.app.tool(effect="idempotent")
    async def pay(call: ToolCall) -> str:
        return "paid"

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        await task.sleep(0.1)
        return str(await task.call(pay))

    view = await house.run(agent)
    assert refused != []
    assert view.state == "failed"
    assert view.error is not None
    assert view.error["code"] in ("journal_rejected", "result_unstorable")
    dump = await house.store.dump()
    assert dump["leases"] == []
    if where == "outcome":
        # Called, and its outcome could not be kept: that is for a person.
        assert view.effects_open == 1
    assert await house.violations() == []


async def test_the_store_may_be_away_for_a_while_in_doubt_or_not(house: House) -> None:
    """Every third batch is lost before it is applied, every fourth is applied and its answer is lost."""
    flush = house.store.flush
    counts = {"sent": 0}

    async def flaky(batch: Batch, **more: Any) -> list[Flushed]:
        counts["sent"] += 1
        number = counts["sent"]
        if number % 3 == 0:
            raise StoreUnavailable("away")
        verdicts = await flush(batch, **more)
        if number % 4 == 0:
            raise StoreUnavailable("the answer was lost")
        return verdicts

    house.store.flush = flaky  # type: ignore[method-assign]
    calls: list[str] = []

    @house.app.tool(effect="manual")
    async def pay(call: ToolCall, number: int) -> int:
        calls.append(call.idempotency_key)
        return number

    def work(number: int) -> int:
        return number

    @house.app.agent
    async def agent(task: TaskContext, number: int) -> int:
        await task.step(work, number)
        paid: int = await task.call(pay, number)
        await task.emit("progress", number)
        await task.sleep(0.1)
        return paid

    handles = [await house.submit(agent, number=n) for n in range(5)]
    house.start()
    views = [await house.ended(handle) for handle in handles]
    assert [view.result for view in views] == [0, 1, 2, 3, 4]
    # Also where an answer was lost, no call was made twice: the same batch answers the same.
    assert sorted(calls) == sorted(f"{view.id}:pay#1" for view in views)
    for handle in handles:
        assert [e.kind for e in await house.events(handle)].count("progress") == 1
    assert await house.violations() == []


async def test_nothing_is_sent_before_what_was_done_before_it_is_on_disk(house: House) -> None:
    """The barrier: a call finds its own intent, and every step before it, on disk."""
    slow = asyncio.Event()

    async def delay(batch: Batch) -> None:
        await asyncio.sleep(0.02)
        slow.set()

    Between(house, delay)
    found: list[dict[str, tuple[str, Any]]] = []

    @house.app.tool(effect="manual")
    async def look(call: ToolCall) -> None:
        dump = await house.store.dump()
        found.append(
            {
                row["key"]: (row["state"], row["result"])
                for row in dump["operations"]
                if row["task"] == call.task
            }
        )

    def work(number: int) -> int:
        return number

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        for number in range(5):
            await task.step(work, number)
        await task.emit("progress", "before the call")
        await task.call(look)
        await task.step(work, 5)
        await task.call(look)

    view = await house.run(agent)
    assert view.state == "succeeded"
    first, second = found
    steps = {f"work#{n}": ("succeeded", str(n - 1)) for n in range(1, 6)}
    assert first == {**steps, "emit#1": ("succeeded", None), "look#1": ("running", None)}
    # The first call's own outcome as well.
    assert second["look#1"] == ("succeeded", "null")
    assert second["work#6"] == ("succeeded", "5")
    assert second["look#2"] == ("running", None)


async def test_a_client_sees_only_what_is_on_disk(house: House) -> None:
    gate = asyncio.Event()

    async def wait(batch: Batch) -> None:
        if entries(batch, EndAttempt):
            await gate.wait()

    Between(house, wait)

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        return "done"

    handle = await house.submit(agent)
    house.start()
    await asyncio.sleep(0)
    view = await handle.get()
    assert view.state in ("queued", "running")
    gate.set()
    assert (await house.ended(handle)).result == "done"


async def test_many_tasks_share_their_commits(house: House) -> None:
    async def nothing(batch: Batch) -> None:
        return None

    seen = Between(house, nothing)

    def work(number: int) -> int:
        return number

    @house.app.agent
    async def agent(task: TaskContext) -> int:
        return sum([await task.step(work, number) for number in range(10)])

    handles = [await house.submit(agent) for _ in range(50)]
    house.start(linger_s=60.0)
    views = [await house.ended(handle) for handle in handles]
    assert {view.result for view in views} == {45}
    written = sum(len(writes.entries) for batch in seen.batches for writes in batch.writes)
    assert written == 50 * 11
    assert len(seen.batches) < written / 4
    assert await house.violations() == []


async def test_batches_are_bounded_and_large_results_get_through(house: House) -> None:
    async def nothing(batch: Batch) -> None:
        return None

    seen = Between(house, nothing)

    def large(number: int) -> str:
        return str(number) * 200_000

    @house.app.agent
    async def agent(task: TaskContext) -> int:
        return sum([len(await task.step(large, number)) for number in range(6)])

    handles = [await house.submit(agent) for _ in range(4)]
    house.start(batch_bytes=500_000, linger_s=60.0)
    views = [await house.ended(handle) for handle in handles]
    assert {view.result for view in views} == {1_200_000}

    def size(batch: Batch) -> int:
        return sum(len(record.result or "") for record in entries(batch, RecordOperation))

    # One entry may pass the bound, never two.
    assert max(size(batch) for batch in seen.batches) < 500_000 + 200_100


# -- the journal by itself, over a store that answers when it is told to -------------------------------------


class Asked:
    """A store that only takes batches. apart: as in ``Store``."""

    def __init__(self, *, apart: bool) -> None:
        self.apart = apart
        self.taken: asyncio.Queue[tuple[Batch, asyncio.Future[None]]] = asyncio.Queue()

    async def flush(self, batch: Batch) -> list[Flushed]:
        answer = asyncio.get_running_loop().create_future()
        self.taken.put_nowait((batch, answer))
        await answer
        return [Flushed(kind="accepted") for _ in batch.writes]


class Holder:
    """A lease that nobody takes away."""

    tenant, epoch = "default", 1

    def __init__(self, number: int) -> None:
        self.task = f"task_{number}"

    def fenced_out(self) -> None:
        raise AssertionError("nobody refused it")

    def unstorable(self, error: Exception) -> None:
        raise error


@contextlib.asynccontextmanager
async def journal_over(store: Asked) -> AsyncIterator[Journal]:
    journal = Journal(store, WorkerSettings(), "writer")  # type: ignore[arg-type]
    running = asyncio.create_task(journal.run())
    try:
        yield journal
    finally:
        running.cancel()
        await asyncio.wait({running})


def written(key: str) -> RecordOperation:
    return RecordOperation(key=key, position=1, kind="step", name="work", state="succeeded", request="r")


async def in_time(work: Awaitable[T]) -> T:
    return await asyncio.wait_for(work, 10.0)


async def test_what_comes_after_the_end_of_an_attempt_goes_by_itself() -> None:
    store, lease, neighbour = Asked(apart=False), Holder(1), Holder(2)
    end = EndAttempt(attempt_end="suspended", task_state="waiting", reason="signal")

    def of(batch: Batch) -> list[tuple[str, list[str]]]:
        return [(writes.task, [type(one).__name__ for one in writes.entries]) for writes in batch.writes]

    async with journal_over(store) as journal:
        first = journal.submit(neighbour, written("first"))
        _, answer = await in_time(store.taken.get())
        # The store is at work: what is handed in meanwhile goes with the next batch.
        ended = journal.submit(lease, end)
        journal.append(lease, written("late"))
        answer.set_result(None)
        await in_time(first)
        batch, answer = await in_time(store.taken.get())
        assert of(batch) == [(lease.task, ["EndAttempt"])]
        answer.set_result(None)
        await in_time(ended)
        batch, answer = await in_time(store.taken.get())
        assert of(batch) == [(lease.task, ["RecordOperation"])]
        answer.set_result(None)


async def test_a_wait_that_is_over_while_its_task_is_being_suspended_does_not_fail_it(house: House) -> None:
    suspending, over = asyncio.Event(), asyncio.Event()

    async def slow(batch: Batch) -> None:
        if entries(batch, EndAttempt) and not over.is_set():
            suspending.set()
            await over.wait()

    Between(house, slow)

    @house.app.agent
    async def listens(task: TaskContext) -> str:
        try:
            return str(await task.wait("news", timeout=0.4))
        except WaitTimeout:
            return "nothing came"

    @house.app.agent
    async def other(task: TaskContext) -> None:
        """Have its end under way for as long as it takes."""

    async def turns(true: Callable[[], object]) -> None:
        async with asyncio.timeout(10.0):
            while not true():  # noqa: ASYNC110 - nobody tells of either
                await asyncio.sleep(0)

    worker = house.start(linger_s=0.1)
    waiting = await house.submit(listens)
    await house.reached(waiting, "operation.started")
    run = worker.run_of("default", waiting.id)
    assert run is not None
    await house.submit(other)
    await suspending.wait()
    # Its end waits behind that of the other one, and then its time is over.
    await turns(lambda: run.interruption == "suspended")
    await turns(lambda: not run.waits)
    over.set()
    assert (await house.ended(waiting)).result == "nothing came"
    assert await house.violations() == []


@pytest.mark.parametrize("apart", [True, False])
async def test_half_of_a_large_batch_goes_on_while_a_store_that_works_apart_writes_for_the_other(
    apart: bool,
) -> None:
    store, leases = Asked(apart=apart), [Holder(number) for number in range(HALVES)]

    async def twice(journal: Journal, lease: Holder) -> None:
        assert await journal.submit(lease, written("first")) is None
        assert await journal.submit(lease, written("second")) is None

    async with journal_over(store) as journal:
        going = [asyncio.create_task(twice(journal, lease)) for lease in leases]
        batch, answer = await in_time(store.taken.get())
        assert [write.task for write in batch.writes] == [lease.task for lease in leases]
        answer.set_result(None)
        batch, answer = await in_time(store.taken.get())
        half = leases[: HALVES // 2] if apart else leases
        assert [write.task for write in batch.writes] == [lease.task for lease in half]
        if apart:
            # The others were told behind it, so that theirs is ready when it returns; none is told too early.
            answer.set_result(None)
            batch, answer = await in_time(store.taken.get())
            assert [write.task for write in batch.writes] == [lease.task for lease in leases[HALVES // 2 :]]
        assert {entry.key for write in batch.writes for entry in write.entries} == {"second"}  # type: ignore[union-attr]
        answer.set_result(None)
        await in_time(asyncio.gather(*going))
        await in_time(journal.settled())
    assert store.taken.empty()


async def test_halves_that_are_not_of_one_size_come_to_be() -> None:
    """Else the loop would be idle behind the small one, and the store behind the large one, for ever."""
    store, leases = Asked(apart=True), [Holder(number) for number in range(HALVES // 2 + 3 * HALVES)]
    few = HALVES // 2
    sizes = list[int]()

    async def on_and_on(journal: Journal, lease: Holder) -> None:
        for number in range(8):
            assert await journal.submit(lease, written(f"step {number}")) is None

    async with journal_over(store) as journal:
        going = [asyncio.create_task(on_and_on(journal, lease)) for lease in leases[:few]]
        while len(sizes) < 6:
            batch, answer = await in_time(store.taken.get())
            if not sizes:
                going += [asyncio.create_task(on_and_on(journal, lease)) for lease in leases[few:]]
                await asyncio.sleep(0)
            sizes.append(len(batch.writes))
            answer.set_result(None)
        half = len(leases) // 2
        assert sizes == [few, len(leases) - few, half, half, half, half]
        for task in going:
            task.cancel()


async def test_what_is_queued_goes_out_before_those_of_the_last_batch_are_told() -> None:
    told, told_before = list[str](), list[list[str]]()

    class Watched(Asked):
        async def flush(self, batch: Batch) -> list[Flushed]:
            told_before.append(list(told))
            return await super().flush(batch)

    store, one, other = Watched(apart=True), Holder(1), Holder(2)
    async with journal_over(store) as journal:
        journal.append(one, written("a"), lambda *_: told.append("a"))
        _, answer = await in_time(store.taken.get())
        journal.append(other, written("b"), lambda *_: told.append("b"))
        journal.append(one, written("c"), lambda *_: told.append("c"))
        answer.set_result(None)
        batch, answer = await in_time(store.taken.get())
        assert [write.task for write in batch.writes] == [other.task, one.task]
        answer.set_result(None)
        await in_time(journal.settled())
    assert told_before == [[], []]
    assert told == ["a", "b", "c"]


async def test_verdicts_are_told_in_order_by_a_store_that_answers_at_once() -> None:
    class AtOnce(Asked):
        async def flush(self, batch: Batch) -> list[Flushed]:
            if not batch.writes[0].entries[0].key.startswith("a"):  # type: ignore[union-attr]
                return [Flushed(kind="accepted") for _ in batch.writes]
            return await super().flush(batch)

    store, told = AtOnce(apart=True), list[str]()
    one = Holder(1)
    async with journal_over(store) as journal:
        journal.append(one, written("a"), lambda *_: told.append("a"))
        _, answer = await in_time(store.taken.get())
        for key in ("b", "c"):
            journal.append(one, written(key), lambda *_, key=key: told.append(key))
        answer.set_result(None)
        await in_time(journal.settled())
    assert told == ["a", "b", "c"]


async def test_what_a_task_goes_on_with_a_few_turns_later_is_in_the_same_batch() -> None:
    store, one, other = Asked(apart=False), Holder(1), Holder(2)
    async with journal_over(store) as journal:
        journal.append(one, written("outcome"))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        journal.append(one, written("intent"))
        batch, answer = await in_time(store.taken.get())
        assert [entry.key for entry in batch.writes[0].entries] == ["outcome", "intent"]  # type: ignore[union-attr]
        answer.set_result(None)
        await in_time(journal.settled())
        # Nothing follows from an ending, so nobody waits behind it.
        ending = EndAttempt(attempt_end="succeeded", task_state="succeeded")
        for lease in (one, other):
            journal.append(lease, written("last"))
            journal.append(lease, ending)
        for _ in range(2):
            await asyncio.sleep(0)
        batch, answer = store.taken.get_nowait()
        assert [write.entries[-1] for write in batch.writes] == [ending, ending]
        answer.set_result(None)
        await in_time(journal.settled())


async def test_a_leisurely_record_goes_with_the_next_batch() -> None:
    store, one, other = Asked(apart=True), Holder(1), Holder(2)
    async with journal_over(store) as journal:
        journal.append(one, written("first"), leisurely=True)
        for _ in range(4 * TURNS):
            await asyncio.sleep(0)
        assert store.taken.empty()
        journal.append(one, written("second"), leisurely=True)
        journal.append(other, written("urgent"))
        batch, answer = await in_time(store.taken.get())
        said = {write.task: [entry.key for entry in write.entries] for write in batch.writes}  # type: ignore[union-attr]
        assert said == {one.task: ["first", "second"], other.task: ["urgent"]}
        # While that is under way; and nobody else has anything to write.
        journal.append(one, written("third"), leisurely=True)
        answer.set_result(None)
        for _ in range(4 * TURNS):
            await asyncio.sleep(0)
        assert store.taken.empty()
        batch, answer = await in_time(store.taken.get())
        assert [entry.key for entry in batch.writes[0].entries] == ["third"]  # type: ignore[union-attr]
        answer.set_result(None)
        await in_time(journal.settled())


async def test_a_leisurely_record_is_on_disk_before_what_comes_after_it() -> None:
    store, one = Asked(apart=True), Holder(1)
    async with journal_over(store) as journal:
        journal.append(one, written("first"), leisurely=True)
        done = journal.submit(one, written("second"))
        batch, answer = await in_time(store.taken.get())
        assert [entry.key for entry in batch.writes[0].entries] == ["first", "second"]  # type: ignore[union-attr]
        answer.set_result(None)
        await in_time(done)
