"""What ``outlast check`` finds in an app, and in what its database holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine.house import House

from outlast import Outlast, TaskContext, ToolCall, Uncertain, clock
from outlast.checking import Finding, check_declared, check_stored
from outlast.store.records import SessionRenewal

SECOND = 1_000_000


class Shifted(clock.MachineSeams):
    """The machine's own clocks, with a wall clock that is set wrongly."""

    def __init__(self, by_us: int) -> None:
        self.by_us = by_us

    def unix_us(self) -> int:
        return super().unix_us() + self.by_us


@pytest.fixture
def shifted() -> Iterator[Shifted]:
    """Wall clocks of this test, which is right until it is told otherwise."""
    seams = Shifted(0)
    clock.install(seams)
    yield seams
    clock.install(None)


def codes(found: Any) -> set[tuple[str, str]]:
    return {(one.code, one.about) for one in found}


async def stored(app: Outlast, *, declares: bool = True) -> dict[tuple[str, str], Finding]:
    found = await check_stored(app, tenant="default", declares=declares)
    return {(one.code, one.about): one for one in found}


def say(house: House, name: str, **says: Any) -> Any:
    """Have a living session that says something of itself."""
    renewal = SessionRenewal(
        session=f"sess-{name}", name=name, ttl_us=60 * SECOND, serves=json.dumps({"agents": [], **says})
    )
    return house.store.renew(renewal)


# -- what an app declares ----------------------------------------------------------------------------------


def test_a_tool_is_asked_for_what_its_effect_class_lives_on() -> None:
    app = Outlast("tests", secret="s" * 32)

    async def find(call: ToolCall) -> None: ...

    @app.tool(effect="read")
    async def look(call: ToolCall) -> None: ...

    @app.tool(effect="queryable", find=find, business_key="{invoice}")
    async def blind(call: ToolCall, invoice: str) -> None: ...

    @app.tool(effect="queryable", find=find, visible_within="5s", business_key="{invoice}", once="1h")
    async def whole(call: ToolCall, invoice: str) -> None: ...

    @app.tool(effect="keyed", key_window="24h", business_key="{invoice}")
    async def mute(call: ToolCall, invoice: str) -> None: ...

    @app.tool(effect="keyed", key_window="24h", find=find)
    async def twice(call: ToolCall, invoice: str) -> None: ...

    found = list(check_declared(app))
    assert codes(found) == {("visible_within", "blind"), ("find", "mute"), ("business_key", "twice")}
    assert {one.level for one in found} == {"warning"}


def test_what_keeps_workers_from_starting_is_an_error() -> None:
    app = Outlast("tests", secret="short")

    @app.tool(effect="read", gateway=True)
    async def look(call: ToolCall) -> None: ...

    @app.tool(effect="idempotent", undo="nothing", business_key="{invoice}")
    async def file(call: ToolCall, invoice: str) -> None: ...

    found = list(check_declared(app))
    assert {one.level for one in found} == {"error"}
    assert codes(found) == {("undo", "this app"), ("secret", "this app"), ("gateway", "look")}


# -- what the database holds -------------------------------------------------------------------------------


async def test_a_quiet_system_has_no_findings(house: House) -> None:
    @house.app.agent
    async def quick(task: TaskContext) -> int:
        return 1

    assert await stored(house.app) == {}
    await house.run(quick)
    assert await stored(house.app) == {}


async def test_workers_that_declare_a_tool_differently_are_named(house: House) -> None:
    @house.app.tool(effect="idempotent", name="file")
    async def file(call: ToolCall) -> None: ...

    other = house.deploy()

    @other.tool(effect="manual", name="file")
    async def file_too(call: ToolCall) -> None: ...

    @house.app.agent
    async def quick(task: TaskContext) -> int:
        return 1

    # Not before its session stands.
    await house.run(quick)
    assert await stored(house.app) == {}
    ours = (await house.store.list_sessions())[0].name
    found = (await stored(other))["effect_differs", "file"]
    assert found.message == f"is declared differently: idempotent for {ours}; manual for this app"
    # Two workers, whatever this app declares.
    await say(house, "old-one", tools={"file": "keyed"})
    found = (await stored(other, declares=False))["effect_differs", "file"]
    assert found.message == f"is declared differently: idempotent for {ours}; keyed for old-one"
    # Those that are gone declare nothing.
    await house.stop()
    await house.store.retire("sess-old-one")
    assert await stored(other) == {}


async def test_versions_that_tasks_need_and_nobody_serves_are_named(house: House) -> None:
    app = house.app

    @app.agent(name="waits", version="1")
    async def first(task: TaskContext) -> Any:
        return await task.wait("go")

    handle = await house.submit(first)
    house.start()
    await house.waits(handle, "signal")
    assert await stored(app) == {}
    await house.stop()
    found = await stored(app)
    assert set(found) == {("no_worker", "workers")}
    assert found["no_worker", "workers"].message == "tasks live (1), and no worker does"
    newer = house.deploy()

    @newer.agent(name="waits", version="2")
    async def second(task: TaskContext) -> Any:
        return await task.wait("go")

    assert set(await stored(newer)) == {("no_worker", "workers"), ("version_unserved", "waits")}
    await say(house, "newer", agents=[["waits", "2"]])
    found = await stored(newer)
    assert set(found) == {("version_unserved", "waits")}
    one = found["version_unserved", "waits"]
    assert one.message == "version 1 is needed by live tasks (1) and served by no living worker"
    assert "does not have it" in one.hint
    assert "this app has it" in (await stored(app))["version_unserved", "waits"].hint
    nobodys = (await stored(Outlast("cli", store=house.store), declares=False))["version_unserved", "waits"]
    assert nobodys.hint.startswith("start a worker that has it")


async def test_unknown_calls_that_no_living_worker_can_settle_are_named(house: House) -> None:
    @house.app.tool(effect="manual")
    async def send(call: ToolCall) -> None:
        raise Uncertain("nobody knows")

    @house.app.agent
    async def sends(task: TaskContext) -> None:
        await task.call(send)

    handle = await house.app.submit(sends, {}, tenant="acme")
    house.start()
    await house.waits(handle, "reconciliation")
    assert await stored(house.app) == {}
    await house.stop()
    await say(house, "another", agents=[["sends", "1"]], tools={"other": "read"})
    found = await stored(house.app)
    assert set(found) == {("unknown_unserved", "send")}
    assert found["unknown_unserved", "send"].message.startswith("calls of it are unknown (1), ")


async def test_a_block_in_a_scope_of_the_ledger_serves_nobody_else(house: House) -> None:
    @house.app.tool(effect="manual")
    async def send(call: ToolCall) -> None:
        raise Uncertain("nobody knows")

    @house.app.agent
    async def sends(task: TaskContext) -> None:
        await task.call(send)

    handle = await house.submit(sends)
    house.start()
    await house.waits(handle, "reconciliation")
    await house.stop()
    async with house.app.ledger("a-scope"):
        assert set(await stored(house.app)) == {("no_worker", "workers"), ("unknown_unserved", "send")}


async def test_standing_rules_that_stand_for_nothing_or_cannot_be_read_are_named(
    house: House, backdoor: Any
) -> None:
    @house.app.tool(effect="idempotent", approval=lambda: True)
    async def file(call: ToolCall) -> None: ...

    await house.app.rules.put("file", "deny", reason="r", by="kim", bounds={"amount": {"max": 3}})
    assert await stored(house.app) == {}
    await house.app.rules.put("renamed", "deny", reason="r", by="kim")
    assert set(await stored(house.app)) == {("rule_without_tool", "renamed")}
    assert await stored(house.app, declares=False) == {}
    prefix = "outlast." if backdoor.dialect == "postgres" else ""
    await backdoor.run(f"update {prefix}rules set bounds = '{{\"amount\": 3}}' where tool = 'file'")
    found = await stored(house.app)
    assert found["rule", "file"].level == "error"


@pytest.mark.parametrize("ahead_s", [90, -90])
async def test_clocks_that_differ_from_the_databases_are_named(
    house: House, shifted: Shifted, ahead_s: int
) -> None:
    @house.app.agent
    async def quick(task: TaskContext) -> int:
        return 1

    word = "ahead of" if ahead_s > 0 else "behind"
    shifted.by_us = ahead_s * SECOND
    handle = await house.submit(quick)
    worker = house.start()
    await house.ended(handle)
    # A renewal says what was seen at the last one.
    assert await worker.session.renew()
    found = await stored(house.app)
    names = {"this machine", f"worker {worker.settings.name}"}
    assert {about for _, about in found} == names
    for one in found.values():
        assert one.message.startswith(("its wall clock is 90.0 s " + word, "its wall clock is 89."))
    shifted.by_us = 0
    assert {about for _, about in await stored(house.app)} == {f"worker {worker.settings.name}"}


def test_a_clock_differs_only_by_what_is_sure() -> None:
    assert clock.ahead_us(100, 150, 200) == 0
    assert clock.ahead_us(100, 90, 200) == 10
    assert clock.ahead_us(100, 260, 200) == -60
