"""Callbacks: a place that somebody outside can answer to, once."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest
from tests.engine.house import House

from outlast import Outlast, TaskContext, tokens
from outlast.errors import (
    CallbackOver,
    ConfigurationError,
    InvalidToken,
    SignalConflict,
    TaskEnded,
    WaitTimeout,
)
from outlast.store.contract import Store

SECRET = "not a secret, but long enough"


@pytest.fixture
async def signing(store: Store) -> Any:
    """An app that knows its secret and where it is."""
    house = House(store)
    house.app = Outlast("tests", store=store, secret=SECRET, public_url="https://agents.example/")
    async with house:
        yield house


async def test_a_callback_is_answered_once_and_safely_repeated(signing: House) -> None:
    given: list[tuple[str, str | None]] = []
    opened = asyncio.Event()

    @signing.app.agent
    async def agent(task: TaskContext) -> Any:
        callback = task.callback("payment", timeout="1h")
        given.append((callback.token, callback.url))
        opened.set()
        return [await callback.wait(), await callback]

    handle = await signing.submit(agent)
    signing.start()
    await signing.waits(handle, "signal")
    (token, url) = given[0]
    assert url == f"https://agents.example/v1/callbacks/{token}"
    posted = await signing.app.answer_callback(token, {"paid": True})
    assert posted.kind == "accepted"
    assert (await signing.app.answer_callback(token, {"paid": True})).kind == "replayed"
    with pytest.raises(SignalConflict):
        await signing.app.answer_callback(token, {"paid": False})
    view = await signing.ended(handle)
    assert view.result == [{"paid": True}, {"paid": True}]
    # The same on every replay, since it is part of what is sent to others.
    assert len(given) >= 2
    assert set(given) == {(token, url)}
    assert await signing.violations() == []


async def test_an_answer_may_come_before_anybody_waits_for_it(signing: House) -> None:
    @signing.app.agent
    async def agent(task: TaskContext) -> Any:
        callback = task.callback("payment")
        await signing.app.answer_callback(callback.token, 7)
        await task.sleep(0.05)
        return await callback

    view = await signing.run(agent)
    assert view.result == 7


async def test_two_callbacks_and_a_signal_of_one_name_are_three_things(signing: House) -> None:
    @signing.app.agent
    async def agent(task: TaskContext) -> Any:
        one, two = task.callback("payment"), task.callback("payment")
        await signing.app.answer_callback(two.token, 2)
        await signing.app.answer_callback(one.token, 1)
        return [await one, await two, await task.wait("payment")]

    handle = await signing.submit(agent)
    await handle.signal("payment", 3)
    signing.start(linger_s=60.0)
    assert (await signing.ended(handle)).result == [1, 2, 3]


async def test_nobody_answers_in_time(signing: House) -> None:
    tokens_given: list[str] = []

    @signing.app.agent
    async def agent(task: TaskContext) -> str:
        callback = task.callback("payment", timeout=0.1)
        tokens_given.append(callback.token)
        try:
            await callback
        except WaitTimeout:
            await task.wait("end")
        return "none"

    handle = await signing.submit(agent)
    signing.start()
    await signing.reached(handle, "operation.failed")
    with pytest.raises(CallbackOver) as over:
        await signing.app.answer_callback(tokens_given[0], 1)
    assert over.value.state == "failed"
    assert (await signing.store.dump())["inbox"] == []
    await handle.signal("end")
    assert (await signing.ended(handle)).result == "none"
    with pytest.raises(TaskEnded):
        await signing.app.signal(handle.id, "end")


async def test_a_callback_can_lose_a_race(signing: House) -> None:
    given: list[str] = []

    @signing.app.agent
    async def agent(task: TaskContext) -> Any:
        callback = task.callback("payment", timeout="1h")
        given.append(callback.token)
        first = await task.first(callback.wait(), task.wait("withdrawn"))
        await task.first(task.wait("go"), task.sleep("1h"))
        return first

    handle = await signing.submit(agent)
    signing.start()
    await signing.waits(handle, "signal")
    await handle.signal("withdrawn", 1)
    await signing.waits(handle, "timer")
    with pytest.raises(CallbackOver):
        await signing.app.answer_callback(given[0], {"paid": True})
    await handle.signal("go")
    assert (await signing.ended(handle)).result == [1, 1]
    assert (await signing.store.dump())["timers"] == []
    assert await signing.violations() == []


async def test_an_app_without_a_secret_makes_no_callbacks(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUTLAST_SECRET", raising=False)

    @house.app.agent
    async def agent(task: TaskContext) -> str:
        try:
            task.callback("payment")
        except ConfigurationError as error:
            return str(error)
        return "not reached"

    assert "OUTLAST_SECRET" in (await house.run(agent)).result


# -- tokens --------------------------------------------------------------------------------------------------


def test_a_token_says_what_it_was_made_of() -> None:
    parts = ("default", "task_1", "a/key#1", "ümläut")
    token = tokens.sign(SECRET, "callback", parts)
    assert tokens.read(SECRET, "callback", token, now=0) == parts
    assert token == tokens.sign(SECRET, "callback", parts)
    assert SECRET not in token


@pytest.mark.parametrize("now", [-1, 99, 100, 101])
def test_a_token_is_good_until_its_time_is_over(now: int) -> None:
    token = tokens.sign(SECRET, "approval-link", ["a"], expires_at=100)
    if now < 100:
        assert tokens.read(SECRET, "approval-link", token, now=now) == ("a",)
    else:
        with pytest.raises(InvalidToken, match="too old"):
            tokens.read(SECRET, "approval-link", token, now=now)


def test_what_is_no_token_of_ours_is_refused() -> None:
    token = tokens.sign(SECRET, "callback", ["tenant", "task", "key"])
    data = urlsafe_b64decode(token + "=" * (-len(token) % 4))
    other = json.dumps([None, "tenant", "task", "other"]).encode() + data[-32:]
    wrong = [
        "",
        "x",
        "é",
        "=" * 8,
        "a" * 5_000,
        token[:-1],
        token + "A",
        token + "=",
        token[:-1] + ("A" if token[-1] != "A" else "B"),
        urlsafe_b64encode(other).decode().rstrip("="),
        urlsafe_b64encode(data[-32:]).decode().rstrip("="),
    ]
    for altered in wrong:
        with pytest.raises(InvalidToken):
            tokens.read(SECRET, "callback", altered, now=0)
    with pytest.raises(InvalidToken):
        tokens.read(SECRET, "approval-link", token, now=0)
    with pytest.raises(InvalidToken):
        tokens.read(SECRET + "!", "callback", token, now=0)


def test_a_secret_that_is_too_short_signs_nothing() -> None:
    with pytest.raises(ConfigurationError, match="OUTLAST_SECRET"):
        tokens.sign("short", "callback", ["a"])
