"""What cannot be stored: refused by name, or carried whole; never a repeated call, never a stuck task."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.engine.house import House

from outlast import Rejected, ResultUnstorable, TaskContext, ToolCall
from outlast.core.values import MAX_VALUE_BYTES
from outlast.errors import InvalidRequest, StepFailed, ToolFailed, ToolRejected


def nested(levels: int) -> Any:
    value: Any = "core"
    for _ in range(levels):
        value = [value]
    return value


def text_of(size: int) -> str:
    """A text whose JSON form has this many bytes."""
    return "x" * (size - 2)


CARRIED = {
    "a NUL": "before\0after",
    "a lone surrogate": "half \ud83d a pair",
    "a name with a NUL": {"a\0b": 1},
    "an integer of 400 digits": 10**399,
    "an integer of 4,000 digits": -(10**3999),
    "200 levels": nested(200),
    "1 MB": text_of(MAX_VALUE_BYTES),
    "a float that is not short": 0.1 + 0.2,
}
# Arguments are also digested by RFC 8785, which knows neither halves of characters nor integers that a double
# would round: those are refused, by name. And an argument stands one level deeper, and beside its name.
NO_ARGUMENT = (
    "200 levels",
    "1 MB",
    "a lone surrogate",
    "an integer of 400 digits",
    "an integer of 4,000 digits",
)
REFUSED = {
    "NaN": float("nan"),
    "infinity": [1, {"a": float("inf")}],
    "201 levels": nested(201),
    "a byte over 1 MB": text_of(MAX_VALUE_BYTES + 1),
    "5 MB": text_of(5_000_000),
    "an integer of 4,001 digits": 10**4000,
    "bytes": b"\x00\xff",
}


async def test_values_at_the_limit_are_carried_whole_everywhere(house: House) -> None:
    calls: list[str] = []

    def make(name: str) -> Any:
        return CARRIED[name]

    @house.app.tool(effect="manual")
    async def act(call: ToolCall, name: str, value: Any) -> Any:
        calls.append(name)
        assert value == CARRIED[name]
        return value

    @house.app.agent
    async def agent(task: TaskContext, name: str, value: Any) -> Any:
        assert value == CARRIED[name]
        made = await task.step(make, name)
        await task.sleep(0.1)
        done = await task.call(act, name, made)
        await task.emit("progress", done)
        await task.sleep(0.1)
        return done

    for name, value in CARRIED.items():
        if name in NO_ARGUMENT:
            continue
        handle = await house.submit(agent, name=name, value=value)
        if not house.workers:
            house.start()
        view = await house.ended(handle)
        assert view.state == "succeeded", (name, view.error)
        assert view.result == value, name
        (emitted,) = [event.data for event in await house.events(handle) if event.kind == "progress"]
        assert emitted == value, name
    assert calls == [name for name in CARRIED if name not in NO_ARGUMENT]
    assert await house.violations() == []


@pytest.mark.parametrize("name", [*CARRIED, *REFUSED])
async def test_a_tool_that_was_done_is_not_done_again_whatever_it_returns(house: House, name: str) -> None:
    calls: list[str] = []
    seen: list[Any] = []

    @house.app.tool(effect="manual")
    async def act(call: ToolCall) -> Any:
        calls.append(call.idempotency_key)
        return {**CARRIED, **REFUSED}[name]

    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        said = []
        for _ in range(2):
            try:
                said.append(await task.call(act, key="one") == CARRIED.get(name))
            except ResultUnstorable as error:
                said.append(f"{error.reason}, {error}")
            seen.append(said[-1])
            await task.sleep(0.1)
        return said

    view = await house.run(agent)
    assert calls == [f"{view.id}:one"]
    operation = (await house.operations(view))["one"]
    assert operation.state == "succeeded"
    if name in CARRIED:
        assert view.result == [True, True]
        assert operation.result == CARRIED[name]
    else:
        assert view.result == [view.result[0]] * 2
        # The same when it was made as on every replay.
        assert len(set(seen)) == 1
        assert seen[0].partition(",")[0] in ("unserializable", "value_too_large")
        assert operation.error is not None
        assert operation.error["code"] == "result_unstorable"
    assert await house.violations() == []


async def test_a_step_whose_result_cannot_be_stored_fails_by_name_and_is_not_run_again(house: House) -> None:
    ran: list[str] = []

    def make(name: str) -> Any:
        ran.append(name)
        return REFUSED[name]

    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        said = []
        for name in REFUSED:
            try:
                await task.step(make, name)
            except ResultUnstorable as error:
                said.append((name, error.retryable))
        await task.sleep(0.1)
        return said

    view = await house.run(agent)
    assert view.result == [[name, False] for name in REFUSED]
    assert ran == list(REFUSED)
    assert await house.violations() == []


@pytest.mark.parametrize("name", REFUSED)
async def test_input_that_cannot_be_stored_is_refused_before_anything_is(house: House, name: str) -> None:
    @house.app.agent
    async def agent(task: TaskContext, value: Any) -> None:
        return None

    with pytest.raises(InvalidRequest) as refused:
        await house.submit(agent, value=REFUSED[name])
    assert refused.value.code in ("unserializable", "value_too_large")
    assert await house.app.list() == []


@pytest.mark.parametrize("name", REFUSED)
async def test_a_result_that_cannot_be_stored_ends_its_task_by_name(house: House, name: str) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> Any:
        return REFUSED[name]

    view = await house.run(agent)
    assert view.state == "failed"
    assert view.error is not None
    assert view.error["code"] in ("unserializable", "value_too_large")
    assert view.attempts == 1
    assert await house.violations() == []


@pytest.mark.parametrize("name", ["NaN", "5 MB"])
async def test_an_event_or_an_argument_that_cannot_be_stored_is_refused_to_the_agent(
    house: House, name: str
) -> None:
    called: list[Any] = []

    @house.app.tool(effect="manual")
    async def act(call: ToolCall, value: Any) -> None:
        called.append(value)

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        with pytest.raises(InvalidRequest):
            await task.emit("progress", REFUSED[name])
        with pytest.raises(InvalidRequest):
            await task.call(act, REFUSED[name])
        if name == "NaN":
            with pytest.raises(InvalidRequest):
                await task.step(len, [REFUSED[name]])
        else:
            # A step's arguments are digested, not stored.
            assert await task.step(len, REFUSED[name]) == 4_999_998
        return "went on"

    view = await house.run(agent)
    assert view.result == "went on", view.error
    assert called == []
    assert await house.violations() == []


async def test_texts_of_errors_are_carried_and_bounded(house: House) -> None:
    worst = "NUL \0, half \ud83d, " + "x" * 100_000

    def breaks() -> None:
        raise ValueError(worst)

    @house.app.tool(effect="read")
    async def tool(call: ToolCall) -> None:
        raise Rejected(worst)

    @house.app.agent
    async def agent(task: TaskContext, where: str) -> None:
        if where == "step":
            await task.step(breaks)
        elif where == "tool":
            await task.call(tool)
        raise RuntimeError(worst)

    house.start()
    for where in ("step", "tool", "agent"):
        view = await house.run(agent, where=where)
        assert view.state == "failed", where
        assert view.error is not None
        assert "NUL \0, half \ud83d" in view.error["message"], where
        assert len(view.error["message"]) < 5_000, where
    assert await house.violations() == []


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class MuteVerdict(Rejected):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Foreign(BaseException):
    """What a framework raises to get out from under everybody's ``except Exception``."""


@pytest.mark.parametrize("kind", [Mute, MuteVerdict, SystemExit, Foreign])
@pytest.mark.parametrize("where", ["step", "thread", "tool", "sent", "agent"])
async def test_whatever_is_raised_ends_in_the_ledger_and_never_ends_the_worker(
    house: House, where: str, kind: type[BaseException]
) -> None:
    async def breaks() -> None:
        raise kind

    def breaks_in_a_thread() -> None:
        raise kind

    @house.app.tool(effect="idempotent")
    async def act(call: ToolCall) -> None:
        raise kind

    @house.app.tool(effect="manual")
    async def send(call: ToolCall) -> None:
        async with call.sending():
            raise kind

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        try:
            match where:
                case "step":
                    await task.step(breaks)
                case "thread":
                    await task.step(breaks_in_a_thread)
                case "tool":
                    await task.call(act)
                case "sent":
                    await task.call(send)
                case _:
                    raise kind
        except StepFailed as error:
            return error.reason
        except (ToolFailed, ToolRejected) as error:
            return type(error).__name__
        return "not reached"

    @house.app.agent
    async def neighbour(task: TaskContext) -> str:
        await task.sleep(0.05)
        return "fine"

    handles = [await house.submit(agent), await house.submit(neighbour)]
    house.start()
    if where == "sent":
        await house.waits(handles[0], "reconciliation")
    else:
        view = await house.ended(handles[0])
        if where == "agent":
            assert view.error is not None
            assert view.error["code"] == "agent_error"
            assert kind.__name__ in view.error["message"]
        elif where in ("step", "thread"):
            assert view.result == kind.__name__
        else:
            assert view.result in ("ToolFailed", "ToolRejected")
    assert (await house.ended(handles[1])).result == "fine"
    assert await house.violations() == []


async def test_a_result_too_deep_for_the_interpreter_is_refused_by_name(house: House) -> None:
    deep = nested(sys.getrecursionlimit() * 3)

    @house.app.tool(effect="manual")
    async def act(call: ToolCall) -> Any:
        return deep

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        try:
            await task.call(act)
        except ResultUnstorable as error:
            return error.reason
        except ToolFailed:
            return "failed"
        return "not reached"

    view = await house.run(agent)
    assert view.result == "unserializable"
