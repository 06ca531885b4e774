"""What holds a call back before its intent: preconditions, switches, shared waits, business keys."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import NotSent, TaskContext, ToolCall
from outlast.core.retry import Backoff
from outlast.engine import guards
from outlast.engine.run import Run
from outlast.errors import InvalidKey, OperationError, ToolFailed, ToolRejected
from outlast.handle import TaskHandle
from outlast.store.entries import EndAttempt
from outlast.store.reconciling import EVERY_TENANT
from outlast.store.records import Evidence
from outlast.testing.recorder import Call, Recorder, Rule

QUICK = Backoff(base_s=0.02, max_s=0.16, jitter_s=0, attempts=6)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again soon whether a call may be made."""
    monkeypatch.setattr(guards, "KEY_HELD_S", (0.05,))


def register(house: House, recorder: Recorder, **options: Any) -> Any:
    """Register a tool over the ticket service, and an agent that calls it once."""

    async def create(call: ToolCall, employee: str, invoice: str, amount: str = "118.50") -> dict[str, Any]:
        reply = await call.http.post(f"{recorder.url}/tickets", json={"invoice": invoice, "amount": amount})
        answer: dict[str, Any] = reply.json()
        return answer

    given = {"effect": "idempotent", "timeout": 5.0, "retry": QUICK, **options}
    tool = house.app.tool(name="create", **given)(create)

    @house.app.agent
    async def files(task: TaskContext, invoice: str = "INV-102", employee: str = "ada") -> Any:
        try:
            ticket = await task.call(tool, employee, invoice)
        except ToolRejected as error:
            return f"declined: {error.reason}: {error}"
        except ToolFailed as error:
            return f"failed: {error.reason}"
        return ticket["id"]

    return files


async def posts(recorder: Recorder) -> list[Call]:
    return [call for call in await recorder.log() if call.method == "POST"]


async def unknown(house: House, handle: TaskHandle) -> str:
    """Wait until a task's call waits for a person; answer its operation."""
    await house.waits(handle, "reconciliation")
    return f"{handle.id}:create#1"


# -- business keys -------------------------------------------------------------------------------------------

ABOUT = {"business_key": "{employee}/{invoice}"}


async def test_a_second_call_waits_until_the_first_has_an_outcome(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, **ABOUT)
    await recorder.hold("first")
    first = await house.submit(files)
    house.start()
    await recorder.wait_for(held="first")
    second = await house.submit(files)
    other = await house.submit(files, invoice="INV-103")
    # Another key is free, whatever waits behind this one.
    assert (await house.ended(other)).state == "succeeded"
    await house.waits(second, "limit")
    assert [call.key for call in await posts(recorder)] == [f"{first.id}:create#1", f"{other.id}:create#1"]
    assert (await house.operations(first))["create#1"].business_key == "ada/INV-102"
    await recorder.release("first")
    views = [await house.ended(handle) for handle in (first, second)]
    # A lock is no more than a lock: one after the other, both are made.
    assert len({view.result for view in views}) == 2
    before, _, after = await posts(recorder)
    assert before.ended_at is not None
    assert after.arrived_at >= before.ended_at
    assert await house.violations(recorder) == []


async def test_a_second_call_is_refused_where_the_tool_says_so(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, lock="refuse", **ABOUT)
    await recorder.hold("first")
    first = await house.submit(files)
    house.start()
    await recorder.wait_for(held="first")
    second = await house.run(files)
    assert second.result == (
        f"declined: business_key: operation {first.id}:create#1 is doing this (ada/INV-102)"
    )
    assert (await house.operations(second))["create#1"].attempt == 0
    await recorder.release("first")
    assert (await house.ended(first)).state == "succeeded"
    assert (await house.run(files)).result.startswith("R-")
    assert await house.violations(recorder) == []


async def test_two_tasks_and_one_invoice_are_one_ticket(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, once="24h", **ABOUT)
    house.start()
    house.start()
    handles = [await house.submit(files) for _ in range(6)]
    results = {(await house.ended(handle)).result for handle in handles}
    (ticket,) = await recorder.tickets()
    assert results == {ticket["id"]}
    assert len(await posts(recorder)) == 1
    settled_by = [(await house.operations(handle))["create#1"].settled_by for handle in handles]
    assert len(settled_by) == 6
    assert await house.violations(recorder) == []


async def test_a_model_that_asks_again_under_a_new_call_id_makes_no_second_ticket(
    house: House, recorder: Recorder
) -> None:
    register(house, recorder, once="24h", **ABOUT)

    @house.app.agent
    async def asks_twice(task: TaskContext) -> list[str]:
        tickets = [
            await task.call("create", "ada", "INV-102", key=call_id) for call_id in ("call_1", "call_2")
        ]
        return [ticket["id"] for ticket in tickets]

    view = await house.run(asks_twice)
    (ticket,) = await recorder.tickets()
    assert view.result == [ticket["id"]] * 2
    assert [call.key for call in await posts(recorder)] == [f"{view.id}:call_1"]
    answered = (await house.operations(view))["call_2"]
    assert (answered.state, answered.attempt) == ("succeeded", 0)
    assert await house.violations(recorder) == []


async def test_a_success_stands_no_longer_than_it_was_said(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, once=0.3, **ABOUT)
    first = await house.run(files)
    operation = (await house.operations(first))["create#1"]
    assert (await house.run(files)).result == first.result
    while await house.store.read_business_key("default", "create", "ada/INV-102") is not None:
        await house.run(files)
    assert (await house.run(files)).result != first.result
    assert operation.business_key == "ada/INV-102"


@pytest.mark.parametrize(("verdict", "sent"), [("send_again", 2), ("happened", 1), ("did_not_happen", 1)])
async def test_a_person_is_asked_about_a_repeat(
    house: House, recorder: Recorder, verdict: Any, sent: int
) -> None:
    files = register(house, recorder, once="24h", on_repeat="ask", **ABOUT)
    first = await house.run(files)
    second = await house.submit(files)
    name = await unknown(house, second)
    place = await house.place(name)
    assert place is not None
    assert place.ask_at is None
    assert place.why == f"operation {first.id}:create#1 has done this already; is it to be done again?"
    assert len(await posts(recorder)) == 1
    more = {"result": {"id": first.result}} if verdict == "happened" else {"forced": True}
    await house.app.operations.settle(name, verdict, reason="asked them", by="kim", **more)
    view = await house.ended(second)
    assert len(await posts(recorder)) == sent
    if verdict == "send_again":
        assert view.result == (await recorder.tickets())[1]["id"]
    elif verdict == "happened":
        assert view.result == first.result
    else:
        assert view.result == "failed: did_not_happen"
    assert await house.violations(recorder) == []


async def test_an_unknown_keeps_its_key_until_it_is_settled(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, effect="manual", once="24h", **ABOUT)
    await recorder.plan(Rule.act_then_reset())
    first = await house.submit(files)
    house.start()
    name = await unknown(house, first)
    second = await house.submit(files)
    await house.waits(second, "limit")
    (ticket,) = await recorder.tickets()
    await house.app.operations.settle(name, "happened", reason="seen", by="kim", result=ticket)
    assert (await house.ended(second)).result == ticket["id"]
    assert len(await posts(recorder)) == 1
    assert await house.violations(recorder) == []


@pytest.mark.parametrize("how", ["declined", "settled"])
async def test_a_call_that_did_not_happen_gives_its_key_up(
    house: House, recorder: Recorder, how: str
) -> None:
    files = register(house, recorder, effect="manual", once="24h", **ABOUT)
    await recorder.plan(Rule.refuse(422) if how == "declined" else Rule.reset_before_acting())
    first = await house.submit(files)
    house.start()
    if how == "settled":
        name = await unknown(house, first)
        await house.app.operations.settle(name, "did_not_happen", reason="no", by="kim", forced=True)
    assert not (await house.ended(first)).result.startswith("R-")
    assert (await house.run(files)).result == (await recorder.tickets())[0]["id"]


async def settled_wrongly(house: House, recorder: Recorder, files: Any) -> TaskHandle:
    """Have a call that made its ticket, and that a person said did not happen."""
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(files)
    if not house.workers:
        house.start()
    name = await unknown(house, handle)
    await house.app.operations.settle(name, "did_not_happen", reason="not there", by="kim", forced=True)
    assert (await house.ended(handle)).result == "failed: did_not_happen"
    return handle


async def answered_late(house: House, handle: TaskHandle) -> str:
    """Let the answer of a call come late; answer its operation."""
    said = Evidence(
        tenant="default", task=handle.id, key="create#1", attempt=1, source="late", data="{}", says="happened"
    )
    await house.store.note([said])
    return f"{handle.id}:create#1"


async def test_a_call_that_happened_after_all_has_its_key_again(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, effect="manual", once="90d", **ABOUT)
    first = await settled_wrongly(house, recorder, files)
    name = await answered_late(house, first)
    second = await house.submit(files)
    # Nobody knows any more; and when somebody says, it stands for its window.
    await house.waits(second, "limit")
    (ticket,) = await recorder.tickets()
    await house.app.operations.settle(name, "happened", reason="it is there", by="kim", result=ticket)
    assert (await house.ended(second)).result == ticket["id"]
    assert (await house.run(files)).result == ticket["id"]
    assert len(await posts(recorder)) == 1
    assert await house.violations(recorder) == []


async def test_whoever_settles_what_happened_after_all_hears_who_has_its_key_since(
    house: House, recorder: Recorder
) -> None:
    files = register(house, recorder, effect="manual", once="90d", **ABOUT)
    first = await settled_wrongly(house, recorder, files)
    second = await house.run(files)
    name = await answered_late(house, first)
    place = await house.place(name)
    assert place is not None
    assert place.ask_at is None
    owner = f"{second.id}:create#1"
    assert place.why == f"late evidence contradicts what was settled; {owner} has its business key"
    _, evidence = await house.app.operations.show(name)
    assert [one.data for one in evidence if one.source == "key"] == [
        {"business_key": "ada/INV-102", "operation": owner, "state": "done"}
    ]
    third = await house.submit(files)
    await house.waits(third, "limit")
    ticket = (await recorder.tickets())[0]
    await house.app.operations.settle(name, "happened", reason="both are there", by="kim", result=ticket)
    # The window counts from the success that was seen last.
    assert (await house.ended(third)).result == ticket["id"]
    assert len(await posts(recorder)) == 2
    assert await house.violations(recorder) == []


async def test_keys_are_a_tenants_own(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, once="24h", **ABOUT)
    house.start()
    results = set()
    for tenant in ("acme", "bolt"):
        handle = await house.app.submit(files, {}, tenant=tenant)
        results.add(await handle.result(20))
    assert len(results) == 2


async def test_a_key_that_breaks_the_rules_of_keys_is_refused_before_anything_is_sent(
    house: House, recorder: Recorder
) -> None:
    register(house, recorder, once="24h", **ABOUT)

    @house.app.agent
    async def careless(task: TaskContext) -> str:
        try:
            await task.call("create", "ada", "x" * 300)
        except InvalidKey as error:
            return str(error)
        return "not reached"

    assert "business key has 304 characters" in (await house.run(careless)).result
    assert await recorder.log() == []


# -- preconditions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("the budget is used up", "the budget is used up"),
        (False, "its precondition is not met"),
        (None, "its precondition is not met"),
        (1, "its precondition is not met"),
        ("", "its precondition is not met"),
        (RuntimeError("away"), "its precondition could not be checked: RuntimeError: away"),
    ],
    ids=["text", "false", "none", "one", "empty", "raises"],
)
async def test_an_unmet_precondition_declines_the_call(
    house: House, recorder: Recorder, answer: Any, said: str
) -> None:
    async def requires(invoice: str) -> Any:
        assert invoice == "INV-102"
        if isinstance(answer, Exception):
            raise answer
        return answer

    files = register(house, recorder, requires=requires)
    view = await house.run(files)
    assert view.result == f"declined: precondition: not started: {said}"
    operation = (await house.operations(view))["create#1"]
    assert (operation.state, operation.attempt, operation.intent_at) == ("failed", 0, None)
    assert await recorder.log() == []
    assert await house.violations(recorder) == []


async def test_a_met_precondition_is_asked_before_each_attempt(house: House, recorder: Recorder) -> None:
    asked: list[str] = []

    async def requires(employee: str, amount: str) -> bool:
        asked.append(f"{employee} {amount} after {len(await posts(recorder))}")
        return True

    files = register(house, recorder, requires=requires)
    await recorder.plan(Rule.refuse(503), Rule.refuse(503))
    assert (await house.run(files)).state == "succeeded"
    assert asked == [f"ada 118.50 after {sent}" for sent in range(3)]


async def test_a_precondition_that_is_unmet_before_a_resend_leaves_the_unknown_to_a_person(
    house: House, recorder: Recorder
) -> None:
    asked = itertools.count(1)

    async def requires() -> Any:
        return True if next(asked) == 1 else "the budget is used up"

    files = register(house, recorder, requires=requires)
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(files)
    house.start()
    name = await unknown(house, handle)
    place = await house.place(name)
    assert place is not None
    assert (place.ask_at, place.why) == (None, "not started: the budget is used up")
    assert len(await posts(recorder)) == 1
    assert (await house.operations(handle))["create#1"].state == "unknown"


async def test_a_precondition_that_is_unmet_before_a_resend_that_a_person_wants_leaves_it_as_open_as_it_was(
    house: House, recorder: Recorder
) -> None:
    asked = itertools.count(1)

    async def requires() -> Any:
        return True if next(asked) == 1 else "the budget is used up"

    files = register(house, recorder, effect="manual", requires=requires)
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(files)
    house.start()
    name = await unknown(house, handle)
    before = await handle.get()
    await house.app.operations.settle(name, "send_again", reason="r", by="kim", forced=True)
    async with asyncio.timeout(PATIENCE_S):
        async for event in handle.events(after=before.last_event):
            # It may wait for the end of its back-off first.
            waiting = event.kind == "task.waiting" and event.data["reason"] == "reconciliation"
            if waiting or event.kind == "task.succeeded":
                break
    # Its first attempt may have acted, and has: nobody may tell the agent that it was declined.
    assert (await house.operations(handle))["create#1"].state == "unknown"
    place = await house.place(name)
    assert place is not None
    assert (place.ask_at, place.why, place.resend) == (None, "not started: the budget is used up", False)
    assert len(await posts(recorder)) == 1
    assert await house.violations(recorder) == []


# -- switches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "tenant"),
    [("tool:create", "default"), ("all", "default"), ("tool:create", EVERY_TENANT), ("all", EVERY_TENANT)],
)
async def test_a_switch_holds_new_calls_and_lets_them_go(
    house: House, recorder: Recorder, scope: str, tenant: str
) -> None:
    files = register(house, recorder)
    await recorder.hold("under way")
    going = await house.submit(files)
    house.start()
    await recorder.wait_for(held="under way")
    await house.app.pauses.set(scope, reason="wrong cost centre", by="kim", tenant=tenant)
    held = await house.submit(files)
    await house.waits(held, "operator")
    # What is under way goes on.
    await recorder.release("under way")
    assert (await house.ended(going)).state == "succeeded"
    assert len(await posts(recorder)) == 1
    assert [pause.scope for pause in await house.app.pauses.list()] == [scope]
    assert await house.app.pauses.clear(scope, reason="corrected", by="kim", tenant=tenant)
    assert not await house.app.pauses.clear(scope, reason="corrected", by="kim", tenant=tenant)
    assert (await house.ended(held)).state == "succeeded"
    trail = [(row.who, row.what, row.reason) for row in await house.app.pauses.audit(tenant=tenant)]
    assert trail == [
        ("kim", f"pause:{scope}", "wrong cost centre"),
        ("kim", f"resume:{scope}", "corrected"),
    ]
    assert await house.violations(recorder) == []


async def test_a_held_call_beside_one_under_way_goes_on_as_soon_as_its_switch_is_taken_back(
    house: House, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task does not suspend meanwhile, so its worker has to hear of it."""

    @house.app.tool(effect="idempotent")
    async def slow(call: ToolCall) -> None:
        await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-200", "amount": "1"})

    @house.app.tool(effect="idempotent")
    async def quick(call: ToolCall) -> None:
        await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-201", "amount": "1"})

    @house.app.agent
    async def both(task: TaskContext) -> int:
        await asyncio.gather(task.call(slow), task.call(quick))
        return task.attempt

    refused, held_back = asyncio.Event(), guards.held_back

    async def seen(*asked: Any) -> Any:
        refused.set()
        return await held_back(*asked)

    monkeypatch.setattr(guards, "held_back", seen)
    await recorder.hold("under way")
    await house.app.pauses.set("tool:quick", reason="r", by="kim")
    handle = await house.submit(both)
    house.start()
    await recorder.wait_for(held="under way")
    await asyncio.wait_for(refused.wait(), PATIENCE_S)
    await house.app.pauses.clear("tool:quick", reason="r", by="kim")
    await recorder.wait_for(calls=1, method="POST", ended=True)
    await recorder.release("under way")
    assert (await house.ended(handle)).result == 1
    assert await house.violations(recorder) == []


async def test_a_switch_taken_back_in_the_moment_of_suspending_is_not_missed(
    house: House, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = register(house, recorder)
    await house.app.pauses.set("all", reason="r", by="kim")
    suspend = Run._suspend
    moments: list[str] = []

    async def slowly(run: Run, ending: EndAttempt) -> None:
        if not moments:
            moments.append(run.task)
            await house.app.pauses.clear("all", reason="r", by="kim")
            # Told while the suspension is on its way, which does not know of it.
            while (await house.store.dump())["held_tasks"]:
                await house.store.deliver(500)
        await suspend(run, ending)

    monkeypatch.setattr(Run, "_suspend", slowly)
    handle = await house.submit(files)
    house.start(linger_s=0.0)
    assert (await house.ended(handle)).state == "succeeded"
    assert moments == [handle.id]
    assert await house.violations(recorder) == []


async def test_a_switch_holds_nobody_else(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    await house.app.pauses.set("all", reason="r", by="kim", tenant="acme")
    await house.app.pauses.set("tool:another", reason="r", by="kim")
    assert (await house.run(files)).state == "succeeded"


async def test_a_paused_resend_stays_in_the_queue_and_is_made_afterwards(
    house: House, recorder: Recorder
) -> None:
    files = register(house, recorder)
    await recorder.hold("first", Rule.act_then_reset())
    handle = await house.submit(files)
    house.start()
    await recorder.wait_for(held="first")
    await house.app.pauses.set("all", reason="r", by="kim")
    await recorder.release("first")
    # Both for the switch and for whoever settles it; it bears the name of the latter.
    queued = await unknown(house, handle)
    assert [one.id for one in await house.app.operations.list(state="unknown")] == [queued]
    await house.app.pauses.clear("all", reason="r", by="kim")
    assert (await house.ended(handle)).result == (await recorder.tickets())[0]["id"]
    assert len(await posts(recorder)) == 2
    assert await house.violations(recorder) == []


async def test_an_unknown_that_a_switch_holds_back_goes_on_when_a_person_settles_it(
    house: House, recorder: Recorder
) -> None:
    """Switches are set while something is wrong, and that is when people settle by hand."""
    files = register(house, recorder)
    await recorder.hold("first", Rule.act_then_reset())
    handle = await house.submit(files)
    house.start()
    await recorder.wait_for(held="first")
    await house.app.pauses.set("all", reason="r", by="kim")
    await recorder.release("first")
    (ticket,) = await recorder.tickets()
    await house.app.operations.settle(
        await unknown(house, handle), "happened", reason="it is there", by="kim", result=ticket
    )
    assert (await house.ended(handle)).result == ticket["id"]
    assert [pause.scope for pause in await house.app.pauses.list()] == ["all"]
    assert len(await posts(recorder)) == 1
    assert await house.violations(recorder) == []


# -- shared waits --------------------------------------------------------------------------------------------


async def test_nobody_calls_a_provider_that_asked_to_be_left_alone(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, provider="tickets")

    @house.app.tool(effect="idempotent", provider="tickets", retry=QUICK)
    async def withdraw(call: ToolCall, ticket: str) -> None:
        await call.http.post(f"{recorder.url}/tickets/{ticket}/withdraw", json={})

    @house.app.agent
    async def withdraws(task: TaskContext, ticket: str) -> None:
        await task.call(withdraw, ticket)

    ticket = (await house.run(files)).result
    house.start()
    (before,) = await posts(recorder)
    await recorder.plan(Rule.refuse(429, retry_after="2"))
    told = await house.submit(files, invoice="INV-103")
    await recorder.wait_for(calls=2, method="POST", ended=True)
    await house.waits(told, "timer")
    # Other tasks, another tool, on either worker: all of them wait.
    others = [await house.submit(files, invoice=f"INV-{number}") for number in range(4)]
    others.append(await house.submit(withdraws, ticket=ticket))
    for handle in (told, *others):
        assert (await house.ended(handle)).state == "succeeded"
    _, refused, *later = await posts(recorder)
    assert before.status == 201
    assert refused.status == 429
    assert len(later) == 6
    assert min(call.arrived_at for call in later) - (refused.ended_at or 0) >= 1.99
    assert await house.violations(recorder) == []


async def test_to_be_told_to_wait_does_not_use_up_the_attempts(house: House, recorder: Recorder) -> None:
    policy = Backoff(base_s=0.02, max_s=0.02, jitter_s=0, attempts=2, total_s=1.0)
    files = register(house, recorder, retry=policy)
    await recorder.plan(*[Rule.refuse(429, retry_after="1")] * 3, Rule.refuse(503))
    view = await house.run(files)
    assert view.result == (await recorder.tickets())[0]["id"]
    sent = await posts(recorder)
    assert [call.status for call in sent] == [429, 429, 429, 503, 201]
    waits = [after.arrived_at - (before.ended_at or 0) for before, after in itertools.pairwise(sent)]
    assert all(wait >= 1.0 for wait in waits[:3])


@pytest.mark.parametrize("nonsense", ["0", "9" * 15, "9" * 300])
async def test_a_wait_that_makes_no_sense_is_none_and_uses_up_the_attempts(
    house: House, recorder: Recorder, nonsense: str
) -> None:
    policy = Backoff(base_s=0.02, max_s=0.02, jitter_s=0, attempts=3)
    files = register(house, recorder, retry=policy)
    await recorder.plan(*[Rule.refuse(429, retry_after=nonsense)] * 5)
    view = await house.run(files)
    assert str(view.result).startswith("failed: ")
    assert len(await posts(recorder)) == 3
    assert (await house.store.dump())["provider_waits"] == []
    assert await house.violations(recorder) == []


async def test_a_wait_of_a_day_is_parked_with_a_timer_and_holds_nothing(
    house: House, recorder: Recorder
) -> None:
    """Scenario O21: over-long waits hold neither a worker nor a slot, and no attempt is used up by them."""
    files = register(house, recorder)

    @house.app.agent
    async def other(task: TaskContext) -> str:
        return "done"

    await recorder.plan(Rule.refuse(429, retry_after="86400"))
    handle = await house.submit(files)
    house.start(slots=1)
    await house.waits(handle, "timer")
    assert (await house.ended(await house.submit(other))).result == "done"
    dump = await house.store.dump()
    (timer,) = [row for row in dump["timers"] if row["task"] == handle.id]
    now = (await house.store.health()).now
    assert 0 < 86_400_000_000 - (timer["due_at"] - now) < PATIENCE_S * 1_000_000
    assert [row for row in dump["leases"] if row["task"] == handle.id] == []
    assert [one.end for one in await house.app.attempts(handle.id)] == ["suspended"]
    assert len(await posts(recorder)) == 1


async def test_another_provider_is_called_meanwhile(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)

    @house.app.tool(effect="read")
    async def look(call: ToolCall) -> int:
        return len((await call.http.get(f"{recorder.url}/tickets")).json())

    @house.app.agent
    async def looks(task: TaskContext) -> int:
        return int(await task.call(look))

    await recorder.plan(Rule.refuse(429, retry_after="3600"))
    held = await house.submit(files)
    house.start()
    await house.waits(held, "timer")
    assert (await house.run(looks)).result == 0
    async with asyncio.timeout(5):
        assert len(await posts(recorder)) == 1


# -- the order of it all -------------------------------------------------------------------------------------


async def test_what_stands_before_a_call_is_asked_in_one_order_at_every_attempt(house: House) -> None:
    """Budget, policy, precondition, then the call: whoever refuses, nobody behind is asked."""
    seen: list[str] = []

    async def policy(how: str) -> Any:
        seen.append("policy")
        return how != "denied"

    async def ready(how: str) -> bool:
        seen.append("requires")
        return how != "unmet"

    @house.app.tool(effect="idempotent", approval=policy, requires=ready, retry=QUICK)
    async def act(call: ToolCall, how: str) -> str:
        seen.append("tool")
        if how == "again" and call.attempt == 1:
            raise NotSent("busy")
        return how

    @house.app.agent
    async def agent(task: TaskContext, how: str, times: int = 1) -> Any:
        try:
            for _ in range(times):
                await task.call(act, how)
        except OperationError as error:
            return error.code
        return "done"

    house.start()
    whole = ["policy", "requires", "tool"]
    for how, asked in (("fine", whole), ("denied", whole[:1]), ("unmet", whole[:2]), ("again", whole * 2)):
        seen.clear()
        await house.ended(await house.submit(agent, how=how))
        assert seen == asked, how
    seen.clear()
    bounded = await house.app.submit(agent, {"how": "fine", "times": 2}, budget={"operations": 1})
    await house.ended(bounded)
    assert seen == whole
    seen.clear()
    await house.app.pauses.set("tool:act", reason="a moment", by="kim")
    held = await house.submit(agent, how="fine")
    await house.waits(held, "operator")
    assert "tool" not in seen
    await house.app.pauses.clear("tool:act", reason="over", by="kim")
    assert (await house.ended(held)).result == "done"
    # What was asked before is asked again: it may have changed meanwhile.
    assert seen[-3:] == whole
    assert len(seen) > len(whole)
