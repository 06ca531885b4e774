"""Schedules over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.server.desk import Desk, settings

from outlast.engine.housekeeping.schedules import fire_due
from outlast.server import create_app

NIGHTLY = {"agent": "echo", "input": {"value": 7}, "cron": "30 2 * * *", "zone": "Europe/Berlin"}
WHY = {"reason": "the auditors", "by": "ada"}
HERE = "/v1/schedules/nightly"


async def test_a_schedule_is_made_replaced_and_deleted(desk: Desk) -> None:
    made = await desk.client.put(HERE, json={**NIGHTLY, **WHY})
    assert (made.status_code, made.headers["etag"], made.headers["location"]) == (201, '"1"', HERE)
    body = made.json()
    assert (body["cron"], body["zone"], body["every"], body["at"]) == (
        "30 2 * * *",
        "Europe/Berlin",
        None,
        None,
    )
    assert (body["revision"], body["missed"], body["overlap"], body["input"]) == (
        1,
        "once",
        "allow",
        {"value": 7},
    )
    assert body["next_at"].endswith((":30:00Z", ":00:00Z"))
    read = await desk.client.get(HERE)
    assert (read.json(), read.headers["etag"]) == (body, '"1"')
    again = await desk.client.put(HERE, json={**NIGHTLY, **WHY})
    assert (again.status_code, again.json()) == (200, body)
    other = await desk.client.put(HERE, json={**NIGHTLY, "overlap": "skip"}, headers={"If-Match": '"1"'})
    assert (other.status_code, other.headers["etag"], other.json()["overlap"]) == (200, '"2"', "skip")
    gone = await desk.client.delete(HERE, params=WHY, headers={"If-Match": '"2"'})
    assert (gone.status_code, gone.content) == (204, b"")
    assert (await desk.client.get(HERE)).status_code == 404
    trail = (await desk.client.get("/v1/audit")).json()["items"]
    assert [(item["who"], item["what"], item["subject"], item["reason"]) for item in trail] == [
        ("ada", "schedule:create", "nightly", "the auditors"),
        ("local", "schedule:replace", "nightly", ""),
        ("ada", "schedule:delete", "nightly", "the auditors"),
    ]


async def test_a_schedule_fires_over_the_api_as_it_does_elsewhere(desk: Desk) -> None:
    at = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    await desk.client.put("/v1/schedules/now", json={"agent": "echo", "input": {"value": 1}, "at": at})
    await fire_due(desk.store)
    body = (await desk.client.get("/v1/schedules/now")).json()
    assert (body["fired"], body["next_at"]) == (1, None)
    task = (await desk.client.get(f"/v1/tasks/{body['last_task']}")).json()
    assert task["key"] == f"schedule:now:{body['last_at']}"
    page = await desk.client.get(
        f"/v1/tasks/{body['last_task']}/events", headers={"accept": "application/json"}
    )
    [event] = page.json()["items"]
    assert (event["data"]["schedule"], event["data"]["instant"]) == ("now", body["last_at"])


async def test_another_revision_than_the_one_seen_is_412(desk: Desk) -> None:
    absent = await desk.client.put(HERE, json=NIGHTLY, headers={"If-Match": '"3"'})
    assert (absent.status_code, absent.json()["code"], absent.json()["revision"]) == (
        412,
        "schedule_conflict",
        0,
    )
    new = {"If-None-Match": "*"}
    assert (await desk.client.put(HERE, json=NIGHTLY, headers=new)).status_code == 201
    for answer in (
        await desk.client.put(HERE, json={**NIGHTLY, "priority": 1}, headers=new),
        await desk.client.put(HERE, json={**NIGHTLY, "priority": 1}, headers={"If-Match": '"2"'}),
        await desk.client.delete(HERE, headers={"If-Match": '"2"'}),
        await desk.client.post(f"{HERE}/pause", json=WHY, headers={"If-Match": '"2"'}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (412, "schedule_conflict")
        assert answer.json()["revision"] == 1
    for headers in ({"If-Match": "*"}, {"If-Match": '"a"'}, {"If-Match": "1"}, {"If-None-Match": '"1"'}):
        answer = await desk.client.put(HERE, json=NIGHTLY, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request"), headers


async def test_a_schedule_is_paused_and_goes_on(desk: Desk) -> None:
    await desk.client.put(HERE, json=NIGHTLY)
    paused = await desk.client.post(f"{HERE}/pause", json=WHY)
    assert paused.status_code == 200
    body = paused.json()
    assert (body["paused"], body["paused_by"], body["next_at"]) == ("the auditors", "ada", None)
    resumed = await desk.client.post(f"{HERE}/resume", json=WHY, headers={"If-Match": paused.headers["etag"]})
    body = resumed.json()
    assert (body["paused"], body["revision"], resumed.headers["etag"]) == (None, 3, '"3"')
    instants = (await desk.client.get(f"{HERE}/next", params={"count": 3})).json()
    assert (len(instants["items"]), instants["items"][0]) == (3, body["next_at"])


async def test_lists_go_on_where_the_page_before_ended(desk: Desk) -> None:
    for name in ("c", "a", "b"):
        await desk.client.put(f"/v1/schedules/{name}", json={"agent": "echo", "every": "1h"})
    first = (await desk.client.get("/v1/schedules?limit=2")).json()
    assert ([each["id"] for each in first["items"]], first["next"]) == (["a", "b"], "b")
    rest = (await desk.client.get("/v1/schedules", params={"limit": 2, "after": first["next"]})).json()
    assert ([each["id"] for each in rest["items"]], rest["next"]) == (["c"], None)


EVERY = {"agent": "echo", "every": 60}
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("s", {"agent": "echo", "cron": "0 0 30 2 *"}, "invalid_schedule", "/cron"),
    ("s", {"agent": "echo", "cron": "0 0 * * *", "zone": "Mars/Olympus_Mons"}, "invalid_schedule", "/zone"),
    ("s", {"agent": "echo"}, "invalid_schedule", ""),
    ("s", {**EVERY, "cron": "0 0 * * *"}, "invalid_schedule", ""),
    ("s", {"agent": "echo", "every": 0.1}, "invalid_schedule", "/every"),
    ("s", {"agent": "echo", "every": 0}, "invalid_request", "/every"),
    ("s", {"agent": "echo", "every": f"{300 * 365}d"}, "invalid_request", "/every"),
    ("s", {"agent": "echo", "at": "2020-01-01T00:00:00Z"}, "invalid_schedule", "/at"),
    ("s", {"agent": "echo", "at": "2030-01-01T00:00:00"}, "invalid_request", "/at"),
    ("s", {**EVERY, "missed": "never"}, "invalid_request", "/missed"),
    ("s", {**EVERY, "max_missed": 0}, "invalid_request", "/max_missed"),
    ("s", {**EVERY, "jitter": "2d"}, "invalid_schedule", "/jitter"),
    ("s", {**EVERY, "agent": "nobody"}, "agent_not_found", ""),
    ("s", {**EVERY, "agent": "a b"}, "invalid_request", "/agent"),
    ("s", {**EVERY, "input": {"wrong": 1}}, "invalid_input", "/input/wrong"),
    ("s", {**EVERY, "when": 1}, "invalid_request", "/when"),
    ("x" * 121, EVERY, "invalid_key", ""),
    ("%20", EVERY, "invalid_key", ""),
    ("a%09b", EVERY, "invalid_key", ""),
    ("a%20b", EVERY, "invalid_key", ""),
]


@pytest.mark.parametrize(("id", "body", "code", "pointer"), REFUSED, ids=lambda value: str(value)[:30])
async def test_nonsense_is_refused_and_nothing_is_stored(
    desk: Desk, id: str, body: dict[str, Any], code: str, pointer: str
) -> None:
    answer = await desk.client.put(f"/v1/schedules/{id}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    if pointer:
        assert answer.json()["errors"][0]["pointer"] == pointer
    assert (await desk.store.dump())["schedules"] == []


async def test_a_page_goes_on_behind_ids_only(desk: Desk) -> None:
    answer = await desk.client.get("/v1/schedules?after=a%00b")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_key")


async def test_what_is_not_there_is_404(desk: Desk) -> None:
    for id in ("none", "x" * 300, "a%20b"):
        here = f"/v1/schedules/{id}"
        for answer in (
            await desk.client.get(here),
            await desk.client.delete(here),
            await desk.client.get(f"{here}/next"),
            await desk.client.post(f"{here}/pause", json=WHY),
            await desk.client.post(f"{here}/resume", json=WHY),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "schedule_not_found")


async def test_each_tenant_has_its_own(desk: Desk) -> None:
    api = create_app(desk.app, settings(api_keys="acme:key-a,globex:key-g"), manage=False)
    acme = desk.client_of(api, authorization="Bearer key-a")
    globex = desk.client_of(api, authorization="Bearer key-g")
    made = (await acme.put(HERE, json=NIGHTLY)).json()
    assert (made["tenant"], made["changed_by"]) == ("acme", "key of acme")
    assert (await globex.get(HERE)).status_code == 404
    assert (await globex.delete(HERE)).status_code == 404
    assert (await globex.get("/v1/schedules")).json()["items"] == []
    assert (await globex.put(HERE, json=NIGHTLY)).status_code == 201
    assert (await acme.get("/v1/schedules")).json()["items"] == [made]
    await acme.aclose()
    await globex.aclose()
