"""The ledger alone: code that is no agent has the same guarantees; the ticket service's log is the judge."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S
from tests.engine.script import QUICK, SOON, TICKETS_URL, build

from outlast import Ask, Outlast, ToolCall
from outlast.alone import Ledger
from outlast.drills.fleet import Fleet, Process
from outlast.engine.alone import AGENT, task_of
from outlast.errors import (
    AmbiguousOperation,
    ApprovalDenied,
    ApprovalPending,
    CallHeld,
    CallPending,
    ConfigurationError,
    DeadlineExceeded,
    InvalidInput,
    InvalidKey,
    LeaseLost,
    OperationConflict,
    ScopeBusy,
    TaskCancelled,
    TaskEnded,
    ToolFailed,
    ToolRejected,
    Unsettled,
)
from outlast.store.contract import Store
from outlast.testing.checkers import check_all
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Call, Recorder, Rule

ROOT = Path(__file__).parents[2]


class Desk:
    """An app without a worker, and scripts in processes of their own."""

    def __init__(self, app: Outlast, recorder: Recorder, fleet: Fleet, url: str) -> None:
        self.app, self.recorder, self.fleet, self.url = app, recorder, fleet, url

    def ledger(self, scope: str = "order-7", **options: Any) -> Ledger:
        return self.app.ledger(scope, **{"settings": QUICK, "timeout": 10, **options})

    def script(self, *probe: Trigger, tool: str = "keyed", **given: Any) -> Process:
        """Start a script."""
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {"OUTLAST_DATABASE_URL": self.url, TICKETS_URL: self.recorder.url, "PYTHONPATH": path}
        text = json.dumps({"scope": "order-7", "tool": tool, "invoice": "INV-102", **given})
        return self.fleet.start("script", "tests.engine.script", text, probe=probe, environ=environ)

    async def posts(self) -> list[Call]:
        return [call for call in await self.recorder.log() if call.method == "POST"]

    async def violations(self) -> list[Any]:
        # Whoever comes next delivers; without workers that is whoever enters a scope.
        while (await self.app.store.deliver(500)).more:
            pass
        log = [asdict(call) for call in await self.recorder.log()]
        return check_all(await self.app.store.dump(), recorder=log, quiet=True)


@pytest.fixture
async def desk(store: Store, recorder: Recorder, database_url: str, tmp_path: Path) -> AsyncIterator[Desk]:
    async with Fleet(tmp_path) as fleet:
        app = build(recorder.url, store=store)
        await app.open()
        yield Desk(app, recorder, fleet, database_url)


# -- once ----------------------------------------------------------------------------------------------------


async def test_the_same_scope_twice_is_one_effect(desk: Desk) -> None:
    async with desk.ledger() as ledger:
        first = await ledger.call("keyed", "INV-102")
        other = await ledger.call("keyed", "INV-103")
    view = await desk.app.get(ledger.id)
    assert (view.state, view.reason, view.agent) == ("waiting", "signal", AGENT)
    async with desk.ledger() as again:
        assert await again.call("keyed", "INV-102") == first
        assert await again.call("keyed", "INV-103") == other
    assert [call.key for call in await desk.posts()] == [f"{ledger.id}:keyed#1", f"{ledger.id}:keyed#2"]
    assert [one.end for one in await desk.app.attempts(ledger.id)] == ["suspended", "suspended"]
    assert await desk.violations() == []


async def test_scopes_and_tenants_are_apart(desk: Desk) -> None:
    for tenant, scope in (("acme", "a"), ("acme", "b"), ("globex", "a")):
        async with desk.ledger(scope, tenant=tenant) as ledger:
            await ledger.call("manual", "INV-102", key="file")
    keys = [call.key for call in await desk.posts()]
    assert keys == [f"{task_of(*one)}:file" for one in (("acme", "a"), ("acme", "b"), ("globex", "a"))]
    assert await desk.violations() == []


async def test_a_closed_scope_is_only_read(desk: Desk) -> None:
    async with desk.ledger(final=True) as ledger:
        first = await ledger.call("keyed", "INV-102", key="file")
    assert (await desk.app.get(ledger.id)).state == "succeeded"
    async with desk.ledger(final=True) as again:
        assert await again.call("keyed", "INV-102", key="file") == first
        with pytest.raises(TaskEnded) as ended:
            await again.call("keyed", "INV-102", key="another")
        assert ended.value.state == "succeeded"
        with pytest.raises(OperationConflict):
            await again.call("keyed", "INV-103", key="file")
    assert len(await desk.posts()) == 1
    assert await desk.violations() == []


async def test_close_ends_a_scope_inside_its_block(desk: Desk) -> None:
    async with desk.ledger() as ledger:
        await ledger.call("keyed", "INV-102")
        await ledger.close()
        assert (await desk.app.get(ledger.id)).state == "succeeded"
        with pytest.raises(ConfigurationError):
            await ledger.call("keyed", "INV-103")
    assert await desk.violations() == []


async def test_a_block_that_fails_is_not_final(desk: Desk) -> None:
    async def fail() -> str:
        async with desk.ledger(final=True) as ledger:
            await ledger.call("keyed", "INV-102")
            raise ZeroDivisionError(ledger.id)

    with pytest.raises(ZeroDivisionError):
        await fail()
    ledger = desk.ledger()
    assert (await desk.app.get(ledger.id)).state == "waiting"


async def test_calls_side_by_side_need_keys(desk: Desk) -> None:
    async with desk.ledger() as ledger:
        a, b, twin = await asyncio.gather(
            ledger.call("keyed", "INV-1", key="a"),
            ledger.call("keyed", "INV-2", key="b"),
            ledger.call("keyed", "INV-1", key="a"),
        )
        assert (a["invoice"], b["invoice"], twin) == ("INV-1", "INV-2", a)

        async def elsewhere() -> None:
            await ledger.call("keyed", "INV-3")

        with pytest.raises(AmbiguousOperation):
            await asyncio.create_task(elsewhere())
    assert len(await desk.posts()) == 2


# -- failures ------------------------------------------------------------------------------------------------


async def test_other_arguments_under_one_key_are_refused(desk: Desk) -> None:
    async with desk.ledger() as ledger:
        await ledger.call("keyed", "INV-102", key="file")
        with pytest.raises(OperationConflict):
            await ledger.call("keyed", "INV-103", key="file")
        assert (await ledger.call("keyed", "INV-102", key="file"))["invoice"] == "INV-102"
    async with desk.ledger() as again:
        with pytest.raises(OperationConflict):
            await again.call("keyed", "INV-103", key="file")
    # It stops for an operator to see, and is entered again all the same.
    assert (await desk.app.get(ledger.id)).reason == "operator"
    async with desk.ledger() as third:
        assert (await third.call("keyed", "INV-102", key="file"))["invoice"] == "INV-102"
    assert len(await desk.posts()) == 1


async def test_a_refusal_is_remembered(desk: Desk) -> None:
    await desk.recorder.plan(Rule.refuse(422))
    for _ in range(2):
        async with desk.ledger() as ledger:
            with pytest.raises(ToolRejected) as refused:
                await ledger.call("keyed", "INV-102", key="file")
            assert refused.value.operation == f"{ledger.id}:file"
    assert len(await desk.posts()) == 1
    assert await desk.violations() == []


async def test_what_failed_and_may_be_tried_again_is_when_its_block_failed(desk: Desk) -> None:
    await desk.recorder.plan(*[Rule.refuse(503)] * 6)
    with pytest.raises(ToolFailed):
        async with desk.ledger() as ledger:
            await ledger.call("keyed", "INV-102", key="file")
    async with desk.ledger() as again:
        assert (await again.call("keyed", "INV-102", key="file"))["invoice"] == "INV-102"
    assert {call.key for call in await desk.posts()} == {f"{ledger.id}:file"}
    assert len(await desk.recorder.tickets()) == 1
    assert await desk.violations() == []


async def test_what_its_block_has_dealt_with_stays_failed(desk: Desk) -> None:
    await desk.recorder.plan(*[Rule.refuse(503)] * 6)
    for _ in range(2):
        async with desk.ledger() as ledger:
            with pytest.raises(ToolFailed):
                await ledger.call("keyed", "INV-102", key="file")
    assert len(await desk.posts()) == 6


async def test_bad_input_stores_nothing(desk: Desk) -> None:
    for scope in ("", " ", "x" * 256, "a\0b"):
        with pytest.raises(InvalidKey):
            desk.ledger(scope)
    async with desk.ledger() as ledger:
        with pytest.raises(InvalidInput):
            await ledger.call("keyed", nonsense=1)
        with pytest.raises(InvalidKey):
            await ledger.call("keyed", "INV-102", key="keyed#1")
        with pytest.raises(ConfigurationError):
            await ledger.call("nobody", "INV-102")
    with pytest.raises(ConfigurationError):
        await ledger.call("keyed", "INV-102")
    with pytest.raises(ConfigurationError):
        async with build("", store=desk.app.store).ledger("order-7"):
            pass

    async def agent(task: Any) -> None: ...

    with pytest.raises(ConfigurationError):
        desk.app.agent(name=AGENT)(agent)
    assert [one.key for one in await desk.app.operations.list(task=ledger.id)] == ["enter"]


# -- unknowns ------------------------------------------------------------------------------------------------


async def test_a_lost_answer_is_settled_by_evidence(desk: Desk) -> None:
    await desk.recorder.plan(Rule.act_then_reset())
    async with desk.ledger() as ledger:
        ticket = await ledger.call("keyed", "INV-102")
    assert [ticket] == await desk.recorder.tickets()
    assert len(await desk.posts()) == 1
    assert await desk.violations() == []


async def test_an_unknown_that_needs_a_person_is_raised_and_the_next_entry_returns(desk: Desk) -> None:
    await desk.recorder.plan(Rule.act_then_reset())
    with pytest.raises(Unsettled) as unknown:
        async with desk.ledger() as ledger:
            await ledger.call("manual", "INV-102", key="file")
    operation = f"{ledger.id}:file"
    assert (unknown.value.operation, unknown.value.plan) == (operation, "person")
    assert unknown.value.why
    view = await desk.app.get(ledger.id)
    assert (view.state, view.reason) == ("waiting", "reconciliation")
    with pytest.raises(Unsettled):
        async with desk.ledger() as ledger:
            await ledger.call("manual", "INV-102", key="file")
    (ticket,) = await desk.recorder.tickets()
    await desk.app.operations.settle(operation, "happened", reason="seen there", by="kim", result=ticket)
    async with desk.ledger() as ledger:
        assert await ledger.call("manual", "INV-102", key="file") == ticket
    assert len(await desk.posts()) == 1
    assert await desk.violations() == []


@pytest.mark.parametrize("verdict", ["happened", "did_not_happen", "send_again"])
async def test_a_call_that_waits_is_told_what_a_person_says(desk: Desk, verdict: Any) -> None:
    await desk.recorder.plan(Rule.act_then_reset())
    async with desk.ledger(wait=15) as ledger:
        making = asyncio.ensure_future(ledger.call("manual", "INV-102", key="file"))
        operation = f"{ledger.id}:file"
        async with asyncio.timeout(10):
            while not [one for one in await desk.app.operations.places([operation]) if one and one.why]:
                await desk.app.store.wakes.wait("events", 0.05)
        more = {"result": {"id": "R-1"}} if verdict == "happened" else {"forced": True}
        await desk.app.operations.settle(operation, verdict, reason="seen", by="kim", **more)
        if verdict == "did_not_happen":
            with pytest.raises(ToolFailed):
                await making
        else:
            assert (await making)["id"] == "R-1" or verdict == "send_again"
    assert len(await desk.posts()) == (2 if verdict == "send_again" else 1)
    assert (await desk.app.attempts(ledger.id))[0].end == "suspended"
    assert len(await desk.app.attempts(ledger.id)) == 1


async def test_a_call_that_waits_asks_the_other_side_when_it_is_time(desk: Desk) -> None:
    # Absence counts once an effect would have to be visible; nobody else asks while the block has the lease.
    await desk.recorder.plan(Rule.reset_before_acting())
    with pytest.raises(Unsettled) as unknown:
        async with desk.ledger() as ledger:
            await ledger.call("queryable", "INV-102", key="file")
    assert unknown.value.plan == "wait"
    assert unknown.value.retry_after is not None
    async with desk.ledger() as ledger:
        ticket = await ledger.call("queryable", "INV-102", key="file", wait=20)
    assert [ticket] == await desk.recorder.tickets()
    assert await desk.violations() == []


# -- people --------------------------------------------------------------------------------------------------


def policed(desk: Desk) -> Any:
    async def file(call: ToolCall, invoice: str) -> Any:
        return (
            await call.http.post(f"{desk.recorder.url}/tickets", json={"invoice": invoice, "amount": "1"})
        ).json()

    return desk.app.tool(
        name="policed", effect="manual", retry=SOON, approval=lambda invoice: Ask("over the limit")
    )(file)


async def test_an_approval_is_raised_and_the_next_entry_sends(desk: Desk) -> None:
    tool = policed(desk)
    with pytest.raises(ApprovalPending) as pending:
        async with desk.ledger() as ledger:
            await ledger.call(tool, "INV-102", key="file")
    assert await desk.posts() == []
    assert (await desk.app.get(ledger.id)).reason == "approval"
    approval = await desk.app.approvals.get(pending.value.approval)
    assert (approval.state, approval.reason) == ("pending", "over the limit")
    with pytest.raises(ApprovalPending) as again:
        async with desk.ledger() as ledger:
            await ledger.call(tool, "INV-102", key="file")
    assert again.value.approval == approval.id
    await desk.app.approvals.decide(
        approval.id, "approve", fingerprint=approval.fingerprint, by="boss", reason="agreed"
    )
    async with desk.ledger() as ledger:
        await ledger.call(tool, "INV-102", key="file")
    async with desk.ledger() as ledger:
        await ledger.call(tool, "INV-102", key="file")
    assert len(await desk.posts()) == 1
    assert (await desk.app.approvals.get(approval.id)).state == "used"
    assert await desk.violations() == []


@pytest.mark.parametrize("verdict", ["approve", "reject"])
async def test_a_call_may_wait_for_a_decision(desk: Desk, verdict: Any) -> None:
    tool = policed(desk)
    async with desk.ledger() as ledger:
        making = asyncio.ensure_future(ledger.call(tool, "INV-102", key="file", wait=15))
        async with asyncio.timeout(10):
            while not (asked := list(await desk.app.approvals.list(task=ledger.id))):
                await desk.app.store.wakes.wait("events", 0.05)
        await desk.app.approvals.decide(
            asked[0].id, verdict, fingerprint=asked[0].fingerprint, by="boss", reason="so it is"
        )
        if verdict == "reject":
            with pytest.raises(ApprovalDenied):
                await making
        else:
            await making
    assert len(await desk.posts()) == (verdict == "approve")
    assert await desk.violations() == []


async def test_nothing_is_sent_behind_the_back_of_a_call_that_was_given_up(desk: Desk) -> None:
    tool = policed(desk)
    async with desk.ledger() as ledger:
        with pytest.raises(ApprovalPending) as pending:
            await ledger.call(tool, "INV-102", key="file")
        approval = await desk.app.approvals.get(pending.value.approval)
        await desk.app.approvals.decide(
            approval.id, "approve", fingerprint=approval.fingerprint, by="boss", reason="agreed"
        )
        # Something else goes through the ledger after that, and is heard of.
        await ledger.call("keyed", "INV-103", key="another")
        assert len(await desk.posts()) == 1
        await ledger.call(tool, "INV-102", key="file")
    assert len(await desk.posts()) == 2
    assert await desk.violations() == []


async def test_a_pause_holds_calls_back(desk: Desk) -> None:
    await desk.app.pauses.set("tool:keyed", reason="migration", by="kim")
    async with desk.ledger() as ledger:
        with pytest.raises(CallHeld) as held:
            await ledger.call("keyed", "INV-102", key="file")
        assert (held.value.reason, held.value.operation) == ("operator", f"{ledger.id}:file")
        assert isinstance(held.value, CallPending)
        await desk.app.pauses.clear("tool:keyed", reason="done", by="kim")
        await ledger.call("keyed", "INV-102", key="file")
    assert len(await desk.posts()) == 1
    assert await desk.violations() == []


async def test_a_call_that_waits_hears_of_a_switch_that_is_taken_back_without_any_worker(desk: Desk) -> None:
    await desk.app.pauses.set("all", reason="migration", by="kim")
    async with desk.ledger() as ledger:
        calling = asyncio.create_task(ledger.call("keyed", "INV-102", key="file", wait="1h"))
        async with asyncio.timeout(PATIENCE_S):
            while not (await desk.app.store.dump())["held_tasks"]:  # noqa: ASYNC110 - nobody tells of a refusal
                await asyncio.sleep(0.01)
        await desk.app.pauses.clear("all", reason="done", by="kim")
        await asyncio.wait_for(calling, PATIENCE_S)
    assert len(await desk.posts()) == 1
    assert await desk.violations() == []


async def test_a_business_key_is_one_for_scopes_and_agents(desk: Desk) -> None:
    async def file(call: ToolCall, invoice: str) -> Any:
        return (
            await call.http.post(f"{desk.recorder.url}/tickets", json={"invoice": invoice, "amount": "1"})
        ).json()

    tool = desk.app.tool(
        name="once", effect="manual", business_key="{invoice}", once="1h", on_repeat="first"
    )(file)
    async with desk.ledger("a") as ledger:
        first = await ledger.call(tool, "INV-102")
    async with desk.ledger("b") as ledger:
        assert await ledger.call(tool, "INV-102") == first
    assert len(await desk.posts()) == 1
    assert await desk.violations() == []


# -- cancel and deadline -------------------------------------------------------------------------------------


async def test_a_scope_that_is_cancelled_cannot_be_entered(desk: Desk) -> None:
    async with desk.ledger() as ledger:
        await ledger.call("keyed", "INV-102")
    await desk.app.cancel(ledger.id, reason="not wanted", by="kim")
    with pytest.raises(TaskCancelled, match="not wanted"):
        async with desk.ledger():
            pass
    assert await desk.violations() == []


async def test_a_cancel_reaches_a_block(desk: Desk) -> None:
    async with desk.ledger() as ledger:
        await ledger.call("keyed", "INV-102")
        await desk.app.cancel(ledger.id, by="kim")
        with pytest.raises(TaskCancelled):
            await ledger.call("keyed", "INV-103")
    assert (await desk.app.get(ledger.id)).state == "cancelled"
    assert len(await desk.posts()) == 1
    assert await desk.violations() == []


async def test_a_deadline_ends_a_scope(desk: Desk) -> None:
    tool = policed(desk)
    with pytest.raises(DeadlineExceeded):
        async with desk.ledger(deadline=0.3, wait=10) as ledger:
            await ledger.call(tool, "INV-102")
    assert (await desk.app.get(ledger.id)).state == "failed"
    with pytest.raises(TaskEnded) as ended:
        async with desk.ledger():
            pass
    assert ended.value.state == "failed"


async def test_a_caller_that_is_cut_leaves_a_call_that_is_recorded(desk: Desk) -> None:
    await desk.recorder.hold("door")
    async with desk.ledger() as ledger:
        making = asyncio.ensure_future(ledger.call("keyed", "INV-102", key="file"))
        await desk.recorder.wait_for(held="door")
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        await desk.recorder.release("door")
        assert (await ledger.call("keyed", "INV-102", key="file"))["invoice"] == "INV-102"
    assert len(await desk.posts()) == 1
    assert await desk.violations() == []


# -- processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["keyed", "manual"])
@pytest.mark.parametrize("point", ["effects.before_intent", "effects.after_intent", "effects.before_outcome"])
async def test_killed_inside_the_block_and_entered_again(desk: Desk, point: str, tool: str) -> None:
    script = desk.script(Trigger(point=point, action="kill"), tool=tool)
    assert await script.exited() == -9
    entered = desk.ledger()
    if tool == "manual" and point != "effects.before_intent":
        with pytest.raises(Unsettled):
            async with entered:
                await entered.call(tool, "INV-102", key="file")
        assert len(await desk.posts()) == (point == "effects.before_outcome")
    else:
        async with entered:
            ticket = await entered.call(tool, "INV-102", key="file")
        assert [ticket] == await desk.recorder.tickets()
    assert [one.end for one in await desk.app.attempts(entered.id)] == ["lost", "suspended"]
    assert await desk.violations() == []


async def test_two_processes_at_once_are_one_after_the_other(desk: Desk) -> None:
    first = desk.script(stays=True)
    await first.says("filed")
    refused = desk.script(timeout=0)
    assert (await refused.says("refused")).data["code"] == "scope_busy"
    waiting = desk.script()
    assert await refused.exited() == 0
    assert waiting.running
    first.kill()
    ticket = (await waiting.says("filed")).data["ticket"]
    assert ticket == first.said[-1].data["ticket"]
    assert await waiting.exited() == 0
    assert len(await desk.posts()) == 1
    assert await desk.violations() == []


async def test_racing_entries_of_a_new_scope(desk: Desk) -> None:
    async def enter() -> Any:
        async with desk.ledger(timeout=20) as ledger:
            return await ledger.call("manual", "INV-102", key="file")

    tickets = await asyncio.gather(*(enter() for _ in range(5)))
    assert [tickets[0]] * 5 == tickets
    assert len(await desk.posts()) == 1
    assert await desk.violations() == []


async def test_a_frozen_block_that_thaws_is_fenced(desk: Desk) -> None:
    frozen = desk.script(freezes=True, tool="manual")
    await frozen.stopped()
    async with desk.ledger() as ledger:
        await ledger.call("manual", "INV-102", key="file")
        frozen.thaw()
        assert (await frozen.says("refused")).data["code"] == LeaseLost.code
        assert await frozen.exited() == 0
    assert len(await desk.posts()) == 1
    assert await desk.violations() == []


async def test_somebody_in_the_scope_refuses_by_name(desk: Desk) -> None:
    async with desk.ledger():
        with pytest.raises(ScopeBusy) as busy:
            async with desk.ledger(timeout=0.1):
                pass
        assert busy.value.retry_after == QUICK.lease_s
