"""Checks: finished is not accepted, and a check that cannot say anything changes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.house import PATIENCE_S, House

from outlast import Accept, Outlast, Reject, TaskContext
from outlast.engine import acceptance
from outlast.errors import ConfigurationError


async def verdicts(house: House, task: str) -> list[tuple[str, str, str, Any]]:
    return [(one.verdict, one.by, one.reason, one.evidence) for one in await house.app.acceptances(task)]


def accepts(result: int) -> bool:
    return result == 7


async def says(result: int) -> Any:
    return True if result == 7 else f"{result} is not 7"


def compares(given: dict[str, Any], result: int) -> Any:
    if result == given["wanted"]:
        return Accept("as wanted", {"seen": result})
    return Reject("another number", {"seen": result})


@pytest.mark.parametrize(
    ("check", "result", "verdict"),
    [
        (accepts, 7, ("accepted", "", {})),
        (accepts, 8, ("rejected", "the check says no", {})),
        (says, 7, ("accepted", "", {})),
        (says, 8, ("rejected", "8 is not 7", {})),
        (compares, 7, ("accepted", "as wanted", {"seen": 7})),
        (compares, 8, ("rejected", "another number", {"seen": 8})),
    ],
)
async def test_a_verdict_stands_beside_the_result(
    house: House, check: Any, result: int, verdict: tuple[str, str, Any]
) -> None:
    @house.app.agent(check=check)
    async def agent(task: TaskContext, wanted: int, result: int) -> int:
        return result

    view = await house.run(agent, wanted=7, result=result)
    assert (view.state, view.result, view.accepted) == ("succeeded", result, verdict[0])
    said, reason, evidence = verdict
    assert await verdicts(house, view.id) == [(said, f"checker:{check.__name__}", reason, evidence)]
    assert (await house.operations(view))["check!"].kind == "step"
    assert await house.violations() == []


async def test_a_person_may_overrule_the_check(house: House) -> None:
    @house.app.agent(check=accepts)
    async def agent(task: TaskContext) -> int:
        return 8

    view = await house.run(agent)
    assert view.accepted == "rejected"
    await house.app.accept(view.id, "accepted", reason="8 will do", by="kim", seen=1)
    assert (await house.app.get(view.id)).accepted == "accepted"
    assert [one[0] for one in await verdicts(house, view.id)] == ["rejected", "accepted"]


def raises(result: int) -> Any:
    raise LookupError("no ruler")


def forgets(result: int) -> Any:
    return None


def babbles(result: int) -> Any:
    return Reject("no", object())


@pytest.mark.parametrize(
    ("check", "said"), [(raises, "no ruler"), (forgets, "NoneType"), (babbles, "/evidence")]
)
async def test_a_check_that_says_nothing_is_no_verdict(house: House, check: Any, said: str) -> None:
    @house.app.agent(check=check)
    async def agent(task: TaskContext) -> int:
        return 7

    handle = await house.submit(agent)
    house.start()
    view = await house.ended(handle)
    assert (view.state, view.result, view.accepted) == ("succeeded", 7, None)
    assert await verdicts(house, view.id) == []
    (log,) = [event for event in await house.events(handle) if event.kind == "log"]
    assert log.data["message"].startswith("the result was not checked: ")
    assert said in log.data["message"]
    assert await house.violations() == []


async def test_a_check_that_takes_too_long_is_no_verdict(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "TIME_S", 0.05)

    async def sleeps(result: int) -> bool:
        await asyncio.Event().wait()
        return True

    @house.app.agent(check=sleeps)
    async def agent(task: TaskContext) -> int:
        return 7

    view = await house.run(agent)
    assert (view.state, view.accepted) == ("succeeded", None)


async def test_a_failure_is_not_checked_and_budgets_do_not_count_the_check(house: House) -> None:
    checked: list[Any] = []

    def check(result: Any) -> bool:
        checked.append(result)
        return True

    @house.app.agent(check=check)
    async def agent(task: TaskContext, fails: bool) -> int:
        if fails:
            raise LookupError
        return 7

    failed = await house.submit(agent, fails=True)
    bound = await house.app.submit(agent, {"fails": False}, budget={"operations": 0})
    house.start()
    assert (await house.ended(failed)).state == "failed"
    assert (await house.ended(bound)).accepted == "accepted"
    assert checked == [7]


async def test_the_deadline_does_not_cut_the_look_at_work_that_is_done(house: House) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def check(result: int) -> bool:
        begun.set()
        await release.wait()
        return True

    @house.app.agent(check=check)
    async def agent(task: TaskContext) -> int:
        return 7

    handle = await house.app.submit(agent, deadline=0.5)
    # The sweeper gives it its grace time after the deadline.
    house.start()
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
    deadline_at = (await handle.get()).deadline_at
    assert deadline_at is not None
    async with asyncio.timeout(PATIENCE_S):
        while (await house.store.health()).now <= deadline_at.timestamp() * 1_000_000:
            await house.store.wakes.wait("events", 0.05)
    release.set()
    view = await house.ended(handle)
    assert (view.state, view.accepted) == ("succeeded", "accepted")


@pytest.mark.parametrize("check", [lambda: True, lambda a, b, c: True, lambda a, *, b: True])
def test_a_check_takes_the_result_or_the_input_and_the_result(check: Any) -> None:
    app = Outlast("tests")
    with pytest.raises(ConfigurationError, match="takes the result"):

        @app.agent(check=check)
        async def agent(task: TaskContext) -> None: ...
