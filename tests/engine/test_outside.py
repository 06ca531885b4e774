"""Outside sessions: what happens in a conversation at a provider reaches the one task that holds it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.house import House

from outlast import SessionTaken, TaskContext, WaitTimeout
from outlast.errors import InvalidKey, NotFound, SignalConflict, TaskEnded


async def test_events_reach_the_task_that_holds_the_session_each_once(house: House) -> None:
    ran: list[int] = []

    @house.app.agent
    async def agent(task: TaskContext) -> list[Any]:
        ran.append(task.attempt)
        await task.attach("acme", "conv-1")
        await task.attach("acme", "conv-1", run="run-7")
        got = [await task.events_of("acme") for _ in range(3)]
        return [[one.provider, one.session, one.run, one.id, one.data] for one in got]

    handle = await house.submit(agent)
    house.start()
    await house.waits(handle, "signal")
    send = house.app.outside
    assert (await send("acme", "conv-1", event_id="e1", data={"text": "hi"})).kind == "accepted"
    assert (await send("acme", "conv-1", event_id="e1", data={"text": "hi"})).kind == "replayed"
    with pytest.raises(SignalConflict):
        await send("acme", "conv-1", event_id="e1", data={"text": "ho"})
    assert (await send("acme", "conv-1", run="run-7", event_id="e1", data=None)).kind == "accepted"
    last = await send("acme", "conv-1", event_id="e2", data=3)
    assert last.task is not None
    assert last.task.task == handle.id
    view = await house.ended(handle)
    assert view.result == [
        ["acme", "conv-1", "", "e1", {"text": "hi"}],
        ["acme", "conv-1", "run-7", "e1", None],
        ["acme", "conv-1", "", "e2", 3],
    ]
    with pytest.raises(TaskEnded):
        await send("acme", "conv-1", event_id="e3", data=3)
    assert await house.violations() == []


async def test_a_session_is_held_by_one_task_and_free_when_that_ends(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext, waits: bool) -> str:
        said = "held"
        try:
            await task.attach("acme", "conv-1")
        except SessionTaken as error:
            said = str(error)
        if waits:
            await task.wait("go")
        await task.sleep(0.01)
        return said

    first = await house.submit(agent, waits=True)
    house.start()
    await house.waits(first, "signal")
    second = await house.submit(agent, waits=False)
    # The same on its replay, though the session may be free by then.
    assert (await house.ended(second)).result == (f"acme session conv-1 is held by another task, {first.id}")
    await first.signal("go")
    assert (await house.ended(first)).result == "held"
    third = await house.submit(agent, waits=False)
    assert (await house.ended(third)).result == "held"
    assert await house.violations() == []


async def test_a_task_that_does_not_catch_it_fails_by_name(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext, waits: bool) -> None:
        await task.attach("acme", "conv-1")
        if waits:
            await task.wait("go")

    first = await house.submit(agent, waits=True)
    house.start()
    await house.waits(first, "signal")
    view = await house.ended(await house.submit(agent, waits=False))
    assert view.error is not None
    assert view.error["code"] == "session_taken"


async def test_a_wait_for_events_may_have_its_time(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> str:
        await task.attach("acme", "conv-1")
        try:
            await task.events_of("acme", timeout=0.05)
        except WaitTimeout:
            return "nothing came"
        return "something came"

    assert (await house.run(agent)).result == "nothing came"


async def test_nobody_else_can_send_what_looks_like_an_event(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> None:
        await task.wait("go")

    handle = await house.submit(agent)
    with pytest.raises(InvalidKey, match="outside sessions"):
        await handle.signal("outside:acme", {})
    with pytest.raises(NotFound):
        await house.app.outside("acme", "conv-1", event_id="e1", data={})
    for wrong in ({"session": ""}, {"provider": "a b"}, {"event_id": "\n"}):
        given = {"provider": "acme", "session": "conv-1", "event_id": "e1", **wrong}
        with pytest.raises(InvalidKey):
            await house.app.outside(**given)


async def test_attaching_nonsense_is_refused_at_once(house: House) -> None:
    @house.app.agent
    async def agent(task: TaskContext) -> list[str]:
        refused = []
        for provider, session in (("a b", "c"), ("acme", ""), ("acme", "x" * 256)):
            try:
                await task.attach(provider, session)
            except InvalidKey as error:
                refused.append(error.code)
        return refused

    assert len((await house.run(agent)).result) == 3
