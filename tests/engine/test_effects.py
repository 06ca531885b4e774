"""Effects: one intent, at most one unsettled attempt, then evidence; the other side's log is the judge."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.engine.house import House

from outlast import TaskContext, ToolCall, WorkerSettings, probes
from outlast.core.retry import Backoff
from outlast.errors import (
    ConfigurationError,
    InvalidInput,
    SettlementConflict,
    ToolFailed,
    ToolRejected,
    Uncertain,
)
from outlast.handle import TaskHandle
from outlast.store.entries import CommitIntent
from outlast.testing.recorder import Call, Recorder, Rule

QUICK = Backoff(base_s=0.02, max_s=0.16, jitter_s=0, attempts=6)


def ticket_tool(
    house: House, recorder: Recorder, effect: str, *, timeout: float = 0.4, find: bool = True
) -> Any:
    """Register a tool of an effect class over the ticket service; an agent ``files`` that calls it once."""

    async def find_ticket(call: ToolCall) -> Any:
        found = await call.http.get(
            f"{recorder.url}/tickets", params={"idempotency_key": call.idempotency_key}, changes=False
        )
        return found.json()[0] if found.json() else None

    async def create(call: ToolCall, amount: str) -> dict[str, Any]:
        reply = await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": amount})
        answer: dict[str, Any] = reply.json()
        return answer

    tool = house.app.tool(
        effect=effect,  # type: ignore[arg-type]
        key_window="24h" if effect == "keyed" else None,
        find=find_ticket if find and effect in ("keyed", "queryable") else None,
        timeout=timeout,
        retry=QUICK,
        name="create",
    )(create)

    @house.app.agent
    async def files(task: TaskContext, amount: str = "118.50") -> Any:
        ticket = await task.call(tool, amount)
        return ticket["id"]

    return files


async def posts(recorder: Recorder) -> list[Call]:
    return [call for call in await recorder.log() if call.method == "POST"]


FAULTS = {
    "drops the connection": Rule.act_then_reset(),
    "closes the connection": Rule.act_then_close(),
    "hangs past the timeout": Rule.act_then_hang(),
    "answers 502": Rule.act_then_answer(502),
    "sends half of the body": Rule.act_then_half(),
    "sends garbage": Rule.act_then_garbage(),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("effect", ["idempotent", "keyed", "keyed, not asked", "queryable", "manual"])
async def test_the_other_side_acts_and_its_answer_is_lost(
    house: House, recorder: Recorder, effect: str, fault: str
) -> None:
    name, _, blind = effect.partition(", ")
    files = ticket_tool(house, recorder, name, find=not blind)
    await recorder.plan(FAULTS[fault])
    handle = await house.submit(files)
    house.start()
    if name != "manual":
        view = await house.ended(handle)
        assert view.state == "succeeded"
        assert view.result == (await recorder.tickets())[0]["id"]
    else:
        await house.waits(handle, "reconciliation")
        (queued,) = await house.app.operations.list(state="unknown")
        assert queued.id == f"{handle.id}:create#1"
        await house.app.operations.settle(
            queued.id, "happened", reason="seen there", by="kim", result=(await recorder.tickets())[0]
        )
        assert (await house.ended(handle)).result == (await recorder.tickets())[0]["id"]
    made = await posts(recorder)
    assert {call.key for call in made} == {f"{handle.id}:create#1"}
    assert len(await recorder.tickets()) == 1
    # Whoever can be asked is asked, and then nothing is sent again; whoever cannot is sent the same key.
    assert len(made) == (2 if name == "idempotent" or blind else 1)
    assert await house.violations(recorder) == []


@pytest.mark.parametrize("effect", ["idempotent", "keyed", "keyed, not asked", "queryable", "manual"])
async def test_the_other_side_does_not_act_and_does_not_answer(
    house: House, recorder: Recorder, effect: str
) -> None:
    name, _, blind = effect.partition(", ")
    files = ticket_tool(house, recorder, name, find=not blind)
    await recorder.plan(Rule.hang())
    handle = await house.submit(files)
    house.start()
    if name in ("queryable", "manual"):
        # Absence is no proof here, and nothing may be sent again.
        await house.waits(handle, "reconciliation")
        assert len(await posts(recorder)) == 1
        operation = f"{handle.id}:create#1"
        settled = await house.app.operations.settle(
            operation, "did_not_happen", reason="asked them", by="kim", forced=True
        )
        assert settled.state == "failed"
        view = await house.ended(handle)
        assert view.state == "failed"
        assert view.error is not None
        assert view.error["operation"] == operation
        assert len(await recorder.tickets()) == 0
        return
    view = await house.ended(handle)
    assert view.state == "succeeded"
    assert len(await recorder.tickets()) == 1
    assert len(await posts(recorder)) == 2
    assert await house.violations(recorder) == []


async def settled(house: House, handle: TaskHandle, verdict: Any, **more: Any) -> Any:
    return await house.app.operations.settle(
        f"{handle.id}:create#1", verdict, reason="looked it up", by="kim", **more
    )


async def test_a_person_settles_each_way_and_the_task_resumes(house: House, recorder: Recorder) -> None:
    files = ticket_tool(house, recorder, "manual")

    @house.app.agent
    async def careful(task: TaskContext) -> str:
        try:
            ticket = await task.call("create", "118.50")
        except ToolFailed as error:
            return f"{error.reason}: {error}"
        return str(ticket["id"])

    house.start()
    expected = {"happened": "R-1", "did_not_happen": "did_not_happen: looked it up", "send_again": ""}
    handles = {}
    for verdict in expected:
        await recorder.plan(Rule.act_then_reset())
        handles[verdict] = await house.submit(careful)
        await house.waits(handles[verdict], "reconciliation")
    assert len(await posts(recorder)) == 3
    await recorder.configure(dedupe=False)
    for verdict, handle in handles.items():
        more = {"result": {"id": "R-1"}} if verdict == "happened" else {"forced": True}
        await settled(house, handle, verdict, **more)
        view = await house.ended(handle)
        with pytest.raises(SettlementConflict):
            await settled(house, handle, "happened", result={"id": "R-2"})
        if verdict == "send_again":
            assert view.result == (await recorder.tickets())[-1]["id"]
        else:
            assert view.result == expected[verdict]
        _, evidence = await house.app.operations.show(f"{handle.id}:create#1")
        said = [one for one in evidence if one.source == "person"]
        assert [(one.data["by"], one.data["reason"]) for one in said] == [("person:kim", "looked it up")]
    assert len(await posts(recorder)) == 4
    assert [one.state for one in await house.app.operations.list(state="unknown")] == []
    assert files is not None


async def test_it_is_too_early_to_say_that_a_call_under_way_did_not_happen(
    house: House, recorder: Recorder
) -> None:
    files = ticket_tool(house, recorder, "manual", timeout=30)
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(files)
    house.start()
    await house.waits(handle, "reconciliation")
    for verdict in ("did_not_happen", "send_again"):
        with pytest.raises(SettlementConflict) as refused:
            await settled(house, handle, verdict)
        assert refused.value.state == "too_early"
    await settled(house, handle, "happened", result={"id": "R-1"})
    assert (await house.ended(handle)).result == "R-1"


async def test_a_person_who_settles_while_the_worker_asks_wins_and_the_task_goes_on(
    house: House, recorder: Recorder
) -> None:
    files = ticket_tool(house, recorder, "keyed")
    await recorder.plan(Rule.act_then_reset())
    await recorder.hold("asking", Rule().on(method="GET", path="/tickets"))
    handle = await house.submit(files)
    house.start(lease_s=60.0)
    await recorder.wait_for(held="asking")
    await settled(house, handle, "happened", result={"id": "R-9"})
    await recorder.release("asking")
    view = await house.ended(handle)
    # The worker's own answer came after its turn had passed: it gave the lease back and read the ledger.
    assert view.result == "R-9"
    assert [one.end for one in await house.app.attempts(handle.id)] == ["released", "succeeded"]
    assert len(await posts(recorder)) == 1


async def test_a_settlement_is_not_missed_by_a_task_that_is_about_to_suspend(
    house: House, recorder: Recorder
) -> None:
    files = ticket_tool(house, recorder, "manual")
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(files)
    house.start(linger_s=0.5)
    async with asyncio.timeout(10):
        async for event in handle.events():
            if event.kind == "operation.unknown":
                # It lingers in memory, and nobody tells it; the suspension has to find the fact.
                await settled(house, handle, "happened", result={"id": "R-9"})
                break
    assert (await house.ended(handle)).result == "R-9"
    ends = [one.end for one in await house.app.attempts(handle.id)]
    # Settled before the worker had put it back with its plan, or after it.
    assert ends in (["released", "succeeded"], ["suspended", "succeeded"])


async def test_evidence_that_cannot_be_had_is_no_absence(house: House, recorder: Recorder) -> None:
    files = ticket_tool(house, recorder, "queryable")
    await recorder.plan(Rule.act_then_reset())
    await recorder.plan(Rule.act_then_answer(500).on(method="GET", path="/tickets"))
    handle = await house.submit(files)
    house.start()
    await house.waits(handle, "reconciliation")
    _, evidence = await house.app.operations.show(f"{handle.id}:create#1")
    assert [one.data["answer"] for one in evidence] == ["no evidence"]


# -- declined, throttled, refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [(400, ToolRejected, "rejected"), (403, ToolRejected, "forbidden"), (409, ToolRejected, "conflict"),
     (422, ToolRejected, "invalid")],
)  # fmt: skip
async def test_what_is_declined_is_not_sent_again(
    house: House, recorder: Recorder, status: int, error: type[Exception], reason: str
) -> None:
    ticket_tool(house, recorder, "keyed")
    await recorder.plan(Rule.refuse(status))

    @house.app.agent
    async def agent(task: TaskContext) -> list[str]:
        said = []
        for _ in range(2):
            try:
                await task.call("create", "118.50", key="one")
            except ToolRejected as caught:
                said.append(f"{type(caught).__name__} {caught.reason}")
            await task.sleep(0.1)
        return said

    view = await house.run(agent)
    assert view.result == [f"{error.__name__} {reason}"] * 2
    assert len(await posts(recorder)) == 1
    assert await house.violations(recorder) == []


async def test_the_worked_example_of_backing_off(house: House, recorder: Recorder) -> None:
    """503, 503, 429 with Retry-After, then success: the same key, and every wait as long as it should be."""
    policy = Backoff(base_s=0.1, max_s=0.8, jitter_s=0.05, attempts=6, total_s=30.0)
    ticket_tool(house, recorder, "keyed")

    @house.app.tool(effect="keyed", key_window="24h", retry=policy)
    async def patient(call: ToolCall) -> str:
        reply = await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": "1"})
        return str(reply.json()["id"])

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        return str(await task.call(patient))

    await recorder.plan(Rule.refuse(503), Rule.refuse(503), Rule.refuse(429, retry_after="1"))
    # Quick to suspend: the waits are the database's timers, and the counting goes on from what is on record.
    view = await house.run(agent)
    calls = await posts(recorder)
    assert view.state == "succeeded"
    assert [call.status for call in calls] == [503, 503, 429, 201]
    assert len({call.key for call in calls}) == 1
    waits = [after.arrived_at - (before.ended_at or 0) for before, after in itertools.pairwise(calls)]
    # 0.1 and 0.2 by the formula; 0.4 by the formula, and a whole second as it was asked for.
    assert [wait >= least for wait, least in zip(waits, (0.1, 0.2, 1.0), strict=True)] == [True] * 3
    assert view.attempts == 4
    operation = (await house.operations(view))["patient#1"]
    assert operation.attempt == 4
    assert await house.violations(recorder) == []


@pytest.mark.parametrize("linger_s", [0.0, 60.0])
async def test_the_caps_hold_whether_the_task_waits_in_memory_or_suspends(
    house: House, recorder: Recorder, linger_s: float
) -> None:
    policy = Backoff(base_s=0.02, max_s=0.02, jitter_s=0, attempts=4)

    @house.app.tool(effect="keyed", key_window="24h", retry=policy)
    async def create(call: ToolCall) -> None:
        await call.http.post(f"{recorder.url}/tickets", json={})

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        try:
            await task.call(create)
        except ToolFailed as error:
            return error.reason
        return "not reached"

    await recorder.plan(*[Rule.refuse(503)] * 9)
    house.start(linger_s=linger_s)
    view = await house.run(agent)
    assert view.result == "not_sent"
    assert len(await posts(recorder)) == 4


async def test_an_unknown_that_used_up_its_sends_waits_for_a_person_and_stays_so(
    house: House, recorder: Recorder
) -> None:
    policy = Backoff(base_s=0.02, max_s=0.02, jitter_s=0, attempts=3)

    @house.app.tool(effect="idempotent", retry=policy, timeout=5)
    async def put(call: ToolCall) -> None:
        await call.http.put(f"{recorder.url}/tickets/R-1/note", json={"text": "x"})

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        async def elsewhere() -> None:
            for _ in range(3):
                await task.sleep(0.2)

        await task.gather(task.call(put), elsewhere())

    await recorder.plan(*[Rule.act_then_reset().on(method="PUT")] * 9)
    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "reconciliation")
    # Waking for the other branch did not begin to count anew.
    assert len(await recorder.log()) == 3


async def test_a_declined_resend_says_nothing_about_the_send_before_it(
    house: House, recorder: Recorder
) -> None:
    files = ticket_tool(house, recorder, "keyed", find=False)
    # Acted on; the resend meets a service that has withdrawn our credentials.
    await recorder.plan(Rule.act_then_reset(), Rule.refuse(403))
    handle = await house.submit(files)
    house.start()
    await house.waits(handle, "reconciliation")
    assert len(await posts(recorder)) == 2
    operation = (await house.operations(handle))["create#1"]
    assert operation.state == "unknown"
    assert await house.violations(recorder) == []


async def test_a_throttled_resend_leaves_the_unknown_open_until_it_is_sent(
    house: House, recorder: Recorder
) -> None:
    files = ticket_tool(house, recorder, "keyed", find=False)
    await recorder.plan(Rule.act_then_reset(), Rule.refuse(429, retry_after="1"))
    handle = await house.submit(files)
    house.start()
    await house.waits(handle, "timer")
    (queued,) = await house.app.operations.list(state="unknown")
    assert queued.id == f"{handle.id}:create#1"
    view = await house.ended(handle)
    assert view.state == "succeeded"
    assert [call.status for call in await posts(recorder)] == [None, 429, 201]
    assert len(await recorder.tickets()) == 1
    assert await house.violations(recorder) == []


@pytest.mark.parametrize("sends", ["http", "sending", "unasked", "late"])
async def test_a_call_whose_time_ran_out_after_its_intent_is_not_sent(
    house: House, recorder: Recorder, sends: str
) -> None:
    """The process stands still between the intent and the send, and is trusted still when it goes on."""
    stood: list[str] = []
    bodies: list[int] = []

    def stand_still(point: str) -> None:
        if point == ("in the body" if sends == "late" else "effects.after_intent") and not stood:
            stood.append(point)
            time.sleep(0.5)

    @house.app.tool(effect="manual", timeout=0.4, retry=QUICK)
    async def create(call: ToolCall) -> str:
        bodies.append(call.attempt)
        stand_still("in the body")
        if sends == "sending":
            async with call.sending():
                return "sent"
        if sends == "unasked":
            return "sent"
        await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": "1"})
        return "sent"

    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        return await task.call(create)

    probes.install(stand_still)
    try:
        view = await house.run(agent)
    finally:
        probes.install(None)
    assert (view.state, view.result) == ("succeeded", "sent")
    assert bodies == ([1, 2] if sends == "late" else [2])
    assert len(await posts(recorder)) == (1 if sends in ("http", "late") else 0)
    events = [one for one in await house.app.stored_events(view.id) if one.kind == "operation.retrying"]
    assert [one.data["reason"] for one in events] == ["the time was over before the call was sent"]
    assert await house.violations(recorder if sends in ("http", "late") else None) == []


async def test_a_key_is_not_sent_again_after_its_window(house: House, recorder: Recorder) -> None:
    @house.app.tool(effect="keyed", key_window=0.5, timeout=0.4, retry=QUICK)
    async def create(call: ToolCall) -> None:
        await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": "1"})

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.call(create)

    await recorder.plan(Rule.act_then_hang())
    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "reconciliation")
    assert len(await posts(recorder)) == 1


async def test_a_resend_that_comes_too_late_leaves_its_unknown_open(house: House, recorder: Recorder) -> None:
    """The deadline passes between the question and the second intent: the item stays in the queue."""
    files = ticket_tool(house, recorder, "keyed")
    await recorder.plan(Rule.act_then_reset())
    await recorder.plan(Rule(stale_ms=60_000).on(method="GET", path="/tickets"))
    worker_flush = house.store.flush
    late = asyncio.Event()

    async def slow(batch: Any, **more: Any) -> Any:
        entries = [entry for writes in batch.writes for entry in writes.entries]
        resent = any(isinstance(entry, CommitIntent) and entry.resend for entry in entries)
        if resent and not late.is_set():
            # The store is away until the deadline has passed.
            late.set()
            await asyncio.sleep(1.2)
        return await worker_flush(batch, **more)

    house.store.flush = slow  # type: ignore[method-assign]
    handle = await house.app.submit(files, {}, deadline=1.0)
    house.start(grace_s=5.0, linger_s=60.0)
    view = await house.ended(handle)
    assert late.is_set()
    assert view.error is not None
    assert view.error["code"] == "deadline_exceeded"
    assert view.effects_open == 1
    (queued,) = await house.app.operations.list(state="unknown")
    assert queued.id == f"{handle.id}:create#1"
    assert len(await posts(recorder)) == 1
    assert await house.violations(recorder) == []


# -- what a tool body may do ---------------------------------------------------------------------------------


async def test_an_error_before_anything_was_sent_is_an_ordinary_failure(house: House) -> None:
    bodies: dict[str, Callable[[ToolCall], Awaitable[Any]]] = {}

    @house.app.tool(effect="manual")
    async def breaks_before(call: ToolCall) -> None:
        raise KeyError("amount")

    @house.app.tool(effect="manual")
    async def breaks_after(call: ToolCall) -> None:
        async with call.sending():
            raise KeyError("amount")

    @house.app.tool(effect="manual")
    async def cannot_tell(call: ToolCall) -> None:
        raise Uncertain("the terminal went dark")

    @house.app.tool(effect="read", retry=QUICK)
    async def reads(call: ToolCall) -> str:
        bodies.setdefault("read", reads)
        if call.attempt < 3:
            async with call.sending():
                raise TimeoutError
        return "read"

    @house.app.agent
    async def agent(task: TaskContext, tool: str) -> str:
        try:
            return str(await task.call(tool))
        except ToolFailed as error:
            return f"failed: {error.reason}"

    house.start()
    assert (await house.run(agent, tool="breaks_before")).result == "failed: error"
    # Reading changes nothing, so it may be done again whatever happened.
    assert (await house.run(agent, tool="reads")).result == "read"
    for name in ("breaks_after", "cannot_tell"):
        handle = await house.submit(agent, tool=name)
        await house.waits(handle, "reconciliation")
    assert await house.violations() == []


async def test_arguments_are_checked_before_anything_is_planned(house: House) -> None:
    called: list[Any] = []

    @house.app.tool(effect="manual")
    async def pay(call: ToolCall, amount: int) -> None:
        called.append(amount)

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        try:
            await task.call(pay, amount="118.5元")
        except InvalidInput as error:
            return error.pointer
        return "not reached"

    view = await house.run(agent)
    assert view.result == "/amount"
    assert called == []
    assert await house.operations(view) == {}


async def test_a_keyed_tool_says_how_long_its_key_is_known(house: House) -> None:
    with pytest.raises(ConfigurationError, match="key_window"):

        @house.app.tool(effect="keyed")
        async def create(call: ToolCall) -> None:
            return None


async def test_no_tool_is_called_under_a_lease_that_cannot_be_trusted(house: House) -> None:
    """Also a tool that never asks: the renewals fail, so the trust runs out, and the body is not entered."""
    entered: list[str] = []
    renew, cut = house.store.renew, asyncio.Event()

    async def renewing(*arguments: Any, **more: Any) -> Any:
        from outlast.errors import StoreUnavailable

        if cut.is_set():
            raise StoreUnavailable("cut off")
        return await renew(*arguments, **more)

    @house.app.tool(effect="manual", retry=Backoff(base_s=0.01, max_s=0.01, jitter_s=0, attempts=99))
    async def pay(call: ToolCall) -> str:
        entered.append("pay")
        return "paid"

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        cut.set()
        await asyncio.sleep(0.4)
        return str(await task.call(pay))

    house.store.renew = renewing  # type: ignore[method-assign]
    handle = await house.submit(agent)
    worker = house.start(lease_s=0.3, sweep_s=30.0, linger_s=60.0)
    async with asyncio.timeout(10):
        async for event in handle.events():
            if event.kind == "operation.retrying":
                break
    assert entered == []
    assert not worker.session.trusted()
    cut.clear()
    # As soon as the session is trusted again the call is made.
    house.store.renew = renew  # type: ignore[method-assign]
    assert (await house.ended(handle)).result == "paid"
    assert entered == ["pay"]


def test_settings_refuse_what_makes_no_sense() -> None:
    for wrong in ({"slots": 0}, {"lease_s": 1.0, "renew_s": 1.0}, {"poll_s": 0}, {"sweep_s": 0}):
        with pytest.raises(ConfigurationError):
            WorkerSettings(**wrong)


async def test_what_a_call_was_made_of_is_freed_when_it_is_over(house: House) -> None:
    """Nothing of it is left to Python's search for cycles, which would cost a quarter of a call."""

    @house.app.tool(effect="idempotent")
    async def touch(call: ToolCall, number: int) -> int:
        async with call.sending():
            return number

    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        return sum(await task.gather(*(task.call(touch, n) for n in range(3)))) + await task.call(touch, 1)

    house.start()
    await house.run(agent)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        assert (await house.run(agent)).result == 4
        gc.collect()
        found = {type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("outlast")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert found == set()
