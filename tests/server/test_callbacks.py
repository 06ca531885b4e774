"""Callbacks over HTTP: a token is the key, one answer counts, and repeats are harmless."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from tests.server.desk import JSON, PATIENCE_S, SECRET, Desk, settings

from outlast import TaskContext, clock, tokens
from outlast.core import webhooks
from outlast.errors import WaitTimeout
from outlast.server import create_app


async def opened(desk: Desk, *, signed: bool = False, **more: Any) -> tuple[str, str, str | None]:
    """Have a task open a callback and wait for it; answer the task, the token and the secret."""
    given: list[Any] = []

    @desk.app.agent(name=f"calls-{signed}-{len(more)}")
    async def calls(task: TaskContext) -> Any:
        callback = task.callback("paid", signed=signed, **more)
        given.append(callback)
        return await callback

    desk.work()
    task = await desk.submitted(f"calls-{signed}-{len(more)}")
    await desk.waiting(task)
    return task, given[0].token, given[0].secret


async def answer(desk: Desk, token: str, data: Any, **headers: str) -> Any:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await desk.client.post(f"/v1/callbacks/{token}", content=body, headers={**JSON, **named})


def signature(
    secret: str | None, body: bytes, *, message: str = "msg_1", at: int | None = None
) -> dict[str, str]:
    """Sign a body as a sender would, behind a signature by an older secret."""
    assert secret is not None
    key = base64.b64decode(secret.removeprefix(webhooks.PREFIX))
    when = int(clock.unix_us() / 1_000_000) if at is None else at
    return {
        "webhook_id": message,
        "webhook_timestamp": str(when),
        "webhook_signature": "v1,bm9uZQ== " + webhooks.sign(key, message, when, body),
    }


async def test_an_answer_needs_no_key_and_counts_once(desk: Desk) -> None:
    task, token, secret = await opened(desk)
    assert secret is None
    api = create_app(desk.app, settings(api_keys="acme:key-a"), manage=False)
    outside = desk.client_of(api, host="agents.example", **JSON)
    first = await outside.post(f"/v1/callbacks/{token}", content=b'{"paid": true}')
    assert (first.status_code, first.json()) == (202, {"status": "accepted"})
    assert first.headers["cache-control"] == "no-store"
    assert (await desk.app.wait(task, timeout=PATIENCE_S)).result == {"paid": True}
    again = await outside.post(f"/v1/callbacks/{token}", content=b'{ "paid":true }')
    assert (again.status_code, again.json()) == (200, {"status": "repeated"})
    other = await outside.post(f"/v1/callbacks/{token}", content=b'{"paid": false}')
    assert (other.status_code, other.json()["code"]) == (409, "conflict")


async def test_an_answer_that_nobody_waits_for_any_more_is_refused_for_good(desk: Desk) -> None:
    given: list[str] = []

    @desk.app.agent
    async def calls(task: TaskContext) -> Any:
        callback = task.callback("paid", timeout=0.05)
        given.append(callback.token)
        try:
            await callback
        except WaitTimeout:
            return await task.wait("end")

    desk.work()
    task = await desk.submitted("calls")
    async with asyncio.timeout(PATIENCE_S):
        async for event in desk.app.events(task):
            if event.kind == "operation.failed":
                break
    late = await answer(desk, given[0], {"paid": True})
    assert (late.status_code, late.json()["code"], late.json()["state"]) == (410, "callback_over", "failed")
    assert (await desk.app.store.dump())["inbox"] == []


async def test_a_message_with_an_id_repeats_by_its_id(desk: Desk) -> None:
    task, token, _ = await opened(desk)
    assert (await answer(desk, token, {"try": 1}, webhook_id="msg_1")).status_code == 202
    again = await answer(desk, token, {"try": 2}, webhook_id="msg_1")
    assert (again.status_code, again.json()) == (200, {"status": "repeated"})
    assert (await answer(desk, token, {"try": 1}, webhook_id="msg_2")).status_code == 409
    assert (await desk.app.wait(task, timeout=PATIENCE_S)).result == {"try": 1}


async def test_a_signed_callback_takes_what_is_signed_and_nothing_else(desk: Desk) -> None:
    task, token, secret = await opened(desk, signed=True)
    assert secret is not None
    assert secret.startswith("whsec_")
    body = b'{"paid": true}'
    right = signature(secret, body)
    now = int(right["webhook_timestamp"])
    wrong: list[dict[str, str]] = [
        {},
        {**right, "webhook_signature": ""},
        {**right, "webhook_signature": "v1,AAAA"},
        {**right, "webhook_id": "msg_2"},
        {**right, "webhook_timestamp": str(now + 1)},
        {**right, "webhook_timestamp": "soon"},
        signature(secret, body + b" "),
        signature(secret, body, at=now - 301),
        signature(secret, body, at=now + 302),
        signature(webhooks.secret_of(b"another key of thirty-two bytes!"), body),
    ]
    for headers in wrong:
        refused = await answer(desk, token, body, **headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "invalid_signature")
        assert secret not in refused.text
    assert (await desk.store.dump())["inbox"] == []
    assert (await answer(desk, token, body, **right)).status_code == 202
    assert (await answer(desk, token, body, **right)).status_code == 200
    assert (await desk.app.wait(task, timeout=PATIENCE_S)).result == {"paid": True}


async def test_the_flag_of_a_signed_callback_cannot_be_taken_off(desk: Desk) -> None:
    task, token, _ = await opened(desk, signed=True)
    parts = tokens.read(SECRET, "callback", token, now=0)
    assert parts[0::3] == ("default", "signed")
    plain = tokens.sign("another-secret-of-theirs", "callback", parts[:3])
    assert (await answer(desk, plain, 1)).status_code == 404
    assert (await desk.app.get(task)).state == "waiting"


async def test_tokens_that_are_none_all_look_the_same(desk: Desk) -> None:
    task, token, _ = await opened(desk)
    parts = ("default", task, "paid#1")
    said = set()
    for wrong in (
        "nonsense",
        "x" * 5_000,
        "%C3%A9",
        token[:-2],
        token.swapcase(),
        tokens.sign(SECRET, "callback", parts, expires_at=1),
        tokens.sign(SECRET, "approval-link", parts),
        tokens.sign("another-secret-of-theirs", "callback", parts),
        tokens.sign(SECRET, "callback", ("default", "task_01jz8f5s9ve5ptq3mwr7n1k2bd", "paid#1")),
    ):
        refused = await answer(desk, wrong, 1)
        document = refused.json()
        assert (refused.status_code, document["code"]) == (404, "invalid_token"), wrong
        said.add(document["detail"])
    assert len(said) == 1
    assert (await desk.store.dump())["inbox"] == []
    assert (await desk.client.get(f"/v1/callbacks/{token}")).status_code == 405


async def test_a_task_that_is_over_takes_no_answer(desk: Desk) -> None:
    task, token, _ = await opened(desk)
    await desk.app.cancel(task)
    refused = await answer(desk, token, 1)
    assert (refused.status_code, refused.json()["code"], refused.json()["state"]) == (
        409,
        "task_ended",
        "cancelled",
    )


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "bad_json"),
        (b'"' + b"x" * 1_048_576 + b'"', 422, "value_too_large"),
        (b'"' + b"x" * 2_000_000 + b'"', 413, "body_too_large"),
        (b"NaN", 400, "bad_json"),
    ],
)
async def test_what_cannot_be_kept_is_refused(desk: Desk, body: bytes, status: int, code: str) -> None:
    task, token, _ = await opened(desk)
    refused = await answer(desk, token, body)
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    plain = await answer(desk, token, b"paid", content_type="text/plain")
    assert plain.status_code == 415
    assert (await answer(desk, token, 1, webhook_id="x" * 256)).status_code == 422
    assert (await desk.app.get(task)).state == "waiting"


async def test_a_service_without_a_secret_says_so(desk: Desk) -> None:
    _, token, _ = await opened(desk)
    desk.app._secret = ""
    refused = await answer(desk, token, 1)
    assert (refused.status_code, refused.json()["code"]) == (500, "configuration_error")
    assert "OUTLAST_SECRET" in refused.json()["detail"]
