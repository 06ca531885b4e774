"""Switches and the audit trail over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.desk import PATIENCE_S, Desk, settings

from outlast import TaskContext, ToolCall
from outlast.server import create_app
from outlast.store.reconciling import EVERY_TENANT

WHY = {"reason": "wrong cost centre", "by": "ada"}


async def test_a_switch_stops_new_calls_until_it_is_cleared(desk: Desk) -> None:
    called: list[str] = []

    @desk.app.tool(effect="idempotent")
    async def ring(call: ToolCall) -> str:
        called.append(call.task)
        return "rung"

    @desk.app.agent
    async def caller(task: TaskContext) -> Any:
        return await task.call(ring)

    set_ = await desk.client.put("/v1/pauses/tool:ring", json=WHY)
    assert (set_.status_code, set_.json()["scope"], set_.json()["everybody"]) == (200, "tool:ring", False)
    assert (set_.json()["reason"], set_.json()["by"]) == (WHY["reason"], "ada")
    assert (await desk.client.get("/v1/pauses/tool:ring")).json() == set_.json()
    assert (await desk.client.get("/v1/pauses")).json() == {"items": [set_.json()], "next": None}
    desk.work()
    task = await desk.submitted("caller")
    await desk.waiting(task)
    assert called == []
    cleared = await desk.client.delete("/v1/pauses/tool:ring", params={"reason": "corrected", "by": "ada"})
    assert (cleared.status_code, cleared.content) == (204, b"")
    assert (await desk.app.wait(task, timeout=PATIENCE_S)).result == "rung"
    assert called == [task]
    trail = (await desk.client.get("/v1/audit")).json()
    assert [(item["who"], item["what"], item["reason"]) for item in trail["items"]] == [
        ("ada", "pause:tool:ring", "wrong cost centre"),
        ("ada", "resume:tool:ring", "corrected"),
    ]
    assert trail["next"] is None


async def test_what_does_not_stand_is_404(desk: Desk) -> None:
    for answer in (
        await desk.client.get("/v1/pauses/all"),
        await desk.client.delete("/v1/pauses/all?reason=r"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("scope", ["everything", "tool:", "tool:a%20b", "agent:x", "ALL"])
async def test_a_scope_that_is_none_is_refused(desk: Desk, scope: str) -> None:
    for answer in (
        await desk.client.put(f"/v1/pauses/{scope}", json=WHY),
        await desk.client.get(f"/v1/pauses/{scope}"),
        await desk.client.delete(f"/v1/pauses/{scope}?reason=r"),
    ):
        assert (answer.status_code, answer.json()["errors"][0]["name"]) == (422, "scope")


async def test_reasons_are_asked_for(desk: Desk) -> None:
    for body in ({}, {"reason": ""}, {"reason": "a\x00"}, {"reason": "r", "who": "ada"}):
        assert (await desk.client.put("/v1/pauses/all", json=body)).status_code == 422
    await desk.client.put("/v1/pauses/all", json={"reason": "r"})
    assert (await desk.client.delete("/v1/pauses/all")).status_code == 422
    assert (await desk.client.get("/v1/pauses/all")).json()["by"] == "local"


async def test_a_switch_for_everybody_is_seen_and_is_not_a_tenants_to_clear(desk: Desk) -> None:
    await desk.app.pauses.set("all", reason="the bank is down", by="kim", tenant=EVERY_TENANT)
    seen = (await desk.client.get("/v1/pauses/all")).json()
    assert (seen["everybody"], seen["by"]) == (True, "kim")
    assert (await desk.client.delete("/v1/pauses/all?reason=r")).status_code == 404
    await desk.client.put("/v1/pauses/all", json=WHY)
    assert (await desk.client.get("/v1/pauses/all")).json()["everybody"] is False
    assert [item["everybody"] for item in (await desk.client.get("/v1/pauses")).json()["items"]].count(
        True
    ) == 1
    assert (await desk.client.delete("/v1/pauses/all?reason=r")).status_code == 204
    assert (await desk.client.get("/v1/pauses/all")).json() == seen


async def test_each_tenant_has_switches_and_a_trail_of_its_own(desk: Desk) -> None:
    api = create_app(desk.app, settings(api_keys="acme:key-a,bolt:key-b"), manage=False)
    acme, bolt = (desk.client_of(api, authorization=f"Bearer key-{name}") for name in "ab")
    for number in range(3):
        await acme.put("/v1/pauses/all", json={"reason": f"reason {number}"})
    assert (await bolt.get("/v1/pauses/all")).status_code == 404
    assert (await bolt.get("/v1/audit")).json()["items"] == []
    page = (await acme.get("/v1/audit?limit=2")).json()
    rest = (await acme.get("/v1/audit", params={"limit": 2, "after": page["next"]})).json()
    assert [item["reason"] for item in page["items"] + rest["items"]] == ["reason 0", "reason 1", "reason 2"]
    assert {item["who"] for item in page["items"]} == {"key of acme"}
