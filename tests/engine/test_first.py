"""Races between branches: who was first is recorded, and the losers do nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import StepFailed, TaskContext, ToolCall
from outlast.errors import InvalidRequest
from outlast.testing.recorder import Recorder


async def test_the_first_is_the_first_on_every_replay(house: House) -> None:
    answers: list[Any] = []

    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        answer = await task.first(task.wait("paid"), task.wait("withdrawn"), task.sleep("1h"))
        answers.append(answer)
        await task.sleep(0.05)
        return [*answer, await task.first(task.wait("again"), task.sleep(0.05))]

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "timer")
    await handle.signal("withdrawn", "by INV-102")
    view = await house.ended(handle)
    assert view.result == [1, "by INV-102", [1, None]]
    assert len(answers) >= 2
    assert answers == [(1, "by INV-102")] * len(answers)
    operations = await house.operations(handle)
    states = {key: (one.state, one.error and one.error["code"]) for key, one in operations.items()}
    assert states["paid#1"] == ("failed", "lost_race")
    assert states["sleep#1"] == ("failed", "lost_race")
    assert states["withdrawn#1"] == ("succeeded", None)
    # Nothing wakes the task for what was lost.
    dump = await house.store.dump()
    assert dump["timers"] == []
    assert await house.violations() == []


async def test_branches_have_scopes_of_their_own_and_losers_keep_their_keys(house: House) -> None:
    ran: list[str] = []

    async def note(what: str) -> str:
        ran.append(what)
        return what

    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        async def fast() -> list[str]:
            return [await task.step(note, "a"), await task.step(note, "b")]

        async def slow() -> str:
            await task.step(note, "c")
            await task.wait("never")
            return str(await task.step(note, "not reached"))

        lost = task.wait("never")
        first = await task.first(slow(), fast(), lost)
        await task.sleep(0.05)
        # Its key was taken, whoever won.
        return [first, await task.step(note, "d"), await task.wait("never", timeout=0.01, key="n")]

    handle = await house.submit(agent)
    house.start()
    view = await house.ended(handle)
    assert view.error is not None
    assert view.error["code"] == "wait_timeout"
    assert ran == ["c", "a", "b", "d"] or ran == ["a", "c", "b", "d"]
    assert set(await house.operations(handle)) == {
        "first#1",
        "first#1/0/note#1",
        "first#1/0/never#1",
        "first#1/1/note#1",
        "first#1/1/note#2",
        "never#1",
        "sleep#1",
        "note#1",
        "n",
    }
    assert await house.violations() == []


async def test_an_error_can_be_first_and_is_raised(house: House) -> None:
    async def fails() -> None:
        raise ValueError("no")

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        try:
            await task.first(task.wait("never"), task.step(fails))
        except StepFailed as error:
            await task.sleep(0.05)
            return f"{error} {task.attempt}"
        return "not reached"

    view = await house.run(agent)
    assert view.result == "ValueError: no 2"
    assert await house.violations() == []


async def test_a_losing_call_under_way_goes_on_and_is_recorded(house: House) -> None:
    sent, release = asyncio.Event(), asyncio.Event()

    @house.app.tool(effect="manual")
    async def pay(call: ToolCall) -> str:
        async with call.sending():
            sent.set()
            await release.wait()
        return "paid"

    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        first = await task.first(task.call(pay), task.wait("withdrawn"))
        release.set()
        # The same key answers with what came of it.
        return [*first, await task.call(pay, key="p2")]

    handle = await house.submit(agent)
    house.start(linger_s=60.0)
    async with asyncio.timeout(10):
        await sent.wait()
    await handle.signal("withdrawn", 1)
    view = await house.ended(handle)
    assert view.result == [1, 1, "paid"]
    assert (await house.operations(handle))["pay#1"].state == "succeeded"
    assert await house.violations() == []


async def test_a_losing_call_that_is_not_under_way_is_not_made(house: House, recorder: Recorder) -> None:
    """It waits for an operator's switch; when that is taken back, nothing is sent any more."""

    @house.app.tool(effect="keyed", key_window="24h")
    async def create(call: ToolCall) -> str:
        reply = await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": "1"})
        return str(reply.json()["id"])

    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        first = await task.first(task.call(create), task.wait("withdrawn"))
        return [first, await task.wait("go")]

    await house.app.pauses.set("all", reason="r", by="kim")
    handle = await house.submit(agent)
    house.start(linger_s=60.0)
    await house.reached(handle, "operation.started")
    await handle.signal("withdrawn", 1)
    await house.reached(handle, "operation.failed")
    await house.app.pauses.clear("all", reason="r", by="kim")
    await handle.signal("go", 2)
    assert (await house.ended(handle)).result == [[1, 1], 2]
    lost = (await house.operations(handle)).get("create#1")
    assert lost is not None
    assert lost.error is not None
    assert (lost.state, lost.error["code"]) == ("failed", "lost_race")
    assert await recorder.log() == []
    assert await house.violations(recorder) == []


async def test_a_race_within_a_race_is_cut_as_a_whole(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        async def inner() -> Any:
            return await task.first(task.wait("a"), task.sleep("1h"))

        return await task.first(inner(), task.wait("b"))

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "timer")
    await handle.signal("b", 1)
    assert (await house.ended(handle)).result == [1, 1]
    codes = {one.key: one.error and one.error["code"] for one in (await house.operations(handle)).values()}
    assert codes["first#1/0/a#1"] == "lost_race"
    assert codes["first#1/0/sleep#1"] == "lost_race"
    assert await house.violations() == []


async def test_a_race_of_nothing_is_refused(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None:
        with pytest.raises(InvalidRequest):
            await task.first()

    assert (await house.run(agent)).state == "succeeded"


async def test_a_loser_takes_nothing_though_its_signal_lies_there(house: House) -> None:
    """Both branches could end in one turn of the loop; the signal of the second stays for the next wait."""

    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        first = await task.first(task.wait("a"), task.wait("b"))
        return [*first, await task.wait("b")]

    handle = await house.submit(agent)
    await handle.signal("b", 2)
    await handle.signal("a", 1)
    house.start()
    assert (await house.ended(handle)).result == [0, 1, 2]
    assert await house.violations() == []


async def test_a_loser_begins_nothing_in_the_turn_in_which_it_loses(house: House) -> None:
    called: list[int] = []

    @house.app.tool(effect="idempotent")
    async def pay(call: ToolCall, amount: int) -> None:
        called.append(amount)

    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        async def pays(signal: str, amount: int) -> None:
            await task.wait(signal)
            if amount:
                await task.call(pay, amount)

        return (await task.first(pays("a", 0), pays("b", 180)))[0]

    handle = await house.submit(agent)
    await handle.signal("b", 2)
    await handle.signal("a", 1)
    house.start()
    assert (await house.ended(handle)).result == 0
    assert called == []
    assert await house.violations() == []


async def test_a_question_can_lose_a_race(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        first = await task.first(task.ask("how much?", timeout="1h"), task.wait("withdrawn"))
        return [*first, await task.wait("end")]

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "signal")
    await handle.signal("withdrawn", 1)
    await house.reached(handle, "operation.failed")
    await handle.signal("end", 2)
    assert (await house.ended(handle)).result == [1, 1, 2]
    asked = (await house.operations(handle))["ask#1"]
    assert asked.error is not None
    assert asked.error["code"] == "lost_race"
    assert await house.violations() == []


async def test_a_losing_call_whose_work_has_not_begun_keeps_the_task_from_nothing(house: House) -> None:
    """Loops need not begin asyncio tasks in the order in which they were made; what loses first, ends all the
    same, and the task suspends."""
    late, goes_on = asyncio.Event(), asyncio.Event()

    @house.app.tool(effect="manual", approval=lambda: True)
    async def pay(call: ToolCall) -> str:
        return "paid"

    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        return [*await task.first(task.call(pay), task.wait("withdrawn")), await task.wait("go")]

    async def later(work: Coroutine[Any, Any, Any]) -> Any:
        late.set()
        try:
            await goes_on.wait()
        except asyncio.CancelledError:
            work.close()
            raise
        return await work

    def make(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        held = getattr(work, "__qualname__", "") == "_perform" and not goes_on.is_set()
        return asyncio.Task(later(work) if held else work, loop=loop, **more)

    asyncio.get_running_loop().set_task_factory(make)
    handle = await house.submit(agent)
    house.start()
    async with asyncio.timeout(PATIENCE_S):
        await late.wait()
    await handle.signal("withdrawn", 1)
    await house.reached(handle, "operation.succeeded")
    goes_on.set()
    await house.waits(handle, "signal")
    await handle.signal("go", 2)
    assert (await house.ended(handle)).result == [1, 1, 2]
    lost = (await house.operations(handle))["pay#1"]
    assert lost.error is not None
    assert (lost.state, lost.error["code"]) == ("failed", "lost_race")
    assert await house.violations() == []
