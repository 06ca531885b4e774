"""What has failed and is opened again: sent again under its key, unless it is said to have happened."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import TaskContext, ToolCall
from outlast.core import values
from outlast.core.retry import Backoff
from outlast.handle import TaskHandle
from outlast.store.records import Evidence
from outlast.testing.recorder import Call, Recorder, Rule
from outlast.views import TaskView

KEY = "file#1"
SOON = Backoff(base_s=0.01, max_s=0.01, jitter_s=0, attempts=3)


def register(house: House, recorder: Recorder, **options: Any) -> Any:
    """Register a tool over the ticket service, and an agent that calls it and fails of its failure."""

    @house.app.tool(effect="manual", timeout=5.0)
    async def file(call: ToolCall) -> dict[str, Any]:
        reply = await call.http.post(
            f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": "118.50"}
        )
        answer: dict[str, Any] = reply.json()
        return answer

    @house.app.agent(**options)
    async def agent(task: TaskContext) -> str:
        ticket = await task.call(file)
        return str(ticket["id"])

    return agent


async def posts(recorder: Recorder) -> list[Call]:
    return [call for call in await recorder.log() if call.method == "POST"]


async def settle(house: House, handle: TaskHandle, verdict: Any, **more: Any) -> None:
    """Have a person settle the call as soon as it waits for one."""
    await house.waits(handle, "reconciliation")
    await house.app.operations.settle(f"{handle.id}:{KEY}", verdict, reason="asked them", by="kim", **more)


async def settled_wrongly(house: House, recorder: Recorder) -> TaskHandle:
    """Have a task that failed since a person said that its call did not happen; nobody works."""
    agent = register(house, recorder)
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(agent)
    house.start()
    await settle(house, handle, "did_not_happen", forced=True)
    view = await house.ended(handle)
    assert view.error is not None
    assert (view.state, view.error["code"], view.error["reason"]) == (
        "failed",
        "tool_failed",
        "did_not_happen",
    )
    await house.stop()
    return handle


async def answered_late(house: House, recorder: Recorder, handle: TaskHandle) -> dict[str, Any]:
    """Let the answer of the first attempt come late; answer its ticket."""
    ticket: dict[str, Any] = (await recorder.tickets())[0]
    said = Evidence(
        tenant="default",
        task=handle.id,
        key=KEY,
        attempt=1,
        source="late",
        data=values.encode({"result": values.encode(ticket)}),
        says="happened",
    )
    await house.store.note([said])
    return ticket


async def goes_on(house: House, handle: TaskHandle) -> TaskView:
    """Wait for the end of a task's second round."""
    return await house.app.wait(handle.id, timeout=PATIENCE_S)


@pytest.mark.parametrize("who", ["operator", "agent"])
async def test_what_did_not_happen_is_sent_again_under_its_key(
    house: House, recorder: Recorder, who: str
) -> None:
    """Nothing was done, so that another round may do it."""
    agent = register(house, recorder, **({"retry": SOON} if who == "agent" else {}))
    await recorder.plan(Rule.reset_before_acting())
    handle = await house.submit(agent)
    house.start()
    await settle(house, handle, "did_not_happen", forced=True)
    if who == "operator":
        assert (await house.ended(handle)).state == "failed"
        await house.app.retry(handle.id, reason="they are back", by="kim")
    view = await goes_on(house, handle)
    (ticket,) = await recorder.tickets()
    assert (view.state, view.result) == ("succeeded", ticket["id"])
    assert [call.key for call in await posts(recorder)] == [f"{handle.id}:{KEY}"] * 2
    assert await house.violations(recorder) == []


async def test_what_is_opened_again_and_happened_after_all_is_not_sent_again(
    house: House, recorder: Recorder
) -> None:
    handle = await settled_wrongly(house, recorder)
    await house.app.retry(handle.id, reason="again", by="kim")
    ticket = await answered_late(house, recorder, handle)
    place = await house.place(f"{handle.id}:{KEY}")
    assert place is not None
    assert (place.ask_at, place.why) == (None, "late evidence contradicts what was settled")
    house.start()
    await settle(house, handle, "happened", result=ticket)
    view = await goes_on(house, handle)
    assert (view.state, view.result) == ("succeeded", ticket["id"])
    assert len(await posts(recorder)) == 1
    assert await house.violations(recorder) == []


async def test_a_person_may_have_it_sent_again_all_the_same(house: House, recorder: Recorder) -> None:
    handle = await settled_wrongly(house, recorder)
    await house.app.retry(handle.id, reason="again", by="kim")
    await answered_late(house, recorder, handle)
    house.start()
    await settle(house, handle, "send_again", forced=True)
    view = await goes_on(house, handle)
    # The other side deduplicates by the key, which nobody knew.
    assert (view.state, view.result) == ("succeeded", (await recorder.tickets())[0]["id"])
    assert [call.key for call in await posts(recorder)] == [f"{handle.id}:{KEY}"] * 2


def about_an_invoice(house: House, recorder: Recorder, **options: Any) -> Any:
    """Register a tool that is made once an invoice, and an agent that calls it."""

    @house.app.tool(timeout=5.0, business_key="{invoice}", once="90d", **options)
    async def file(call: ToolCall, invoice: str) -> dict[str, Any]:
        reply = await call.http.post(f"{recorder.url}/tickets", json={"invoice": invoice, "amount": "9"})
        answer: dict[str, Any] = reply.json()
        return answer

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        ticket = await task.call(file, "INV-102")
        return str(ticket["id"])

    return agent


async def test_a_repeat_that_a_person_wants_is_sent_although_it_was_tried_before(
    house: House, recorder: Recorder
) -> None:
    agent = about_an_invoice(house, recorder, effect="manual", on_repeat="ask")
    await recorder.plan(Rule.reset_before_acting())
    first = await house.submit(agent)
    house.start()
    await settle(house, first, "did_not_happen", forced=True)
    assert (await house.ended(first)).state == "failed"
    second = await house.run(agent)
    await house.app.retry(first.id, reason="again", by="kim")
    name = f"{first.id}:{KEY}"
    await house.waits(first, "reconciliation")
    place = await house.place(name)
    assert place is not None
    assert place.why == f"operation {second.id}:{KEY} has done this already; is it to be done again?"
    await house.app.operations.settle(name, "send_again", reason="they want two", by="kim", forced=True)
    view = await goes_on(house, first)
    # Asked once, and done.
    assert (view.state, view.result) == ("succeeded", (await recorder.tickets())[1]["id"])
    assert len(await posts(recorder)) == 3
    assert await house.violations(recorder) == []


async def test_what_is_in_doubt_is_not_answered_by_another_call(house: House, recorder: Recorder) -> None:
    """Twice is once, so it would be sent again by itself; but another has done it since."""
    agent = about_an_invoice(house, recorder, effect="idempotent")
    await recorder.plan(Rule.refuse(422))
    handle = await house.submit(agent)
    house.start()
    assert (await house.ended(handle)).state == "failed"
    other = await house.run(agent)
    await house.app.retry(handle.id, reason="again", by="kim")
    assert (await house.app.wait(handle.id, timeout=PATIENCE_S)).state == "failed"
    said = Evidence(
        tenant="default", task=handle.id, key=KEY, attempt=1, source="late", data="{}", says="happened"
    )
    await house.store.note([said])
    await house.app.retry(handle.id, reason="once more", by="kim")
    await settle(house, handle, "happened", result={"id": "R-seen"})
    view = await goes_on(house, handle)
    assert (view.state, view.result, view.effects_open) == ("succeeded", "R-seen", 0)
    assert len(await posts(recorder)) == 2
    assert other.state == "succeeded"


@pytest.mark.parametrize("status", [422, 503])
async def test_an_attempt_that_fails_after_an_earlier_one_happened_is_no_failure(
    house: House, recorder: Recorder, status: int
) -> None:
    """The word comes while the next attempt is under way: that one is declined, or was not processed."""
    handle = await settled_wrongly(house, recorder)
    await house.app.retry(handle.id, reason="again", by="kim")
    await recorder.hold("second", Rule.refuse(status), at="arrived")
    house.start()
    await recorder.wait_for(held="second")
    ticket = await answered_late(house, recorder, handle)
    await recorder.release("second")
    if status == 422:
        # One attempt says that it happened, one that it was declined.
        await settle(house, handle, "happened", result=ticket)
    view = await goes_on(house, handle)
    assert (view.state, view.result) == ("succeeded", ticket["id"])
    assert len(await posts(recorder)) == 2
    operation = (await house.operations(handle))[KEY]
    assert (operation.state, operation.attempt) == ("succeeded", 2)
    assert await house.violations(recorder) == []
