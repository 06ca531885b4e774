"""Versions: code changes under tasks that live, and none of them goes on under code that it does not fit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.house import House

from outlast import Outlast, TaskContext, ToolCall, Uncertain
from outlast.changing import Rehearsal
from outlast.core.retry import Backoff
from outlast.errors import (
    AgentNotFound,
    InvalidKey,
    OperationError,
    Rejected,
    StepFailed,
    TaskEnded,
    TaskNotFound,
    VersionInUse,
)
from outlast.handle import TaskHandle

Agent = Callable[..., Any]


async def a() -> str:
    return "a"


async def b() -> str:
    return "b"


async def c() -> str:
    return "c"


async def of(value: str) -> str:
    return value


def app_with(house: House, function: Agent, version: str = "1") -> Outlast:
    """Make another deploy, with a version of agent ``agent``."""
    other = house.deploy()
    other.agent(name="agent", version=version)(function)
    return other


async def standing(house: House, function: Agent, reason: str = "signal") -> TaskHandle:
    """Submit a task of version 1 of ``agent``, and answer it once it waits and nobody serves it."""
    house.app.agent(name="agent", version="1")(function)
    handle = await house.submit("agent")
    house.start(pools=("default",))
    await house.waits(handle, reason)
    await house.stop()
    return handle


async def adopted(other: Outlast, handle: TaskHandle, **more: Any) -> Rehearsal:
    """Have another deploy's code adopt a task."""
    return await other.versions.adopt(handle.id, reason="deployed", by="kim", **more)


async def old(task: TaskContext) -> Any:
    """What the tasks of these tests began with."""
    return await task.step(a) + await task.step(b) + str(await task.wait("go"))


# -- side by side ------------------------------------------------------------------------------------------


async def test_workers_of_two_versions_serve_side_by_side(house: House) -> None:
    async def one(task: TaskContext) -> Any:
        return f"1{await task.wait('go')}"

    async def two(task: TaskContext) -> Any:
        return f"2{await task.wait('go')}"

    handle = await standing(house, one)
    other = app_with(house, two, "2")
    new = await house.app.submit("agent", version=None)
    house.start(app=other)
    await house.waits(new, "signal")
    house.start()
    for each in (handle, new):
        await each.signal("go", "!")
    first, second = [await house.ended(each) for each in (handle, new)]
    assert (first.version, first.result) == ("1", "1!")
    assert (second.version, second.result) == ("2", "2!")
    assert await house.violations() == []


async def test_a_task_whose_version_nobody_serves_waits_visibly_and_costs_nothing(house: House) -> None:
    handle = await standing(house, old)
    await handle.signal("go", "!")
    other = app_with(house, old, "2")
    house.start(app=other)
    marker = await house.submit("agent")
    await house.waits(marker, "signal")
    view = await handle.get()
    assert (view.state, view.version, view.attempts) == ("queued", "1", 1)
    rows = {row.version: row for row in await house.app.versions.list()}
    assert (rows["1"].queued, rows["1"].running, rows["1"].waiting, rows["1"].served_by) == (1, 0, 0, 0)
    assert (rows["2"].queued, rows["2"].waiting, rows["2"].served_by) == (0, 1, 1)
    assert [row.version for row in await house.app.versions.list(tenant="nobody")] == []
    house.start()
    assert (await house.ended(handle)).result == "ab!"
    assert [row.version for row in await house.app.versions.list()] == ["2"]


async def test_what_no_worker_has_bound_yet_has_no_version(house: House) -> None:
    house.app.agent(name="agent")(old)
    await house.submit("agent")
    (row,) = await house.app.versions.list()
    assert (row.agent, row.version, row.queued, row.served_by) == ("agent", None, 1, 0)


# -- mismatch ----------------------------------------------------------------------------------------------


async def renamed(task: TaskContext) -> Any:
    return await task.step(a, key="x") + await task.step(c, key="y") + str(await task.wait("go"))


async def changed(task: TaskContext) -> Any:
    return await task.step(of, "new", key="x") + str(await task.wait("go"))


async def as_it_was(task: TaskContext) -> Any:
    return await task.step(of, "old", key="x") + str(await task.wait("go"))


async def test_code_that_asks_for_something_else_stops_and_says_what(house: House) -> None:
    handle = await standing(house, as_it_was)
    house.start(app=app_with(house, changed))
    await handle.signal("go", "!")
    view = await house.waits(handle, "operator")
    assert view.detail is not None
    assert view.detail.startswith("operation x: the journal holds step of")
    assert "the agent's code changed" in view.detail
    assert [one.end for one in await house.app.attempts(handle.id)][-1] == "suspended"
    # It looks again by itself, though not at once.
    (timer,) = (await house.store.dump())["timers"]
    assert timer["due_at"] > 0
    await house.stop()
    house.start()
    assert await house.app.wake(handle.id, reason="the old code is back", by="kim")
    assert (await house.ended(handle)).result == "old!"
    assert not await house.app.wake(handle.id, reason="once more")
    trail = [one for one in await house.app.pauses.audit() if one.what == "wake"]
    assert [(one.who, one.reason) for one in trail] == [("person:kim", "the old code is back")]
    assert await house.violations() == []


# -- rehearsals --------------------------------------------------------------------------------------------


async def inserted(task: TaskContext) -> Any:
    return await task.step(a) + await task.step(c) + await task.step(b) + str(await task.wait("go"))


async def appended(task: TaskContext) -> Any:
    return await task.step(a) + await task.step(b) + str(await task.wait("go")) + await task.step(c)


async def swapped(task: TaskContext) -> Any:
    return await task.step(b) + await task.step(a) + str(await task.wait("go"))


async def removed(task: TaskContext) -> Any:
    return await task.step(b) + str(await task.wait("go"))


async def removed_last(task: TaskContext) -> Any:
    return await task.step(a) + str(await task.wait("go"))


async def other_wait(task: TaskContext) -> Any:
    return await task.step(a) + await task.step(b) + str(await task.wait("stop"))


async def shortened(task: TaskContext) -> Any:
    return await task.step(a)


async def raises(task: TaskContext) -> Any:
    await task.step(a)
    raise RuntimeError("not written yet")


async def talkative(task: TaskContext) -> Any:
    await task.emit("progress", {"stage": "new"})
    task.now()
    return await old(task)


@pytest.mark.parametrize(
    ("function", "met", "goes_on_at", "left_over", "not_reached"),
    [
        (old, 2, ("go#1",), (), ()),
        (appended, 2, ("go#1",), (), ()),
        (talkative, 2, ("go#1",), (), ()),
        (swapped, 2, ("go#1",), (), ()),
        (inserted, 1, ("c#1",), (), ("b#1",)),
        (removed, 1, ("go#1",), ("a#1",), ()),
        (removed_last, 1, ("go#1",), (), ("b#1",)),
        (other_wait, 2, ("stop#1",), (), ()),
        (shortened, 1, (), ("b#1",), ()),
    ],
)
async def test_a_rehearsal_says_what_the_code_would_do_and_does_nothing(
    house: House,
    function: Agent,
    met: int,
    goes_on_at: tuple[str, ...],
    left_over: tuple[str, ...],
    not_reached: tuple[str, ...],
) -> None:
    handle = await standing(house, old)
    before = await house.store.dump()
    found = await app_with(house, function, "2").versions.rehearse(handle.id)
    assert (found.met, found.goes_on_at, found.left_over, found.not_reached) == (
        met,
        goes_on_at,
        left_over,
        not_reached,
    )
    assert (found.fits, found.differences, found.failed) == (True, (), None)
    assert found.ended == (function is shortened)
    assert (found.from_version, found.version) == ("1", "2")
    assert await house.store.dump() == before


async def test_a_renamed_operation_goes_on_as_a_new_one_and_names_what_is_left(house: House) -> None:
    async def fetched(task: TaskContext) -> Any:
        return await task.step(a, name="fetch") + await task.step(b) + str(await task.wait("go"))

    handle = await standing(house, old)
    found = await app_with(house, fetched, "2").versions.rehearse(handle.id)
    assert (found.met, found.goes_on_at, found.not_reached) == (0, ("fetch#1",), ("a#1", "b#1"))


async def test_differences_are_found_in_every_branch(house: House) -> None:
    async def branch(task: TaskContext, value: str, signal: str) -> str:
        return str(await task.step(of, value)) + str(await task.wait(signal))

    def branches(first: str, second: str, *, race: bool) -> Agent:
        async def agent(task: TaskContext) -> Any:
            both = branch(task, first, "one"), branch(task, second, "two")
            return await (task.first(*both) if race else task.gather(*both))

        return agent

    for race in (False, True):
        other = house.deploy()
        name = f"racing-{race}"
        other.agent(name=name, version="1")(branches("1", "2", race=race))
        other.agent(name=name, version="2")(branches("1", "other", race=race))
        other.agent(name=name, version="3")(branches("1", "2", race=race))
        house.app.registry.add_agent(other.registry.agent(name, "1"))
        handle = await house.submit(name)
        house.start(app=house.app)
        await house.waits(handle, "signal")
        await house.stop()
        two = await other.versions.rehearse(handle.id, version="2")
        assert not two.fits
        (difference,) = two.differences
        assert "/1/of#1" in difference
        three = await other.versions.rehearse(handle.id, version="3")
        assert three.fits
        assert [key.rpartition("/")[2] for key in three.goes_on_at] == ["one#1", "two#1"]


async def test_children_and_callbacks_that_are_open_are_passed_until_they_are_awaited(house: House) -> None:
    @house.app.agent(pool="nobody")
    async def child(task: TaskContext) -> None:
        return None

    def parent(value: str) -> Agent:
        async def agent(task: TaskContext) -> None:
            born = task.spawn("child")
            answer = task.callback("paid")
            # What it gives away is a part of what it asks for.
            await task.step(of, value + answer.token)
            await task.gather(_result(born), _result(answer))

        return agent

    async def _result(what: Any) -> Any:
        return await what

    house.app._secret = "s" * 32
    handle = await standing(house, parent("x"), "signal")
    for value in ("x", "y"):
        other = app_with(house, parent(value), "2")
        other.registry.add_agent(house.app.registry.agent("child"))
        found = await other.versions.rehearse(handle.id, version="2")
        assert found.fits == (value == "x")
        if value == "x":
            assert set(found.goes_on_at) == {"child#1", "paid#1"}
            assert found.met == 3


async def test_the_agents_own_groups_and_clean_up_are_no_failure(house: House) -> None:
    def agent(extra: bool) -> Agent:
        async def function(task: TaskContext) -> None:
            try:
                await task.step(a)
                async with asyncio.TaskGroup() as group:
                    group.create_task(_wait(task, "one"))
                    group.create_task(_wait(task, "two"))
            finally:
                if extra:
                    await task.step(c)

        return function

    handle = await standing(house, agent(False))
    found = await app_with(house, agent(True), "2").versions.rehearse(handle.id)
    assert (found.fits, found.failed, found.goes_on_at) == (True, None, ("one", "two"))


async def _wait(task: TaskContext, signal: str) -> Any:
    return await task.wait(signal, key=signal)


async def test_code_that_ends_by_a_failure_on_record_fits(house: House) -> None:
    def refuses() -> None:
        raise ValueError("no such invoice")

    async def forgiving(task: TaskContext) -> None:
        with contextlib.suppress(StepFailed):
            await task.step(refuses)
        await task.wait("go")

    async def strict(task: TaskContext) -> None:
        await task.step(refuses)

    handle = await standing(house, forgiving)
    other = app_with(house, strict, "2")
    found = await other.versions.adopt(handle.id, reason="as agreed", by="ann")
    assert (found.fits, found.ended, found.failed, found.adopted) == (True, True, None, True)
    house.start(app=other)
    error = (await house.ended(handle)).error
    assert error is not None
    assert error["operation"] == f"{handle.id}:refuses#1"
    assert await house.violations() == []


async def test_code_that_fails_by_itself_does_not_fit(house: House) -> None:
    handle = await standing(house, old)
    other = app_with(house, raises, "2")
    found = await adopted(other, handle)
    assert (found.fits, found.failed) == (False, "RuntimeError: not written yet")
    assert (await handle.get()).version == "1"


async def test_code_that_does_not_come_to_an_end_does_not_fit(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(task: TaskContext) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("outlast.engine.rehearsal.TIME_S", 0.05)
    handle = await standing(house, old)
    found = await app_with(house, hangs, "2").versions.rehearse(handle.id)
    assert (found.fits, found.failed) == (False, "it took more than 0.05 s")


async def test_a_declined_call_is_answered_as_it_was(house: House) -> None:
    sent: list[str] = []

    def deploy(app: Outlast, version: str, last: str) -> None:
        @app.tool(effect="manual")
        async def pay(call: ToolCall) -> None:
            sent.append(version)
            raise Rejected("no funds")

        @app.agent(name="agent", version=version)
        async def agent(task: TaskContext) -> Any:
            try:
                await task.call(pay)
            except Exception as error:
                return f"{type(error).__name__} {await task.wait(last)}"
            return "paid"

    deploy(house.app, "1", "go")
    handle = await house.submit("agent")
    house.start()
    await house.waits(handle, "signal")
    await house.stop()
    other = house.deploy()
    deploy(other, "2", "on")
    found = await other.versions.rehearse(handle.id)
    assert (found.fits, found.met, found.goes_on_at) == (True, 1, ("on#1",))
    assert sent == ["1"]


# -- adoption ----------------------------------------------------------------------------------------------


async def filing_task(house: House, effect: str, state: str) -> TaskHandle:
    """Have a task that has filed something and waits."""

    @house.app.tool(name="file", effect=effect, timeout=5, retry=Backoff(base_s=0.01, attempts=1))  # type: ignore[arg-type]
    async def file(call: ToolCall) -> str:
        if state == "unknown":
            raise Uncertain("nobody knows")
        if state == "failed":
            raise Rejected("no")
        return "filed"

    async def files(task: TaskContext) -> Any:
        try:
            await task.call(file)
        except OperationError:
            pass
        return await task.wait("go")

    reason = "reconciliation" if state == "unknown" else "signal"
    return await standing(house, files, reason)


def renaming(house: House, name: str | None = "other") -> Outlast:
    """Make a deploy whose code does the same under another name, or under the same for None."""
    named = {} if name is None else {"key": name}

    async def files(task: TaskContext) -> Any:
        await task.call(file, **named)
        return await task.wait("go")

    other = app_with(house, files, "2")
    file = other.tool(name="file", effect="manual")(_file)
    return other


async def _file(call: ToolCall) -> str:
    raise AssertionError("nothing is sent in a rehearsal")


@pytest.mark.parametrize("state", ["succeeded", "unknown"])
async def test_effects_that_the_code_does_not_ask_for_are_left_only_by_who_says_so(
    house: House, state: str
) -> None:
    handle = await filing_task(house, "manual", state)
    other = renaming(house)
    before = await house.store.dump()
    found = await adopted(other, handle)
    assert (found.fits, found.adopted, found.effects_left) == (True, False, ("file#1",))
    assert (found.goes_on_at, found.differences) == (("other",), ())
    assert await house.store.dump() == before
    found = await adopted(other, handle, leave_effects=True)
    assert (found.adopted, found.effects_left) == (True, ("file#1",))
    assert (await handle.get()).version == "2"


@pytest.mark.parametrize(("effect", "state"), [("read", "succeeded"), ("manual", "failed")])
async def test_what_has_left_nothing_outside_is_in_nobodys_way(house: House, effect: str, state: str) -> None:
    handle = await filing_task(house, effect, state)
    found = await adopted(renaming(house), handle)
    assert (found.adopted, found.effects_left, found.not_reached) == (True, (), ("file#1",))


@pytest.mark.parametrize("state", ["succeeded", "unknown"])
async def test_an_effect_that_the_code_asks_for_is_in_nobodys_way(house: House, state: str) -> None:
    handle = await filing_task(house, "manual", state)
    found = await adopted(renaming(house, None), handle)
    assert (found.adopted, found.effects_left) == (True, ())


async def test_a_task_goes_on_under_the_version_that_adopts_it(house: House) -> None:
    handle = await standing(house, old)
    other = app_with(house, appended, "2")
    found = await adopted(other, handle)
    assert (found.fits, found.version) == (True, "2")
    view = await handle.get()
    assert (view.version, view.epoch) == ("2", 1)
    house.start(app=other)
    await handle.signal("go", "!")
    ended = await house.ended(handle)
    assert (ended.result, ended.version) == ("ab!c", "2")
    (event,) = [one for one in await house.events(handle) if one.kind == "task.adopted"]
    assert event.data == {"from": "1", "version": "2", "by": "person:kim"}
    (audited,) = [one for one in await house.app.pauses.audit() if one.what == "adopt"]
    assert (audited.who, audited.subject, audited.reason) == ("person:kim", handle.id, "deployed")
    assert await house.violations() == []


async def test_a_task_that_stopped_at_a_difference_goes_on_under_code_that_fits(house: House) -> None:
    handle = await standing(house, as_it_was)
    house.start(app=app_with(house, changed))
    await handle.signal("go", "!")
    await house.waits(handle, "operator")
    await house.stop()

    async def mended(task: TaskContext) -> Any:
        return await task.step(of, "old", key="x") + str(await task.wait("go")) + await task.step(c)

    refused = await adopted(app_with(house, changed, "2"), handle)
    assert not refused.fits
    assert "operation x" in refused.differences[0]
    assert (await handle.get()).reason == "operator"
    other = app_with(house, mended, "2")
    assert (await adopted(other, handle)).fits
    house.start(app=other)
    assert (await house.ended(handle)).result == "old!c"
    assert await house.violations() == []


async def test_differences_leave_the_task_where_it_is(house: House) -> None:
    handle = await standing(house, as_it_was)
    before = await house.store.dump()
    found = await adopted(app_with(house, changed, "2"), handle)
    assert (found.fits, len(found.differences)) == (False, 1)
    assert await house.store.dump() == before


async def test_a_queued_task_is_adopted_before_it_has_begun(house: House) -> None:
    house.app.agent(name="agent", version="1")(old)
    handle = await house.app.submit("agent", version="1")
    other = app_with(house, shortened, "2")
    found = await adopted(other, handle)
    assert (found.met, found.goes_on_at) == (0, ("a#1",))
    house.start(app=other)
    assert (await house.ended(handle)).result == "a"


async def test_a_running_task_is_not_adopted(house: House) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        begun.set()
        await gate.wait()
        return "slow"

    async def runs(task: TaskContext) -> Any:
        return str(await task.step(slow))

    house.app.agent(name="agent", version="1")(runs)
    handle = await house.submit("agent")
    house.start()
    await begun.wait()
    other = app_with(house, runs, "2")
    # To look is free.
    assert (await other.versions.rehearse(handle.id)).goes_on_at == ("slow#1",)
    with pytest.raises(VersionInUse, match="runs under version 1"):
        await adopted(other, handle)
    gate.set()
    assert (await house.ended(handle)).version == "1"
    with pytest.raises(TaskEnded):
        await adopted(other, handle)


async def test_what_moved_during_the_rehearsal_is_not_adopted(house: House) -> None:
    handle = await standing(house, old)

    async def meanwhile(task: TaskContext) -> Any:
        await handle.signal("go", "!")
        return await old(task)

    with pytest.raises(VersionInUse, match="went on"):
        await adopted(app_with(house, meanwhile, "2"), handle)
    assert (await handle.get()).version == "1"
    house.start()
    assert (await house.ended(handle)).result == "ab!"


async def test_adoption_needs_the_code_a_name_and_a_reason(house: House) -> None:
    handle = await standing(house, old)
    with pytest.raises(AgentNotFound):
        await house.deploy().versions.rehearse(handle.id)
    with pytest.raises(AgentNotFound):
        await adopted(house.app, handle, version="9")
    for given in ({"reason": "", "by": "kim"}, {"reason": "r", "by": ""}):
        with pytest.raises(InvalidKey):
            await house.app.versions.adopt(handle.id, **given)
    with pytest.raises(TaskNotFound):
        await adopted(house.app, handle, tenant="other")
