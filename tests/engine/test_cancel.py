"""Cancel: what is answered agrees with the end, and after the answer no call begins."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import TaskContext, ToolCall, telemetry
from outlast.errors import InvalidRequest, TaskCancelled, TaskEnded, TaskNotFound
from outlast.testing.recorder import Recorder

FINAL = ("task.succeeded", "task.failed", "task.cancelled")


async def test_a_queued_and_a_waiting_task_end_at_once(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.wait("go")

    queued = await house.submit(agent)
    reply = await queued.cancel("not needed", by="kim")
    assert (reply.kind, reply.state) == ("cancelled", "cancelled")
    waiting = await house.submit(agent)
    house.start()
    await house.waits(waiting, "signal")
    assert (await waiting.cancel("not needed", by="kim")).kind == "cancelled"
    for handle in (queued, waiting):
        assert (await handle.cancel()).kind == "already"
        view = await handle.get()
        assert view.error is not None
        assert (view.state, view.error["code"], view.error["message"]) == (
            "cancelled",
            "cancelled",
            "not needed",
        )
        with pytest.raises(TaskCancelled, match="not needed"):
            await handle.result()
    trail = [(row.who, row.what) for row in await house.app.pauses.audit()]
    assert trail == [("person:kim", "cancel")] * 2
    assert await house.violations() == []


async def test_a_task_that_ended_otherwise_says_how(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> int:
        return 1

    handle = await house.submit(agent)
    house.start()
    await house.ended(handle)
    with pytest.raises(TaskEnded) as caught:
        await handle.cancel()
    assert caught.value.state == "succeeded"
    with pytest.raises(TaskNotFound):
        await house.app.cancel(handle.id, tenant="another")
    with pytest.raises(InvalidRequest):
        await handle.cancel("x" * 2_001)
    assert (await handle.get()).state == "succeeded"


async def test_a_running_task_ends_at_its_next_boundary_and_begins_no_call(
    house: House, recorder: Recorder
) -> None:
    entered, release, ran = asyncio.Event(), asyncio.Event(), []

    async def compute() -> None:
        entered.set()
        try:
            await release.wait()
        except asyncio.CancelledError:
            ran.append("cut")
            raise

    @house.app.tool(effect="idempotent")
    async def create(call: ToolCall) -> None:
        await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": "1"})

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        try:
            await task.step(compute)
        finally:
            ran.append(str(task.cancelled))
            # Cleanup code: nothing of it is made.
            await task.call(create)

    handle = await house.submit(agent)
    house.start()
    async with asyncio.timeout(PATIENCE_S):
        await entered.wait()
    reply = await handle.cancel("stop", by="kim")
    assert reply.kind in ("requested", "cancelled")
    view = await house.ended(handle)
    assert (view.state, view.error and view.error["message"]) == ("cancelled", "stop")
    assert ran == ["cut", "True"]
    assert await recorder.log() == []
    assert [one.end for one in await house.app.attempts(handle.id)] == ["cancelled"]
    kinds = [event.kind for event in await house.events(handle)]
    assert [kind for kind in kinds if kind in FINAL] == ["task.cancelled"]
    assert kinds[-1] == "task.cancelled"
    assert await house.violations(recorder) == []


async def test_a_read_is_cut_at_once_and_a_change_gets_its_grace_time(house: House) -> None:
    cut: dict[str, float] = {}
    begun = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    def tool(effect: Any, name: str) -> Any:
        async def body(call: ToolCall) -> None:
            async with call.sending():
                begun.release()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cut[name] = loop.time()
                    raise

        return house.app.tool(effect=effect, name=name, timeout="1h")(body)

    look, pay = tool("read", "look"), tool("manual", "pay")

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.gather(task.call(look), task.call(pay))

    handle = await house.submit(agent)
    house.start(grace_s=0.5)
    async with asyncio.timeout(PATIENCE_S):
        await begun.acquire()
        await begun.acquire()
    asked = loop.time()
    await handle.cancel()
    view = await house.ended(handle)
    assert (view.state, view.effects_open) == ("cancelled", 1)
    assert cut["look"] - asked < 0.4
    assert cut["pay"] - cut["look"] >= 0.4
    states = {key: one.state for key, one in (await house.operations(handle)).items()}
    assert states["pay#1"] == "unknown"
    (queued,) = await house.app.operations.list(state="unknown")
    assert queued.id == f"{handle.id}:pay#1"
    assert await house.violations() == []


async def test_an_answer_within_the_grace_time_is_recorded(house: House, recorder: Recorder) -> None:
    @house.app.tool(effect="manual", timeout="1h")
    async def create(call: ToolCall) -> str:
        reply = await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": "1"})
        return str(reply.json()["id"])

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.call(create)
        await task.call(create)

    await recorder.hold("under way")
    handle = await house.submit(agent)
    house.start(grace_s=10.0)
    await recorder.wait_for(held="under way")
    assert (await handle.cancel()).kind == "requested"
    await house.reached(handle, "task.cancel_requested")
    await recorder.release("under way")
    view = await house.ended(handle)
    assert (view.state, view.effects_open) == ("cancelled", 0)
    assert {key: one.state for key, one in (await house.operations(handle)).items()} == {
        "create#1": "succeeded"
    }
    assert len([call for call in await recorder.log() if call.method == "POST"]) == 1
    assert await house.violations(recorder) == []


async def test_no_intent_is_admitted_after_the_answer_though_the_worker_has_not_heard(
    house: House, recorder: Recorder
) -> None:
    """The worker is told nothing: the gate of the intent is what stops it."""

    async def deaf(*args: Any, **options: Any) -> list[Any]:
        return []

    house.store.news = deaf  # type: ignore[method-assign]
    entered, release = asyncio.Event(), asyncio.Event()

    async def compute() -> None:
        entered.set()
        await release.wait()

    @house.app.tool(effect="keyed", key_window="24h")
    async def create(call: ToolCall) -> None:
        await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": "1"})

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.step(compute)
        await task.call(create)

    handle = await house.submit(agent)
    house.start()
    async with asyncio.timeout(PATIENCE_S):
        await entered.wait()
    assert (await handle.cancel()).kind == "requested"
    release.set()
    assert (await house.ended(handle)).state == "cancelled"
    assert await recorder.log() == []
    assert await house.violations(recorder) == []


async def test_a_deaf_worker_cannot_make_a_success_of_a_cancelled_task(house: House) -> None:
    async def deaf(*args: Any, **options: Any) -> list[Any]:
        return []

    house.store.news = deaf  # type: ignore[method-assign]
    entered, release = asyncio.Event(), asyncio.Event()

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        entered.set()
        await release.wait()
        return "all is well"

    @house.app.agent
    async def waits(task: TaskContext) -> None:
        entered.set()
        await release.wait()
        await task.wait("never")

    for one in (agent, waits):
        entered.clear()
        release.clear()
        handle = await house.submit(one)
        if not house.workers:
            house.start()
        async with asyncio.timeout(PATIENCE_S):
            await entered.wait()
        assert (await handle.cancel()).kind == "requested"
        release.set()
        assert (await house.ended(handle)).state == "cancelled"
    assert await house.violations() == []


async def test_a_thread_that_cannot_be_stopped_is_left_behind_and_takes_its_slot(house: House) -> None:
    entered, release = threading.Event(), threading.Event()
    warned: list[str] = []
    stop = telemetry.subscribe(
        lambda signal: warned.append(signal.about) if isinstance(signal, telemetry.Warned) else None
    )

    def block() -> None:
        entered.set()
        release.wait(PATIENCE_S)

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.step(block)

    @house.app.agent
    async def quick(task: TaskContext) -> int:
        return 1

    try:
        handle = await house.submit(agent)
        house.start(slots=1)
        await asyncio.to_thread(entered.wait, PATIENCE_S)
        await handle.cancel()
        # The attempt ends on time, whatever the thread does.
        assert (await house.ended(handle)).state == "cancelled"
        assert len(warned) == 1
        assert "thread runs on" in warned[0]
        other = await house.submit(quick)
        claims = house.store.claim
        free: list[int] = []

        async def counted(request: Any, **options: Any) -> Any:
            free.append(request.limit)
            return await claims(request, **options)

        house.store.claim = counted  # type: ignore[method-assign]
        # Its only slot is taken until the thread returns.
        assert (await other.get()).state == "queued"
        release.set()
        assert (await house.ended(other)).result == 1
        assert set(free) == {1}
    finally:
        release.set()
        stop()
    assert await house.violations() == []


async def test_an_agent_that_never_ends_is_left_behind_and_writes_nothing(house: House) -> None:
    entered, over = asyncio.Event(), asyncio.Event()
    refused: list[str] = []
    warned: list[str] = []
    stop = telemetry.subscribe(
        lambda signal: warned.append(signal.about) if isinstance(signal, telemetry.Warned) else None
    )

    @house.app.agent
    async def stubborn(task: TaskContext) -> str:
        entered.set()
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue
        try:
            await task.emit("progress", "still here")
        except asyncio.CancelledError:
            refused.append("emit")
        return "all is well"

    try:
        handle = await house.submit(stubborn)
        worker = house.start(grace_s=0.3)
        async with asyncio.timeout(PATIENCE_S):
            await entered.wait()
        await handle.cancel("stop")
        view = await house.ended(handle)
        assert (view.state, view.error and view.error["message"]) == ("cancelled", "stop")
        assert len(worker.runs) == 1
        assert [about for about in warned if "stubborn did not end" in about] != []
        over.set()
        await house.stop()
    finally:
        over.set()
        stop()
    assert refused == ["emit"]
    assert [event.kind for event in await house.events(handle)][-1] == "task.cancelled"
    assert await house.violations() == []


async def test_a_worker_that_dies_with_a_cancel_outstanding_leaves_a_cancelled_task(house: House) -> None:
    """The sweeper ends it: a lost lease does not queue a task that is to be cancelled."""
    entered = asyncio.Event()

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        entered.set()
        await asyncio.Event().wait()

    handle = await house.submit(agent)
    first = house.start(lease_s=0.5, grace_s=60.0)
    async with asyncio.timeout(PATIENCE_S):
        await entered.wait()
    # As if the process had stopped: it neither renews nor hears.
    for run, task in first.runs.items():
        run.hear = lambda news: asyncio.sleep(0)  # type: ignore[method-assign, assignment]
        assert not task.done()

    async def away(*args: Any, **options: Any) -> Any:
        await asyncio.Event().wait()

    first.session.renew = away  # type: ignore[method-assign]
    assert (await handle.cancel("stop")).kind == "requested"
    view = await house.ended(handle)
    assert (view.state, view.error and view.error["message"]) == ("cancelled", "stop")
    kinds = [event.kind for event in await house.events(handle)]
    assert [kind for kind in kinds if kind in FINAL] == ["task.cancelled"]


# -- scenario O16 --------------------------------------------------------------------------------------------


async def test_cancel_and_completion_race_and_the_answer_agrees_with_the_end(house: House) -> None:
    """A cancel at a random moment around the last commit, a few hundred times; see scenario O16."""
    chance = random.Random(7)

    @house.app.agent
    async def agent(task: TaskContext, pause: float) -> str:
        await task.step(asyncio.sleep, 0)
        await asyncio.sleep(pause)
        return "done"

    house.start(slots=50)

    async def one() -> tuple[str, str]:
        handle = await house.submit(agent, pause=chance.uniform(0.0, 0.02))
        await asyncio.sleep(chance.uniform(0.0, 0.06))
        try:
            reply = await handle.cancel("race", by="kim")
            answer = f"{reply.kind} {reply.state}"
        except TaskEnded as error:
            answer = f"ended {error.state}"
        view = await house.ended(handle)
        final = [event.kind for event in await house.events(handle) if event.kind in FINAL]
        assert final == [f"task.{view.state}"]
        return answer, view.state

    seen: dict[tuple[str, str], int] = {}
    for _ in range(10):
        for pair in await asyncio.gather(*(one() for _ in range(30))):
            seen[pair] = seen.get(pair, 0) + 1
    allowed = {
        ("cancelled cancelled", "cancelled"),
        ("requested running", "cancelled"),
        ("ended succeeded", "succeeded"),
    }
    assert set(seen) <= allowed, seen
    # The race was one: both ends were seen.
    assert {end for _, end in seen} == {"cancelled", "succeeded"}, seen
    assert await house.violations() == []
