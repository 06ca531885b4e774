"""Unknowns that no worker holds: asked again, settled by evidence, sent again or left to a person."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import Outlast, TaskContext, ToolCall, Uncertain, clock, telemetry
from outlast.core import settle, values
from outlast.core.retry import Backoff
from outlast.engine.finding import AT_ONCE, Finding, Found, Inquiries
from outlast.errors import NotSent, SettlementConflict, StoreUnavailable, ToolFailed
from outlast.handle import TaskHandle
from outlast.ledger import ToolStats
from outlast.store.reconciling import OpenItem, OpenRequest, Postponement, SettledCounts
from outlast.store.records import Evidence, OperationRow, SweepRequest
from outlast.store.rows import OperationFilter
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.recorder import Call, Recorder, Rule

QUICK = Backoff(base_s=0.02, max_s=0.16, jitter_s=0, attempts=6)
TIMEOUT_S = 0.4
KEY = "create#1"


async def by_key(call: ToolCall, url: str) -> list[Any]:
    """Ask the ticket service for what it has under a call's key."""
    answer = await call.http.get(
        f"{url}/tickets", params={"idempotency_key": call.idempotency_key}, changes=False
    )
    found: list[Any] = answer.json()
    return found


def register(house: House, recorder: Recorder, find: Any = None, **options: Any) -> Any:
    """Register a queryable tool over the ticket service, and an agent that calls it once."""

    async def find_ticket(call: ToolCall) -> Any:
        return await by_key(call, recorder.url)

    async def create(call: ToolCall, amount: str) -> dict[str, Any]:
        reply = await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": amount})
        answer: dict[str, Any] = reply.json()
        return answer

    given = {
        "effect": "queryable",
        "find": find or find_ticket,
        "timeout": TIMEOUT_S,
        "retry": QUICK,
        **options,
    }
    tool = house.app.tool(name="create", **given)(create)

    @house.app.agent
    async def files(task: TaskContext, amount: str = "118.50") -> Any:
        try:
            ticket = await task.call(tool, amount)
        except ToolFailed as error:
            return f"failed: {error.reason}"
        return ticket["id"]

    return files


async def calls(recorder: Recorder, method: str = "POST") -> list[Call]:
    return [call for call in await recorder.log() if call.method == method]


async def answers(house: House, handle: TaskHandle) -> list[tuple[str, str]]:
    """Answer what was found, and by whom, question by question."""
    _, evidence = await house.app.operations.show(f"{handle.id}:{KEY}")
    return [(one.data["by"], one.data["answer"]) for one in evidence if "answer" in one.data]


def put_back(house: House) -> asyncio.Queue[Postponement]:
    """Answer a queue of what is put back into the reconciliation queue from now on."""
    queue: asyncio.Queue[Postponement] = asyncio.Queue()
    postpone = house.store.postpone

    async def postponing(postponements: Sequence[Postponement], **more: Any) -> list[bool]:
        taken = await postpone(postponements, **more)
        for one in postponements:
            queue.put_nowait(one)
        return taken

    house.store.postpone = postponing  # type: ignore[method-assign]
    return queue


async def left_to_a_person(queue: asyncio.Queue[Postponement]) -> list[Postponement]:
    """Wait until an operation is put back for a person; answer all that came until then."""
    seen = []
    async with asyncio.timeout(PATIENCE_S):
        while not seen or seen[-1].ask_in_us is not None:
            seen.append(await queue.get())
    return seen


@asynccontextmanager
async def settled_by_the_settler() -> AsyncIterator[asyncio.Event]:
    """Answer an event that is set when anything is settled in this process."""
    settled = asyncio.Event()

    def watch(signal: telemetry.Signal) -> None:
        if isinstance(signal, telemetry.OperationSettled):
            settled.set()

    end = telemetry.subscribe(watch)
    try:
        yield settled
    finally:
        end()


# -- evidence ------------------------------------------------------------------------------------------------


async def test_a_stale_replica_is_asked_again_when_it_must_have_caught_up(
    house: House, recorder: Recorder
) -> None:
    files = register(house, recorder, visible_within=0.6)
    await recorder.plan(Rule.act_then_reset(), Rule.stale(700))
    handle = await house.submit(files)
    house.start()
    view = await house.ended(handle)
    assert view.result == (await recorder.tickets())[0]["id"]
    assert len(await calls(recorder)) == 1
    assert await answers(house, handle) == [("worker", "absent"), ("settler", "found")]
    assert (await house.operations(handle))[KEY].settled_by == "settler"
    first, second = await calls(recorder, "GET")
    (sent,) = await calls(recorder)
    # Not before the deadline of the attempt and the time in which it becomes visible are over.
    assert second.arrived_at - sent.arrived_at > 0.9
    assert first.arrived_at - sent.arrived_at < 0.4
    assert await house.violations(recorder) == []


async def test_what_is_absent_when_it_must_be_visible_is_sent_again(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, visible_within=0.2)
    await recorder.plan(Rule.hang())
    handle = await house.submit(files)
    house.start()
    view = await house.ended(handle)
    assert view.result == (await recorder.tickets())[0]["id"]
    assert {call.key for call in await calls(recorder)} == {f"{handle.id}:{KEY}"}
    assert len(await calls(recorder)) == 2
    assert [answer for _, answer in await answers(house, handle)] == ["absent", "absent"]
    assert await house.violations(recorder) == []


async def test_absence_proves_nothing_where_nobody_says_when_it_would_be_visible(
    house: House, recorder: Recorder
) -> None:
    files = register(house, recorder)
    await recorder.plan(Rule.hang())
    handle = await house.submit(files)
    house.start()
    await house.waits(handle, "reconciliation")
    place = await house.place(f"{handle.id}:{KEY}")
    assert place is not None
    assert place.ask_at is None
    assert "nobody has declared" in place.why
    assert len(await calls(recorder)) == 1


async def test_absence_after_the_key_window_is_weak_evidence_again(house: House, recorder: Recorder) -> None:
    # Inside the window the resend would be harmless; after it the key is as good as none.
    files = register(house, recorder, effect="keyed", key_window=0.5)
    await recorder.plan(Rule.hang())
    handle = await house.submit(files)
    house.start()
    await house.waits(handle, "reconciliation")
    place = await house.place(f"{handle.id}:{KEY}")
    assert place is not None
    assert place.ask_at is None
    assert place.why.startswith("absent")
    assert len(await calls(recorder)) == 1


@pytest.mark.parametrize("known", [True, False])
async def test_what_comes_next_can_be_asked_and_nothing_changes(
    house: House, recorder: Recorder, known: bool
) -> None:
    async def away(call: ToolCall) -> Any:
        raise ConnectionResetError

    files = register(house, recorder, away, visible_within=60)
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(files)
    house.start(sweep_s=30)
    await house.waits(handle, "reconciliation")
    app = house.app if known else Outlast("desk", store=house.store)
    # A session is renewed when it is time, whoever asks what.
    tables = ("operations", "unsettled", "evidence", "events", "audit")
    before = await house.store.dump()
    plan = await app.operations.plan(f"{handle.id}:{KEY}")
    after = await house.store.dump()
    assert [after[table] for table in tables] == [before[table] for table in tables]
    assert (plan.state, plan.asked) == ("unknown", 1)
    assert plan.action == ("ask" if known else "wait")
    assert plan.why == (
        "the other side can be asked" if known else "the question brought no evidence; it is asked again"
    )
    place = await house.place(f"{handle.id}:{KEY}")
    assert place is not None
    assert plan.at == place.ask_at is not None
    view, _ = await app.operations.show(f"{handle.id}:{KEY}")
    assert view.deadline_at is not None
    assert plan.refused_until == view.visible_at == view.deadline_at + timedelta(seconds=60)


async def test_a_person_waits_for_an_effect_to_be_visible_as_the_tool_said_at_the_call(
    house: House, recorder: Recorder
) -> None:
    async def away(call: ToolCall) -> Any:
        raise ConnectionResetError

    files = register(house, recorder, away, visible_within="1h")
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(files)
    house.start()
    await house.waits(handle, "reconciliation")
    # What the tool says today changes nothing for a call that was made.
    desk = Outlast("desk", store=house.store)
    desk.tool(name="create", effect="queryable", find=away, visible_within=0)(away)
    name = f"{handle.id}:{KEY}"
    view, _ = await desk.operations.show(name)
    assert view.deadline_at is not None
    assert view.visible_at == view.deadline_at + timedelta(hours=1)
    for verdict in ("did_not_happen", "send_again"):
        with pytest.raises(SettlementConflict) as refused:
            await desk.operations.settle(name, verdict, reason="it is not there", by="kim")  # type: ignore[arg-type]
        assert refused.value.state == "too_early"
        assert (await desk.operations.plan(name)).refused_until == view.visible_at
    settled = await desk.operations.settle(
        name, "did_not_happen", reason="they looked themselves", by="kim", forced=True
    )
    assert settled.state == "failed"
    assert (await desk.operations.plan(name)).refused_until is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda tickets: Found(tickets[0], arguments={"amount": "999.00"}), "other content"),
        (lambda tickets: [*tickets, *tickets], "several effects"),
    ],
    ids=["different", "several"],
)
async def test_an_effect_that_may_not_be_this_one_goes_to_a_person(
    house: House, recorder: Recorder, answer: Callable[[Any], Any], why: str
) -> None:
    async def find(call: ToolCall) -> Any:
        return answer(await by_key(call, recorder.url))

    files = register(house, recorder, find, visible_within=0.1)
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(files)
    house.start()
    await house.waits(handle, "reconciliation")
    place = await house.place(f"{handle.id}:{KEY}")
    assert place is not None
    assert place.ask_at is None
    assert why in place.why
    assert len(await calls(recorder)) == 1


async def test_the_arguments_over_there_are_compared_as_they_are_meant(
    house: House, recorder: Recorder
) -> None:
    async def find(call: ToolCall, amount: str) -> Any:
        (ticket,) = await by_key(call, recorder.url)
        return Found(ticket, arguments={"amount": amount})

    files = register(house, recorder, find)
    await recorder.plan(Rule.act_then_reset())
    view = await house.run(files)
    assert view.result == (await recorder.tickets())[0]["id"]
    assert len(await calls(recorder)) == 1


async def _raises(_: Any) -> Any:
    raise KeyError("tickets")


async def _hangs(_: Any) -> Any:
    await asyncio.Event().wait()


async def _nonsense(_: Any) -> Any:
    return object()


async def _misfits(found: Any) -> Any:
    return Found(found[0], arguments={"amount": {"no": "amount"}})


NO_EVIDENCE = [_raises, _hangs, _nonsense, _misfits]


@pytest.mark.parametrize("fault", NO_EVIDENCE)
async def test_a_question_that_brings_no_evidence_is_asked_again(
    house: House, recorder: Recorder, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "ASK_AGAIN_S", (0, 0, 0))
    asked = itertools.count(1)

    async def find(call: ToolCall) -> Any:
        found = await by_key(call, recorder.url)
        return await fault(found) if next(asked) <= 2 else found

    files = register(house, recorder, find, visible_within=60)
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(files)
    house.start()
    view = await house.ended(handle)
    assert view.result == (await recorder.tickets())[0]["id"]
    assert await answers(house, handle) == [
        ("worker", "no evidence"),
        ("settler", "no evidence"),
        ("settler", "found"),
    ]
    assert len(await calls(recorder)) == 1
    assert await house.violations(recorder) == []


async def test_after_so_many_questions_without_evidence_a_person_is_asked(
    house: House, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "ASK_AGAIN_S", (0, 0))
    asked = itertools.count(1)

    async def find(call: ToolCall) -> Any:
        next(asked)
        raise ConnectionResetError

    files = register(house, recorder, find, visible_within=0)
    await recorder.plan(Rule.act_then_reset())
    postponed = put_back(house)
    handle = await house.submit(files)
    house.start()
    assert [one.unusable for one in await left_to_a_person(postponed)] == [True] * 3
    place = await house.place(f"{handle.id}:{KEY}")
    assert place is not None
    assert (place.ask_at, place.asked, place.unusable) == (None, 3, 3)
    assert place.why == "3 questions brought no evidence"
    assert next(asked) == 4


async def test_the_other_side_may_ask_for_a_pause_before_the_next_question(
    house: House, recorder: Recorder
) -> None:
    files = register(house, recorder, visible_within=0)
    await recorder.plan(Rule.act_then_reset())
    await recorder.plan(Rule.refuse(429, retry_after="2").on(method="GET"))
    view = await house.run(files)
    assert view.result == (await recorder.tickets())[0]["id"]
    first, second = await calls(recorder, "GET")
    assert second.arrived_at - (first.ended_at or 0) >= 2.0


@pytest.mark.parametrize("nonsense", ["0", "9" * 15, "9" * 300])
async def test_a_wait_that_makes_no_sense_is_a_question_without_evidence(
    house: House, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, nonsense: str
) -> None:
    """It neither goes on for ever, asked again at once, nor waits for longer than a database can say."""
    monkeypatch.setattr(settle, "ASK_AGAIN_S", (0, 0))
    files = register(house, recorder, visible_within=0)
    await recorder.plan(Rule.act_then_reset())
    await recorder.plan(Rule.refuse(429, retry_after=nonsense).on(method="GET", times=9))
    postponed = put_back(house)
    handle = await house.submit(files)
    house.start()
    left = await left_to_a_person(postponed)
    assert [(one.unusable, one.wait) for one in left] == [(True, None)] * 3
    assert len(await calls(recorder, "GET")) == 3
    assert (await house.store.dump())["provider_waits"] == []
    assert (await house.waits(handle, "reconciliation")).state == "waiting"


async def log_until(recorder: Recorder, count: int, method: str) -> list[Call]:
    """Wait until so many requests were answered, and answer them."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = [call for call in await calls(recorder, method) if call.ended_at is not None]
            if len(seen) >= count:
                return seen
            await asyncio.sleep(0.02)


async def test_a_wait_that_one_process_was_asked_for_holds_the_questions_of_all(
    house: House, recorder: Recorder
) -> None:
    files = register(house, recorder, visible_within=0)
    await recorder.plan(Rule.act_then_reset())
    await recorder.plan(Rule.act_then_reset())
    await recorder.plan(Rule.refuse(429, retry_after="3").on(method="GET"))
    postponed = put_back(house)
    first = await house.submit(files)
    house.start()
    async with asyncio.timeout(PATIENCE_S):
        assert (await postponed.get()).wait == ("create", 3_000_000)
    await house.stop()
    # What another process has in memory is nothing.
    house.start()
    second = await house.submit(files, amount="7.00")
    for handle in (first, second):
        assert (await house.ended(handle)).state == "succeeded"
    refused, *after = await calls(recorder, "GET")
    assert len(after) == 2
    assert [call for call in after if call.arrived_at - (refused.ended_at or 0) < 3.0] == []
    assert len(await recorder.tickets()) == 2
    assert await house.violations(recorder) == []


async def test_what_the_settler_would_ask_is_put_off_once_while_a_call_was_told_to_wait(
    house: House, recorder: Recorder
) -> None:
    """The wait is asked of a send. What is unknown keeps its turn and its count, and nothing spins."""

    async def find(call: ToolCall) -> Any:
        if next(asked) < 2:
            raise NotSent("nobody there")
        return await by_key(call, recorder.url)

    asked = itertools.count()
    files = register(house, recorder, find=find, visible_within=0)
    await recorder.plan(Rule.act_then_reset())
    await recorder.plan(Rule.act_then_reset())
    handles = [await house.submit(files, amount=f"{number}.00") for number in (1, 2)]
    postponed = put_back(house)
    house.start()
    async with asyncio.timeout(PATIENCE_S):
        for _ in handles:
            assert (await postponed.get()).unusable
    await recorder.plan(Rule.refuse(429, retry_after="3").on(method="POST"))
    third = await house.submit(files, amount="3.00")
    refused = (await log_until(recorder, 3, "POST"))[-1]
    async with asyncio.timeout(PATIENCE_S):
        offs = [await postponed.get() for _ in handles]
    for off in offs:
        assert (off.why, off.held, off.unusable, off.wait) == (settle.LEFT_ALONE, True, False, None)
        place = await house.place(f"{off.task}:{off.key}")
        assert place is not None
        assert (place.asked, place.unusable, place.needs_person) == (1, 1, False)
        assert place.ask_at is not None
        [row] = (await house.store.dump())["provider_waits"]
        assert place.ask_at.timestamp() * 1_000_000 >= row["until_at"]
    plan = await house.app.operations.plan(f"{offs[0].task}:{KEY}")
    assert (plan.action, plan.why) == ("wait", settle.LEFT_ALONE)
    for handle in (*handles, third):
        assert (await house.ended(handle)).state == "succeeded"
    assert postponed.empty()
    questions = await calls(recorder, "GET")
    assert len(questions) == 2
    assert [call for call in questions if call.arrived_at - (refused.ended_at or 0) < 3.0] == []
    assert await house.violations(recorder) == []


async def test_a_question_that_stood_behind_others_heeds_a_wait_that_came_meanwhile() -> None:
    """And nobody reads the store again who stood behind nobody."""
    app = Outlast("tests")
    go_on, reads = asyncio.Event(), itertools.count()

    async def find(call: ToolCall) -> None:
        await go_on.wait()

    async def create(call: ToolCall) -> None:
        raise AssertionError("nobody sends it")

    app.tool(name="create", effect="queryable", find=find)(create)
    tool, inquiries = app.registry.tools["create"], Inquiries()

    async def held_s() -> float:
        next(reads)
        return 5.0

    async def ask() -> Finding:
        query = cast(Any, lambda: None)
        return await inquiries.ask(tool, query, {}, tenant=DEFAULT_TENANT, held_s=held_s)

    asked = [asyncio.ensure_future(ask()) for _ in range(AT_ONCE + 2)]
    await asyncio.sleep(0)
    go_on.set()
    found = await asyncio.gather(*asked)
    assert [one.asked for one in found] == [True] * AT_ONCE + [False] * 2
    assert [one.wait_s for one in found[AT_ONCE:]] == [5.0] * 2
    assert next(reads) == 2


async def test_of_two_waits_that_questions_are_told_of_at_once_the_longer_one_holds() -> None:
    app = Outlast("tests")
    waits, both = iter((60.0, 5.0)), asyncio.Barrier(2)

    async def find(call: ToolCall) -> None:
        wait_s = next(waits)
        await both.wait()
        if wait_s < 60:
            await asyncio.sleep(0)
        raise NotSent("later", retry_after=wait_s)

    async def create(call: ToolCall) -> None:
        raise AssertionError("nobody sends it")

    app.tool(name="create", effect="queryable", find=find)(create)
    tool, inquiries = app.registry.tools["create"], Inquiries()

    async def held_s() -> float:
        raise AssertionError("nobody stands behind others")

    async def ask() -> Finding:
        query = cast(Any, lambda: None)
        return await inquiries.ask(tool, query, {}, tenant=DEFAULT_TENANT, held_s=held_s)

    assert sorted([one.wait_s or 0 for one in await asyncio.gather(ask(), ask())]) == [5.0, 60.0]
    last = await ask()
    assert not last.asked
    assert last.wait_s is not None
    assert last.wait_s > 5


async def test_nobody_is_asked_about_what_a_person_settles_while_the_settler_has_it(
    house: House, recorder: Recorder
) -> None:
    """What is not in the queue any more does not say either that its provider wants to be left alone."""

    async def find(call: ToolCall) -> Any:
        next(asked)
        raise NotSent("nobody there")

    asked, before = itertools.count(), 0
    files = register(house, recorder, find=find, visible_within=0)
    await recorder.plan(Rule.act_then_reset())
    claim, over = house.store.claim_open, asyncio.Event()
    settled = False

    async def claim_open(request: OpenRequest, **more: Any) -> list[OpenItem]:
        nonlocal before, settled
        if settled:
            over.set()
        items = await claim(request, **more)
        if items and not settled:
            settled, before = True, next(asked)
            name = f"{items[0].operation.task}:{KEY}"
            await house.app.operations.settle(name, "happened", reason="it is there", by="kim", forced=True)
        return items

    house.store.claim_open = claim_open  # type: ignore[method-assign]
    handle = await house.submit(files)
    house.start()
    async with asyncio.timeout(PATIENCE_S):
        await over.wait()
    assert next(asked) == before + 1
    await house.ended(handle)
    assert await house.violations(recorder) == []


# -- whoever sent it -----------------------------------------------------------------------------------------


def cut_off(house: House, worker: Any) -> None:
    """Let a worker's renewals fail from now on; it goes on with what it does, and is swept."""
    renew, session = house.store.renew, worker.session.id

    async def renewing(renewal: Any, **more: Any) -> Any:
        if renewal.session == session:
            raise StoreUnavailable("cut off")
        return await renew(renewal, **more)

    house.store.renew = renewing  # type: ignore[method-assign]


def silenced(house: House) -> Callable[[], None]:
    """Let no worker say what became of a call that was taken from it; answer what ends that."""
    away, note = True, house.store.note

    async def noting(evidence: Sequence[Evidence], **more: Any) -> None:
        if away and any(one.source == "late" for one in evidence):
            raise StoreUnavailable("cut off")
        await note(evidence, **more)

    def heard_again() -> None:
        nonlocal away
        away = False

    house.store.note = noting  # type: ignore[method-assign]
    return heard_again


async def lost_in_mid_call(
    house: House, recorder: Recorder, files: Any, *, at: Any = "acted", **rule: Any
) -> TaskHandle:
    """Submit a task whose worker is lost while its call is held at the other side; another one takes over."""
    await recorder.hold("call", Rule(**rule), at=at)
    handle = await house.submit(files)
    lost = house.start(lease_s=0.6, renew_s=0.1, grace_s=PATIENCE_S)
    await recorder.wait_for(held="call")
    cut_off(house, lost)
    house.start()
    await house.reached(handle, "operation.unknown")
    return handle


async def test_absence_says_little_while_the_sender_may_still_send(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, visible_within=0.1, timeout=2.0)
    heard_again = silenced(house)
    await recorder.hold("call", Rule(act=False, then="reset"), at="arrived")
    handle = await house.submit(files)
    lost = house.start(lease_s=0.6, renew_s=0.1)
    await recorder.wait_for(held="call")
    cut_off(house, lost)
    postponed = put_back(house)
    house.start()
    assert len(await left_to_a_person(postponed)) > 1
    place = await house.place(f"{handle.id}:{KEY}")
    assert place is not None
    assert place.sender_gone is False
    assert "may still be able to send" in place.why
    assert len(await calls(recorder)) == 1
    await recorder.release("call")
    # It can say again that its call is over: then absence says what it does.
    heard_again()
    assert (await house.ended(handle)).result == (await recorder.tickets())[0]["id"]
    assert len(await calls(recorder)) == 2
    assert await house.violations(recorder) == []


def on_disk(house: House, says: str | None) -> asyncio.Event:
    """Answer an event that is set when it is on disk that a call which was given up says this of itself."""
    said, note = asyncio.Event(), house.store.note

    async def noting(evidence: Sequence[Evidence], **more: Any) -> None:
        await note(evidence, **more)
        if any(one.source == "late" and one.says == says for one in evidence):
            said.set()

    house.store.note = noting  # type: ignore[method-assign]
    return said


async def absence_counts(house: House, operation: OperationRow) -> bool:
    """Answer whether the time is over in which a call of ``visible_within=0.1`` may still show."""
    assert operation.deadline_at is not None
    return (await house.store.health()).now >= operation.deadline_at + 100_000


async def test_a_sender_that_says_that_it_is_done_while_the_settler_looks_is_heard(
    house: House, recorder: Recorder
) -> None:
    """Between the taking of the operation and the look at its evidence."""
    files = register(house, recorder, visible_within=0.1, timeout=2.0)
    heard_again = silenced(house)
    over = on_disk(house, "over")
    handle = await lost_in_mid_call(house, recorder, files, act=False, then="reset", at="arrived")
    await recorder.release("call")
    claim_open = house.store.claim_open

    async def taking(request: OpenRequest, **more: Any) -> list[OpenItem]:
        items = await claim_open(request, **more)
        if items and await absence_counts(house, items[0].operation):
            heard_again()
            await over.wait()
        return items

    house.store.claim_open = taking  # type: ignore[method-assign]
    assert (await house.ended(handle)).result == (await recorder.tickets())[0]["id"]
    assert len(await calls(recorder)) == 2
    assert await house.violations(recorder) == []


async def test_a_sender_that_was_done_before_anybody_took_over_is_known_to_be_gone(
    house: House, recorder: Recorder
) -> None:
    files = register(house, recorder, visible_within=0.1, timeout=1.0)
    over, claim = on_disk(house, "over"), house.store.claim
    await recorder.hold("call", Rule(act=False, then="reset"), at="arrived")
    handle = await house.submit(files)
    lost = house.start(lease_s=0.6, renew_s=0.1, grace_s=PATIENCE_S)
    await recorder.wait_for(held="call")
    query = OperationFilter(tenant=DEFAULT_TENANT, task=handle.id, key=KEY)
    [operation] = await house.store.list_operations(query)

    async def claiming(*arguments: Any, **more: Any) -> Any:
        if not (over.is_set() and await absence_counts(house, operation)):
            raise StoreUnavailable("nobody takes over yet")
        return await claim(*arguments, **more)

    house.store.claim = claiming  # type: ignore[method-assign]
    cut_off(house, lost)
    await house.reached(handle, "attempt.lost")
    await recorder.release("call")
    async with asyncio.timeout(PATIENCE_S):
        await over.wait()
    assert await house.place(f"{handle.id}:{KEY}") is None
    house.start()
    assert (await house.ended(handle)).result == (await recorder.tickets())[0]["id"]
    assert len(await calls(recorder)) == 2
    assert await answers(house, handle) == [("worker", "absent")]
    assert await house.violations(recorder) == []


@pytest.mark.parametrize("lost", [False, True])
async def test_a_thread_that_outlives_its_call_may_still_send(house: House, lost: bool) -> None:
    """The call returns when its time is over; what it waited for in a thread goes on."""
    loop, began, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    async def find(call: ToolCall) -> None:
        return None

    def send() -> None:
        loop.call_soon_threadsafe(began.set)
        go_on.wait(PATIENCE_S)

    @house.app.tool(effect="queryable", find=find, visible_within=0.1, timeout=1.5, retry=QUICK)
    async def create(call: ToolCall) -> None:
        async with call.sending():
            await asyncio.to_thread(send)

    @house.app.agent
    async def files(task: TaskContext) -> None:
        await task.call(create)

    postponed, said_nothing = put_back(house), on_disk(house, None)
    handle = await house.submit(files)
    worker = house.start(lease_s=0.6 if lost else 30.0, renew_s=0.1, grace_s=5.0)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await began.wait()
            if lost:
                cut_off(house, worker)
                house.start()
                await said_nothing.wait()
        assert "may still be able to send" in (await left_to_a_person(postponed))[-1].why
        place = await house.place(f"{handle.id}:{KEY}")
        assert place is not None
        assert place.sender_gone is False
    finally:
        go_on.set()


async def test_an_answer_that_came_late_settles_it(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, visible_within=60, timeout=30)
    await recorder.plan(Rule.stale(60_000))
    handle = await lost_in_mid_call(house, recorder, files)
    await house.waits(handle, "reconciliation")
    await recorder.release("call")
    view = await house.ended(handle)
    assert view.result == (await recorder.tickets())[0]["id"]
    assert len(await calls(recorder)) == 1
    operation, evidence = await house.app.operations.show(f"{handle.id}:{KEY}")
    assert operation.settled_by == "settler"
    assert "late" in [one.source for one in evidence]
    assert await house.violations(recorder) == []


async def test_what_waits_for_a_person_is_asked_about_again_when_its_sender_is_done(
    house: House, recorder: Recorder
) -> None:
    """A worker that was given up lives, and its call ends without an answer: nobody sends it any more."""
    shows = False

    async def find(call: ToolCall) -> Any:
        return await by_key(call, recorder.url) if shows else None

    files = register(house, recorder, find, timeout=30)
    postponed = put_back(house)
    handle = await lost_in_mid_call(house, recorder, files, then="reset")
    assert "declared when" in (await left_to_a_person(postponed))[-1].why
    shows = True
    await recorder.release("call")
    view = await house.ended(handle)
    assert view.result == (await recorder.tickets())[0]["id"]
    assert len(await calls(recorder)) == 1
    assert (await house.operations(handle))[KEY].settled_by == "settler"
    assert await answers(house, handle) == [("worker", "absent"), ("settler", "found")]
    assert await house.violations(recorder) == []


async def answered_late(house: House, recorder: Recorder, files: Any, rule: Rule, at: Any) -> TaskHandle:
    """Submit a task whose worker is lost in mid-call, and keep what is answered; nobody has it then."""
    kept = asyncio.Event()
    note = house.store.note

    async def noting(evidence: Sequence[Evidence], **more: Any) -> None:
        await note(evidence, **more)
        if any(one.says is not None for one in evidence):
            kept.set()

    house.store.note = noting  # type: ignore[method-assign]
    await recorder.hold("call", rule, at=at)
    handle = await house.submit(files)
    lost = house.start(lease_s=5.0, renew_s=0.1, grace_s=PATIENCE_S)
    await recorder.wait_for(held="call")
    cut_off(house, lost)
    swept = await house.store.sweep(SweepRequest(), now=clock.unix_us() + 3_600_000_000)
    assert [one.task for one in swept.lost] == [handle.id]
    await recorder.release("call")
    async with asyncio.timeout(PATIENCE_S):
        await kept.wait()
    return handle


@pytest.mark.parametrize("effect", ["queryable", "manual", "keyed"])
async def test_a_worker_hears_an_answer_that_came_late_before_it_asks_anybody(
    house: House, recorder: Recorder, effect: str
) -> None:
    options = {"key_window": 3600} if effect == "keyed" else {}
    files = register(house, recorder, effect=effect, timeout=30, **options)
    handle = await answered_late(house, recorder, files, Rule(), "acted")
    house.start()
    view = await house.ended(handle)
    assert view.result == (await recorder.tickets())[0]["id"]
    assert await calls(recorder, "GET") == []
    assert len(await calls(recorder)) == 1
    operation = (await house.operations(handle))[KEY]
    assert (operation.state, operation.settled_by) == ("succeeded", "worker")
    assert await house.violations(recorder) == []


async def test_what_was_declined_late_did_not_happen(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, timeout=30)
    handle = await answered_late(house, recorder, files, Rule.refuse(422), "arrived")
    house.start()
    view = await house.ended(handle)
    assert view.result == "failed: did_not_happen"
    assert await calls(recorder, "GET") == []
    assert len(await calls(recorder)) == 1
    operation = (await house.operations(handle))[KEY]
    assert (operation.state, operation.settled_by) == ("failed", "worker")
    assert operation.error is not None
    # What was declined would be declined again.
    assert operation.error["retryable"] is False
    assert await house.violations(recorder) == []


async def test_the_settler_settles_what_was_declined_late_before_the_deadline(
    house: House, recorder: Recorder
) -> None:
    files = register(house, recorder, visible_within=60, timeout=30)
    await recorder.hold("call", Rule.refuse(422), at="arrived")
    handle = await house.submit(files)
    lost = house.start(lease_s=0.6, renew_s=0.1, grace_s=PATIENCE_S)
    await recorder.wait_for(held="call")
    cut_off(house, lost)
    house.start()
    await house.waits(handle, "reconciliation")
    await recorder.release("call")
    view = await house.ended(handle)
    assert view.result == "failed: did_not_happen"
    operation = (await house.operations(handle))[KEY]
    assert (operation.state, operation.settled_by) == ("failed", "settler")


async def test_an_answer_that_comes_while_it_is_left_to_a_person_is_heard(
    house: House, recorder: Recorder
) -> None:
    async def find(call: ToolCall) -> None:
        # The answer of the attempt arrives between the look at what is stored and the decision.
        task, _, key = call.idempotency_key.partition(":")
        data = values.encode({"state": "succeeded", "result": '{"id": "R-late"}', "error": None})
        late = Evidence(
            tenant=call.tenant,
            task=task,
            key=key,
            attempt=call.attempt,
            source="late",
            data=data,
            says="happened",
        )
        await house.store.note([late])

    files = register(house, recorder, find)
    await recorder.plan(Rule.act_then_reset())
    postponed = put_back(house)
    handle = await house.submit(files)
    house.start()
    view = await house.ended(handle)
    # For a person, since nobody says when an effect would be visible; and looked at again all the same.
    assert [(one.ask_in_us, one.seen) for one in await left_to_a_person(postponed)] == [(None, 0)]
    assert view.result == "R-late"
    operation = (await house.operations(handle))[KEY]
    assert (operation.state, operation.settled_by) == ("succeeded", "settler")
    assert await answers(house, handle) == [("worker", "absent")]


async def test_what_is_left_to_a_person_stays_with_one_whoever_runs_its_task(
    house: House, recorder: Recorder
) -> None:
    register(house, recorder)

    @house.app.tool(effect="manual", timeout=TIMEOUT_S)
    async def post(call: ToolCall) -> None:
        raise Uncertain("nobody knows")

    @house.app.agent
    async def both(task: TaskContext) -> None:
        await asyncio.gather(task.call("create", "118.50"), task.call(post))

    await recorder.plan(Rule.act_then_reset(), Rule.stale(60_000))
    handle = await house.submit(both)
    house.start()
    view = await house.waits(handle, "reconciliation")
    name = f"{handle.id}:{KEY}"
    before = await house.place(name)
    assert before is not None
    assert before.ask_at is None
    # One of the two that it waits for is settled, so that it is woken and runs again.
    await house.app.operations.settle(
        f"{handle.id}:post#1", "happened", reason="it is there", by="kim", result=None
    )
    async with asyncio.timeout(PATIENCE_S):
        async for event in handle.events(after=view.last_event):
            if event.kind == "task.waiting" and event.data["reason"] == "reconciliation":
                break
    assert (await handle.get()).attempts == view.attempts + 1
    assert await house.place(name) == before
    assert len(await calls(recorder, "GET")) == 1
    assert len(await calls(recorder)) == 1


async def test_an_answer_that_contradicts_a_person_opens_it_again(house: House, recorder: Recorder) -> None:
    register(house, recorder, visible_within=60, timeout=30)
    told, gate = asyncio.Event(), asyncio.Event()

    @house.app.agent
    async def careful(task: TaskContext) -> str:
        try:
            await task.call("create", "118.50")
        except ToolFailed as error:
            told.set()
            await gate.wait()
            return error.reason
        return "filed"

    await recorder.plan(Rule.stale(60_000))
    handle = await lost_in_mid_call(house, recorder, careful)
    await house.waits(handle, "reconciliation")
    name = f"{handle.id}:{KEY}"
    await house.app.operations.settle(name, "did_not_happen", reason="not there", by="kim", forced=True)
    # What is settled before it is told is what it is told.
    async with asyncio.timeout(PATIENCE_S):
        await told.wait()
    await recorder.release("call")
    contradicted = await house.reached(handle, "operation.contradicted")
    assert contradicted.data == {"operation": KEY, "says": "happened"}
    operation, _ = await house.app.operations.show(name)
    assert (operation.state, operation.error is not None) == ("unknown", True)
    place = await house.place(name)
    assert place is not None
    assert place.ask_at is None
    assert "contradicts" in place.why
    (ticket,) = await recorder.tickets()
    await house.app.operations.settle(name, "happened", reason="it is there", by="kim", result=ticket)
    gate.set()
    view = await house.ended(handle)
    # What the agent has been told stays told: its task ends as it went on.
    assert (view.state, view.result, view.effects_open) == ("succeeded", "did_not_happen", 0)
    trail = await house.app.pauses.audit()
    assert [(row.who, row.what) for row in trail] == [
        ("person:kim", "settle:did_not_happen"),
        ("person:kim", "settle:happened"),
    ]
    assert len(await calls(recorder)) == 1


# -- how they ended ------------------------------------------------------------------------------------------


async def test_what_the_worker_and_the_settler_settled_is_counted_and_stays_so(
    house: House, recorder: Recorder
) -> None:
    files = register(house, recorder, visible_within=0.2)
    # Found by the worker; absent, then found by the settler; absent for good, and sent again.
    for rules in ((Rule.act_then_reset(),), (Rule.act_then_reset(), Rule.stale(300)), (Rule.hang(),)):
        await recorder.plan(*rules)
        assert (await house.run(files)).state == "succeeded"
    (counted,) = await house.app.operations.stats()
    expected = {"tool": "create", "unknown": 0, "happened": 2, "did_not_happen": 0, "sent_again": 1}
    assert {name: getattr(counted, name) for name in expected} == expected
    assert (counted.share, counted.hint) == (0.0, None)
    assert await house.app.operations.stats(tenant="acme") == []
    await house.stop()
    assert await Outlast("desk", store=house.store).operations.stats() == [counted]
    assert await house.violations(recorder) == []


async def test_a_resend_that_a_switch_holds_back_is_not_counted(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, effect="keyed", key_window=3600)
    await recorder.hold("call", Rule.act_then_reset())
    handle = await house.submit(files)
    house.start()
    await recorder.wait_for(held="call")
    await house.app.pauses.set("tool:create", reason="r", by="kim")
    await recorder.plan(Rule.stale(60_000))
    await recorder.release("call")
    await house.waits(handle, "reconciliation")
    (counted,) = await house.app.operations.stats()
    assert (counted.unknown, counted.sent_again) == (1, 0)
    await house.app.pauses.clear("tool:create", reason="r", by="kim")
    await house.ended(handle)
    (counted,) = await house.app.operations.stats()
    assert (counted.unknown, counted.sent_again, counted.share) == (0, 1, None)
    assert len(await recorder.tickets()) == 1


@pytest.mark.parametrize(
    ("happened", "did_not_happen", "telling"),
    [(4, 6, True), (0, 10, True), (5, 5, False), (6, 5, False), (0, 9, False), (0, 0, False)],
)
def test_a_share_is_telling_when_it_is_high_and_of_many(
    happened: int, did_not_happen: int, telling: bool
) -> None:
    counts = SettledCounts(
        tool="create", unknown=70, happened=happened, did_not_happen=did_not_happen, sent_again=80
    )
    assert (ToolStats.of(counts).hint is not None) == telling


# -- tasks that have ended, tools that have changed ----------------------------------------------------------


@pytest.mark.parametrize(("acts", "state"), [(True, "succeeded"), (False, "failed")])
async def test_the_unknown_of_an_ended_task_is_settled_and_never_sent_again(
    house: House, recorder: Recorder, acts: bool, state: str
) -> None:
    files = register(house, recorder, visible_within=1.0)
    await recorder.plan(Rule.act_then_hang() if acts else Rule.hang(), Rule.stale(1_200))
    async with settled_by_the_settler() as settled:
        handle = await house.app.submit(files, {}, deadline=0.8)
        house.start()
        view = await house.ended(handle)
        assert (view.state, view.effects_open) == ("failed", 1)
        async with asyncio.timeout(PATIENCE_S):
            await settled.wait()
    operation = (await house.operations(handle))[KEY]
    assert (operation.state, operation.settled_by) == (state, "settler")
    assert (await handle.get()).effects_open == 0
    assert len(await calls(recorder)) == 1
    assert await house.violations(recorder) == []


async def test_a_tool_whose_parameters_changed_meanwhile_is_left_to_a_person(
    house: House, recorder: Recorder
) -> None:
    async def away(call: ToolCall) -> Any:
        raise ConnectionResetError

    files = register(house, recorder, away, visible_within=0)
    await recorder.plan(Rule.act_then_reset())
    handle = await house.submit(files)
    house.start()
    await house.waits(handle, "reconciliation")
    await house.stop()
    asked: list[ToolCall] = []

    async def find(call: ToolCall) -> Any:
        asked.append(call)

    newer = Outlast("newer", store=house.store)

    @newer.tool(effect="queryable", find=find, version="2")
    async def create(call: ToolCall, amount: int, currency: str) -> None:
        return None

    @newer.agent
    async def other(task: TaskContext) -> None:
        return None

    house.app = newer
    await newer.open()
    postponed = put_back(house)
    house.start()
    await left_to_a_person(postponed)
    plan = await newer.operations.plan(f"{handle.id}:{KEY}")
    assert plan.action == "person"
    assert plan.why.startswith("its arguments do not fit the tool as it is now")
    assert asked == []


async def test_an_unknown_waits_for_a_process_that_knows_its_tool(house: House, recorder: Recorder) -> None:
    files = register(house, recorder, visible_within=0.2)
    await recorder.plan(Rule.act_then_reset(), Rule.stale(500))
    handle = await house.submit(files)
    house.start()
    await house.waits(handle, "reconciliation")
    await house.stop()
    ours = house.app
    stranger = Outlast("stranger", store=house.store)

    @stranger.tool(effect="read")
    async def look(call: ToolCall) -> None:
        return None

    @stranger.agent
    async def looks(task: TaskContext) -> None:
        await task.call(look)

    await stranger.open()
    house.app = stranger
    house.start()
    # Long enough for it to be due, and for the stranger to pass it by.
    for _ in range(3):
        await house.run(looks)
    place = await house.place(f"{handle.id}:{KEY}")
    assert place is not None
    assert place.asked == 1
    house.app = ours
    house.start()
    assert (await house.ended(handle)).result == (await recorder.tickets())[0]["id"]


async def test_a_declined_resend_that_the_settler_allowed_leaves_the_unknown_open(
    house: House, recorder: Recorder
) -> None:
    """The settler may be first to say "send again"; the earlier send may have acted all the same."""
    tickets = recorder.url

    @house.app.tool(effect="keyed", key_window="1h", name="create", retry=Backoff(base_s=1.0, jitter_s=0.0))
    async def create(call: ToolCall, invoice: str) -> str:
        reply = await call.http.post(f"{tickets}/tickets", json={"invoice": invoice, "amount": "1"})
        return str(reply.json()["id"])

    @house.app.agent
    async def files(task: TaskContext) -> str:
        return str(await task.call(create, invoice="INV-7"))

    await recorder.plan(Rule.act_then_reset(), Rule.refuse(403))
    # It suspends during the pause before the resend, so that nobody holds the task when the settler looks.
    handle = await house.submit(files)
    house.start(linger_s=0.0, sweep_s=0.01)
    await house.waits(handle, "reconciliation")
    operation = (await house.operations(handle))["create#1"]
    assert (operation.state, operation.attempt) == ("unknown", 2)


async def test_nobody_is_asked_to_send_again_for_a_task_that_has_ended(
    house: House, recorder: Recorder
) -> None:
    tickets = recorder.url

    @house.app.tool(name="create", timeout="10s")
    async def create(call: ToolCall) -> None:
        await call.http.post(f"{tickets}/tickets", json={"invoice": "INV-8", "amount": "1"})

    @house.app.agent(deadline="400ms")
    async def files(task: TaskContext) -> None:
        await task.call(create)

    await recorder.plan(Rule.act_then_hang())
    handle = await house.submit(files)
    house.start(grace_s=0.1)
    view = await house.ended(handle)
    assert (view.state, view.effects_open) == ("failed", 1)
    name = f"{handle.id}:create#1"
    with pytest.raises(SettlementConflict) as refused:
        await house.app.operations.settle(name, "send_again", reason="again", by="kim", forced=True)
    assert refused.value.state == "task_ended"
    settled = await house.app.operations.settle(name, "happened", reason="it is there", by="kim", forced=True)
    assert settled.state == "succeeded"
