"""An idempotency key binds what the caller asked for, in every part, and nothing that we add to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.engine.house import House

from outlast import Outlast, TaskContext
from outlast.errors import IdempotencyConflict

KEY = "INV-102"
INSTANT = datetime(2100, 1, 1, tzinfo=UTC)
ASKED: dict[str, Any] = {
    "agent": "pay",
    "input": {"amount": 1},
    "user": "ada",
    "pool": "batch",
    "priority": 5,
    "deadline": "10m",
    "run_at": INSTANT,
    "version": "1",
    "budget": {"operations": 3},
}
OTHERS: dict[str, Any] = {
    "agent": "refund",
    "input": {"amount": 2},
    "user": "bob",
    "pool": "default",
    "priority": 6,
    "deadline": "11m",
    "run_at": INSTANT + timedelta(microseconds=1),
    "version": "2",
    "budget": {"operations": 4},
}


def agents(app: Outlast, *, deadline: str | None = None, pool: str = "default") -> None:
    async def pay(task: TaskContext, amount: int = 0) -> int:
        return amount

    for name in ("pay", "refund"):
        for version in ("1", "2"):
            app.agent(pay, name=name, version=version, deadline=deadline, pool=pool)


@pytest.mark.parametrize("part", ASKED)
async def test_another_request_is_refused_whatever_differs(house: House, part: str) -> None:
    agents(house.app)
    first = await house.app.submit(**ASKED, key=KEY)
    with pytest.raises(IdempotencyConflict, match=first.id):
        await house.app.submit(**{**ASKED, part: OTHERS[part]}, key=KEY)
    again = await house.app.submit(**ASKED, key=KEY)
    assert (again.id, again.replayed) == (first.id, True)


@pytest.mark.parametrize("part", [part for part in ASKED if part != "agent"])
async def test_what_was_left_out_is_another_request_than_what_was_said(house: House, part: str) -> None:
    """Also where it says what would have been taken anyway."""
    agents(house.app, deadline="10m", pool="batch")
    first = await house.app.submit(**ASKED, key=KEY)
    less = {name: value for name, value in ASKED.items() if name != part}
    with pytest.raises(IdempotencyConflict, match=first.id):
        await house.app.submit(**less, key=KEY)


async def test_what_a_deploy_or_a_trace_adds_is_the_same_request(house: House) -> None:
    agents(house.app)
    first = await house.app.submit(
        "pay", {"amount": 1}, key=KEY, trace="00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    )
    deployed = house.deploy()
    agents(deployed, deadline="5m", pool="batch")
    async with deployed:
        again = await deployed.submit("pay", {"amount": 1}, key=KEY)
    assert (again.id, again.replayed) == (first.id, True)
