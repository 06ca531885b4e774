"""Faults that others had, played against this engine; each names its scenario."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.engine.house import PATIENCE_S, House

from outlast import TaskContext, ToolCall, clock
from outlast.core import ids
from outlast.engine.worker import Worker
from outlast.store.records import ClaimRequest, SessionRenewal
from outlast.testing.recorder import Recorder


class Heartbeat:
    """A worker's renewals, which can be stopped and let go on."""

    def __init__(self, worker: Worker) -> None:
        self._renew = worker.session.renew
        self._beats = asyncio.Event()
        self._beats.set()
        worker.session.renew = self._beat  # type: ignore[method-assign]

    async def _beat(self) -> bool:
        await self._beats.wait()
        return await self._renew()

    def stop(self) -> None:
        """Let no renewal through: as a blocked thread would."""
        self._beats.clear()

    def go_on(self) -> None:
        """Let renewals through again."""
        self._beats.set()


def ticket_tool(house: House, recorder: Recorder) -> Any:
    @house.app.tool(effect="idempotent")
    async def create(call: ToolCall, invoice: str) -> None:
        await call.http.post(f"{recorder.url}/tickets", json={"invoice": invoice, "amount": "1"})

    return create


async def test_o05_nothing_is_held_that_there_is_no_slot_for(house: House, recorder: Recorder) -> None:
    """Ten tasks, two slots, the first two busy for three leases: the others are never claimed meanwhile."""
    create = ticket_tool(house, recorder)
    blocked, release = asyncio.Semaphore(0), asyncio.Event()
    leases: list[int] = []

    @house.app.agent
    async def agent(task: TaskContext, number: int) -> None:
        if number < 2:
            blocked.release()
            await release.wait()
        await task.call(create, f"INV-{number}")

    handles = [await house.submit(agent, number=number) for number in range(10)]
    first = house.start(slots=2, lease_s=0.6, name="first")
    renewals = first.session.renew

    async def counted() -> bool:
        alive = await renewals()
        leases.append(len((await house.store.dump())["leases"]))
        # Three leases are nine renewals.
        if len(leases) == 9:
            house.start(slots=20, name="second")
            for handle in handles[2:]:
                await house.ended(handle)
            release.set()
        return alive

    first.session.renew = counted  # type: ignore[method-assign]
    async with asyncio.timeout(PATIENCE_S):
        await blocked.acquire()
        await blocked.acquire()
    for handle in handles:
        assert (await house.ended(handle)).state == "succeeded"
    assert max(leases[:9]) == 2
    workers = [(await house.app.attempts(handle.id))[0].worker for handle in handles]
    assert workers == ["first"] * 2 + ["second"] * 8
    posts = [call for call in await recorder.log() if call.method == "POST"]
    assert len(posts) == 10
    assert len({call.key for call in posts}) == 10
    assert await house.violations(recorder) == []


async def test_o06_an_attempt_that_was_fenced_writes_and_sends_nothing_more(
    house: House, recorder: Recorder
) -> None:
    """Code that ignores its cancellation, beside the attempt that took over."""
    create = ticket_tool(house, recorder)
    refused: list[str] = []
    written, fenced, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn(task: TaskContext) -> None:
        """Wait until the attempt is fenced, whatever is done to stop this."""
        while not fenced.is_set():
            try:
                await fenced.wait()
            except asyncio.CancelledError:
                continue

    @house.app.agent
    async def agent(task: TaskContext) -> int:
        await task.call(create, "at 8 s")
        if task.attempt == 1:
            written.set()
            await stubborn(task)
        for when in ("at 14 s", "at 18 s"):
            try:
                await task.call(create, when)
            except asyncio.CancelledError:
                refused.append(when)
        if task.attempt == 1:
            over.set()
        return task.attempt

    handle = await house.submit(agent)
    first = house.start(lease_s=0.6, name="first")
    heart = Heartbeat(first)
    async with asyncio.timeout(PATIENCE_S):
        await written.wait()
    heart.stop()
    house.start(name="second")
    view = await house.ended(handle)
    assert view.result == 2
    before = len(await recorder.log())
    fenced.set()
    async with asyncio.timeout(PATIENCE_S):
        await over.wait()
    assert refused == ["at 14 s", "at 18 s"]
    heart.go_on()
    await house.stop()
    # The trust of its session is over, or it has been told: in both cases nothing left the process.
    assert len(await recorder.log()) == before
    posts = [(call.body or {}).get("invoice") for call in await recorder.log() if call.method == "POST"]
    assert posts == ["at 8 s", "at 14 s", "at 18 s"]
    attempts = await house.app.attempts(handle.id)
    assert [(one.worker, one.end) for one in attempts] == [("first", "lost"), ("second", "succeeded")]
    assert await house.violations(recorder) == []


async def test_a_process_that_knows_no_agent_hands_the_tasks_of_a_dead_worker_on(house: House) -> None:
    """Only the sweeper takes a task away, and it never needs the code: by epoch alone."""

    @house.app.agent
    async def agent(task: TaskContext, name: str) -> str:
        return f"hello {name}"

    handle = await house.submit(agent, name="Ada")
    # A worker that claims, and is not heard of again.
    store, session = house.store, clock.new_id(ids.SESSION)
    await store.renew(SessionRenewal(session=session, name="gone", ttl_us=50_000))
    serves = house.app.registry.serves()
    answer = await store.claim(ClaimRequest(session=session, pools=("default",), serves=serves, limit=1))
    assert [claim.task for claim in answer.claims] == [handle.id]
    before = await store.dump()
    nobody = house.deploy()
    sweeper = house.start(app=nobody, pools=("elsewhere",))
    async with asyncio.timeout(PATIENCE_S):
        async for event in handle.events():
            if event.kind == "task.queued":
                break
    after = await store.dump()
    (head,) = after["tasks"]
    assert (head["state"], head["epoch"]) == ("queued", before["tasks"][0]["epoch"] + 1)
    assert (after["inputs"], after["operations"]) == (before["inputs"], [])
    assert [one.end for one in await house.app.attempts(handle.id)] == ["lost"]
    sweeper.stop()
    house.start()
    assert (await house.ended(handle)).result == "hello Ada"
    assert [one.end for one in await house.app.attempts(handle.id)] == ["lost", "succeeded"]
