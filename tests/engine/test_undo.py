"""Undo: what was done is taken back, the newest first, and what cannot be is somebody's to see to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import Ask, Backoff, Deny, Outlast, Rejected, TaskContext, ToolCall, Uncertain
from outlast.engine.run import Run
from outlast.errors import ConfigurationError, EffectsUndone
from outlast.store.entries import CommitIntent
from outlast.store.posting import News
from outlast.store.records import ClaimRequest, Serves, SessionRenewal, SweepRequest
from outlast.testing.recorder import Recorder

QUICK = Backoff(base_s=0.01, max_s=0.02, jitter_s=0.0, attempts=3)


class Desk:
    """An app whose tools put things on a desk and take them away again. log: what was done, in order."""

    def __init__(self, house: House, *, undo: dict[str, Any] | None = None) -> None:
        self.log: list[str] = []
        self.faults: dict[str, list[BaseException]] = {}
        app = house.app

        @app.tool(**{"effect": "idempotent", "retry": QUICK, **(undo or {})})
        async def take(call: ToolCall, what: str, result: dict[str, Any]) -> None:
            await self._act(call, f"take {what} {result['number']}")

        @app.tool(effect="manual", undo=take, retry=QUICK)
        async def put(call: ToolCall, what: str) -> dict[str, Any]:
            await self._act(call, f"put {what}")
            return {"number": len(self.log)}

        @app.tool(effect="manual", retry=QUICK)
        async def shout(call: ToolCall, what: str) -> None:
            await self._act(call, f"shout {what}")

        self.put, self.take, self.shout = put, take, shout

    async def _act(self, call: ToolCall, what: str) -> None:
        async with call.sending():
            self.log.append(what)
            faults = self.faults.get(what)
            if faults:
                raise faults.pop(0)


class SlowDesk(Desk):
    """A desk with an agent that fails, and whose undo stands still until it is released."""

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self.begun, self.release = asyncio.Event(), asyncio.Event()

        @house.app.tool(effect="idempotent")
        async def slow(call: ToolCall) -> None:
            self.log.append("slow")
            self.begun.set()
            await self.release.wait()

        @house.app.tool(effect="manual", undo=slow)
        async def hold(call: ToolCall) -> None:
            self.log.append("hold")

        @house.app.agent(on_failure="undo")
        async def agent(task: TaskContext) -> None:
            await task.call(self.put, "a")
            await task.call(hold)
            raise LookupError

        self.agent = agent


async def heard(house: House, handle: Any) -> None:
    """Wait until a task's run has heard of its cancel."""
    [(worker, _)] = house.workers
    run = worker.run_of("default", handle.id)
    assert run is not None
    async with asyncio.timeout(PATIENCE_S):
        while not run.cancel_heard:
            await house.store.wakes.wait("facts", 0.05)


async def looked_at(house: House, operation: str) -> tuple[Any, Any]:
    """Wait until the settler has settled an operation or left it to a person; answer it and its place."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                row, seen = await house.app.operations.show(operation)
                place = await house.place(operation)
                if row.state != "unknown" or (place is not None and place.needs_person):
                    return row, place
                await house.store.wakes.wait("events", 0.1)
    except TimeoutError:
        raise AssertionError(f"{row}\n{place}\n{seen}") from None


def said(view: Any) -> dict[str, Any]:
    """What the end of a task says of its undo."""
    return dict(view.error["compensation"])


async def test_a_failure_undoes_the_newest_first_with_arguments_and_results(house: House) -> None:
    desk = Desk(house)

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        for what in ("a", "b"):
            await task.call(desk.put, what)
        await task.call(desk.shout, "x")
        await task.call(desk.put, "c", key="named")
        raise LookupError("no such invoice")

    view = await house.run(agent)
    assert view.state == "failed"
    assert view.error is not None
    assert (view.error["code"], view.error["message"]) == ("agent_error", "LookupError: no such invoice")
    assert desk.log == ["put a", "put b", "shout x", "put c", "take c 4", "take b 2", "take a 1"]
    assert said(view) == {"state": "complete", "undone": ["named", "put#2", "put#1"], "left": []}
    ledger = await house.operations(view)
    undo = ledger["named/undo"]
    assert (undo.kind, undo.name, undo.state) == ("compensation", "take", "succeeded")
    assert undo.arguments == {"what": "c", "result": {"number": 4}}
    assert undo.idempotency_key == f"{view.id}:named/undo"
    # The function ran once; the second attempt did nothing but undo.
    assert [one.end for one in await house.app.attempts(view.id)] == ["failed", "failed"]
    assert await house.violations() == []


async def test_what_was_done_is_read_in_parts_where_much_was_said(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events of a task, by which an undo goes, may be many and large."""
    desk = Desk(house)
    read = house.store.read_events
    sizes: list[int] = []

    async def watched(*cursors: Any, **bounds: Any) -> Any:
        rows = await read(*cursors, **bounds)
        sizes.append(sum(len(row.data) for row in rows))
        return rows

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        for what in ("a", "b"):
            await task.call(desk.put, what)
            for _ in range(10):
                await task.emit("artifact", "x" * 1_000_000)
        raise LookupError("no such invoice")

    monkeypatch.setattr(house.store, "read_events", watched)
    view = await house.run(agent)
    assert desk.log == ["put a", "put b", "take b 2", "take a 1"]
    assert said(view) == {"state": "complete", "undone": ["put#2", "put#1"], "left": []}
    assert sum(sizes) > 20_000_000
    assert max(sizes) < 10_000_000
    sizes.clear()
    timeline = await house.app.operations.timeline(f"{view.id}:put#2")
    assert [event.kind for event in timeline] == ["operation.started", "operation.succeeded"]
    assert max(sizes) < 10_000_000


async def test_an_agent_that_does_not_ask_for_it_undoes_nothing(house: House) -> None:
    desk = Desk(house)

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        raise LookupError

    view = await house.run(agent)
    assert (view.state, desk.log) == ("failed", ["put a"])
    assert view.error is not None
    assert "compensation" not in view.error


async def test_a_failure_with_nothing_to_undo_says_so(house: House) -> None:
    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        raise LookupError

    view = await house.run(agent)
    assert said(view) == {"state": "complete", "undone": [], "left": []}
    assert await house.violations() == []


async def test_a_retry_policy_comes_before_the_undo(house: House) -> None:
    desk = Desk(house)
    runs: list[int] = []

    @house.app.agent(on_failure="undo", retry=Backoff(base_s=0.01, max_s=0.01, attempts=2))
    async def agent(task: TaskContext) -> None:
        runs.append(task.attempt)
        await task.call(desk.put, "a")
        raise LookupError

    view = await house.run(agent)
    assert (runs, view.state) == ([1, 2], "failed")
    assert desk.log == ["put a", "take a 1"]


async def test_a_success_undoes_nothing(house: House) -> None:
    desk = Desk(house)

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> str:
        await task.call(desk.put, "a")
        return "done"

    view = await house.run(agent)
    assert (view.state, desk.log) == ("succeeded", ["put a"])


# -- cancel --------------------------------------------------------------------------------------------------


async def test_a_cancel_with_undo_of_a_running_task(house: House) -> None:
    desk = Desk(house)
    entered = asyncio.Event()

    async def compute() -> None:
        entered.set()
        await asyncio.Event().wait()

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        await task.call(desk.put, "b")
        await task.step(compute)

    handle = await house.submit(agent)
    house.start()
    async with asyncio.timeout(PATIENCE_S):
        await entered.wait()
    assert (await handle.cancel("not needed", by="kim", undo=True)).kind == "requested"
    view = await house.ended(handle)
    assert view.state == "cancelled"
    assert view.error is not None
    assert (view.error["code"], view.error["message"]) == ("cancelled", "not needed")
    assert said(view) == {"state": "complete", "undone": ["put#2", "put#1"], "left": []}
    assert desk.log == ["put a", "put b", "take b 2", "take a 1"]
    assert await house.violations() == []


async def test_a_cancel_with_undo_of_a_waiting_task(house: House) -> None:
    desk = Desk(house)

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        await task.wait("go")

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "signal")
    assert (await handle.cancel("not needed", by="kim", undo=True)).kind == "requested"
    view = await house.ended(handle)
    assert (view.state, desk.log) == ("cancelled", ["put a", "take a 1"])
    assert said(view)["state"] == "complete"
    assert (await handle.cancel(undo=True)).kind == "already"
    assert await house.violations() == []


async def test_a_cancel_with_undo_of_a_task_that_never_began_ends_it_at_once(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None: ...

    handle = await house.submit(agent)
    assert (await handle.cancel(undo=True)).kind == "cancelled"
    assert (await handle.get()).state == "cancelled"


async def test_a_cancel_without_undo_undoes_nothing_though_a_failure_would(house: House) -> None:
    desk = Desk(house)

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        await task.wait("go")

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "signal")
    assert (await handle.cancel()).kind == "cancelled"
    assert desk.log == ["put a"]


@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.parametrize("undo", [True, False])
async def test_a_cancel_during_the_undo_of_a_failure_lets_it_come_to_its_end(
    house: House, monkeypatch: pytest.MonkeyPatch, undo: bool, hears: bool
) -> None:
    """Whether its worker has heard of the cancel by then or not."""

    async def deaf(run: Run, news: News) -> None:
        pass

    if not hears:
        monkeypatch.setattr(Run, "hear", deaf)
    desk = SlowDesk(house)
    handle = await house.submit(desk.agent)
    house.start()
    async with asyncio.timeout(PATIENCE_S):
        await desk.begun.wait()
    assert (await handle.cancel("enough", undo=undo)).kind == "requested"
    if hears:
        await heard(house, handle)
    desk.release.set()
    view = await house.ended(handle)
    assert desk.log == ["put a", "hold", "slow", "take a 1"]
    assert view.state == "cancelled"
    assert view.error is not None
    assert view.error["message"] == "enough"
    assert said(view) == {"state": "complete", "undone": ["hold#1", "put#1"], "left": []}
    kinds = [event.kind for event in await house.events(handle)]
    assert [kind for kind in kinds if kind in ("task.failed", "task.cancelled")] == ["task.cancelled"]
    assert await house.violations() == []


async def test_a_cancel_while_an_undo_waits_lets_it_come_to_its_end(house: House) -> None:
    desk = Desk(house, undo={"approval": lambda what: Ask("really?")})

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        raise LookupError

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "approval")
    assert (await handle.cancel("enough", by="kim")).kind == "requested"
    await house.waits(handle, "approval")
    (asked,) = await house.app.approvals.list()
    await house.app.approvals.decide(asked.id, "approve", fingerprint=asked.fingerprint, by="kim")
    view = await house.ended(handle)
    assert (view.state, desk.log) == ("cancelled", ["put a", "take a 1"])
    assert view.error is not None
    assert view.error["message"] == "enough"
    assert said(view) == {"state": "complete", "undone": ["put#1"], "left": []}
    assert await house.violations() == []


# -- what goes wrong -----------------------------------------------------------------------------------------


async def test_an_undo_that_fails_for_good_is_a_persons_and_the_others_go_on(house: House) -> None:
    desk = Desk(house)
    desk.faults["take b 2"] = [Rejected("it is glued on")]

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        for what in ("a", "b", "c"):
            await task.call(desk.put, what)
        raise LookupError

    view = await house.run(agent)
    assert desk.log[3:] == ["take c 3", "take b 2", "take a 1"]
    assert said(view) == {"state": "incomplete", "undone": ["put#3", "put#1"], "left": ["put#2"]}
    assert view.effects_open == 1
    place = await house.place(f"{view.id}:put#2/undo")
    assert place is not None
    assert place.ask_at is None
    assert "the undo failed for good: it is glued on" in place.why
    settled = await house.app.operations.settle(
        f"{view.id}:put#2/undo", "happened", reason="taken off by hand", by="kim"
    )
    assert settled.state == "succeeded"
    assert await house.violations() == []


async def test_an_undo_of_which_nobody_knows_is_made_again_where_that_is_safe(house: House) -> None:
    desk = Desk(house)
    desk.faults["take a 1"] = [Uncertain("reset"), ConnectionResetError()]

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        raise LookupError

    view = await house.run(agent)
    assert said(view) == {"state": "complete", "undone": ["put#1"], "left": []}
    assert desk.log == ["put a", *["take a 1"] * 3]
    assert await house.violations() == []


async def test_a_manual_undo_of_which_nobody_knows_is_a_persons(house: House) -> None:
    desk = Desk(house, undo={"effect": "manual"})
    desk.faults["take b 2"] = [Uncertain("reset")]

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        await task.call(desk.put, "b")
        raise LookupError

    view = await house.run(agent)
    assert said(view) == {"state": "incomplete", "undone": ["put#1"], "left": ["put#2"]}
    assert desk.log == ["put a", "put b", "take b 2", "take a 1"]
    (left,) = await house.app.operations.list(state="unknown")
    assert (left.id, left.kind) == (f"{view.id}:put#2/undo", "compensation")
    assert (await house.app.operations.plan(left.id)).action == "person"
    assert await house.violations() == []


async def test_a_call_of_which_nobody_knows_is_left_and_the_rest_is_undone(house: House) -> None:
    desk = Desk(house)
    desk.faults["put b"] = [Uncertain("reset")]

    @house.app.agent(on_failure="undo", deadline="1h")
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        await task.gather(task.call(desk.put, "b"), task.wait("go"))

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "signal")
    assert (await handle.cancel(undo=True)).kind == "requested"
    view = await house.ended(handle)
    assert said(view)["state"] == "incomplete"
    assert said(view)["undone"] == ["put#1"]
    assert said(view)["left"] == ["put#2"]
    assert desk.log == ["put a", "put b", "take a 1"]
    assert view.effects_open == 1
    assert await house.violations() == []


async def test_an_unknown_is_settled_by_evidence_first_and_then_undone(house: House) -> None:
    log: list[str] = []

    async def find(call: ToolCall) -> str | None:
        return "T-7" if "made" in log else None

    @house.app.tool(effect="idempotent")
    async def withdraw(call: ToolCall, result: str) -> None:
        log.append(f"withdrawn {result}")

    @house.app.tool(effect="queryable", find=find, visible_within=0, undo=withdraw, timeout=1)
    async def make(call: ToolCall) -> str:
        async with call.sending():
            log.append("made")
            under_way.set()
            await asyncio.Event().wait()
        return "never"

    under_way = asyncio.Event()

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.call(make)

    handle = await house.submit(agent)
    house.start(grace_s=0.1)
    async with asyncio.timeout(PATIENCE_S):
        await under_way.wait()
    await handle.cancel(undo=True)
    view = await house.ended(handle)
    assert log == ["made", "withdrawn T-7"]
    assert said(view) == {"state": "complete", "undone": ["make#1"], "left": []}
    assert await house.violations() == []


async def test_an_unknown_that_is_settled_while_another_is_waited_for_is_undone_too(house: House) -> None:
    log: list[str] = []
    both = asyncio.Event()

    async def find(call: ToolCall, name: str) -> str:
        if name == "first":
            # Not before the other is settled, on disk and in its worker.
            await house.reached(handle, "operation.settled")
            [(worker, _)] = house.workers
            run = worker.run_of("default", handle.id)
            assert run is not None
            if (settling := run.works.open.get("two")) is not None:
                await asyncio.wait({settling})
                await asyncio.sleep(0)
        return f"T-{name}"

    @house.app.tool(effect="idempotent")
    async def withdraw(call: ToolCall, result: str) -> None:
        log.append(f"withdrawn {result}")

    @house.app.tool(effect="queryable", find=find, visible_within=0, undo=withdraw, timeout=PATIENCE_S)
    async def make(call: ToolCall, name: str) -> str:
        async with call.sending():
            log.append(name)
            if len(log) == 2:
                both.set()
            await asyncio.Event().wait()
        return "never"

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.gather(task.call(make, "first", key="one"), task.call(make, "second", key="two"))

    handle = await house.submit(agent)
    house.start(grace_s=0.1)
    async with asyncio.timeout(PATIENCE_S):
        await both.wait()
    await handle.cancel(undo=True)
    view = await house.ended(handle)
    assert sorted(log) == ["first", "second", "withdrawn T-first", "withdrawn T-second"]
    assert (said(view)["state"], said(view)["left"]) == ("complete", [])
    assert await house.violations() == []


async def test_what_is_settled_before_the_first_undo_begins_is_undone_first(house: House) -> None:
    """The worker has put its undos in order, and a person settles a later call before its intent is on
    disk."""
    desk = Desk(house)
    desk.faults["put b"] = [Uncertain("nobody knows")]
    settled: list[str] = []

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        await task.call(desk.put, "b")

    flush = house.store.flush

    async def flushing(batch: Any, **more: Any) -> Any:
        begins = any(
            isinstance(entry, CommitIntent) and entry.kind == "compensation"
            for writes in batch.writes
            for entry in writes.entries
        )
        if begins and not settled:
            (left,) = await house.app.operations.list(state="unknown")
            settled.append(left.id)
            await house.app.operations.settle(
                left.id, "happened", reason="it is there", by="person:ann", result={"number": 2}
            )
        return await flush(batch, **more)

    house.store.flush = flushing  # type: ignore[method-assign]
    handle = await house.submit(agent)
    house.start()
    await house.reached(handle, "operation.unknown")
    await handle.cancel(undo=True)
    view = await house.ended(handle)
    assert desk.log == ["put a", "put b", "take b 2", "take a 1"]
    assert said(view) == {"state": "complete", "undone": ["put#2", "put#1"], "left": []}
    assert await house.violations() == []


async def test_policy_that_denies_an_undo_leaves_it_to_a_person(house: House) -> None:
    desk = Desk(house, undo={"approval": lambda what: Deny("not at night")})

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        raise LookupError

    view = await house.run(agent)
    assert said(view) == {"state": "incomplete", "undone": [], "left": ["put#1"]}
    assert desk.log == ["put a"]
    place = await house.place(f"{view.id}:put#1/undo")
    assert place is not None
    assert "not at night" in place.why
    assert await house.violations() == []


async def test_an_undo_waits_for_the_decision_that_its_policy_asks_for(house: House) -> None:
    desk = Desk(house, undo={"approval": lambda what: Ask("really?")})

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        raise LookupError

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "approval")
    assert desk.log == ["put a"]
    (asked,) = await house.app.approvals.list()
    await house.app.approvals.decide(asked.id, "approve", fingerprint=asked.fingerprint, by="kim")
    view = await house.ended(handle)
    assert (said(view)["state"], desk.log) == ("complete", ["put a", "take a 1"])
    assert await house.violations() == []


async def test_an_approver_may_change_what_an_undo_takes_away(house: House) -> None:
    desk = Desk(house, undo={"approval": lambda what: Ask("really?")})

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        raise LookupError

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "approval")
    (asked,) = await house.app.approvals.list()
    assert asked.shown["kind"] == "compensation"
    await house.app.approvals.decide(
        asked.id,
        "approve",
        fingerprint=asked.fingerprint,
        by="kim",
        arguments={"what": "a", "result": {"number": 77}},
    )
    view = await house.ended(handle)
    assert (said(view)["state"], desk.log) == ("complete", ["put a", "take a 77"])
    assert await house.violations() == []


async def test_a_deadline_puts_what_is_not_undone_before_people(house: House) -> None:
    desk = Desk(house)

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        await task.step(asyncio.sleep, 3600)

    handle = await house.app.submit(agent, deadline=0.7)
    house.start()
    view = await house.ended(handle)
    assert view.error is not None
    assert view.error["code"] == "deadline_exceeded"
    assert said(view) == {"state": "incomplete", "undone": [], "left": ["put#1"]}
    place = await house.place(f"{view.id}:put#1/undo")
    assert place is not None
    assert place.ask_at is None
    assert desk.log == ["put a"]
    assert await house.violations() == []


async def test_a_deadline_finds_a_task_that_waits_awake(house: House) -> None:
    desk = Desk(house)

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        await task.wait("never")

    handle = await house.app.submit(agent, deadline=2.5)
    house.start(grace_s=1.0)
    await house.waits(handle, "signal")
    view = await house.ended(handle)
    assert view.error is not None
    assert (view.state, view.error["code"]) == ("failed", "deadline_exceeded")
    assert said(view) == {"state": "incomplete", "undone": [], "left": ["put#1"]}
    place = await house.place(f"{view.id}:put#1/undo")
    assert place is not None
    assert place.ask_at is None
    assert desk.log == ["put a"]
    # It gave its slot back, and was woken once.
    kinds = [event.kind for event in await house.events(handle)]
    assert (kinds.count("task.waiting"), kinds.count("attempt.started")) == (1, 2)
    assert await house.violations() == []


async def test_a_deadline_finds_an_undo_that_waits_awake(house: House) -> None:
    desk = Desk(house, undo={"approval": lambda what: Ask("really?")})

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        await task.wait("never")

    handle = await house.app.submit(agent, deadline=3)
    house.start(grace_s=1.0)
    await house.waits(handle, "signal")
    await handle.cancel("a duplicate", by="kim", undo=True)
    await house.waits(handle, "approval")
    view = await house.ended(handle)
    assert (view.state, said(view)["left"]) == ("cancelled", ["put#1"])
    assert await house.place(f"{view.id}:put#1/undo") is not None
    assert desk.log == ["put a"]
    assert await house.violations() == []


async def test_an_attempt_that_would_come_after_the_deadline_is_not_waited_for(house: House) -> None:
    desk = Desk(house)

    @house.app.agent(on_failure="undo", retry=Backoff(base_s=3600, max_s=3600, jitter_s=0, attempts=5))
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        raise LookupError("no luck")

    handle = await house.app.submit(agent, deadline="1h")
    house.start()
    view = await house.ended(handle)
    assert view.error is not None
    assert (view.error["code"], said(view)["state"]) == ("agent_error", "complete")
    assert desk.log == ["put a", "take a 1"]
    assert await house.violations() == []


@pytest.mark.parametrize("how", ["parked", "expired"])
async def test_what_ended_without_a_worker_is_undone_once_it_is_tried_again(house: House, how: str) -> None:
    desk = Desk(house)

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        await task.wait("never")

    handle = await house.app.submit(agent, deadline=None if how == "parked" else 30)
    house.start()
    await house.waits(handle, "signal")
    await house.stop()
    await handle.signal("another")
    if how == "parked":
        # A worker that dies at once.
        await house.store.renew(SessionRenewal(session="sess-dying", name="dying", ttl_us=1_000_000))
        serves = (Serves(agent="agent", version="1"),)
        claim = ClaimRequest(session="sess-dying", pools=("default",), serves=serves, limit=1)
        assert [one.task for one in (await house.store.claim(claim)).claims] == [handle.id]
    later = (await house.store.health()).now + 60_000_000
    swept = await house.store.sweep(SweepRequest(limit=10, max_deaths=1, grace_us=0), now=later)
    assert [one.task for one in (swept.parked if how == "parked" else swept.expired)] == [handle.id]
    ended = await handle.get()
    assert (ended.state, "compensation" in (ended.error or {})) == ("failed", False)
    await house.app.retry(handle.id, reason="to undo it", by="kim", deadline="1h")
    await handle.cancel("it is not wanted any more", by="kim", undo=True)
    house.start()
    view = await house.ended(handle)
    assert (view.state, said(view)["undone"], desk.log) == ("cancelled", ["put#1"], ["put a", "take a 1"])
    assert await house.violations() == []


async def test_a_deadline_in_the_middle_of_an_undo_puts_the_rest_before_people(house: House) -> None:
    desk = Desk(house)

    @house.app.tool(effect="manual")
    async def slow(call: ToolCall) -> None:
        async with call.sending():
            desk.log.append("slow")
            await asyncio.Event().wait()

    @house.app.tool(effect="manual", undo=slow)
    async def hold(call: ToolCall) -> None:
        desk.log.append("hold")

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        for what in ("a", "b"):
            await task.call(desk.put, what)
        await task.call(hold)
        await task.call(desk.put, "c")
        raise LookupError

    handle = await house.app.submit(agent, deadline=2)
    house.start(grace_s=0.2)
    view = await house.ended(handle)
    assert view.state == "failed"
    assert view.error is not None
    assert view.error["code"] == "agent_error"
    assert said(view) == {"state": "incomplete", "undone": ["put#3"], "left": ["hold#1", "put#2", "put#1"]}
    assert desk.log == ["put a", "put b", "hold", "put c", "take c 4", "slow"]
    ledger = await house.operations(view)
    assert [ledger[f"{key}/undo"].state for key in said(view)["left"]] == ["unknown"] * 3
    assert [ledger[f"{key}/undo"].attempt for key in said(view)["left"]] == [1, 0, 0]
    assert await house.violations() == []


@pytest.mark.parametrize("there", [True, False])
async def test_the_settler_settles_an_undo_of_a_task_that_has_ended_and_never_gives_it_up(
    house: House, there: bool
) -> None:
    begun: list[str] = []
    over = asyncio.Event()

    async def find(call: ToolCall) -> bool | None:
        assert call.idempotency_key.endswith(":hold#1/undo")
        if there and not over.is_set():
            # The worker may come to ask before the task's time is over by its own estimate.
            raise ConnectionError("nobody is there")
        return True if there else None

    @house.app.tool(effect="queryable", find=find, visible_within=0, timeout="1h")
    async def slow(call: ToolCall) -> bool:
        async with call.sending():
            begun.append(call.idempotency_key)
        await asyncio.Event().wait()
        return False

    @house.app.tool(effect="manual", undo=slow)
    async def hold(call: ToolCall) -> None: ...

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(hold)
        raise LookupError

    handle = await house.app.submit(agent, deadline=1.5)
    house.start(grace_s=0.0)
    view = await house.ended(handle)
    assert said(view)["left"] == ["hold#1"]
    assert len(begun) == 1
    over.set()
    operation = f"{handle.id}:hold#1/undo"
    row, place = await looked_at(house, operation)
    if there:
        assert (row.state, row.settled_by, row.result) == ("succeeded", "settler", True)
    else:
        assert row.state == "unknown"
        assert place is not None
        assert "what it was to undo still stands" in place.why
    assert await house.violations() == []


async def test_an_effect_of_an_earlier_operation_is_not_undone_twice(house: House) -> None:
    desk = Desk(house)

    @house.app.tool(effect="manual", undo=desk.take, business_key="{what}", once="1h")
    async def file(call: ToolCall, what: str) -> dict[str, Any]:
        desk.log.append(f"file {what}")
        return {"number": 9}

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(file, "a")
        assert (await task.call(file, "a")) == {"number": 9}
        raise LookupError

    view = await house.run(agent)
    assert desk.log == ["file a", "take a 9"]
    assert said(view) == {"state": "complete", "undone": ["file#1"], "left": []}


async def test_an_undo_is_not_held_back_by_a_budget(house: House) -> None:
    desk = Desk(house)

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(desk.put, "a")
        await task.call(desk.put, "b")

    handle = await house.app.submit(agent, budget={"operations": 1})
    house.start()
    view = await house.ended(handle)
    assert view.error is not None
    assert view.error["code"] == "budget_exceeded"
    assert desk.log == ["put a", "take a 1"]
    assert said(view)["state"] == "complete"


async def test_a_retried_task_runs_again_and_undoes_in_its_own_round(house: House) -> None:
    desk = Desk(house)
    fails = [LookupError("first")]

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        if fails:
            raise fails.pop()
        await task.call(desk.put, "a")
        raise LookupError("second")

    handle = await house.submit(agent)
    house.start()
    view = await house.ended(handle)
    assert said(view) == {"state": "complete", "undone": [], "left": []}
    assert await house.app.retry(handle.id, reason="again", by="kim") == 2
    view = await house.ended(handle)
    assert view.error is not None
    assert view.error["message"] == "LookupError: second"
    assert said(view) == {"state": "complete", "undone": ["put#1"], "left": []}
    assert desk.log == ["put a", "take a 1"]
    with pytest.raises(EffectsUndone):
        await house.app.retry(handle.id, reason="again", by="kim")
    assert await house.violations() == []


# -- forks ---------------------------------------------------------------------------------------------------


async def test_a_fork_undoes_what_it_has_done_and_taken_over_and_not_its_prefix(house: House) -> None:
    log: list[str] = []

    @house.app.tool(effect="idempotent")
    async def take(call: ToolCall, what: str) -> None:
        log.append(f"take {what}")

    @house.app.tool(effect="keyed", key_window="1h", undo=take)
    async def put(call: ToolCall, what: str) -> None:
        log.append(f"put {what} {call.idempotency_key.partition(':')[0][-4:]}")

    fails = False

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        for what in ("a", "b"):
            await task.call(put, what, key=what)
        if fails:
            await task.call(put, "c", key="c")
            raise LookupError

    handle = await house.submit(agent)
    house.start()
    await house.ended(handle)
    fails = True
    fork = await house.app.fork(handle.id, before="b", reason="another way", by="kim")
    view = await house.ended(fork)
    assert said(view) == {"state": "complete", "undone": ["c", "b"], "left": []}
    old, new = handle.id[-4:], fork.id[-4:]
    assert log == [f"put a {old}", f"put b {old}", f"put b {old}", f"put c {new}", "take c", "take b"]
    ledger = await house.operations(view)
    assert ledger["b"].idempotency_key == f"{handle.id}:b"
    assert ledger["c"].idempotency_key == f"{fork.id}:c"


async def test_a_worker_that_drains_hands_the_undo_on(house: House) -> None:
    desk = SlowDesk(house)
    handle = await house.submit(desk.agent)
    worker = house.start(grace_s=10.0)
    async with asyncio.timeout(PATIENCE_S):
        await desk.begun.wait()
    worker.stop()
    desk.release.set()
    await house.stop()
    assert (await handle.get()).state == "queued"
    assert desk.log == ["put a", "hold", "slow"]
    house.start()
    view = await house.ended(handle)
    assert said(view) == {"state": "complete", "undone": ["hold#1", "put#1"], "left": []}
    assert desk.log == ["put a", "hold", "slow", "take a 1"]
    assert await house.violations() == []


# -- declaring -----------------------------------------------------------------------------------------------


def test_an_undo_that_is_no_tool_or_takes_what_nobody_knows_is_refused() -> None:
    app = Outlast("tests")

    async def nothing(call: ToolCall) -> None: ...

    @app.tool(undo=nothing)
    async def make(call: ToolCall, what: str) -> None: ...

    with pytest.raises(ConfigurationError, match="its undo 'nothing' is not a tool"):
        app.registry.check()


def test_an_undo_takes_known_parameters_only() -> None:
    app = Outlast("tests")

    @app.tool
    async def unmake(call: ToolCall, what: str, why: str = "") -> None: ...

    @app.tool(undo="unmake")
    async def make(call: ToolCall, what: str) -> None: ...

    with pytest.raises(ConfigurationError, match="has the parameter 'why'"):
        app.registry.check()


def test_an_undo_may_be_registered_later() -> None:
    app = Outlast("tests")

    @app.tool(undo="unmake")
    async def make(call: ToolCall, what: str) -> None: ...

    with pytest.raises(ConfigurationError):
        app.registry.check()

    @app.tool
    async def unmake(call: ToolCall, what: str, result: Any) -> None: ...

    app.registry.check()


def test_a_read_has_nothing_to_undo() -> None:
    app = Outlast("tests")

    with pytest.raises(ConfigurationError, match="nothing to undo"):

        @app.tool(effect="read", undo="unmake")
        async def look(call: ToolCall) -> None: ...


async def test_over_http_the_ticket_is_withdrawn_though_an_answer_is_lost(
    house: House, recorder: Recorder
) -> None:
    @house.app.tool(effect="keyed", key_window="24h", retry=QUICK)
    async def withdraw(call: ToolCall, result: dict[str, Any]) -> None:
        await call.http.put(f"{recorder.url}/tickets/{result['id']}/note", json={"text": "withdrawn"})

    @house.app.tool(effect="keyed", key_window="24h", undo=withdraw)
    async def create(call: ToolCall, invoice: str) -> dict[str, Any]:
        reply = await call.http.post(f"{recorder.url}/tickets", json={"invoice": invoice, "amount": "1"})
        ticket: dict[str, Any] = reply.json()
        return ticket

    @house.app.agent(on_failure="undo")
    async def agent(task: TaskContext) -> None:
        await task.call(create, "INV-102")
        raise LookupError

    view = await house.run(agent)
    assert said(view)["state"] == "complete"
    keys = [call.key for call in await recorder.log() if call.method in ("POST", "PUT")]
    assert keys == [f"{view.id}:create#1", f"{view.id}:create#1/undo"]
    assert await house.violations(recorder) == []
