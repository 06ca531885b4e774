"""The client over HTTP: the same methods as in process, the same views, the same errors; and a service that
goes away and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from tests.server.desk import PATIENCE_S, Desk
from tests.server.wires import Wire

from outlast import Ask, Client, Outlast, TaskContext, ToolCall, ledger
from outlast.connecting import desks
from outlast.connecting.refusals import refusal
from outlast.errors import (
    AgentNotFound,
    ApprovalConflict,
    ApprovalNotFound,
    CallbackOver,
    ConfigurationError,
    Conflict,
    FingerprintMismatch,
    IdempotencyConflict,
    InvalidInput,
    InvalidKey,
    InvalidRequest,
    InvalidSchedule,
    NotAllowed,
    OperationNotFound,
    OutlastError,
    RuleNotFound,
    ScheduleConflict,
    ScheduleNotFound,
    SettlementConflict,
    SignalConflict,
    TaskCancelled,
    TaskEnded,
    TaskFailed,
    TaskNotEnded,
    TaskNotFound,
    Unavailable,
    ValueTooLarge,
)
from outlast.store.records import Evidence
from outlast.submitting import Request

NOBODYS = "task_01jz8f5s9ve5ptq3mwr7n1k2bd"
KEYS = "default:key-all:boss:submitter+approver+operator,default:key-sub:sub:submitter"


@contextlib.asynccontextmanager
async def reached(
    desk: Desk, key: str | None = None, *, through: Any = None, patience: Any = PATIENCE_S, **options: Any
) -> AsyncIterator[Client]:
    """Serve the desk's API, and answer a client of it. through: called with a wire to go through."""
    async with desk.served(**options) as (server, _), contextlib.AsyncExitStack() as stack:
        url = server.url
        if through is not None:
            wire = await stack.enter_async_context(Wire(url))
            through(wire)
            url = wire.url
        yield await stack.enter_async_context(Outlast.connect(url, api_key=key, patience=patience))


@pytest.fixture
async def far(desk: Desk) -> AsyncIterator[Client]:
    """A client with every role."""
    async with reached(desk, "key-all", api_keys=SecretStr(KEYS)) as client:
        yield client


# -- the same methods ----------------------------------------------------------------------------------------

IN_PROCESS_ONLY = {
    "agent", "tool", "step", "worker", "gateway_place", "callback_place", "ledger", "connect", "check_open",
}  # fmt: skip
BY_THE_KEY = {"self", "tenant", "by", "roles", "via", "connection"}
"""What a method does not take over HTTP: the key says it."""
PAIRS = [
    (Outlast, Client, IN_PROCESS_ONLY),
    *(
        (type(getattr(Outlast("names"), name)), getattr(desks, name.capitalize()), leaves)
        for name, leaves in {
            "operations": {"sweep_other_side"},
            "approvals": {"holder"},
            "rules": set(),
            "pauses": set(),
            "schedules": {"apply"},
            "versions": set(),
        }.items()
    ),
]


@pytest.mark.parametrize(("near", "far", "leaves"), PAIRS)
def test_the_methods_are_those_in_process(near: type, far: type, leaves: set[str]) -> None:
    def methods(kind: type) -> dict[str, Any]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: function for name, function in found if not name.startswith("_")}

    there, here = methods(near), methods(far)
    assert set(there) - leaves <= set(here)
    assert set(here) <= set(there)
    for name in set(there) - leaves:
        takes = {one for one in inspect.signature(there[name]).parameters if one not in BY_THE_KEY}
        may = {one for one in inspect.signature(here[name]).parameters if one not in BY_THE_KEY}
        if name == "preview":
            # Times that are not stored yet are worked out where they are asked about.
            takes -= {"cron", "zone", "every", "at"}
        if name == "open":
            takes -= {"migrate"}
        assert takes == may, name


# -- tasks ---------------------------------------------------------------------------------------------------


async def test_a_task_from_its_submit_to_its_result(desk: Desk, far: Client) -> None:
    desk.work()
    handle = await far.submit(
        "echo", {"value": {"amount": "118.50", "n": 2**53 - 1}}, key='a "key"\\', user="ann"
    )
    assert await handle.result(timeout="20s") == {"amount": "118.50", "n": 2**53 - 1}
    assert (handle.tenant, handle.replayed) == ("default", False)
    view = await handle.get()
    assert view == await desk.app.get(handle.id)
    assert (view.key, view.user) == ('a "key"\\', "ann")
    again = await far.submit(
        "echo", {"value": {"amount": "118.50", "n": 2**53 - 1}}, key='a "key"\\', user="ann"
    )
    assert (again.id, again.replayed) == (handle.id, True)
    with pytest.raises(IdempotencyConflict):
        await far.submit("echo", {"value": 2}, key='a "key"\\')
    listed = await far.list(state="succeeded")
    assert listed == list(await desk.app.list(state="succeeded"))
    assert await far.attempts(handle.id) == await desk.app.attempts(handle.id)
    events = [event async for event in handle.events()]
    assert events == [event async for event in desk.app.events(handle.id)]
    assert await far.stored_events(handle.id, after=1, limit=2) == events[1:3]
    assert [event async for event in far.events(handle.id, after=events[-1].number)] == []


async def test_every_option_of_a_submit_arrives(desk: Desk, far: Client) -> None:
    run_at = datetime.now(UTC) + timedelta(hours=1)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    handle = await far.submit(
        "echo",
        {"value": 1},
        pool="slow",
        priority=7,
        deadline="3h",
        run_at=run_at,
        version="1",
        budget={"operations": 3},
        trace=trace,
    )
    view = await handle.get()
    assert (view.pool, view.priority, view.budget) == ("slow", 7, {"operations": 3})
    assert (view.state, view.reason) == ("waiting", "timer")
    assert view.deadline_at is not None
    assert view.deadline_at - view.submitted_at == timedelta(hours=3)
    [row] = (await desk.store.dump())["inputs"]
    assert (row["trace"], row["version_asked"]) == (trace, "1")


async def test_many_at_once(desk: Desk, far: Client) -> None:
    wanted = [Request(agent="echo", input={"value": number}, key=f"k{number % 40}") for number in range(41)]
    wanted[40] = replace(wanted[40], input={"value": 0})
    handles = await far.submit_many(wanted)
    assert (len({handle.id for handle in handles}), handles[0].id) == (40, handles[40].id)
    clash = [*wanted[:2], Request(agent="echo", input={"value": "other"}, key="k1"), Request(agent="echo")]
    with pytest.raises(IdempotencyConflict):
        await far.submit_many(clash)
    assert await desk.stored() == 41


async def test_how_tasks_end(desk: Desk, far: Client) -> None:
    desk.work()
    broken = await far.submit("break_down")
    with pytest.raises(TaskFailed, match="step seven") as failed:
        await broken.result()
    assert failed.value.failure_code == "agent_error"
    assert await far.retry(broken.id, reason="again") == 2
    assert (await far.wait(broken.id, timeout="20s")).round == 2
    live = await far.submit("listen", {"times": 1})
    await desk.waiting(live.id)
    with pytest.raises(TaskNotEnded) as lives:
        await far.retry(live.id, reason="again")
    assert lives.value.state == "waiting"
    with pytest.raises(TimeoutError):
        await live.result(timeout=0.01)
    assert (await live.cancel("no more")).kind == "cancelled"
    assert (await live.cancel("no more")).kind == "already"
    with pytest.raises(TaskCancelled, match="no more"):
        await live.result()
    with pytest.raises(TaskEnded) as ended:
        await far.cancel(broken.id)
    assert ended.value.state == "failed"
    running = await far.submit("stand")
    await asyncio.wait_for(desk.begun.wait(), PATIENCE_S)
    assert (await running.cancel()).kind == "requested"


async def test_signals_and_callbacks(desk: Desk, far: Client) -> None:
    given: list[str] = []

    @desk.app.agent
    async def calls(task: TaskContext) -> Any:
        callback = task.callback("paid")
        given.append(callback.token)
        return await callback

    desk.work()
    listens = await far.submit("listen", {"times": 2})
    first = await listens.signal("word", {"says": 1}, key="k")
    assert ((await listens.signal("word", {"says": 1}, key="k")).kind, first.kind) == ("replayed", "accepted")
    with pytest.raises(SignalConflict):
        await listens.signal("word", {"says": 2}, key="k")
    await listens.signal("word")
    assert await listens.result(timeout="20s") == [{"says": 1}, None]
    with pytest.raises(TaskEnded) as ended:
        await listens.signal("word")
    assert ended.value.state == "succeeded"
    waits = await far.submit("calls")
    await desk.waiting(waits.id)
    assert (await far.answer_callback(given[0], {"paid": True}, message="m1")).kind == "accepted"
    assert (await far.answer_callback(given[0], None, message="m1")).kind == "replayed"
    with pytest.raises(Conflict):
        await far.answer_callback(given[0], 1, message="m2")
    assert await waits.result(timeout="20s") == {"paid": True}


async def test_changes(desk: Desk, far: Client) -> None:
    task = await desk.ended("echo", value=5)
    fork = await far.fork(task, reason="another", input={"value": 6})
    assert await fork.result(timeout="20s") == 6
    assert (await fork.get()).forked_from == task
    said = await far.accept(task, "rejected", reason="poor", evidence={"score": 1}, seen=0)
    assert [said] == await far.acceptances(task) == await desk.app.acceptances(task)
    assert not await far.wake(task, reason="look")
    live = await far.submit("listen", {"times": 1})
    await desk.waiting(live.id)
    found = await far.versions.rehearse(live.id)
    assert found == await desk.app.versions.rehearse(live.id)
    assert await far.versions.list() == await desk.app.versions.list(tenant="default")
    assert (await far.versions.adopt(live.id, reason="new")).fits


# -- the desks -----------------------------------------------------------------------------------------------


async def test_the_ledger_and_the_queue(desk: Desk, far: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await desk.unknown()
    task = name.partition(":")[0]
    near = desk.app.operations
    assert await far.operations.list() == await near.list(state="unknown")
    assert await far.operations.list(task=task) == await near.list(task=task)
    assert await far.operations.list(task=task, state="succeeded") == []
    assert await far.operations.list(task=task, after=name) == await far.operations.list(
        task=task, after="send_letter#1"
    )
    monkeypatch.setattr(desks, "PAGE", 2)
    many = await desk.ended("steps", count=5)
    for after in (None, "one#2", f"{many}:one#3"):
        for limit in (1, 2, 3, 4, 5, 9):
            expected = await near.list(task=many, after=after, limit=limit)
            assert await far.operations.list(task=many, after=after, limit=limit) == expected
            assert len(expected) == min(limit, {None: 5, "one#2": 3}.get(after, 2))
    assert await far.operations.show(name) == await near.show(name)
    note = Evidence(
        tenant="default", task=task, key=name.partition(":")[2], attempt=1, source="late", data="1"
    )
    await desk.app.store.note([note, note])
    monkeypatch.setattr(ledger, "EVIDENCE_PAGE", 1)
    (_, newest) = await far.operations.show(name)
    assert (len(newest), newest.earlier) == (1, newest[0].number)
    earlier = await far.operations.show(name, evidence_before=newest.earlier)
    assert earlier == await near.show(name, evidence_before=newest.earlier)
    assert [one.number for one in earlier[1]] == [newest[0].number - 1]
    assert await far.operations.places([name]) == await near.places([name])
    assert await far.operations.timeline(name) == await near.timeline(name)
    assert (await far.operations.plan(name)).action == "person"
    turn = (await near.show(name))[0].turn
    settled = await far.operations.settle(name, "happened", reason="seen", result={"id": 1}, turn=turn)
    assert (settled.state, settled.result, settled.settled_by) == ("succeeded", {"id": 1}, "person:boss")
    with pytest.raises(SettlementConflict) as conflict:
        await far.operations.settle(name, "did_not_happen", reason="r")
    assert conflict.value.state == "succeeded"
    assert await far.operations.places([name]) == [None]
    assert await far.operations.stats() == await near.stats()


async def asked(desk: Desk) -> str:
    """Have a call wait for a decision; answer the approval's id."""

    @desk.app.tool(effect="manual", approval=lambda amount: Ask("over the limit"))
    async def pay(call: ToolCall, amount: int) -> str:
        return f"paid {amount}"

    @desk.app.agent
    async def pays(task: TaskContext) -> Any:
        return await task.call(pay, amount=100)

    desk.work()
    task = await desk.submitted("pays")
    await desk.waiting(task)
    [one] = await desk.app.approvals.list()
    return one.id


async def test_decisions(desk: Desk, far: Client) -> None:
    name = await asked(desk)
    near = desk.app.approvals
    [shown] = await far.approvals.list()
    assert shown == await far.approvals.get(name) == await near.get(name)
    with pytest.raises(FingerprintMismatch) as mismatch:
        await far.approvals.decide(name, "approve", fingerprint="another")
    assert mismatch.value.current == shown.fingerprint
    with pytest.raises(InvalidInput) as invalid:
        await far.approvals.decide(
            name, "approve", fingerprint=shown.fingerprint, arguments={"amount": "much"}
        )
    assert invalid.value.pointer.startswith("/arguments")
    decided = await far.approvals.decide(
        name, "approve", fingerprint=shown.fingerprint, reason="agreed", arguments={"amount": 90}
    )
    assert (decided.edited, decided.decided_by) == (True, "person:boss")
    assert await far.result(shown.task, timeout="20s") == "paid 90"
    assert await far.approvals.votes(name) == await near.votes(name)
    with pytest.raises(ApprovalConflict) as late:
        await far.approvals.decide(name, "reject", fingerprint=decided.fingerprint)
    assert (late.value.state, late.value.by) == ("used", "person:boss")


async def test_answers_and_links(desk: Desk, far: Client) -> None:
    desk.work()
    wonders = await far.submit("wonders", {"choices": ["red", "blue"]})
    await desk.waiting(wonders.id)
    [question] = await far.approvals.list(task=wonders.id)
    with pytest.raises(ConfigurationError, match="OUTLAST_PUBLIC_URL"):
        await far.approvals.link(question.id, to="boss")
    with pytest.raises(InvalidRequest, match="choices"):
        await far.approvals.answer(question.id, "green", fingerprint=question.fingerprint)
    said = await far.approvals.answer(question.id, "blue", fingerprint=question.fingerprint, reason="liked")
    assert (said.state, said.answer) == ("approved", "blue")
    assert await wonders.result(timeout="20s") == "blue"


async def test_rules_switches_and_the_trail(desk: Desk, far: Client) -> None:
    number = await far.rules.put("pay", "allow", reason="small", bounds={"amount": {"max": 100}})
    assert await far.rules.list() == await desk.app.rules.list()
    await far.rules.withdraw(number, reason="no more")
    with pytest.raises(RuleNotFound):
        await far.rules.withdraw(number, reason="no more")
    await desk.app.pauses.set("all", reason="everything", by="root", tenant="*")
    await far.pauses.set("tool:pay/eur", reason="wrong centre")
    assert await far.pauses.list() == await desk.app.pauses.list()
    assert await far.pauses.clear("tool:pay/eur", reason="right again")
    assert not await far.pauses.clear("tool:pay/eur", reason="right again")
    trail = await far.pauses.audit(after=0)
    assert trail == await desk.app.pauses.audit()
    assert [one.who for one in trail] == ["person:boss", "person:boss", "boss", "boss"]


async def test_schedules(desk: Desk, far: Client) -> None:
    near = desk.app.schedules
    made = await far.schedules.put("nightly", "echo", {"value": 1}, cron="0 3 * * *", zone="Europe/Berlin")
    assert made == await near.get("nightly") == await far.schedules.get("nightly")
    assert await far.schedules.list() == [made]
    assert await far.schedules.preview("nightly", count=3) == await near.preview("nightly", count=3)
    paused = await far.schedules.pause("nightly", reason="closed", revision=made.revision)
    assert (paused.paused, paused.next_at) == ("closed", None)
    with pytest.raises(ScheduleConflict) as conflict:
        await far.schedules.put("nightly", "echo", every="1h", revision=0)
    assert conflict.value.revision == paused.revision
    assert (await far.schedules.resume("nightly", reason="open")).paused is None
    await far.schedules.delete("nightly", reason="over")
    with pytest.raises(ScheduleNotFound):
        await far.schedules.get("nightly")
    with pytest.raises(InvalidSchedule):
        await far.schedules.put("nightly", "echo", cron="61 * * * *")


# -- refusals ------------------------------------------------------------------------------------------------


async def test_what_is_not_there(far: Client) -> None:
    for reading in (
        far.get(NOBODYS),
        far.result(NOBODYS),
        far.attempts(NOBODYS),
        far.stored_events(NOBODYS),
        far.signal(NOBODYS, "word"),
        far.cancel(NOBODYS),
        far.acceptances(NOBODYS),
        far.operations.list(task=NOBODYS),
    ):
        with pytest.raises(TaskNotFound):
            await reading
    with pytest.raises(TaskNotFound):
        async for _ in far.events(NOBODYS):
            pass
    with pytest.raises(OperationNotFound):
        await far.operations.show(f"{NOBODYS}:a/plan")
    with pytest.raises(ApprovalNotFound):
        await far.approvals.get(f"{NOBODYS}:a~1")
    with pytest.raises(AgentNotFound):
        await far.submit("nobody")


async def test_what_does_not_fit(desk: Desk, far: Client) -> None:
    with pytest.raises(InvalidInput) as invalid:
        await far.submit("talk", {"lines": "many"})
    assert (invalid.value.pointer, invalid.value.problems[0][0]) == ("/input/lines", "/input/lines")
    with pytest.raises(InvalidRequest):
        await far.list(limit=201)
    with pytest.raises(InvalidKey, match="ASCII"):
        await far.submit("echo", key="schlüssel")
    with pytest.raises(InvalidKey):
        await far.submit("echo", key="")
    with pytest.raises(ValueTooLarge):
        await far.submit("echo", {"value": "x" * 1_100_000})
    assert await desk.stored() == 0


async def test_a_body_that_is_too_large_for_the_service(desk: Desk) -> None:
    async with reached(desk, max_body_bytes=1_000) as far:
        with pytest.raises(ValueTooLarge):
            await far.submit("echo", {"value": "x" * 2_000})


async def test_keys_and_roles(desk: Desk) -> None:
    keys = {"api_keys": SecretStr(KEYS)}
    async with reached(desk, "key-nobodys", **keys) as far:
        with pytest.raises(NotAllowed):
            await far.list()
    async with reached(desk, None, **keys) as far:
        with pytest.raises(NotAllowed):
            await far.submit("echo")
    async with reached(desk, "key-sub", **keys) as far:
        handle = await far.submit("echo")
        with pytest.raises(NotAllowed):
            await handle.cancel()
        with pytest.raises(NotAllowed):
            await far.pauses.set("all", reason="r")
    assert await desk.stored() == 1


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (401, "no", NotAllowed),
        (403, "<html>", NotAllowed),
        (404, "", TaskNotFound.__base__),
        (409, "[]", Conflict),
        (413, "", ValueTooLarge),
        (418, "", InvalidRequest),
        (429, "", Unavailable),
        (500, "", OutlastError),
        (503, "", Unavailable),
        (410, '{"code": "callback_over", "detail": "late", "state": "failed"}', CallbackOver),
        (500, '{"code": "unsettled", "detail": "who knows"}', OutlastError),
        (503, '{"code": "of a later release", "detail": "x"}', Unavailable),
    ],
)
def test_refusals_by_code_else_by_status(status: int, text: str, kind: type[OutlastError]) -> None:
    error = refusal(status, {"retry-after": "7"}, text)
    assert isinstance(error, kind)
    if isinstance(error, Unavailable):
        assert error.retry_after == 7.0
    if isinstance(error, CallbackOver):
        assert (str(error), error.state) == ("late", "failed")


def test_every_error_can_be_made_of_its_code() -> None:
    def all_of(kind: type[OutlastError]) -> list[type[OutlastError]]:
        return [kind, *(one for each in kind.__subclasses__() for one in all_of(each))]

    for kind in all_of(OutlastError):
        if kind.__module__ == "outlast.errors":
            assert type(refusal(409, {}, f'{{"code": "{kind.code}", "detail": "said"}}')) is kind


async def test_what_is_no_service(desk: Desk) -> None:
    for url in ("localhost:8700", "ftp://host", "http://", ""):
        with pytest.raises(ConfigurationError):
            Outlast.connect(url)
    with pytest.raises(ConfigurationError, match="not open"):
        await Outlast.connect("http://localhost:1").list()
    wires: list[Wire] = []
    async with reached(desk, through=wires.append) as far:
        wires[0].answer_instead("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
        with pytest.raises(ConfigurationError, match="JSON"):
            await far.list()


# -- a service that goes away --------------------------------------------------------------------------------


async def test_a_submit_whose_answer_is_lost_makes_one_task(desk: Desk) -> None:
    wires: list[Wire] = []
    async with reached(desk, through=wires.append) as far:
        for key in ("mine", None):
            before = await desk.stored()
            wires[0].lose_answers(2)
            handle = await far.submit("echo", {"value": 1}, key=key)
            assert await desk.stored() == before + 1
            assert (await far.get(handle.id)).input == {"value": 1}
    assert wires[0].answers_lost == 4


async def test_a_signal_whose_answer_is_lost_is_one(desk: Desk) -> None:
    wires: list[Wire] = []
    desk.work()
    async with reached(desk, through=wires.append) as far:
        handle = await far.submit("listen", {"times": 2})
        wires[0].lose_answers()
        await handle.signal("word", 1)
        await handle.signal("word", 2)
        assert await handle.result(timeout="20s") == [1, 2]


async def test_what_must_not_be_repeated_is_not(desk: Desk) -> None:
    wires: list[Wire] = []
    task = await desk.ended("break_down")
    async with reached(desk, through=wires.append) as far:
        wires[0].lose_answers()
        with pytest.raises(Unavailable, match="may have been done"):
            await far.retry(task, reason="again")
        # It was never sent: then it is safe.
        wires[0].cut()
        retrying = asyncio.create_task(far.fork(task, reason="again"))
        await asyncio.wait_for(wires[0].refused.wait(), PATIENCE_S)
        retrying.cancel()
    assert (await desk.app.wait(task, timeout=PATIENCE_S)).round == 2
    assert wires[0].answers_lost == 1


async def test_a_result_outlasts_a_service_that_is_away(desk: Desk) -> None:
    wires: list[Wire] = []
    async with reached(desk, through=wires.append) as far:
        handle = await far.submit("listen", {"times": 1})
        waiting = asyncio.create_task(handle.result())
        desk.work()
        await desk.waiting(handle.id)
        wires[0].cut()
        await asyncio.wait_for(wires[0].refused.wait(), PATIENCE_S)
        await desk.app.signal(handle.id, "word", "spoken")
        await desk.app.wait(handle.id, timeout=PATIENCE_S)
        assert not waiting.done()
        wires[0].mend()
        assert await asyncio.wait_for(waiting, PATIENCE_S) == ["spoken"]


async def test_a_stream_goes_on_where_it_broke(desk: Desk) -> None:
    wires: list[Wire] = []
    async with reached(desk, through=wires.append) as far:
        handle = await far.submit("listen", {"times": 3})
        seen: list[Any] = []
        async with aclosing(far.events(handle.id)) as events:
            desk.work()
            words = 0
            async for event in events:
                seen.append(event)
                if event.kind == "task.waiting":
                    wires[0].cut()
                    await desk.app.signal(handle.id, "word", words)
                    words += 1
                    wires[0].mend()
    assert words == 3
    assert seen == [event async for event in desk.app.events(handle.id)]
    assert [event.number for event in seen] == list(range(1, len(seen) + 1))


async def test_a_stream_survives_a_service_that_restarts(desk: Desk) -> None:
    """The service says that it stops, and another one takes its place."""
    desk.work()
    wires: list[Wire] = []
    async with desk.served() as (server, _), Wire(server.url) as wire:
        wires.append(wire)
        async with Outlast.connect(wire.url, patience=PATIENCE_S) as far:
            handle = await far.submit("listen", {"times": 1})
            await desk.waiting(handle.id)
            seen: list[str] = []

            async def follow() -> None:
                async for event in far.events(handle.id):
                    seen.append(event.kind)
                    standing.set()

            standing = asyncio.Event()
            following = asyncio.create_task(follow())
            await asyncio.wait_for(standing.wait(), PATIENCE_S)
            server.stop()
            async with desk.served() as (other, _):
                wire.lead_to(other.url)
                await desk.app.signal(handle.id, "word", 1)
                await asyncio.wait_for(following, PATIENCE_S)
    assert seen[-1] == "task.succeeded"
    assert seen == [event.kind async for event in desk.app.events(handle.id)]


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_proxy_whose_service_is_away_is_asked_again(desk: Desk, status: int) -> None:
    wires: list[Wire] = []
    async with reached(desk, through=wires.append) as far:
        wires[0].answer_instead(f"HTTP/1.1 {status} Away\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n")
        listing = asyncio.create_task(far.list())
        await asyncio.wait_for(wires[0].answered.wait(), PATIENCE_S)
        wires[0].answer_instead(None)
        assert await asyncio.wait_for(listing, PATIENCE_S) == []


async def test_patience_ends(desk: Desk) -> None:
    wires: list[Wire] = []
    async with reached(desk, through=wires.append, patience=0.2) as far:
        handle = await far.submit("listen", {"times": 1})
        wires[0].cut()
        for asking in (far.list(), handle.result(), far.submit("echo")):
            with pytest.raises(Unavailable, match="cannot be reached"):
                await asking
        with pytest.raises(Unavailable):
            async for _ in handle.events():
                pass
        wires[0].mend()
        assert [one.id for one in await far.list()] == [handle.id]


async def test_text_that_some_would_end_a_line_at_comes_through(desk: Desk, far: Client) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\r\nf"
    desk.work()
    handle = await far.submit("listen", {"times": 1})
    await handle.signal("word", text)
    assert await handle.result(timeout="20s") == [text]
    assert [one.data for one in [e async for e in handle.events()]] == [
        one.data for one in [e async for e in desk.app.events(handle.id)]
    ]
