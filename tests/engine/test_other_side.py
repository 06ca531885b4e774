"""The sweep of the other side: effects that it holds, held against the ledger."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from tests.engine.house import House

from outlast import TaskContext, ToolCall
from outlast.core.retry import Backoff
from outlast.errors import ConfigurationError, ToolFailed
from outlast.testing.recorder import Recorder, Rule

SINCE = datetime(2020, 1, 1, tzinfo=UTC)


def register(house: House, recorder: Recorder, listing: Any = None) -> Any:
    """Register a tool whose effects can be listed, and an agent that calls it once."""

    async def made(call: ToolCall, since: datetime) -> list[Any]:
        assert since == SINCE
        found = await call.http.get(f"{recorder.url}/tickets")
        return [ticket["idempotency_key"] for ticket in found.json()]

    once = Backoff(base_s=0.01, max_s=0.01, jitter_s=0, attempts=1)

    @house.app.tool(effect="manual", list_effects=listing or made, timeout=1.0, retry=once)
    async def create(call: ToolCall) -> dict[str, Any]:
        reply = await call.http.post(f"{recorder.url}/tickets", json={"invoice": "INV-102", "amount": "1"})
        answer: dict[str, Any] = reply.json()
        return answer

    @house.app.agent
    async def files(task: TaskContext) -> str:
        try:
            return str((await task.call(create))["id"])
        except ToolFailed as error:
            return error.reason

    return files


async def post(recorder: Recorder, key: str) -> None:
    """Make a ticket past the ledger."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.post(
            f"{recorder.url}/tickets",
            json={"invoice": "INV-1", "amount": "1"},
            headers={"idempotency-key": key},
        )
    assert answer.status_code == 201


async def test_what_was_admitted_is_clean_whatever_became_of_it(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    assert (await house.run(files)).state == "succeeded"
    await recorder.plan(Rule.act_then_reset())
    await house.waits(await house.submit(files), "reconciliation")
    found = await house.app.operations.sweep_other_side("create", since=SINCE)
    assert (found.verdict, found.seen, found.unadmitted) == ("clean", 2, ())


async def test_what_the_ledger_never_admitted_is_named(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    view = await house.run(files)
    strangers = [f"{view.id}:create#2", "made by hand", "also:by:hand"]
    for key in strangers:
        await post(recorder, key)
    # Planned, and held back: an effect under this key was not ours either.
    await house.app.pauses.set("all", reason="r", by="kim")
    held = await house.submit(files)
    await house.waits(held, "operator")
    await post(recorder, f"{held.id}:create#1")
    found = await house.app.operations.sweep_other_side("create", since=SINCE)
    assert (found.verdict, found.seen) == ("unadmitted", 5)
    assert sorted(found.unadmitted) == sorted([*strangers, f"{held.id}:create#1"])


async def test_parts_of_a_key_and_what_a_fork_sent_are_admitted(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    view = await house.run(files)
    await post(recorder, f"{view.id}:create#1.second")
    await post(recorder, f"{view.id}:create#1.second.third")
    fork = await house.app.fork(view.id, before="create#1", reason="again", by="kim")
    await house.waits(fork, "reconciliation")
    operation = f"{fork.id}:create#1"
    await house.app.operations.settle(operation, "send_again", reason="r", by="kim", forced=True)
    assert (await house.ended(fork)).state == "succeeded"
    # The fork has an intent, under the key of the first task: nothing of it went out under its own.
    strangers = [f"{view.id}:create#2.second", operation]
    for key in strangers:
        await post(recorder, key)
    found = await house.app.operations.sweep_other_side("create", since=SINCE)
    assert (found.seen, sorted(found.unadmitted)) == (5, sorted(strangers))


async def test_another_tenants_effects_are_not_this_ones(house: House, recorder: Recorder) -> None:
    files = register(house, recorder)
    view = await house.run(files)
    found = await house.app.operations.sweep_other_side("create", since=SINCE, tenant="acme")
    assert (found.verdict, found.unadmitted) == ("unadmitted", (f"{view.id}:create#1",))


async def _raises(call: ToolCall, since: datetime) -> Any:
    raise KeyError("tickets")


async def _hangs(call: ToolCall, since: datetime) -> Any:
    await asyncio.Event().wait()


async def _nothing(call: ToolCall, since: datetime) -> Any:
    return None


@pytest.mark.parametrize(
    ("listing", "detail"), [(_raises, "KeyError"), (_hangs, "TimeoutError"), (_nothing, "TypeError")]
)
async def test_a_listing_that_fails_is_never_clean(
    house: House, recorder: Recorder, listing: Any, detail: str
) -> None:
    register(house, recorder, listing)
    found = await house.app.operations.sweep_other_side("create", since=SINCE)
    assert (found.verdict, found.seen, found.detail) == ("unknown", 0, detail)


async def test_only_tools_that_can_be_listed_are_swept(house: House) -> None:
    @house.app.tool(effect="read")
    async def look(call: ToolCall) -> None:
        return None

    for name in ("look", "nobody"):
        with pytest.raises(ConfigurationError, match="list_effects="):
            await house.app.operations.sweep_other_side(name, since=SINCE)
