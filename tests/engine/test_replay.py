"""Replay: what is finished answers from the journal, under an identity that does not depend on timing."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import TaskContext, ToolCall
from outlast.errors import AmbiguousOperation, InvalidKey, OperationConflict, StepFailed


async def again(task: TaskContext) -> None:
    """Suspend the task, so that its function runs again from the top."""
    await task.sleep(0.1)


async def test_a_finished_step_is_not_run_again(house: House) -> None:
    ran: list[str] = []

    def note(what: str) -> str:
        ran.append(what)
        return what.upper()

    @house.app.agent
    async def agent(task: TaskContext) -> list[Any]:
        first = await task.step(note, "a")
        await again(task)
        second = await task.step(note, "b")
        await again(task)
        return [first, second, task.attempt]

    view = await house.run(agent)
    assert view.result == ["A", "B", 3]
    assert ran == ["a", "b"]
    ends = [attempt.end for attempt in await house.app.attempts(view.id)]
    assert ends == ["suspended", "suspended", "succeeded"]
    assert await house.violations() == []


async def test_a_failed_step_raises_the_same_on_replay(house: House) -> None:
    ran: list[int] = []

    async def breaks() -> None:
        ran.append(1)
        raise LookupError("no such invoice")

    @house.app.agent
    async def agent(task: TaskContext) -> list[str]:
        try:
            await task.step(breaks)
        except StepFailed as error:
            caught = [str(error), error.reason, error.operation, str(error.retryable)]
        await again(task)
        return caught

    view = await house.run(agent)
    assert ran == [1]
    assert view.result == [
        "LookupError: no such invoice",
        "LookupError",
        f"{view.id}:breaks#1",
        "True",
    ]


@dataclass(frozen=True)
class Invoice:
    number: str
    amount: Decimal
    due: datetime


async def test_a_step_gives_its_declared_type_back(house: House) -> None:
    seen: list[Any] = []

    async def read(number: str) -> Invoice:
        return Invoice(
            number=number, amount=Decimal("118.50"), due=datetime.fromisoformat("2026-12-01T00:00Z")
        )

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        invoice = await task.step(read, "INV-102")
        seen.append(invoice)
        await again(task)
        return str(invoice.amount)

    view = await house.run(agent)
    assert view.result == "118.50"
    assert len(seen) == 2
    assert seen[0] == seen[1] == await read("INV-102")


async def test_readings_are_the_same_on_replay(house: House) -> None:
    seen: list[list[Any]] = []

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        seen.append(
            [
                task.now(),
                task.random(),
                task.uuid(),
                task.now(),
                [task.generator().random() for _ in range(2)],
            ]
        )
        await again(task)

    await house.run(agent)
    assert seen[0] == seen[1]
    now, chance, name, later, drawn = seen[0]
    assert now.tzinfo is not None
    assert now <= later
    assert 0 <= chance < 1
    assert name.version == 4
    assert drawn[0] != drawn[1]


async def test_an_event_is_emitted_once_however_often_the_function_runs(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.emit("progress", {"stage": 1})
        await again(task)
        await task.emit("progress", {"stage": 2})
        await again(task)
        await task.emit("progress", {"stage": "named"}, key="once")
        await task.emit("progress", {"stage": "named"}, key="once")

    handle = await house.submit(agent)
    house.start()
    await house.ended(handle)
    stages = [event.data["stage"] for event in await house.events(handle) if event.kind == "progress"]
    assert stages == [1, 2, "named"]
    numbers = [event.number for event in await house.events(handle)]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_branches_have_scopes_of_their_own(house: House) -> None:
    ran: list[str] = []

    async def work(what: str) -> str:
        ran.append(what)
        return what

    @house.app.agent
    async def agent(task: TaskContext) -> list[Any]:
        async def branch(name: str, pause: float) -> list[str]:
            first = await task.step(work, f"{name}1")
            await asyncio.sleep(pause)
            await task.sleep(0.1)
            return [first, await task.step(work, f"{name}2")]

        # The slow one is first in one run, and the replay has no pauses to speak of.
        quick = task.attempt > 1
        return await task.gather(branch("a", 0.0 if quick else 0.05), branch("b", 0.0))

    view = await house.run(agent)
    assert view.result == [["a1", "a2"], ["b1", "b2"]]
    assert sorted(ran) == ["a1", "a2", "b1", "b2"]
    steps = [key for key, one in (await house.operations(view)).items() if one.kind == "step"]
    assert sorted(steps) == [
        "gather#1/0/work#1",
        "gather#1/0/work#2",
        "gather#1/1/work#1",
        "gather#1/1/work#2",
    ]


async def test_calls_made_in_one_place_may_be_gathered_plainly(house: House) -> None:
    async def work(what: str) -> str:
        await asyncio.sleep(0.02 if what == "a" else 0)
        return what

    @house.app.agent
    async def agent(task: TaskContext) -> list[str]:
        # Identity is taken when a call is made, in this order, not when it is awaited.
        calls = [task.step(work, what) for what in "abc"]
        done = await asyncio.gather(*reversed(calls))
        await again(task)
        return list(reversed(done))

    view = await house.run(agent)
    assert view.result == ["a", "b", "c"]
    results = {key: one.result for key, one in (await house.operations(view)).items() if one.kind == "step"}
    assert results == {"work#1": "a", "work#2": "b", "work#3": "c"}


@pytest.mark.parametrize("how", ["create_task", "gather", "TaskGroup"])
async def test_a_counted_name_in_somebody_elses_asyncio_task_is_refused(house: House, how: str) -> None:
    async def work() -> None:
        return None

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        async def branch() -> None:
            await task.step(work)

        if how == "create_task":
            await asyncio.create_task(branch())
        elif how == "gather":
            await asyncio.gather(branch(), branch())
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(branch())

    view = await house.run(agent)
    assert view.state == "failed"
    assert view.error is not None
    if how == "TaskGroup":
        assert "AmbiguousOperation" in view.error["message"] or view.error["code"] == "agent_error"
    else:
        assert view.error["code"] == AmbiguousOperation.code
        assert "task.gather()" in view.error["message"]
        assert "key=" in view.error["message"]
    assert [key for key in await house.operations(view) if key.startswith("work")] == []


async def test_a_key_is_its_own_identity_wherever_the_call_is_made(house: House) -> None:
    ran: list[str] = []

    async def work(what: str) -> str:
        ran.append(what)
        return what

    @house.app.agent
    async def agent(task: TaskContext) -> list[str]:
        async with asyncio.TaskGroup() as group:
            one = group.create_task(task.step(work, "a", key="first"))
            two = group.create_task(task.step(work, "b", key="second"))
        await again(task)
        return [one.result(), two.result()]

    view = await house.run(agent)
    assert view.result == ["a", "b"]
    assert sorted(ran) == ["a", "b"]


@pytest.mark.parametrize("key", ["work#1", "x#2/y", "", "a\nb"])
async def test_a_key_that_looks_like_a_counted_one_is_refused(house: House, key: str) -> None:
    async def work() -> None:
        return None

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.step(work, key=key)

    view = await house.run(agent)
    assert view.error is not None
    assert view.error["code"] == InvalidKey.code


async def test_a_step_inside_a_step_counts_in_its_own_scope(house: House) -> None:
    ran: list[str] = []

    async def inner(what: str) -> str:
        ran.append(what)
        return what

    @house.app.agent
    async def agent(task: TaskContext) -> list[str]:
        async def outer() -> list[str]:
            return [await task.step(inner, "a"), await task.step(inner, "b")]

        found: list[str] = await task.step(outer)
        await again(task)
        return [*found, await task.step(inner, "c")]

    view = await house.run(agent)
    assert view.result == ["a", "b", "c"]
    assert ran == ["a", "b", "c"]
    assert set(await house.operations(view)) == {
        "outer#1", "outer#1/inner#1", "outer#1/inner#2", "inner#1", "sleep#1",
    }  # fmt: skip


async def test_another_request_under_a_recorded_id_stops_the_task_for_an_operator(house: House) -> None:
    ran: list[str] = []
    amounts = iter(["100", "900", "900"])

    async def file(amount: str) -> str:
        ran.append(amount)
        return amount

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        # Not repeatable: what a crash or a changed prompt does to an agent.
        try:
            filed: str = await task.step(file, next(amounts))
        except BaseException:
            return "swallowed, and made into a success"
        await again(task)
        return filed

    handle = await house.submit(agent)
    house.start()
    view = await house.waits(handle, "operator")
    assert view.state == "waiting"
    assert ran == ["100"]
    (said,) = [event.data for event in await house.events(handle) if event.kind == "log"]
    assert said["level"] == "error"
    assert "file#1" in said["message"]
    assert (await house.operations(handle))["file#1"].result == "100"
    assert await house.violations() == []


async def test_one_key_for_two_requests_of_one_attempt_is_a_conflict_for_the_agent(house: House) -> None:
    calls: list[str] = []

    @house.app.tool(effect="idempotent")
    async def put(call: ToolCall, what: str) -> str:
        calls.append(what)
        return what

    @house.app.agent
    async def agent(task: TaskContext) -> list[str]:
        first = await task.call(put, "118.50", key="act-3")
        assert await task.call(put, "118.50", key="act-3") == first
        with pytest.raises(OperationConflict):
            await task.call(put, "180.00", key="act-3")
        # Nor while the first is under way.
        slow = asyncio.ensure_future(task.call(put, "x", key="act-4"))
        await asyncio.sleep(0)
        with pytest.raises(OperationConflict):
            await task.call(put, "y", key="act-4")
        await slow
        await again(task)
        return [first, str(task.attempt)]

    view = await house.run(agent)
    assert view.result == ["118.50", "2"]
    assert calls == ["118.50", "x"]
    assert await house.violations() == []


async def test_the_same_call_in_flight_is_joined_and_made_once(house: House) -> None:
    calls: list[str] = []

    @house.app.tool(effect="idempotent")
    async def put(call: ToolCall, what: str) -> int:
        calls.append(call.idempotency_key)
        await asyncio.sleep(0.01)
        return len(calls)

    @house.app.agent
    async def agent(task: TaskContext) -> list[int]:
        return list(await asyncio.gather(*(task.call(put, "a", key="one") for _ in range(5))))

    view = await house.run(agent)
    assert view.result == [1, 1, 1, 1, 1]
    assert calls == [f"{view.id}:one"]


async def test_a_thread_that_was_left_behind_takes_no_counted_name(house: House) -> None:
    """It is in the context of its agent, whose asyncio task may be at work at that very moment."""
    goes_on, came, said = threading.Event(), threading.Event(), list[str]()

    def slow(task: TaskContext) -> None:
        goes_on.wait(PATIENCE_S)
        try:
            task.sleep(0).close()
        except (RuntimeError, AmbiguousOperation) as error:
            said.append(type(error).__name__)
        came.set()

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        try:
            await task.step(lambda: slow(task), name="slow", timeout=0.05)
        except StepFailed:
            pass
        # The task of the agent is the one that runs, while the thread asks.
        goes_on.set()
        came.wait(PATIENCE_S)
        await task.step(lambda: 1, name="next")
        return "done"

    view = await house.run(agent)
    assert view.result == "done"
    assert said == ["RuntimeError"]
    assert set(await house.operations(view)) == {"slow#1", "next#1"}
