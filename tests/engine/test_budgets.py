"""Budgets: what a task may spend holds back its next operation, now as on every replay."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from tests.engine.house import House

from outlast import Accept, Backoff, BudgetExceeded, TaskContext, ToolCall
from outlast.errors import IdempotencyConflict, InvalidRequest


async def again(task: TaskContext) -> None:
    """Suspend the task, so that its function runs again from the top."""
    await task.sleep(0.01)


def refusal(error: BudgetExceeded) -> list[str]:
    return [error.reason, error.operation.partition(":")[2], str(error)]


async def test_operations_are_counted_once_however_often_the_function_runs(house: House) -> None:
    made: list[str] = []

    async def note(what: str) -> None:
        made.append(what)

    @house.app.tool(effect="idempotent")
    async def send(call: ToolCall, what: str) -> None:
        made.append(what)

    @house.app.agent
    async def agent(task: TaskContext) -> list[str]:
        await task.step(note, "a")
        await again(task)
        await task.call(send, "b")
        await again(task)
        try:
            await task.step(note, "c")
        except BudgetExceeded as error:
            first = refusal(error)
        await again(task)
        try:
            await task.call(send, "d")
        except BudgetExceeded as error:
            return [*first, *refusal(error)]
        return []

    handle = await house.app.submit(agent, budget={"operations": 2})
    house.start()
    view = await house.ended(handle)
    text = "the task may make 2 operations"
    assert view.result == ["operations", "note#2", text, "operations", "send#2", text]
    assert made == ["a", "b"]
    assert view.budget == {"operations": 2}
    kinds = [(one.key, one.state) for one in (await house.operations(view)).values() if one.kind != "timer"]
    assert kinds == [
        ("note#1", "succeeded"),
        ("send#1", "succeeded"),
        ("note#2", "failed"),
        ("send#2", "failed"),
    ]
    assert await house.violations() == []


async def test_of_calls_side_by_side_as_many_begin_as_may(house: House) -> None:
    made: list[int] = []

    @house.app.tool(effect="idempotent")
    async def send(call: ToolCall, number: int) -> int:
        made.append(number)
        return number

    @house.app.agent
    async def agent(task: TaskContext) -> list[Any]:
        async def one(number: int) -> str:
            try:
                return str(await task.call(send, number, key=f"send-{number}"))
            except BudgetExceeded:
                return "held back"

        return await task.gather(*(one(number) for number in range(5)))

    handle = await house.app.submit(agent, budget={"operations": 3})
    house.start()
    view = await house.ended(handle)
    assert sorted(view.result) == ["0", "1", "2", "held back", "held back"]
    assert sorted(made) == [0, 1, 2]


async def test_tokens_and_cost_are_summed_over_calls_and_replays(house: House) -> None:
    made: list[str] = []

    @house.app.tool(effect="idempotent")
    async def think(call: ToolCall, tokens: int, cost: str) -> int:
        made.append(cost)
        call.spent(tokens=tokens)
        call.spent(cost=cost)
        return tokens

    @house.app.agent
    async def agent(task: TaskContext) -> list[str]:
        await task.call(think, 40, "0.10")
        await again(task)
        await task.call(think, 60, "0.20")
        await again(task)
        try:
            await task.call(think, 1, "0.01")
        except BudgetExceeded as error:
            return refusal(error)
        return []

    by_tokens = await house.app.submit(agent, budget={"tokens": 100})
    by_cost = await house.app.submit(agent, budget={"cost": "0.30", "tokens": 1000})
    free = await house.app.submit(agent, budget={"cost": "0.31", "tokens": 101})
    house.start()
    assert (await house.ended(by_tokens)).result == [
        "tokens",
        "think#3",
        "the task may spend 100 tokens and has spent 100",
    ]
    assert (await house.ended(by_cost)).result == [
        "cost",
        "think#3",
        "the task may cost 0.30 and has cost 0.30",
    ]
    assert (await house.ended(free)).result == []
    assert len(made) == 2 + 2 + 3
    assert (await house.operations(by_cost))["think#2"].usage == {"tokens": 60, "cost": "0.20"}
    assert await house.violations() == []


async def test_attempts_that_fail_have_spent_what_they_said(house: House) -> None:
    @house.app.tool(effect="idempotent", retry=Backoff(base_s=0.01, max_s=0.01, attempts=5))
    async def think(call: ToolCall) -> str:
        call.spent(tokens=30)
        if call.attempt < 3:
            async with call.sending():
                raise ConnectionResetError
        return "thought"

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        return str(await task.call(think))

    free = await house.app.submit(agent, budget={"tokens": 90})
    bound = await house.app.submit(agent, budget={"tokens": 60})
    house.start()
    view = await house.ended(free)
    assert view.result == "thought"
    assert (await house.operations(free))["think#1"].usage == {"tokens": 90, "cost": "0"}
    # Its earlier attempts may have acted: nothing is sent again, and a person has to say what they did.
    await house.waits(bound, "reconciliation")
    place = await house.place(f"{bound.id}:think#1")
    assert place is not None
    assert "the task may spend 60 tokens and has spent 60" in place.why
    assert await house.violations() == []


async def test_an_uncaught_refusal_fails_the_task_by_name(house: House) -> None:
    @house.app.agent(retry=Backoff(base_s=0.01, max_s=0.01, attempts=5))
    async def agent(task: TaskContext) -> None:
        await task.step(lambda: 1, name="one")

    handle = await house.app.submit(agent, budget={"operations": 0})
    house.start()
    view = await house.ended(handle)
    assert view.error is not None
    assert (view.state, view.error["code"], view.error["reason"]) == (
        "failed",
        "budget_exceeded",
        "operations",
    )
    assert len(await house.app.attempts(view.id)) == 1


async def test_children_count_and_go_so_deep(house: House) -> None:
    @house.app.agent
    async def below(task: TaskContext, levels: int) -> list[str]:
        if not levels:
            return ["bottom"]
        try:
            return [task.id, *await task.spawn(below, {"levels": levels - 1})]
        except BudgetExceeded as error:
            return refusal(error)

    deep = await house.app.submit(below, {"levels": 3}, budget={"depth": 2})
    flat = await house.app.submit(below, {"levels": 1}, budget={"depth": 0})
    few = await house.app.submit(below, {"levels": 1}, budget={"operations": 0})
    house.start()
    view = await house.ended(deep)
    assert len(view.result) == 5
    assert view.result[2] == "depth"
    assert (await house.ended(flat)).result[0] == "depth"
    assert (await house.ended(few)).result[0] == "operations"
    assert await house.violations() == []


@pytest.mark.parametrize("reloads", [False, True])
async def test_a_call_that_a_fork_takes_over_counts_at_once(house: House, reloads: bool) -> None:
    """Evidence settles it, so that it is never sent by the fork; it is one of its operations all the same."""
    paid: dict[str, str] = {}
    noted: list[str] = []

    async def find(call: ToolCall) -> str | None:
        return paid.get(call.idempotency_key)

    @house.app.tool(effect="keyed", key_window="24h", find=find)
    async def pay(call: ToolCall) -> str:
        return paid.setdefault(call.idempotency_key, "paid")

    async def note() -> None:
        noted.append("noted")

    @house.app.agent
    async def agent(task: TaskContext) -> list[str]:
        await task.step(note)
        await task.call(pay)
        if reloads:
            await again(task)
        try:
            await task.step(note)
        except BudgetExceeded as error:
            return refusal(error)
        return []

    house.start()
    view = await house.ended(await house.app.submit(agent, budget={"operations": 2}))
    fork = await house.app.fork(view.id, before="pay#1", reason="again", by="kim")
    held = ["operations", "note#2", "the task may make 2 operations"]
    assert [view.result, (await house.ended(fork)).result] == [held, held]
    assert (len(paid), noted) == (1, ["noted"])
    assert await house.violations() == []


@pytest.mark.parametrize("reloads", [False, True])
async def test_a_fork_takes_over_no_more_than_its_budget_allows(house: House, reloads: bool) -> None:
    asked: list[str] = []

    async def find(call: ToolCall) -> str | None:
        asked.append(call.idempotency_key)
        return "paid"

    @house.app.tool(effect="keyed", key_window="24h", find=find)
    async def pay(call: ToolCall) -> str:
        return "paid"

    async def look() -> str:
        return "seen"

    @house.app.agent(name="pays", version="1")
    async def first(task: TaskContext) -> str:
        await task.step(look)
        return str(await task.call(pay))

    house.start()
    view = await house.ended(await house.app.submit("pays", budget={"operations": 2}))
    await house.stop()
    other = house.deploy()
    other.tool(name="pay", effect="keyed", key_window="24h", find=find)(pay)

    @other.agent(name="pays", version="2")
    async def second(task: TaskContext) -> list[str]:
        await task.step(look)
        await task.step(look)
        if reloads:
            await again(task)
        try:
            await task.call("pay")
        except BudgetExceeded as error:
            return refusal(error)
        return []

    house.start(app=other)
    fork = await house.app.fork(view.id, before="pay#1", reason="again", by="kim", version="2")
    assert (await house.ended(fork)).result == ["operations", "pay#1", "the task may make 2 operations"]
    assert asked == []
    assert await house.violations() == []


@pytest.mark.parametrize("reloads", [False, True])
async def test_a_step_that_was_cut_short_is_not_counted(house: House, reloads: bool) -> None:
    """An operation counts from its first record on, and there is none of it."""

    async def slow() -> None:
        await asyncio.Event().wait()

    async def note() -> str:
        return "noted"

    @house.app.agent
    async def agent(task: TaskContext) -> list[Any]:
        first, _ = await task.first(task.step(slow), task.sleep(0.01))
        if reloads:
            await again(task)
        said = [first, await task.step(note)]
        try:
            await task.step(note)
        except BudgetExceeded as error:
            return [*said, *refusal(error)]
        return said

    handle = await house.app.submit(agent, budget={"operations": 1})
    house.start()
    view = await house.ended(handle)
    assert view.result == [1, "noted", "operations", "note#2", "the task may make 1 operations"]
    assert await house.violations() == []


async def test_a_check_is_counted_by_no_budget_nor_by_that_of_a_fork(house: House) -> None:
    async def word() -> str:
        return "word"

    def check(result: Any) -> Accept:
        return Accept()

    @house.app.agent(name="a", version="1", check=check)
    async def first(task: TaskContext) -> str:
        return str(await task.step(word))

    house.start()
    view = await house.ended(await house.app.submit("a", budget={"operations": 2}))
    await house.stop()
    other = house.deploy()

    @other.agent(name="a", version="2")
    async def second(task: TaskContext) -> list[Any]:
        said = [await task.step(word), await task.step(word)]
        try:
            await task.step(word)
        except BudgetExceeded as error:
            return [*said, *refusal(error)]
        return said

    house.start(app=other)
    fork = await house.app.fork(view.id, reason="again", by="kim", version="2")
    assert "check!" in await house.operations(fork)
    ended = await house.ended(fork)
    assert ended.result == ["word", "word", "operations", "word#3", "the task may make 2 operations"]
    assert await house.violations() == []


@pytest.mark.parametrize(
    ("budget", "pointer"),
    [
        ({"operations": -1}, "/budget/operations"),
        ({"tokens": 1.5}, "/budget/tokens"),
        ({"depth": True}, "/budget/depth"),
        ({"cost": "much"}, "/budget/cost"),
        ({"cost": "NaN"}, "/budget/cost"),
        ({"cost": "-1"}, "/budget/cost"),
        ({"cost": "1e-13"}, "/budget/cost"),
        ({"cost": "1e16"}, "/budget/cost"),
        ({"calls": 1}, "/budget"),
        ([1], "/budget"),
        ("all", "/budget"),
    ],
)
async def test_nonsense_is_refused_where_it_is_given(house: House, budget: Any, pointer: str) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None: ...

    with pytest.raises(InvalidRequest) as caught:
        await house.app.submit(agent, budget=budget)
    assert caught.value.pointer == pointer


async def test_a_budget_is_part_of_the_request(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None: ...

    first = await house.app.submit(agent, key="k", budget={"cost": Decimal("1.50")})
    assert (await house.app.submit(agent, key="k", budget={"cost": "1.50"})).id == first.id
    with pytest.raises(IdempotencyConflict):
        await house.app.submit(agent, key="k", budget={"cost": "2"})


async def test_spending_nonsense_is_refused(house: House) -> None:
    refused: list[str] = []

    @house.app.tool(effect="idempotent")
    async def think(call: ToolCall) -> None:
        for wrong in ({"tokens": -1}, {"tokens": 0.5}, {"cost": "x"}):
            try:
                call.spent(**wrong)  # type: ignore[arg-type]
            except InvalidRequest as error:
                refused.append(error.code)
        call.spent(cost=0.1)
        call.spent(cost=0.2)

    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.call(think)

    view = await house.run(agent)
    assert refused == ["invalid_request"] * 3
    assert (await house.operations(view))["think#1"].usage == {"tokens": 0, "cost": "0.3"}
