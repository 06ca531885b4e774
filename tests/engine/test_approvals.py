"""Policy, questions and decisions: a decision is for exactly what was shown, and counts once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import Allow, Ask, Deny, Found, PolicyCall, TaskContext, ToolCall
from outlast.engine import approvals
from outlast.errors import (
    ApprovalConflict,
    ApprovalDenied,
    ApprovalExpired,
    ApprovalNotFound,
    ConfigurationError,
    FingerprintMismatch,
    InvalidRequest,
    NotAllowed,
    OperationError,
)
from outlast.handle import TaskHandle
from outlast.store.approving import ApprovalRow
from outlast.store.entries import AskApproval, Batch, Flushed
from outlast.store.posting import Heard, News
from outlast.testing.recorder import Call, Recorder, Rule
from outlast.views import ApprovalView

LIMIT = Decimal(80)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask policy again soon."""
    monkeypatch.setattr(approvals, "UNASKED_S", (0.05,))


def over_limit(amount: Decimal) -> Any:
    return Ask(f"over by {amount - LIMIT}") if amount > LIMIT else Allow()


def register(house: House, recorder: Recorder, approval: Any = over_limit, **options: Any) -> Any:
    """Register a tool that files a ticket, under a policy, and an agent that calls it once."""

    async def file(call: ToolCall, invoice: str, amount: Decimal) -> dict[str, Any]:
        reply = await call.http.post(
            f"{recorder.url}/tickets", json={"invoice": invoice, "amount": str(amount)}
        )
        answer: dict[str, Any] = reply.json()
        return answer

    given = {"effect": "idempotent", "timeout": 5.0, "approval": approval, **options}
    tool = house.app.tool(name="file", **given)(file)

    @house.app.agent
    async def files(task: TaskContext, invoice: str = "INV-102", amount: str = "118.50") -> Any:
        try:
            ticket = await task.call(tool, invoice, Decimal(amount))
        except OperationError as error:
            return {"code": error.code, "reason": error.reason, "text": str(error)}
        return ticket["amount"]

    return files


async def filed(recorder: Recorder) -> list[Call]:
    return [call for call in await recorder.log() if call.method == "POST"]


async def asked(house: House, handle: TaskHandle) -> ApprovalView:
    """Wait until a task waits for a decision, and answer what is asked."""
    await house.waits(handle, "approval")
    (approval,) = await house.app.approvals.list(task=handle.id)
    return approval


async def approve(house: House, approval: ApprovalView, **more: Any) -> ApprovalView:
    given = {"fingerprint": approval.fingerprint, "by": "boss", "reason": "agreed", **more}
    return await house.app.approvals.decide(approval.id, "approve", **given)


# -- one decision, one effect --------------------------------------------------------------------------------


async def test_nothing_is_sent_before_somebody_agreed(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    handle = await house.submit(files)
    house.start()
    approval = await asked(house, handle)
    assert (approval.state, approval.reason, approval.name) == ("pending", "over by 38.50", "file")
    assert approval.shown["arguments"] == {"invoice": "INV-102", "amount": "118.50"}
    assert approval.operation == f"{handle.id}:file#1"
    assert await filed(recorder) == []
    decided = await approve(house, approval)
    assert (decided.state, decided.decided_by, decided.decision_reason) == (
        "approved",
        "person:boss",
        "agreed",
    )
    assert (await house.ended(handle)).result == "118.50"
    assert [call.key for call in await filed(recorder)] == [f"{handle.id}:file#1"]
    used = await house.app.approvals.get(approval.id)
    assert (used.state, used.used_at is not None) == ("used", True)
    assert await house.violations(recorder) == []


async def test_what_policy_allows_is_not_asked(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    assert (await house.run(files, amount="80.00")).result == "80.00"
    assert list(await house.app.approvals.list(state=None)) == []


@pytest.mark.parametrize("answer", [False, Deny("not ours")], ids=["false", "deny"])
async def test_what_policy_denies_is_not_sent(house: House, recorder: Recorder, answer: Any) -> None:
    files = register(house, recorder, lambda amount: answer)
    view = await house.run(files)
    assert (view.result["code"], view.result["reason"]) == ("approval_denied", "policy")
    assert await filed(recorder) == []


async def test_a_rejection_is_final_and_told(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    handle = await house.submit(files)
    house.start()
    approval = await asked(house, handle)
    await house.app.approvals.decide(
        approval.id, "reject", fingerprint=approval.fingerprint, by="boss", reason="too much"
    )
    result = (await house.ended(handle)).result
    assert (result["code"], result["reason"]) == (ApprovalDenied.code, "person")
    assert "too much" in result["text"]
    assert await filed(recorder) == []


async def test_an_expiry_is_no_rejection(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, lambda amount: Ask("soon", expires=0.3))
    handle = await house.submit(files)
    house.start()
    await house.reached(handle, "approval.expired")
    result = (await house.ended(handle)).result
    assert (result["code"], result["reason"]) == (ApprovalExpired.code, "expired")
    (approval,) = await house.app.approvals.list(task=handle.id, state=None)
    with pytest.raises(ApprovalConflict) as caught:
        await approve(house, approval)
    assert caught.value.state == "expired"
    assert await filed(recorder) == []


async def test_a_decision_whose_time_is_over_while_a_switch_stands_is_told_then(
    house: House, recorder: Recorder
) -> None:
    """A switch holds the call back; the time of what was decided passes all the same."""
    files = register(house, recorder, lambda amount: Ask("soon", expires=2))
    await house.app.pauses.set("all", reason="r", by="kim")
    handle = await house.submit(files)
    house.start()
    await approve(house, await asked(house, handle))
    await house.reached(handle, "approval.expired")
    result = (await house.ended(handle)).result
    assert (result["code"], result["reason"]) == (ApprovalExpired.code, "expired")
    assert await filed(recorder) == []
    assert len(await house.app.pauses.list()) == 1
    assert await house.violations(recorder) == []


async def test_the_decision_survives_every_process(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    handle = await house.submit(files)
    house.start()
    approval = await asked(house, handle)
    await house.stop()
    await approve(house, approval)
    house.start()
    assert (await house.ended(handle)).result == "118.50"
    assert [one.id for one in await house.app.approvals.list(task=handle.id, state=None)] == [approval.id]


async def test_a_decision_while_the_task_lingers_over_an_old_question_is_heard(
    house: House, recorder: Recorder
) -> None:
    files = register(house, recorder)
    handle = await house.submit(files)
    house.start()
    approval = await asked(house, handle)
    await house.stop()
    # Woken by something else, it comes back to the question of an earlier attempt, and stays in memory.
    waiting = await handle.get()
    await handle.signal("noise")
    house.start(linger_s=60.0)
    await house.reached(handle, "attempt.started", after=waiting.last_event)
    await approve(house, approval)
    assert (await house.ended(handle)).result == "118.50"
    assert (await handle.get()).attempts == 2


async def test_a_decision_that_comes_as_the_question_is_put_is_heard(
    house: House, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is decided and heard before the answer to the question's own commit comes is no news any more."""
    store, told = house.store, asyncio.Event()
    flush, news = store.flush, store.news

    async def flushing(batch: Batch, **more: Any) -> list[Flushed]:
        verdicts = await flush(batch, **more)
        if any(isinstance(entry, AskApproval) for write in batch.writes for entry in write.entries):
            (approval,) = await house.app.approvals.list()
            await approve(house, approval)
            # The run says what it has heard with its next question for news.
            async with asyncio.timeout(PATIENCE_S):
                await told.wait()
        return verdicts

    async def asking(session: str, heard: Sequence[Heard], **more: Any) -> list[News]:
        if heard:
            told.set()
        return await news(session, heard, **more)

    monkeypatch.setattr(store, "flush", flushing)
    monkeypatch.setattr(store, "news", asking)
    files = register(house, recorder)
    assert (await house.run(files)).result == "118.50"
    assert len(await filed(recorder)) == 1
    assert await house.violations(recorder) == []


@pytest.mark.parametrize("ended", ["expired", "rejected"])
async def test_a_person_who_wants_it_sent_again_has_people_asked_anew(
    house: House, recorder: Recorder, ended: str
) -> None:
    """An answer is to one question: a later word that the call is to be sent again puts another."""
    answer = Ask("at first")
    files = register(house, recorder, lambda amount: answer, effect="manual")
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(files)
    house.start()
    await approve(house, await asked(house, handle))
    name = f"{handle.id}:file#1"

    async def send_again() -> ApprovalView:
        await house.app.operations.settle(name, "send_again", reason="r", by="kim", forced=True)
        async with asyncio.timeout(PATIENCE_S):
            while not (pending := await house.app.approvals.list(task=handle.id, state="pending")):
                await house.store.wakes.wait("events", 0.2)
        return pending[0]

    await house.waits(handle, "reconciliation")
    answer = Ask("again", expires=0.3 if ended == "expired" else None)
    second = await send_again()
    if ended == "rejected":
        await house.app.approvals.decide(
            second.id, "reject", fingerprint=second.fingerprint, by="boss", reason="no"
        )
    else:
        await house.reached(handle, "approval.expired")
    async with asyncio.timeout(PATIENCE_S):
        # It is left to a person: said no, or nobody said anything.
        while (place := await house.place(name)) is None or place.resend:
            await house.store.wakes.wait("events", 0.2)
    answer = Ask("at last")
    third = await send_again()
    assert third.id != second.id
    await approve(house, third)
    assert (await house.ended(handle)).result == "118.50"
    assert len(await filed(recorder)) == 2
    states = {one.id: one.state for one in await house.app.approvals.list(task=handle.id, state=None)}
    assert sorted(states.values()) == sorted(["used", "used", ended])
    assert await house.violations(recorder, quiet=False) == []


# -- exactly what was shown ----------------------------------------------------------------------------------


async def test_a_decision_names_what_was_seen(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    handle = await house.submit(files)
    house.start()
    approval = await asked(house, handle)
    with pytest.raises(FingerprintMismatch) as caught:
        await approve(house, approval, fingerprint="sha256:" + "0" * 64)
    assert caught.value.current == approval.fingerprint
    with pytest.raises(InvalidRequest):
        await approve(house, approval, fingerprint="")
    assert (await house.app.approvals.get(approval.id)).state == "pending"


async def test_an_edit_decides_what_is_sent(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    handle = await house.submit(files)
    house.start()
    approval = await asked(house, handle)
    with pytest.raises(InvalidRequest):
        await approve(house, approval, arguments={"invoice": "INV-102", "amount": "118.5元"})
    decided = await approve(house, approval, arguments={"invoice": "INV-102", "amount": "100.00"})
    assert (decided.edited, decided.shown["arguments"]["amount"]) == (True, "100.00")
    assert decided.fingerprint != approval.fingerprint
    assert (await house.ended(handle)).result == "100.00"
    assert [call.body["amount"] for call in await filed(recorder)] == ["100.00"]
    # Asked for again, it is the same call, and it is done.
    assert (await house.operations(handle))["file#1"].state == "succeeded"


@pytest.mark.parametrize("edited", [False, True], ids=["as asked", "edited"])
async def test_a_changed_call_asks_again_and_the_old_decision_stays_unused(
    house: House, recorder: Recorder, edited: bool
) -> None:
    register(house, recorder)
    tool = house.app.registry.tools["file"].function
    amount = ["118.50"]

    @house.app.agent
    async def plans(task: TaskContext) -> str:
        ticket = await task.call(tool, "INV-102", Decimal(amount[0]), key="act-3")
        return str(ticket["amount"])

    handle = await house.submit(plans)
    house.start()
    first = await asked(house, handle)
    await house.stop()
    # Whatever was decided is about what was shown then.
    edit = {"invoice": "INV-102", "amount": "100.00"}
    await approve(house, first, arguments=edit if edited else None)
    amount[0] = "180"
    house.start()
    await house.reached(handle, "approval.withdrawn")
    second = await asked(house, handle)
    assert (second.id, second.shown["arguments"]["amount"]) == (f"{handle.id}:act-3~2", "180")
    assert (second.reason, second.edited) == ("over by 100", False)
    assert await filed(recorder) == []
    await approve(house, second)
    assert (await house.ended(handle)).result == "180"
    states = [one.state for one in await house.app.approvals.list(task=handle.id, state=None)]
    assert states == ["withdrawn", "used"]
    assert [call.body["amount"] for call in await filed(recorder)] == ["180"]
    assert await house.violations(recorder) == []


EDIT = {"invoice": "INV-102", "amount": "100.00"}


async def test_an_edited_call_is_sent_again_as_it_was_sent(house: House, recorder: Recorder) -> None:
    """A person lets it be sent again, which takes another decision; what was sent is not changed by it."""
    files = register(house, recorder, effect="manual")
    await recorder.plan(Rule.reset_before_acting())
    handle = await house.submit(files)
    house.start()
    await approve(house, await asked(house, handle), arguments=EDIT)
    await house.waits(handle, "reconciliation")
    key = f"{handle.id}:file#1"
    await house.app.operations.settle(key, "send_again", reason="it never came", by="kim", forced=True)
    again = await asked(house, handle)
    assert (again.id, again.shown["arguments"]["amount"]) == (f"{key}~2", "100.00")
    with pytest.raises(NotAllowed, match="it was sent before"):
        await approve(house, again, arguments={**EDIT, "amount": "90.00"})
    await approve(house, again)
    assert (await house.ended(handle)).result == "100.00"
    assert [call.body["amount"] for call in await filed(recorder)] == ["100.00", "100.00"]
    assert await house.violations(recorder) == []


async def test_who_wants_it_sent_again_has_people_asked_again(house: House, recorder: Recorder) -> None:
    """One person said no to a resend; another, who settles it, wants it all the same."""
    files = register(house, recorder, effect="manual")
    await recorder.plan(Rule.reset_before_acting())
    handle = await house.submit(files)
    house.start()
    await approve(house, await asked(house, handle))
    key = f"{handle.id}:file#1"
    for number in (2, 3):
        await house.waits(handle, "reconciliation")
        settled = {"reason": "it never came", "by": "kim", "forced": True}
        await house.app.operations.settle(key, "send_again", **settled)
        again = await asked(house, handle)
        assert again.id == f"{key}~{number}"
        if number == 2:
            said = {"fingerprint": again.fingerprint, "by": "boss", "reason": "not twice"}
            await house.app.approvals.decide(again.id, "reject", **said)
    assert len(await filed(recorder)) == 1
    await approve(house, again)
    assert (await house.ended(handle)).result == "118.50"
    states = [one.state for one in await house.app.approvals.list(task=handle.id, state=None)]
    assert states == ["used", "rejected", "used"]
    assert await house.violations(recorder) == []


async def test_a_decision_that_is_heard_before_there_is_a_wait_for_it_is_not_slept_through(
    house: House, recorder: Recorder
) -> None:
    """What the store says of the question comes late, when the decision has been heard already."""
    files = register(house, recorder)
    read, asks, heard = house.store.read_approvals, asyncio.Event(), asyncio.Event()
    reads = 0

    async def read_late(tenant: str, task: str) -> list[ApprovalRow]:
        nonlocal reads
        reads += 1
        rows = await read(tenant, task)
        if reads > 1:
            heard.set()
            return rows
        asks.set()
        async with asyncio.timeout(PATIENCE_S):
            await heard.wait()
        # The reader of the news has gone on from what it read.
        for _ in range(10):
            await asyncio.sleep(0)
        return await read(tenant, task)

    handle = await house.submit(files)
    house.store.read_approvals = read_late  # type: ignore[method-assign]
    house.start(linger_s=60.0)
    async with asyncio.timeout(PATIENCE_S):
        await asks.wait()
    (approval,) = await house.app.approvals.list(task=handle.id)
    await approve(house, approval)
    assert (await house.ended(handle)).result == "118.50"


async def test_a_fork_goes_on_with_what_an_approver_had_sent(house: House, recorder: Recorder) -> None:
    """It asks people anew, about the very call that its key has carried."""
    files = register(house, recorder)
    handle = await house.submit(files)
    house.start()
    await approve(house, await asked(house, handle), arguments=EDIT)
    await house.ended(handle)
    fork = await house.app.fork(handle.id, before="file#1", reason="another way", by="kim")
    question = await asked(house, fork)
    assert question.shown["arguments"] == EDIT
    with pytest.raises(NotAllowed, match="it was sent before"):
        await approve(house, question, arguments={**EDIT, "amount": "90.00"})
    # Nor does the worker that comes next see the agent's own arguments.
    await house.stop()
    house.start()
    await approve(house, question)
    assert (await house.ended(fork)).result == "100.00"
    sent = [(call.key, call.body["amount"]) for call in await filed(recorder)]
    assert sent == [(f"{handle.id}:file#1", "100.00")] * 2
    assert await house.violations(recorder) == []


async def test_an_edited_call_is_found_as_it_was_sent(house: House, recorder: Recorder) -> None:
    """The other side tells what it was asked for: that is the approver's call, and not the agent's."""

    async def find(call: ToolCall) -> Any:
        reply = await call.http.get(
            f"{recorder.url}/tickets", params={"idempotency_key": call.idempotency_key}, changes=False
        )
        (ticket,) = reply.json()
        made_with = {name: ticket[name] for name in ("invoice", "amount")}
        return Found(ticket, arguments=made_with)

    files = register(house, recorder, effect="keyed", key_window="24h", find=find)
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(files)
    house.start()
    await approve(house, await asked(house, handle), arguments=EDIT)
    assert (await house.ended(handle)).result == "100.00"
    assert len(await filed(recorder)) == 1
    assert await house.violations(recorder) == []


async def test_a_call_that_was_sent_is_not_planned_anew(house: House, recorder: Recorder) -> None:
    """Only what nobody has sent may change: a result is for the call that it is the result of."""
    register(house, recorder, approval=None)
    tool = house.app.registry.tools["file"].function
    amount = ["50"]

    @house.app.agent
    async def plans(task: TaskContext) -> None:
        await task.call(tool, "INV-102", Decimal(amount[0]), key="act-3")
        await task.wait("go")

    handle = await house.submit(plans)
    house.start()
    await house.waits(handle, "signal")
    amount[0] = "180"
    await handle.signal("go")
    await house.waits(handle, "operator")
    assert [call.body["amount"] for call in await filed(recorder)] == ["50"]


async def test_a_new_version_of_the_object_needs_a_new_decision(house: House, recorder: Recorder) -> None:
    version = ["1"]

    async def target(invoice: str) -> dict[str, str]:
        return {"object": invoice, "version": version[0]}

    files = register(house, recorder, target=target)
    handle = await house.submit(files)
    house.start()
    first = await asked(house, handle)
    assert first.shown["target"] == {"object": "INV-102", "version": "1"}
    await house.stop()
    version[0] = "2"
    await approve(house, first)
    house.start()
    await house.reached(handle, "approval.withdrawn")
    second = list(await house.app.approvals.list(task=handle.id))
    assert second[0].shown["target"]["version"] == "2"
    assert (await house.app.approvals.get(first.id)).state == "withdrawn"
    assert await filed(recorder) == []
    await approve(house, second[0])
    assert (await house.ended(handle)).state == "succeeded"
    assert len(await filed(recorder)) == 1


async def test_arguments_too_large_to_show_cannot_be_approved(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    view = await house.run(files, invoice="x" * 70_000)
    assert (view.result["code"], view.result["reason"]) == ("approval_denied", "too_large_to_show")
    assert list(await house.app.approvals.list(state=None)) == []


async def test_parallel_questions_each_get_their_own_answer(house: House, recorder: Recorder) -> None:
    register(house, recorder)
    tool = house.app.registry.tools["file"].function

    @house.app.agent
    async def three(task: TaskContext) -> list[str]:
        answers = await task.gather(
            task.call(tool, "INV-1", Decimal(101), key="first"),
            task.call(tool, "INV-2", Decimal(102), key="second"),
            task.call(tool, "INV-3", Decimal(3), key="third"),
        )
        return [answer["amount"] for answer in answers]

    handle = await house.submit(three)
    house.start()
    await house.waits(handle, "approval")
    questions = {one.operation: one for one in await house.app.approvals.list(task=handle.id)}
    assert sorted(questions) == [f"{handle.id}:first", f"{handle.id}:second"]
    second = questions[f"{handle.id}:second"]
    await approve(house, second, arguments={"invoice": "INV-2", "amount": "50"})
    await house.stop()
    house.start()
    await approve(house, questions[f"{handle.id}:first"])
    assert (await house.ended(handle)).result == ["101", "50", "3"]
    assert sorted(call.body["amount"] for call in await filed(recorder)) == ["101", "3", "50"]


# -- who may decide ------------------------------------------------------------------------------------------


async def test_roles_quorum_and_four_eyes(house: House, recorder: Recorder) -> None:
    policy = lambda amount: Ask("big", roles=("finance",), quorum=2, four_eyes=True)  # noqa: E731
    files = register(house, recorder, policy)
    handle = await house.app.submit(files, {}, user="ana")
    house.start()
    approval = await asked(house, handle)
    assert (approval.roles, approval.quorum, approval.requester) == (("finance",), 2, "person:ana")
    for by, roles in (("bob", ("support",)), ("ana", ("finance",))):
        with pytest.raises(NotAllowed):
            await approve(house, approval, by=by, roles=roles)
    counted = await approve(house, approval, by="bob", roles=("finance",))
    assert (counted.state, counted.votes) == ("pending", 1)
    # The same word of the same person counts once.
    assert (await approve(house, approval, by="bob", roles=("finance",))).votes == 1
    decided = await approve(house, approval, by="eve", roles=("finance",))
    assert (decided.state, decided.votes) == ("approved", 2)
    assert [vote.who for vote in await house.app.approvals.votes(approval.id)] == ["person:bob", "person:eve"]
    assert (await house.ended(handle)).state == "succeeded"


async def test_the_first_of_many_decisions_wins(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    handle = await house.submit(files)
    house.start()
    approval = await asked(house, handle)

    async def decide(number: int) -> str:
        verdict: Any = "approve" if number % 2 else "reject"
        try:
            await house.app.approvals.decide(
                approval.id, verdict, fingerprint=approval.fingerprint, by=f"p{number}"
            )
        except ApprovalConflict as error:
            return f"{error.state} by {error.by}"
        return f"won by p{number}"

    said = await asyncio.gather(*(decide(number) for number in range(50)))
    won = [one for one in said if one.startswith("won")]
    assert len(won) == 1, said
    view = await house.ended(handle)
    winner = int(won[0].removeprefix("won by p"))
    assert len(await filed(recorder)) == winner % 2
    assert (view.result == "118.50") == bool(winner % 2)
    states = {"approved", "used"} if winner % 2 else {"rejected"}
    assert {one.split(" by ")[0] for one in said if not one.startswith("won")} <= states
    assert {one.split(" by ")[1] for one in said if not one.startswith("won")} == {f"person:p{winner}"}


async def test_an_approval_that_is_not_there(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    handle = await house.submit(files)
    house.start()
    approval = await asked(house, handle)
    for name, tenant in ((approval.id, "other"), (approval.id + "0", "default"), ("", "default")):
        with pytest.raises(ApprovalNotFound):
            await house.app.approvals.decide(
                name, "approve", fingerprint=approval.fingerprint, by="boss", tenant=tenant
            )


# -- standing rules ------------------------------------------------------------------------------------------


async def rule(house: House, verdict: Any, **bounds: Any) -> int:
    return await house.app.rules.put(
        "file", verdict, reason="standing", by="boss", bounds={name: bound for name, bound in bounds.items()}
    )


async def test_an_allowing_rule_needs_no_question(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    await rule(house, "allow", amount={"max": 120})
    assert (await house.run(files)).result == "118.50"
    handle = await house.submit(files, amount="121")
    await asked(house, handle)
    assert [call.body["amount"] for call in await filed(recorder)] == ["118.50"]


async def test_a_question_that_a_rule_makes_needless_is_taken_back(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    handle = await house.submit(files)
    house.start()
    approval = await asked(house, handle)
    await rule(house, "allow")
    await handle.signal("look")
    assert (await house.ended(handle)).result == "118.50"
    assert (await house.app.approvals.get(approval.id)).state == "withdrawn"
    kinds = [event.kind for event in await house.events(handle)]
    assert kinds.index("approval.withdrawn") < kinds.index("operation.started")
    assert await house.violations(recorder) == []


async def test_a_question_that_lost_its_race_is_taken_back(house: House, recorder: Recorder) -> None:
    register(house, recorder)
    tool = house.app.registry.tools["file"].function

    @house.app.agent
    async def races(task: TaskContext) -> int:
        calls = task.call(tool, "INV-1", Decimal(101)), task.ask("Sure?"), task.wait("go")
        winner, _ = await task.first(*calls)
        await task.wait("end")
        return winner

    handle = await house.submit(races)
    house.start()
    await house.waits(handle, "signal")
    assert len(await house.app.approvals.list(task=handle.id)) == 2
    await handle.signal("go")
    await house.reached(handle, "approval.withdrawn")
    await handle.signal("end")
    assert (await house.ended(handle)).result == 2
    kinds = [event.kind for event in await house.events(handle)]
    assert kinds.count("approval.withdrawn") == 2
    assert await filed(recorder) == []


async def test_a_decision_beats_a_rule_either_way(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    handle, other = await house.submit(files, invoice="A"), await house.submit(files, invoice="B")
    house.start()
    first, second = await asked(house, handle), await asked(house, other)
    await rule(house, "allow")
    await house.app.approvals.decide(first.id, "reject", fingerprint=first.fingerprint, by="boss")
    assert (await house.ended(handle)).result["reason"] == "person"
    await house.app.rules.withdraw(1, reason="changed", by="boss")
    await rule(house, "deny")
    await approve(house, second)
    assert (await house.ended(other)).result == "118.50"
    assert [call.body["invoice"] for call in await filed(recorder)] == ["B"]


async def test_a_rule_that_is_withdrawn_lets_no_call_go_that_has_not_begun(
    house: House, recorder: Recorder
) -> None:
    """Scenario O12: a standing approval is taken back while two calls are pending under it."""
    files = register(house, recorder)
    number = await rule(house, "allow")
    # They were let through by the rule, and are held back in the last moment.
    await house.app.pauses.set("tool:file", reason="a moment", by="kim")
    handles = [await house.submit(files, invoice=invoice) for invoice in "AB"]
    house.start()
    for handle in handles:
        await house.waits(handle, "operator")
    await house.app.rules.withdraw(number, reason="changed", by="boss")
    await house.app.pauses.clear("tool:file", reason="over", by="kim")
    first, second = [await asked(house, handle) for handle in handles]
    assert await filed(recorder) == []
    await approve(house, first)
    assert (await house.ended(handles[0])).result == "118.50"
    await house.app.approvals.decide(second.id, "reject", fingerprint=second.fingerprint, by="boss")
    assert (await house.ended(handles[1])).result["reason"] == "person"
    assert [call.body["invoice"] for call in await filed(recorder)] == ["A"]
    trail = [entry.what for entry in await house.app.pauses.audit()]
    assert [what for what in trail if what.startswith("rule:")] == ["rule:allow", "rule:withdraw"]
    assert await house.violations(recorder) == []


async def test_a_rule_for_a_tool_without_policy(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, approval=None)
    number = await rule(house, "deny")
    assert (await house.run(files)).result["reason"] == "rule"
    await house.app.rules.withdraw(number, reason="changed", by="boss")
    assert (await house.run(files)).result == "118.50"
    assert len(await filed(recorder)) == 1


# -- no policy, no call --------------------------------------------------------------------------------------


async def test_policy_that_cannot_be_asked_lets_nothing_run(house: House, recorder: Recorder) -> None:
    broken = [True]

    def policy(call: PolicyCall, amount: Decimal) -> bool:
        if broken[0]:
            raise RuntimeError("the policy service is away")
        return call.tenant == "default" and call.user == "ana" and call.tool == "file"

    files = register(house, recorder, policy)
    handle = await house.app.submit(files, {}, user="ana")
    house.start()
    view = await house.waits(handle, "operator")
    assert view.state == "waiting"
    said = [event.data["message"] for event in await house.events(handle) if event.kind == "log"]
    assert any("the policy service is away" in text for text in said)
    assert await filed(recorder) == []
    broken[0] = False
    assert (await house.ended(handle)).result == "118.50"


@pytest.mark.parametrize("answer", [None, 1, "", {"allow": True}])
async def test_an_answer_that_is_none_allows_nothing(house: House, recorder: Recorder, answer: Any) -> None:
    files = register(house, recorder, lambda amount: answer)
    handle = await house.submit(files)
    house.start()
    await house.waits(handle, "operator")
    assert await filed(recorder) == []


def test_a_policy_over_strangers_is_refused(house: House, recorder: Recorder) -> None:
    with pytest.raises(ConfigurationError, match="no parameter of the tool"):
        register(house, recorder, lambda colour: True)
    with pytest.raises(ConfigurationError, match="policy_version"):
        register(house, recorder, approval=None, policy_version="3")
