"""Trying again: a task that ended badly has a next round, with its journal and its stream."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import TaskContext, ToolCall, clock, probes
from outlast.core import ids
from outlast.core.retry import Backoff
from outlast.errors import (
    ChildCancelled,
    ChildFailed,
    EffectsUndone,
    InvalidKey,
    Rejected,
    StepFailed,
    TaskCancelled,
    TaskFailed,
    TaskNotEnded,
    TaskNotFound,
)
from outlast.store.records import ClaimRequest, Serves, SessionRenewal, SweepRequest
from outlast.testing.recorder import Recorder, Rule
from outlast.views import TaskView

ONCE = Backoff(base_s=0.01, max_s=0.01, jitter_s=0, attempts=1)


async def retried(house: House, view: TaskView) -> int:
    """Open a task's next round."""
    return await house.app.retry(view.id, reason="the fault is found", by="kim")


async def test_what_succeeded_stands_and_a_failed_step_is_made_again(house: House) -> None:
    ran: list[str] = []

    async def read() -> int:
        ran.append("read")
        return 7

    async def flaky() -> int:
        ran.append("flaky")
        if ran.count("flaky") == 1:
            raise ConnectionError("not yet")
        return 11

    @house.app.agent
    async def agent(task: TaskContext) -> int:
        return int(await task.step(read) + await task.step(flaky))

    view = await house.run(agent)
    assert (view.state, view.round) == ("failed", 1)
    assert await retried(house, view) == 2
    ended = await house.app.wait(view.id, timeout=PATIENCE_S)
    assert (ended.state, ended.result, ended.round, ended.error) == ("succeeded", 18, 2, None)
    assert ran == ["read", "flaky", "flaky"]
    assert await house.app.result(view.id) == 18
    (audited,) = [one for one in await house.app.pauses.audit() if one.what == "retry"]
    assert (audited.who, audited.subject, audited.reason) == ("person:kim", view.id, "the fault is found")
    assert await house.violations() == []


async def test_the_stream_goes_on_with_higher_numbers_and_ends_again(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext, fails: int) -> int:
        if task.attempt <= fails:
            raise RuntimeError("not yet")
        return task.attempt

    handle = await house.submit(agent, fails=2)
    house.start()
    await house.ended(handle)
    async with asyncio.timeout(PATIENCE_S):
        first = [event async for event in handle.events()]
        assert first[-1].kind == "task.failed"
        await house.app.retry(handle.id, reason="again")
        second = [event async for event in handle.events(after=first[-1].number)]
        assert (second[0].kind, second[-1].kind) == ("task.retried", "task.failed")
        assert second[0].data == {"by": "person:app", "reason": "again", "round": 2}
        await house.app.retry(handle.id, reason="and again")
        # From the beginning: the ends of earlier rounds end nothing.
        seen = [event async for event in handle.events()]
    assert [event.number for event in seen] == list(range(1, len(seen) + 1))
    kinds = [event.kind for event in seen]
    assert (kinds.count("task.failed"), kinds.count("task.retried"), kinds[-1]) == (2, 2, "task.succeeded")
    assert [event async for event in handle.events(after=seen[-1].number)] == []
    assert await house.app.result(handle.id) == 3
    assert await house.violations() == []


async def test_whoever_follows_from_before_sees_every_round(house: House) -> None:
    @house.app.agent(pool="later")
    async def agent(task: TaskContext) -> None:
        return None

    handle = await house.submit(agent)
    await handle.cancel("not now")
    await house.app.retry(handle.id, reason="now")
    seen: list[str] = []
    following = asyncio.create_task(_collect(handle, seen))
    house.start(pools=("later",))
    await asyncio.wait_for(following, PATIENCE_S)
    assert [kind for kind in seen if kind.startswith("task.")] == [
        "task.submitted",
        "task.cancelled",
        "task.retried",
        "task.succeeded",
    ]


async def _collect(handle: Any, seen: list[str]) -> None:
    async for event in handle.events():
        seen.append(event.kind)


async def test_whoever_resumes_at_each_end_misses_nothing_and_sees_nothing_twice(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> int:
        await task.emit("progress", {"attempt": task.attempt}, key=f"p{task.attempt}")
        if task.attempt < 6:
            raise RuntimeError("not yet")
        return task.attempt

    handle = await house.submit(agent)

    async def follow() -> list[int]:
        numbers: list[int] = []
        while True:
            async for event in handle.events(after=numbers[-1] if numbers else 0):
                numbers.append(event.number)
                if event.kind == "task.succeeded":
                    return numbers

    async def operate() -> None:
        while (await house.app.wait(handle.id)).state == "failed":
            await house.app.retry(handle.id, reason="again")

    following = [asyncio.create_task(follow()) for _ in range(3)]
    operating = asyncio.create_task(operate())
    house.start()
    async with asyncio.timeout(PATIENCE_S):
        await operating
        seen = await asyncio.gather(*following)
    view = await handle.get()
    assert (view.result, view.round) == (6, 6)
    assert seen == [list(range(1, view.last_event + 1))] * 3


async def test_what_is_said_after_the_end_is_seen_and_ends_the_stream_too(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> int:
        return 1

    handle = await house.submit(agent)
    house.start()
    view = await house.ended(handle)
    await house.app.accept(handle.id, reason="as it should be", by="kim")
    async with asyncio.timeout(PATIENCE_S):
        assert [event.kind async for event in handle.events()][-2:] == ["task.succeeded", "task.accepted"]
        assert [event.kind async for event in handle.events(after=view.last_event)] == ["task.accepted"]
        assert [event.kind async for event in handle.events(after=view.last_event + 1)] == []


async def test_a_declined_call_stays_declined(house: House) -> None:
    sent: list[str] = []

    @house.app.tool(effect="keyed", key_window="1h")
    async def pay(call: ToolCall) -> None:
        sent.append(call.idempotency_key)
        raise Rejected("no such account")

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.call(pay)

    view = await house.run(agent)
    await retried(house, view)
    ended = await house.app.wait(view.id, timeout=PATIENCE_S)
    assert (ended.state, ended.round) == ("failed", 2)
    assert ended.error is not None
    assert ended.error["code"] == "tool_rejected"
    assert sent == [f"{view.id}:pay#1"]


async def test_a_call_that_was_never_processed_is_made_again_under_its_key(
    house: House, recorder: Recorder
) -> None:
    @house.app.tool(effect="keyed", key_window="1h", retry=ONCE, timeout=2)
    async def create(call: ToolCall) -> Any:
        reply = await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": "1"})
        return reply.json()["id"]

    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        return await task.call(create)

    await recorder.plan(Rule.refuse(503))
    view = await house.run(agent)
    assert view.error is not None
    assert view.error["code"] == "tool_failed"
    await retried(house, view)
    ended = await house.app.wait(view.id, timeout=PATIENCE_S)
    assert (ended.state, len(await recorder.tickets())) == ("succeeded", 1)
    assert {call.key for call in await recorder.log()} == {f"{view.id}:create#1"}
    operation = (await house.operations(view))["create#1"]
    assert (operation.state, operation.attempt) == ("succeeded", 2)
    assert await house.violations(recorder) == []


async def test_a_deadline_begins_anew(house: House) -> None:
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    @house.app.agent(deadline="1h")
    async def agent(task: TaskContext) -> str:
        await task.step(wait)
        return "done"

    house.start(grace_s=0.1)
    handle = await house.app.submit(agent, deadline=0.3)
    view = await house.ended(handle)
    assert view.error is not None
    assert view.error["code"] == "deadline_exceeded"
    gate.set()
    await retried(house, view)
    ended = await house.ended(handle)
    assert (ended.state, ended.result) == ("succeeded", "done")
    assert ended.deadline_at is not None
    assert view.deadline_at is not None
    # As its agent declares, from now on.
    assert (ended.deadline_at - view.deadline_at).total_seconds() > 3_000


async def test_a_call_that_the_deadline_kept_from_being_sent_is_made_in_the_next_round(
    house: House, recorder: Recorder
) -> None:
    """The task's time runs out between an intent and its send."""
    stood: list[str] = []

    def stand_still(point: str) -> None:
        if point == "effects.after_intent" and not stood:
            stood.append(point)
            time.sleep(max(0.0, deadline - time.monotonic()))

    @house.app.tool(effect="manual", timeout=60)
    async def create(call: ToolCall) -> str:
        await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": "1"})
        return "sent"

    @house.app.agent(deadline="1h")
    async def agent(task: TaskContext) -> str:
        return str(await task.call(create))

    probes.install(stand_still)
    try:
        deadline = time.monotonic() + 1.0
        handle = await house.app.submit(agent, deadline=0.9)
        house.start()
        view = await house.ended(handle)
    finally:
        probes.install(None)
    assert view.error is not None
    assert (view.error["code"], stood) == ("deadline_exceeded", ["effects.after_intent"])
    assert await recorder.log() == []
    await retried(house, view)
    ended = await house.app.wait(view.id, timeout=PATIENCE_S)
    assert (ended.state, ended.result) == ("succeeded", "sent")
    assert len(await recorder.log()) == 1
    assert await house.violations(recorder) == []


async def test_a_round_may_have_a_deadline_of_its_own(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None:
        if task.attempt == 1:
            raise RuntimeError("once")
        await task.sleep("1h")

    view = await house.run(agent)
    assert view.deadline_at is None
    await house.app.retry(view.id, reason="quickly", deadline=0.3)
    ended = await house.app.wait(view.id, timeout=PATIENCE_S)
    assert ended.error is not None
    assert ended.error["code"] == "deadline_exceeded"


async def test_the_agents_own_retries_begin_anew(house: House) -> None:
    ran: list[int] = []

    @house.app.agent(retry=Backoff(base_s=0.01, max_s=0.01, jitter_s=0, attempts=2))
    async def agent(task: TaskContext) -> int:
        ran.append(task.attempt)
        if task.attempt < 4:
            raise RuntimeError("not yet")
        return task.attempt

    view = await house.run(agent)
    assert ran == [1, 2]
    await retried(house, view)
    assert (await house.app.wait(view.id, timeout=PATIENCE_S)).result == 4
    assert ran == [1, 2, 3, 4]


async def test_a_cancelled_task_is_tried_again_and_does_not_remember_the_cancel(house: House) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        begun.set()
        await gate.wait()
        return "done"

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        return str(await task.step(slow))

    handle = await house.submit(agent)
    house.start(grace_s=0.1)
    await begun.wait()
    await handle.cancel("enough")
    with pytest.raises(TaskCancelled, match="enough"):
        await handle.result(PATIENCE_S)
    gate.set()
    await house.app.retry(handle.id, reason="after all")
    assert await handle.result(PATIENCE_S) == "done"
    view = await handle.get()
    assert (view.cancelling, view.error, view.round) == (False, None, 2)
    assert await house.violations() == []


async def test_a_parked_task_is_tried_again_and_does_not_count_old_deaths(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> int:
        return task.attempt

    handle = await house.submit(agent)
    await _die(house, "agent", deaths=3)
    view = await handle.get()
    assert view.error is not None
    assert (view.state, view.error["code"]) == ("failed", "crash_loop")
    await house.app.retry(handle.id, reason="the poison is gone")
    await _die(house, "agent", deaths=1)
    assert (await handle.get()).state == "queued"
    house.start()
    assert (await house.ended(handle)).state == "succeeded"
    assert await house.violations() == []


async def _die(house: House, agent: str, *, deaths: int) -> None:
    """Have a worker claim the task and be lost, as if its process were killed, so many times."""
    for _ in range(deaths):
        session = clock.new_id(ids.SESSION)
        await house.store.renew(SessionRenewal(session=session, name="victim", ttl_us=50_000))
        serves = (Serves(agent=agent, version="1", default=True),)
        reply = await house.store.claim(
            ClaimRequest(session=session, pools=("default",), serves=serves, limit=1)
        )
        assert len(reply.claims) == 1
        await house.store.sweep(SweepRequest(), now=reply.now + 60_000)


@pytest.mark.parametrize("state", ["queued", "waiting", "succeeded"])
async def test_only_what_ended_badly_is_tried_again(house: House, state: str) -> None:
    @house.app.agent
    async def agent(task: TaskContext, sleeps: bool) -> None:
        if sleeps:
            await task.sleep("1h")

    handle = await house.submit(agent, sleeps=state == "waiting")
    if state != "queued":
        house.start()
        await (house.ended(handle) if state == "succeeded" else house.waits(handle, "timer"))
    before = await handle.get()
    with pytest.raises(TaskNotEnded) as caught:
        await retried(house, before)
    assert caught.value.state == state
    assert await handle.get() == before


@pytest.mark.parametrize("undone", [True, False])
async def test_what_was_undone_is_not_tried_again(house: House, undone: bool) -> None:
    """Its journal says that the effect stands, and it is gone, or may be; an undo that was not done has
    changed nothing."""

    @house.app.tool(effect="idempotent", retry=ONCE)
    async def withdraw(call: ToolCall, result: int) -> None:
        if not undone:
            raise Rejected("too late")

    @house.app.tool(effect="idempotent", undo=withdraw)
    async def file(call: ToolCall) -> int:
        return 7

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> int:
        ticket = await task.call(file)
        if (await house.app.get(task.id)).round == 1:
            raise RuntimeError("no")
        return int(ticket)

    view = await house.run(agent)
    assert view.state == "failed"
    with pytest.raises(EffectsUndone):
        await retried(house, view)
    assert (await house.app.get(view.id)).round == 1
    if not undone:
        undo = f"{view.id}:file#1/undo"
        await house.app.operations.settle(undo, "did_not_happen", reason="asked", by="kim", forced=True)
        await retried(house, view)
        assert (await house.app.wait(view.id, timeout=PATIENCE_S)).result == 7


async def test_a_second_retry_finds_the_round_open(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None:
        raise RuntimeError("always")

    view = await house.run(agent)
    await house.stop()
    answers = await asyncio.gather(*(retried(house, view) for _ in range(5)), return_exceptions=True)
    assert [answer for answer in answers if not isinstance(answer, TaskNotEnded)] == [2]
    assert (await house.app.get(view.id)).round == 2


async def test_a_retry_is_somebodys_and_has_a_reason(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None:
        raise RuntimeError("always")

    view = await house.run(agent)
    for given in ({"reason": ""}, {"reason": "r", "by": ""}, {"reason": "r", "by": "x\ny"}):
        with pytest.raises(InvalidKey):
            await house.app.retry(view.id, **given)
    with pytest.raises(TaskNotFound):
        await house.app.retry(view.id, reason="r", tenant="other")
    assert (await house.app.get(view.id)).round == 1


async def test_a_child_is_tried_again_before_its_parent_looks(house: House) -> None:
    """The parent takes the end of the child's last round, not of the one that an operator has opened anew."""
    ran: list[int] = []

    @house.app.agent(pool="children")
    async def child(task: TaskContext) -> str:
        ran.append(task.attempt)
        if task.attempt == 1:
            raise RuntimeError("once")
        return "second"

    @house.app.agent
    async def parent(task: TaskContext) -> str:
        return str(await task.spawn(child))

    handle = await house.submit(parent)
    worker = house.start(pools=("default",))
    await house.waits(handle, "child")
    await house.stop()
    (born,) = await house.app.list(parent=handle.id)
    worker = house.start(pools=("children",))
    failed = await house.app.wait(born.id, timeout=PATIENCE_S)
    assert (failed.state, worker.draining) == ("failed", False)
    await house.stop()
    await house.app.retry(born.id, reason="the child's own fault")
    house.start(pools=("default",))
    assert (await house.app.get(handle.id)).state != "failed"
    house.start(pools=("children",))
    assert (await house.ended(handle)).result == "second"
    assert ran == [1, 2]
    assert await house.violations() == []


async def test_a_parent_that_has_taken_its_childs_failure_keeps_it(house: House) -> None:
    @house.app.agent
    async def child(task: TaskContext) -> str:
        if task.attempt == 1:
            raise RuntimeError("once")
        return "second"

    @house.app.agent
    async def parent(task: TaskContext) -> str:
        try:
            return str(await task.spawn(child))
        except ChildFailed as error:
            return f"without it: {error.reason}"

    view = await house.run(parent)
    assert view.result == "without it: agent_error"
    (born,) = await house.app.list(parent=view.id)
    await house.app.retry(born.id, reason="for itself")
    assert (await house.app.wait(born.id, timeout=PATIENCE_S)).result == "second"
    assert (await house.app.get(view.id)).result == "without it: agent_error"


async def test_a_parent_that_is_tried_again_hears_of_children_that_ended_with_it(house: House) -> None:
    """Their ends were delivered while nobody listened; the next round must not wait for them for ever."""

    @house.app.agent
    async def child(task: TaskContext) -> None:
        await task.wait("never")

    @house.app.agent
    async def parent(task: TaskContext) -> str:
        try:
            return str(await task.spawn(child))
        except ChildCancelled:
            return "without it"

    handle = await house.submit(parent)
    house.start()
    await house.waits(handle, "child")
    (born,) = await house.app.list(parent=handle.id)
    await house.app.cancel(handle.id)
    assert (await house.app.wait(born.id, timeout=PATIENCE_S)).state == "cancelled"
    while (await house.app.store.dump())["posts"]:
        await house.app.store.wakes.wait("posts", 0.1)
    await house.app.retry(handle.id, reason="it was the wrong one")
    assert (await house.ended(handle)).result == "without it"
    assert await house.violations() == []


async def test_result_waits_for_the_round_that_is_open(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> int:
        if task.attempt == 1:
            raise StepFailed("once")
        return task.attempt

    view = await house.run(agent)
    with pytest.raises(TaskFailed):
        await house.app.result(view.id)
    await house.stop()
    await retried(house, view)
    waiting = asyncio.create_task(house.app.result(view.id, timeout=PATIENCE_S))
    house.start()
    assert await waiting == 2
