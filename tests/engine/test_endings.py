"""Endings: every attempt comes to exactly one, whatever the agent's code does."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.engine.house import House

from outlast import TaskContext, ToolCall
from outlast.core.retry import Backoff
from outlast.engine.session import Session
from outlast.errors import OutlastError, StepFailed, TaskFailed
from outlast.store.records import ClaimReply, ClaimRequest
from outlast.testing.recorder import Recorder


async def test_an_agents_error_ends_its_task_by_name(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None:
        raise ValueError("118.5元")

    handle = await house.submit(agent)
    house.start()
    view = await house.ended(handle)
    assert view.state == "failed"
    assert view.error == {"code": "agent_error", "message": "ValueError: 118.5元"}
    with pytest.raises(TaskFailed) as caught:
        await handle.result()
    assert caught.value.failure_code == "agent_error"
    assert [event.kind for event in await house.events(handle)][-2:] == ["attempt.failed", "task.failed"]


async def test_the_retry_policy_of_an_agent_runs_it_again_and_reopens_what_failed(house: House) -> None:
    ran: list[str] = []

    async def once(what: str) -> str:
        ran.append(what)
        return what

    async def flaky() -> int:
        ran.append("flaky")
        if ran.count("flaky") < 3:
            raise ConnectionError("not yet")
        return ran.count("flaky")

    policy = Backoff(base_s=0.02, max_s=0.04, jitter_s=0, attempts=3)

    @house.app.agent(retry=policy)
    async def agent(task: TaskContext) -> Any:
        await task.step(once, "a")
        return await task.step(flaky)

    view = await house.run(agent)
    assert view.result == 3
    assert ran == ["a", "flaky", "flaky", "flaky"]
    assert [one.end for one in await house.app.attempts(view.id)] == ["failed", "failed", "succeeded"]
    assert await house.violations() == []


async def test_the_retry_policy_of_an_agent_ends(house: House) -> None:
    ran: list[int] = []

    @house.app.agent(retry=Backoff(base_s=0.01, max_s=0.01, jitter_s=0, attempts=3))
    async def agent(task: TaskContext) -> None:
        ran.append(task.attempt)
        raise RuntimeError("always")

    view = await house.run(agent)
    assert view.state == "failed"
    assert ran == [1, 2, 3]


async def test_a_deadline_ends_a_task_on_time_wherever_it_is(house: House) -> None:
    cut: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut.append("step")
            raise

    @house.app.agent
    async def stepping(task: TaskContext) -> None:
        await task.step(forever)

    @house.app.agent
    async def computing(task: TaskContext) -> None:
        await asyncio.Event().wait()

    @house.app.agent
    async def sleeping(task: TaskContext) -> None:
        await task.sleep("1h")

    house.start()
    handles = [await house.app.submit(agent, deadline=0.4) for agent in (stepping, computing, sleeping)]
    for handle in handles:
        view = await house.ended(handle)
        assert view.state == "failed"
        assert view.error is not None
        assert view.error["code"] == "deadline_exceeded"
        assert view.ended_at is not None
        assert view.deadline_at is not None
        assert view.ended_at >= view.deadline_at
    assert cut == ["step"]
    assert await house.violations() == []


async def test_a_queued_task_expires_too(house: House) -> None:
    @house.app.agent(pool="elsewhere")
    async def agent(task: TaskContext) -> None:
        return None

    @house.app.agent(name="here")
    async def here(task: TaskContext) -> None:
        return None

    handle = await house.app.submit(agent, deadline=0.2)
    house.start(pools=("default",))
    view = await house.ended(handle)
    assert (view.state, view.attempts) == ("failed", 0)


async def test_a_call_that_outlives_the_deadline_is_left_open_and_the_task_ends(house: House) -> None:
    release = asyncio.Event()

    @house.app.tool(effect="manual", timeout=30)
    async def pay(call: ToolCall) -> str:
        async with call.sending():
            await release.wait()
        return "paid"

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.call(pay)

    house.start(grace_s=0.3)
    handle = await house.app.submit(agent, deadline=0.3)
    view = await house.ended(handle)
    assert view.error is not None
    assert view.error["code"] == "deadline_exceeded"
    assert view.effects_open == 1
    (queued,) = await house.app.operations.list(state="unknown")
    assert queued.id == f"{handle.id}:pay#1"
    assert (await house.events(handle))[-1].kind == "task.failed"
    assert await house.violations() == []


async def test_an_agent_that_swallows_its_cancellation_cannot_make_a_success_of_it(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "all is well"

    handle = await house.app.submit(agent, deadline=0.2)
    house.start()
    assert (await house.ended(handle)).state == "failed"


async def test_an_agent_that_cancels_itself_fails(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None:
        raise asyncio.CancelledError

    view = await house.run(agent)
    assert view.error is not None
    assert view.error["code"] == "cancelled_inside"


async def test_a_stopping_worker_gives_tasks_back_at_their_next_boundary(house: House) -> None:
    entered, ran = asyncio.Event(), []

    async def slow(number: int) -> int:
        entered.set()
        ran.append(number)
        await asyncio.sleep(0.05)
        return number

    @house.app.agent
    async def agent(task: TaskContext) -> list[int]:
        return [await task.step(slow, number) for number in range(5)]

    @house.app.agent
    async def idle(task: TaskContext) -> int:
        await task.sleep(0.5)
        return task.attempt

    first = house.start(linger_s=60.0, lease_s=60.0)
    handle, waiting = await house.submit(agent), await house.submit(idle)
    await entered.wait()
    await house.stop()
    assert first.runs == {}
    view = await handle.get()
    assert (view.state, view.epoch) == ("queued", 1)
    assert [one.end for one in await house.app.attempts(handle.id)] == ["released"]
    dump = await house.store.dump()
    assert dump["leases"] == []
    assert dump["sessions"] == []
    house.start(linger_s=60.0)
    # The step that was under way was let end, and its result was kept.
    assert (await house.ended(handle)).result == [0, 1, 2, 3, 4]
    assert ran == [0, 1, 2, 3, 4]
    assert (await house.ended(waiting)).result == 2
    assert await house.violations() == []


async def test_an_idle_worker_stops_without_waiting_for_its_poll(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None:
        return None

    worker = house.start(poll_s=60.0)
    await house.run(agent)
    assert worker.settings.poll_s == 60.0
    async with asyncio.timeout(5):
        await house.stop()


async def test_a_sync_step_runs_in_a_thread_and_keeps_its_context(house: House) -> None:
    threads: list[int] = []

    def work(seconds: float) -> str:
        threads.append(threading.get_ident())
        return f"{seconds:g}"

    @house.app.agent
    async def agent(task: TaskContext) -> list[str]:
        return list(await asyncio.gather(task.step(work, 1.0), task.step(work, 2.0)))

    view = await house.run(agent)
    assert view.result == ["1", "2"]
    assert threading.get_ident() not in threads
    (step, _) = [one for one in (await house.operations(view)).values()]
    assert step.kind == "step"


async def test_a_step_that_takes_too_long_fails_by_name(house: House) -> None:
    async def slow() -> None:
        await asyncio.Event().wait()

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        try:
            await task.step(slow, timeout=0.05)
        except StepFailed as error:
            return f"{error}; {error.reason}; {error.retryable}"
        return "not reached"

    view = await house.run(agent)
    assert view.result == "step slow took longer than 0.05 s; TimeoutError; True"


async def test_a_call_that_ignores_its_end_reaches_nobody_after_it(house: House, recorder: Recorder) -> None:
    """The time is over, the body swallows its cancellation and goes on: what it sends then is refused."""
    refused: list[str] = []

    @house.app.tool(effect="idempotent", timeout=30)
    async def stubborn(call: ToolCall) -> None:
        ticket = {"invoice": "INV-102", "amount": "1"}
        await call.http.post(f"{recorder.url}/tickets", json=ticket, part="first")
        for part in ("second", "third"):
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                pass
            try:
                await call.http.post(f"{recorder.url}/tickets", json=ticket, part=part)
            except OutlastError as error:
                refused.append(error.code)

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.call(stubborn)

    house.start(grace_s=0.2)
    handle = await house.app.submit(agent, deadline=0.4)
    view = await house.ended(handle)
    assert view.error is not None
    assert view.error["code"] == "deadline_exceeded"
    await house.stop()
    assert refused != []
    assert set(refused) <= {"deadline_exceeded", "lease_lost"}
    assert [call.key for call in await recorder.log()] == [f"{handle.id}:stubborn#1.first"]


async def test_a_task_that_is_given_back_before_its_first_turn_waits_for_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        began.append(task.id)

    async def never(session: Session) -> None:
        await asyncio.Event().wait()

    handle = await house.submit(agent)
    worker, claim = house.start(grace_s=600.0), house.store.claim

    async def claim_and_stop(request: ClaimRequest, **options: int | None) -> ClaimReply:
        reply = await claim(request, **options)
        if reply.claims:
            # Before the first turn of what is started now.
            asyncio.get_running_loop().call_soon(worker.stop)
        return reply

    monkeypatch.setattr(Session, "trust", never)
    monkeypatch.setattr(house.store, "claim", claim_and_stop)
    [(_, serving)] = house.workers
    await asyncio.wait_for(serving, 20.0)
    assert began == []
    monkeypatch.undo()
    house.start()
    await house.ended(handle)
    assert began == [handle.id]
    assert [one.end for one in await house.app.attempts(handle.id)] == ["released", "succeeded"]
    assert await house.violations() == []
