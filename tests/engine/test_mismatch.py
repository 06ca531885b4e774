"""When code and journal disagree: the task stops, says how they differ, and looks again by itself."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.house import House

from outlast import TaskContext, ToolCall
from outlast.engine import mismatch
from outlast.store.records import OperationRow
from outlast.store.rows import EventRow


class Changing:
    """An agent whose code changes between its attempts."""

    def __init__(self, house: House) -> None:
        self.ask: Any = None
        app = house.app

        @app.tool(effect="idempotent")
        async def create(call: ToolCall, invoice: str, amount: str, note: str = "") -> str:
            return invoice

        @app.tool(effect="idempotent")
        async def notify(call: ToolCall, invoice: str) -> str:
            return invoice

        @app.agent
        async def agent(task: TaskContext) -> str:
            await self.ask(task)
            await task.wait("go")
            return "done"

        self.create, self.notify, self.agent = create, notify, agent

    async def first(self, task: TaskContext) -> None:
        await task.call(self.create, "INV-102", "118.50", key="it")


async def stopped(house: House, then: Any) -> tuple[Changing, Any, str]:
    """Let a task wait, change its code, and answer what it says when it has stopped."""
    changing = Changing(house)
    changing.ask = changing.first
    handle = await house.submit(changing.agent)
    house.start()
    await house.waits(handle, "signal")
    changing.ask = lambda task: then(changing, task)
    await handle.signal("go")
    await house.waits(handle, "operator")
    logs = [event for event in await house.events(handle) if event.kind == "log"]
    return changing, handle, logs[-1].data["message"]


async def test_other_arguments_are_shown_by_name(house: House) -> None:
    async def then(it: Changing, task: TaskContext) -> None:
        await task.call(it.create, "INV-103", "118.50", note="x" * 1000, key="it")

    changing, handle, said = await stopped(house, then)
    assert said.startswith(
        "operation it: the journal holds tool create, and the code asks for it with other arguments:"
        ' "invoice" is "INV-102" in the journal, "INV-103" asked for; "note" is "" in the journal, "xxx'
    )
    assert said.endswith("the agent's code changed, or it is not repeatable")
    assert len(said) < 600
    view = await handle.get()
    assert view.detail is not None
    assert '"INV-103" asked for' in view.detail
    # The old code is back: an operator lets it look now.
    changing.ask = changing.first
    assert await house.app.wake(handle.id, reason="rolled back", by="kim")
    assert (await house.ended(handle)).result == "done"
    assert await house.violations() == []


async def test_another_operation_is_shown_with_both(house: House) -> None:
    async def then(it: Changing, task: TaskContext) -> None:
        await task.call(it.notify, "INV-102", key="it")

    _, _, said = await stopped(house, then)
    assert said.startswith(
        'operation it: the journal holds tool create ({"invoice":"INV-102","amount":"118.50","note":""}), the'
        ' code asks for tool notify ({"invoice":"INV-102"})'
    )


async def test_a_step_in_place_of_a_call_is_shown(house: House) -> None:
    async def then(it: Changing, task: TaskContext) -> None:
        await task.step(lambda: 1, name="count", key="it")

    _, _, said = await stopped(house, then)
    assert "the code asks for step count;" in said


async def test_it_looks_again_by_itself_and_goes_on_when_the_old_code_is_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mismatch, "PAUSES_S", (0.05, 0.1, 0.2))

    async def then(it: Changing, task: TaskContext) -> None:
        await task.call(it.notify, "INV-102", key="it")

    changing, handle, _ = await stopped(house, then)
    for _ in range(3):
        await house.waits(handle, "operator")
    changing.ask = changing.first
    assert (await house.ended(handle)).result == "done"
    assert await house.violations() == []


def _event(number: int, kind: str, data: str = "{}") -> EventRow:
    return EventRow(tenant="t", task="k", number=number, kind=kind, epoch=1, data=data, at=0)


def test_the_pauses_grow_until_something_moves_on() -> None:
    kinds = ["operation.started", "attempt.started", "log", "attempt.suspended", "task.waiting"]
    looks = [
        _event(number, kind, '{"mismatch":true}' if kind == "log" else "{}")
        for number, kind in enumerate([*kinds, *kinds[1:], *kinds[1:]])
    ]
    assert mismatch.looked(looks) == 3
    assert mismatch.looked([*looks, _event(99, "operation.succeeded")]) == 0
    assert mismatch.looked([*looks, _event(99, "task.adopted")]) == 0
    assert mismatch.looked([_event(1, "log")]) == 0
    assert list(mismatch.PAUSES_S) == sorted(mismatch.PAUSES_S)
    assert (mismatch.PAUSES_S[0], mismatch.PAUSES_S[-1]) == (30.0, 600.0)


def test_many_differences_are_kept_short() -> None:
    row = OperationRow(
        tenant="t",
        task="k",
        key="it",
        position=1,
        kind="tool",
        name="create",
        state="succeeded",
        request="r",
        arguments='{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6}',
    )
    said = mismatch.difference(row, "tool", "create", {name: 0 for name in "abcdef"})
    assert "and 2 more" in said
    assert mismatch.difference(row, "tool", "create", {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}).count("f") > 0
