"""Signals over HTTP: stored before they are answered, once a key, whatever the task does meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.server.desk import JSON, PATIENCE_S, Desk, settings

from outlast.server import create_app
from outlast.store.posting import Posted

NOBODYS = "task_01jz8f5s9ve5ptq3mwr7n1k2bd"


async def send(desk: Desk, task: str, data: Any, name: str = "word", **headers: str) -> Any:
    return await desk.client.post(
        f"/v1/tasks/{task}/signals/{name}", content=json.dumps(data), headers={**JSON, **headers}
    )


async def lying(desk: Desk) -> int:
    return len((await desk.store.dump())["inbox"])


async def test_signals_reach_the_task_in_order_before_and_while_it_waits(desk: Desk) -> None:
    task = await desk.submitted("listen", times=3)
    first = await send(desk, task, {"n": 1})
    assert (first.status_code, first.json()) == (202, {"task": task, "name": "word", "number": 1})
    desk.work()
    await desk.waiting(task)
    assert (await send(desk, task, None)).status_code == 202
    assert (await send(desk, task, [3])).json()["number"] == 3
    view = await desk.app.wait(task, timeout=PATIENCE_S)
    assert view.result == [{"n": 1}, None, [3]]
    page = await desk.client.get(f"/v1/tasks/{task}/events", headers={"accept": "application/json"})
    events = page.json()["items"]
    assert [event["data"] for event in events if event["kind"] == "signal.received"] == [
        {"name": "word", "number": number} for number in (1, 2, 3)
    ]
    async with desk.client.stream("GET", f"/v1/tasks/{task}/events") as stream:
        text = "".join([line + "\n" async for line in stream.aiter_lines()])
    assert text.count("event: signal.received\n") == 3


async def test_a_body_may_be_left_out(desk: Desk) -> None:
    task = await desk.submitted("listen", times=1)
    answer = await desk.client.post(f"/v1/tasks/{task}/signals/word", headers=JSON)
    assert answer.status_code == 202
    desk.work()
    assert (await desk.app.wait(task, timeout=PATIENCE_S)).result == [None]


@pytest.mark.parametrize("key", ["p-1", '"p-1"'])
async def test_the_same_key_stores_one_signal(desk: Desk, key: str) -> None:
    task = await desk.submitted("listen", times=1)
    first = await send(desk, task, {"amount": 5}, **{"idempotency-key": "p-1"})
    assert "idempotent-replayed" not in first.headers
    again = await send(desk, task, {"amount": 5}, **{"idempotency-key": key})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (202, "true")
    assert again.json() == first.json()
    other = await send(desk, task, {"amount": 6}, **{"idempotency-key": key})
    assert (other.status_code, other.json()["code"]) == (422, "signal_conflict")
    assert await lying(desk) == 1
    desk.work()
    assert (await desk.app.wait(task, timeout=PATIENCE_S)).result == [{"amount": 5}]
    late = await send(desk, task, {"amount": 5}, **{"idempotency-key": key})
    assert (late.status_code, late.headers["idempotent-replayed"]) == (202, "true")


async def test_a_task_that_is_over_takes_no_more(desk: Desk) -> None:
    task = await desk.ended("echo", value=1)
    answer = await send(desk, task, 1)
    assert (answer.status_code, answer.json()["code"], answer.json()["state"]) == (
        409,
        "task_ended",
        "succeeded",
    )
    assert await lying(desk) == 0


async def test_an_inbox_that_is_full_says_when_to_come_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await desk.submitted("listen", times=1)

    async def full(signals: Any) -> Any:
        return [Posted(kind="full")]

    monkeypatch.setattr(desk.store, "post", full)
    answer = await send(desk, task, 1)
    assert (answer.status_code, answer.json()["code"]) == (429, "inbox_full")
    assert int(answer.headers["retry-after"]) >= 1


async def test_others_tasks_do_not_exist_and_nothing_is_stored(desk: Desk) -> None:
    task = await desk.submitted("listen", times=1)
    api = create_app(desk.app, settings(api_keys="bolt:key-b"), manage=False)
    bolt = desk.client_of(api, authorization="Bearer key-b")
    for one in (task, NOBODYS, "nonsense"):
        answer = await bolt.post(f"/v1/tasks/{one}/signals/word", json=1)
        assert (answer.status_code, answer.json()["code"]) == (404, "task_not_found")
    assert await lying(desk) == 0


@pytest.mark.parametrize(
    ("name", "status"), [("a%20b", 422), ("%00", 422), ("", 422), ("callback:x", 422), ("x" * 121, 422)]
)
async def test_a_name_that_is_none_is_refused(desk: Desk, name: str, status: int) -> None:
    task = await desk.submitted("listen", times=1)
    assert (await send(desk, task, 1, name)).status_code == status
    assert await lying(desk) == 0


async def test_a_name_may_have_a_slash(desk: Desk) -> None:
    task = await desk.submitted("listen", times=1)
    assert (await send(desk, task, 1, "bank/paid")).json()["name"] == "bank/paid"


async def test_what_is_too_large_is_refused_by_name(desk: Desk) -> None:
    task = await desk.submitted("listen", times=1)
    for size, status, code in ((1_048_577, 422, "value_too_large"), (2_000_001, 413, "body_too_large")):
        answer = await send(desk, task, "x" * size)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    for body, status in ((b"{", 400), (b"NaN", 400), (b'{"a": 1, "a": 2}', 400)):
        answer = await desk.client.post(f"/v1/tasks/{task}/signals/word", content=body, headers=JSON)
        assert answer.status_code == status
    for key in ("", "x" * 256):
        answer = await send(desk, task, 1, **{"idempotency-key": key})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_key")
    assert await lying(desk) == 0


async def test_what_a_signal_says_is_in_no_event(desk: Desk) -> None:
    task = await desk.submitted("listen", times=1)
    await send(desk, task, {"secret": "s3cret-canary"})
    dump = await desk.store.dump()
    assert "s3cret-canary" not in json.dumps(dump["events"], default=str)
