"""Forks: a new task from a journal's prefix, which does not act twice; the other side's log is the judge."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import Outlast, TaskContext, ToolCall, Uncertain
from outlast.core.retry import Backoff
from outlast.errors import (
    InvalidInput,
    OperationNotFound,
    Rejected,
    TaskNotFound,
    UnsettledPrefix,
)
from outlast.store.records import Evidence, OperationRow
from outlast.store.rows import OperationFilter
from outlast.testing.recorder import Recorder, Rule

QUICK = Backoff(base_s=0.02, max_s=0.1, jitter_s=0, attempts=3)


def filing(house: House, recorder: Recorder, effect: str, ran: list[str], *, find: bool = True) -> Any:
    """Register an agent that reads, files a ticket, and notes it."""

    async def find_ticket(call: ToolCall) -> Any:
        found = await call.http.get(
            f"{recorder.url}/tickets", params={"idempotency_key": call.idempotency_key}, changes=False
        )
        return found.json()[0] if found.json() else None

    declared: dict[str, Any] = {"effect": effect}
    if effect == "keyed":
        declared["key_window"] = "24h"
    if find and effect in ("keyed", "queryable"):
        declared["find"] = find_ticket

    @house.app.tool(retry=QUICK, timeout=2, **declared)
    async def create(call: ToolCall, amount: str) -> Any:
        ticket = {"invoice": "INV-102", "amount": amount}
        return (await call.http.post(f"{recorder.url}/tickets", json=ticket)).json()

    async def read(amount: str) -> str:
        ran.append("read")
        return amount

    async def note(ticket: str) -> str:
        ran.append("note")
        return f"noted {ticket}"

    @house.app.agent
    async def files(task: TaskContext, amount: str = "118.50") -> str:
        plain = await task.step(read, amount)
        ticket = await task.call(create, plain)
        return str(await task.step(note, ticket["id"]))

    return files


async def forked(house: House, task: str, before: str | None = None, **more: Any) -> Any:
    """Fork a task."""
    return await house.app.fork(task, before=before, reason="another way", by="kim", **more)


async def test_a_failed_call_that_happened_after_all_is_taken_over(house: House, recorder: Recorder) -> None:
    """What has failed is known not to have happened, unless evidence says since that it did."""
    files = filing(house, recorder, "manual", [])
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(files)
    house.start()
    await house.waits(handle, "reconciliation")
    name = f"{handle.id}:create#1"
    await house.app.operations.settle(name, "did_not_happen", reason="not there", by="kim", forced=True)
    assert (await house.ended(handle)).state == "failed"
    await house.stop()
    fork = await forked(house, handle.id, "create#1")
    said = Evidence(
        tenant="default", task=handle.id, key="create#1", attempt=1, source="late", data="{}", says="happened"
    )
    await house.store.note([said])
    house.start()
    await house.waits(fork, "reconciliation")
    (ticket,) = await recorder.tickets()
    operation = (await house.operations(fork))["create#1"]
    assert (operation.state, operation.idempotency_key) == ("unknown", name)
    mine = f"{fork.id}:create#1"
    await house.app.operations.settle(mine, "happened", reason="it is there", by="kim", result=ticket)
    assert (await house.ended(fork)).state == "succeeded"
    assert len([call for call in await recorder.log() if call.method == "POST"]) == 1
    assert await house.violations(recorder) == []


async def test_a_fork_behind_an_effect_has_it_in_its_journal(house: House, recorder: Recorder) -> None:
    ran: list[str] = []
    view = await house.run(filing(house, recorder, "keyed", ran))
    handle = await forked(house, view.id, "note#1")
    ended = await house.ended(handle)
    assert (ended.result, ended.forked_from) == (view.result, view.id)
    assert ran == ["read", "note", "note"]
    assert [call.key for call in await recorder.log() if call.method == "POST"] == [f"{view.id}:create#1"]
    create = (await house.operations(ended))["create#1"]
    assert (create.state, create.idempotency_key) == ("succeeded", f"{view.id}:create#1")
    trail = [one for one in await house.app.pauses.audit() if one.what == "fork"]
    assert {one.subject for one in trail} == {view.id, ended.id}
    assert {(one.who, one.reason) for one in trail} == {("person:kim", "another way")}
    assert await house.violations(recorder) == []


@pytest.mark.parametrize("effect", ["idempotent", "keyed", "keyed, not asked", "queryable"])
async def test_a_fork_before_an_effect_finds_it_or_sends_the_same_key(
    house: House, recorder: Recorder, effect: str
) -> None:
    ran: list[str] = []
    name, _, blind = effect.partition(", ")
    view = await house.run(filing(house, recorder, name, ran, find=not blind))
    ended = await house.ended(await forked(house, view.id, "create#1"))
    assert (ended.state, ended.result) == ("succeeded", view.result)
    assert len(await recorder.tickets()) == 1
    sent = [call.key for call in await recorder.log() if call.method == "POST"]
    assert set(sent) == {f"{view.id}:create#1"}
    # Whoever can be asked is asked, and nothing is sent again.
    assert len(sent) == (2 if name == "idempotent" or blind else 1)
    assert (await house.operations(ended))["create#1"].idempotency_key == f"{view.id}:create#1"
    assert await house.violations(recorder) == []


async def test_a_fork_before_a_manual_effect_asks_a_person(house: House, recorder: Recorder) -> None:
    ran: list[str] = []
    view = await house.run(filing(house, recorder, "manual", ran))
    handle = await forked(house, view.id, "create#1")
    await house.waits(handle, "reconciliation")
    (queued,) = await house.app.operations.list(state="unknown")
    assert queued.id == f"{handle.id}:create#1"
    assert queued.idempotency_key == f"{view.id}:create#1"
    (ticket,) = await recorder.tickets()
    await house.app.operations.settle(queued.id, "happened", reason="it stands", by="kim", result=ticket)
    assert (await house.ended(handle)).result == view.result
    assert len([call for call in await recorder.log() if call.method == "POST"]) == 1
    assert await house.violations(recorder) == []


async def test_other_input_is_another_call_under_a_key_of_its_own(house: House, recorder: Recorder) -> None:
    ran: list[str] = []
    view = await house.run(filing(house, recorder, "keyed", ran))
    handle = await forked(house, view.id, "read#1", input={"amount": "99"})
    ended = await house.ended(handle)
    assert ended.state == "succeeded"
    assert ended.input == {"amount": "99"}
    sent = [call.key for call in await recorder.log() if call.method == "POST"]
    assert sent == [f"{view.id}:create#1", f"{handle.id}:create#1"]
    assert {ticket["amount"] for ticket in await recorder.tickets()} == {"118.50", "99"}
    assert await house.violations(recorder) == []


async def test_other_input_that_the_prefix_does_not_fit_stops_for_an_operator(
    house: House, recorder: Recorder
) -> None:
    ran: list[str] = []
    view = await house.run(filing(house, recorder, "keyed", ran))
    handle = await forked(house, view.id, "note#1", input={"amount": "99"})
    waits = await house.waits(handle, "operator")
    assert waits.detail is not None
    assert "read#1" in waits.detail
    assert len(await recorder.tickets()) == 1


@pytest.mark.parametrize("input", [{"amount": 7, "more": 1}, {"sum": "1"}, [1], "x"])
async def test_input_that_does_not_fit_makes_no_fork(house: House, recorder: Recorder, input: Any) -> None:
    view = await house.run(filing(house, recorder, "keyed", []))
    with pytest.raises(InvalidInput):
        await forked(house, view.id, "read#1", input=input)
    assert len(await house.app.list()) == 1


async def test_a_fork_runs_another_version(house: House) -> None:
    @house.app.agent(name="a", version="1")
    async def first(task: TaskContext) -> str:
        return f"1{await task.step(_word)}"

    view = await house.run("a")
    await house.stop()
    other: Outlast = house.deploy()

    @other.agent(name="a", version="2")
    async def second(task: TaskContext) -> str:
        return f"2{await task.step(_word)}"

    house.start(app=other)
    handle = await forked(house, view.id, version="2")
    ended = await house.ended(handle)
    assert (ended.version, ended.result) == ("2", "2word")


async def _word() -> str:
    return "word"


async def test_what_has_not_ended_refuses_the_fork(house: House) -> None:
    @house.app.tool(effect="manual", timeout=2)
    async def pay(call: ToolCall) -> None:
        raise Uncertain("who knows")

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.step(_word)
        await task.call(pay)

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "reconciliation")
    with pytest.raises(UnsettledPrefix) as caught:
        await forked(house, handle.id)
    assert caught.value.keys == ("pay#1",)
    assert len(await house.app.list()) == 1
    fork = await forked(house, handle.id, "pay#1")
    await house.waits(fork, "reconciliation")
    assert len(await house.app.list()) == 2
    # One effect, two ledgers: both wait for a person, and neither sends.
    unknown = await house.app.operations.list(state="unknown")
    assert {one.idempotency_key for one in unknown} == {f"{handle.id}:pay#1"}
    assert await house.violations(quiet=False) == []


async def test_a_wait_that_is_open_refuses_the_fork_behind_it(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.step(_word)
        await task.sleep("1h")

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "timer")
    with pytest.raises(UnsettledPrefix) as caught:
        await forked(house, handle.id)
    assert caught.value.keys == ("sleep#1",)


async def test_a_living_task_is_forked_and_goes_on(house: House, recorder: Recorder) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> str:
        word = await task.step(_word)
        return f"{word} {await task.wait('go')}"

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "signal")
    fork = await forked(house, handle.id, "go#1")
    await house.waits(fork, "signal")
    # What lies before one of them is not before the other.
    await fork.signal("go", "there")
    assert (await house.ended(fork)).result == "word there"
    assert (await handle.get()).state == "waiting"
    await handle.signal("go", "here")
    assert (await house.ended(handle)).result == "word here"
    assert await house.violations() == []


async def test_a_fork_of_a_fork_keeps_the_key_that_was_sent(house: House, recorder: Recorder) -> None:
    ran: list[str] = []
    view = await house.run(filing(house, recorder, "keyed", ran, find=False))
    first = await house.ended(await forked(house, view.id, "create#1"))
    # Taken over by the first fork, and made again by the second, which was made before it.
    second = await house.ended(await forked(house, first.id, "create#1"))
    third = await house.ended(await forked(house, second.id, "note#1"))
    assert {first.result, second.result, third.result} == {view.result}
    sent = [call.key for call in await recorder.log() if call.method == "POST"]
    assert set(sent) == {f"{view.id}:create#1"}
    assert len(await recorder.tickets()) == 1
    assert await house.violations(recorder) == []


async def test_a_fork_of_a_fork_that_has_not_come_so_far_keeps_it_too(
    house: House, recorder: Recorder
) -> None:
    ran: list[str] = []
    view = await house.run(filing(house, recorder, "keyed", ran, find=False))
    await house.stop()
    first = await forked(house, view.id, "read#1")
    second = await forked(house, first.id)
    house.start()
    assert (await house.ended(second)).result == view.result
    assert len(await recorder.tickets()) == 1
    assert {call.key for call in await recorder.log() if call.method == "POST"} == {f"{view.id}:create#1"}


async def test_a_call_that_was_declined_is_made_anew_by_the_fork(house: House) -> None:
    sent: list[str] = []

    @house.app.tool(effect="keyed", key_window="1h")
    async def pay(call: ToolCall) -> str:
        sent.append(call.idempotency_key)
        if len(sent) == 1:
            raise Rejected("no funds")
        return "paid"

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        return str(await task.call(pay))

    view = await house.run(agent)
    assert view.state == "failed"
    handle = await forked(house, view.id, "pay#1")
    assert (await house.ended(handle)).result == "paid"
    assert sent == [f"{view.id}:pay#1", f"{handle.id}:pay#1"]


async def test_a_call_that_is_lost_meanwhile_is_settled_for_both(house: House, recorder: Recorder) -> None:
    """The task's own call hangs and acts; a fork made meanwhile asks, and finds what it has done."""
    ran: list[str] = []
    files = filing(house, recorder, "keyed", ran)
    await recorder.plan(Rule.act_then_hang())
    handle = await house.submit(files)
    house.start()
    await house.reached(handle, "operation.started")
    await recorder.wait_for(method="POST", acted=True)
    fork = await forked(house, handle.id, "create#1")
    first, second = await asyncio.gather(house.ended(handle), house.ended(fork))
    assert first.result == second.result
    assert len(await recorder.tickets()) == 1
    assert await house.violations(recorder) == []


async def test_a_race_that_is_lost_while_a_call_is_taken_over_leaves_it_as_it_is(
    house: House, recorder: Recorder
) -> None:
    """It was made, by the task that was forked: that it lost a race is no end of it."""

    @house.app.tool(effect="manual")
    async def create(call: ToolCall) -> str:
        ticket = {"invoice": "INV-102", "amount": "1"}
        return str((await call.http.post(f"{recorder.url}/tickets", json=ticket)).json()["id"])

    @house.app.agent
    async def races(task: TaskContext) -> Any:
        return await task.first(task.call(create, key="create"), task.wait("withdrawn"))

    view = await house.run(races)
    look, looks, goes_on = house.store.list_operations, asyncio.Event(), asyncio.Event()

    async def look_late(query: OperationFilter) -> list[OperationRow]:
        rows = await look(query)
        if query.key == "create" and any(row.state == "unknown" for row in rows):
            looks.set()
            await goes_on.wait()
        return rows

    house.store.list_operations = look_late  # type: ignore[method-assign]
    fork = await forked(house, view.id, "create")
    async with asyncio.timeout(PATIENCE_S):
        await looks.wait()
    await fork.signal("withdrawn", 1)
    ended = await house.ended(fork)
    goes_on.set()
    assert ended.result == [1, 1]
    made = (await house.operations(ended))["create"]
    assert (made.state, made.attempt) == ("unknown", 1)
    told = [event for event in await house.events(fork) if event.data.get("operation") == "create"]
    assert [event.kind for event in told] == ["operation.unknown"]
    assert await house.violations(recorder) == []


async def test_a_fork_has_a_prefix_that_exists(house: House) -> None:
    @house.app.agent(deadline="1h")
    async def agent(task: TaskContext) -> None:
        await task.step(_word)

    view = await house.run(agent)
    for before in ("word#2", "x"):
        with pytest.raises(OperationNotFound):
            await forked(house, view.id, before)
    with pytest.raises(InvalidInput):
        await forked(house, view.id, "")
    with pytest.raises(TaskNotFound):
        await forked(house, view.id, tenant="other")
    assert len(await house.app.list()) == 1
    ended = await house.ended(await forked(house, view.id))
    assert ended.deadline_at is not None
    assert ended.deadline_at > ended.submitted_at


async def test_a_fork_takes_childrens_results_and_spawns_what_lies_behind(house: House) -> None:
    ran: list[str] = []

    @house.app.agent
    async def child(task: TaskContext, name: str) -> str:
        ran.append(name)
        return name.upper()

    @house.app.agent
    async def parent(task: TaskContext) -> str:
        first = await task.spawn(child, {"name": "a"})
        await task.step(_word)
        return str(first + await task.spawn(child, {"name": "b"}))

    view = await house.run(parent)
    ended = await house.ended(await forked(house, view.id, "_word#1"))
    assert ended.result == view.result == "AB"
    assert ran == ["a", "b", "b"]
    assert (await house.app.list(parent=ended.id))[0].state == "succeeded"
    assert await house.violations() == []
