"""Cancelling over HTTP: what is answered agrees with how the task ends."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.desk import PATIENCE_S, Desk, settings

from outlast.server import create_app

NOBODYS = "task_01jz8f5s9ve5ptq3mwr7n1k2bd"


async def cancel(desk: Desk, task: str, **body: Any) -> Any:
    return await desk.client.post(f"/v1/tasks/{task}/cancel", json=body)


async def test_a_task_that_nobody_runs_is_cancelled_at_once_and_again(desk: Desk) -> None:
    task = await desk.submitted("echo", value=1)
    answer = await cancel(desk, task, reason="not needed")
    assert (answer.status_code, answer.json()["state"], answer.json()["error"]) == (
        200,
        "cancelled",
        {"code": "cancelled", "message": "not needed"},
    )
    again = await cancel(desk, task, reason="once more")
    assert (again.status_code, again.json()) == (200, answer.json())
    events = (
        await desk.client.get(f"/v1/tasks/{task}/events", headers={"accept": "application/json"})
    ).json()
    assert [event["kind"] for event in events["items"]] == ["task.submitted", "task.cancelled"]
    assert events["items"][-1]["data"] == {"by": "person:local", "reason": "not needed", "effects_open": 0}
    trail = (await desk.client.get("/v1/audit")).json()["items"]
    assert [(item["who"], item["what"], item["reason"]) for item in trail] == [
        ("person:local", "cancel", "not needed")
    ]


async def test_a_task_that_runs_is_asked_to_end(desk: Desk) -> None:
    desk.work()
    task = await desk.submitted("stand")
    await desk.begun.wait()
    answer = await cancel(desk, task, reason="enough")
    assert (answer.status_code, answer.json()["id"]) == (202, task)
    assert answer.json()["cancelling"] or answer.json()["state"] == "cancelled"
    ended = await desk.app.wait(task, timeout=PATIENCE_S)
    assert (ended.state, ended.error) == ("cancelled", {"code": "cancelled", "message": "enough"})
    assert (await cancel(desk, task)).status_code == 200


async def test_a_task_that_ended_otherwise_answers_its_end(desk: Desk) -> None:
    task = await desk.ended("echo", value=7)
    answer = await cancel(desk, task)
    document = answer.json()
    assert (answer.status_code, document["code"], document["state"]) == (409, "task_ended", "succeeded")
    assert document["task"] == (await desk.client.get(f"/v1/tasks/{task}")).json()


async def test_nobody_cancels_what_is_not_theirs(desk: Desk) -> None:
    task = await desk.submitted("echo", value=1)
    api = create_app(desk.app, settings(api_keys="bolt:key-b"), manage=False)
    bolt = desk.client_of(api, authorization="Bearer key-b")
    for one in (task, NOBODYS, "nonsense"):
        answer = await bolt.post(f"/v1/tasks/{one}/cancel", json={})
        assert (answer.status_code, answer.json()["code"]) == (404, "task_not_found")
    assert (await desk.app.get(task)).state == "queued"


@pytest.mark.parametrize(
    "body", [{"reason": "x" * 2_001}, {"reason": 5}, {"reason": None}, {"why": "x"}, [], "now"]
)
async def test_a_request_that_cannot_be_read_changes_nothing(desk: Desk, body: Any) -> None:
    task = await desk.submitted("echo", value=1)
    answer = await desk.client.post(f"/v1/tasks/{task}/cancel", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert (await desk.app.get(task)).state == "queued"


async def test_a_web_page_cannot_cancel_anything(desk: Desk) -> None:
    task = await desk.submitted("echo", value=1)
    for kind in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
        answer = await desk.client.post(f"/v1/tasks/{task}/cancel", content=b"{}", headers=kind)
        assert answer.status_code == 415
    assert (await desk.app.get(task)).state == "queued"


async def test_children_are_listed_by_their_parent(desk: Desk) -> None:
    desk.work()
    task = await desk.ended("parent", count=3)
    shown = (await desk.client.get(f"/v1/tasks/{task}")).json()
    assert (shown["children"], shown["parent"], shown["asks"], shown["cancelling"]) == (3, None, 0, False)
    page = (await desk.client.get("/v1/tasks", params={"parent": task, "limit": 2})).json()
    rest = (await desk.client.get("/v1/tasks", params={"parent": task, "before": page["next"]})).json()
    children = page["items"] + rest["items"]
    assert {child["parent"] for child in children} == {task}
    assert len({child["id"] for child in children}) == 3
    assert (await desk.client.get("/v1/tasks", params={"parent": NOBODYS})).json()["items"] == []
    assert (await desk.client.get("/v1/tasks", params={"parent": "nonsense"})).status_code == 422


async def test_a_reason_that_is_no_text_is_refused_and_cancels_nothing(desk: Desk) -> None:
    task = await desk.submitted("echo", value=1)
    answer = await cancel(desk, task, reason="a\x00b")
    document = answer.json()
    assert (answer.status_code, document["code"]) == (422, "invalid_request")
    assert "U+0000" in document["detail"]
    assert (await desk.client.get(f"/v1/tasks/{task}")).json()["state"] == "queued"
