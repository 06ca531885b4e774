"""Names and roles of keys: what each may do, and by whose name it is kept."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr
from tests.logging_alone import logging_alone
from tests.server import asking
from tests.server.asking import asked, decide, path, people
from tests.server.desk import PATIENCE_S, SECRET, Desk

from outlast import TaskContext
from outlast.errors import ConfigurationError
from outlast.observability import logs
from outlast.server.auth import Keys
from outlast.testing.recorder import Recorder

NOBODYS = "task_01jz8f5s9ve5ptq3mwr7n1k2bd"
EVERYBODY = ("ana", "bob", "eve", "ops", "sub", "adm", "all")
REQUESTS: list[tuple[str, str, Any, set[str]]] = [
    ("POST", "/v1/tasks", {"agent": "echo"}, {"sub", "ops", "adm", "all"}),
    ("POST", f"/v1/tasks/{NOBODYS}/signals/word", 1, {"sub", "ops", "adm", "all"}),
    ("POST", f"/v1/tasks/{NOBODYS}/cancel", {}, {"ops", "adm", "all"}),
    (
        "POST",
        f"/v1/operations/{NOBODYS}:a/settle",
        {"verdict": "happened", "reason": "r"},
        {"ops", "adm", "all"},
    ),
    ("PUT", "/v1/pauses/tool:x", {"reason": "r"}, {"ops", "adm", "all"}),
    ("DELETE", "/v1/pauses/tool:y?reason=r", None, {"ops", "adm", "all"}),
    ("POST", "/v1/rules", {"tool": "x", "verdict": "deny", "reason": "r"}, {"ops", "adm", "all"}),
    ("DELETE", "/v1/rules/9?reason=r", None, {"ops", "adm", "all"}),
    ("PUT", "/v1/schedules/s", {"agent": "echo", "every": "1d"}, {"ops", "adm", "all"}),
    ("POST", "/v1/schedules/t/pause", {"reason": "r"}, {"ops", "adm", "all"}),
    ("POST", "/v1/schedules/t/resume", {"reason": "r"}, {"ops", "adm", "all"}),
    ("DELETE", "/v1/schedules/t", None, {"ops", "adm", "all"}),
    ("GET", "/v1/schedules", None, set(EVERYBODY)),
    ("GET", "/v1/tasks", None, set(EVERYBODY)),
    ("GET", "/v1/approvals", None, set(EVERYBODY)),
    ("GET", "/v1/rules", None, set(EVERYBODY)),
    ("GET", "/v1/audit", None, set(EVERYBODY)),
]


@pytest.mark.parametrize("store_kind", ["sqlite-memory"], indirect=True)
@pytest.mark.parametrize(("method", "where", "body", "allowed"), REQUESTS)
async def test_what_each_role_may_do(
    desk: Desk, method: str, where: str, body: Any, allowed: set[str]
) -> None:
    clients = people(desk)
    may = set()
    for who in EVERYBODY:
        sent = {} if body is None else {"json": body}
        answer = await clients[f"key-{who}"].request(method, where, **sent)
        if answer.status_code == 403:
            assert answer.json()["code"] == "not_allowed"
            assert who in answer.json()["detail"]
        else:
            may.add(who)
    assert may == allowed


async def test_every_route_that_changes_something_asks_for_a_role(desk: Desk) -> None:
    document = desk.api.openapi()
    changing = {
        (method.upper(), route)
        for route, methods in document["paths"].items()
        for method in methods
        if method != "get"
    }
    asked_for = {
        "/v1/tasks", "/v1/tasks/{task}/cancel", "/v1/tasks/{task}/signals/{name}",
        "/v1/operations/{operation}/settle", "/v1/pauses/{scope}", "/v1/rules", "/v1/rules/{number}",
        "/v1/schedules/{id}", "/v1/schedules/{id}/pause", "/v1/schedules/{id}/resume",
        "/v1/tasks/{task}/retry", "/v1/tasks/{task}/fork", "/v1/tasks/{task}/wake", "/v1/tasks/{task}/adopt",
        "/v1/tasks/{task}/acceptance", "/v1/outside/{provider}/{session}/events",
    }  # fmt: skip
    # The approval itself says who decides on it, and a callback's token stands for a key.
    by_itself = {
        "/v1/approvals/{approval}/decision",
        "/v1/approvals/{approval}/links",
        "/v1/callbacks/{token}",
    }
    assert {route for _, route in changing} == asked_for | by_itself
    for method, route in changing:
        if route in asked_for:
            answers = document["paths"][route][method.lower()]["responses"]["403"]["description"]
            assert "whoever calls may not do this" in answers, route


@pytest.mark.parametrize(
    ("roles", "may"), [((), {"ana", "bob", "adm", "all"}), (("finance",), {"bob", "eve", "adm", "all"})]
)
async def test_who_decides_is_the_approvals_to_say(
    desk: Desk, recorder: Recorder, roles: tuple[str, ...], may: set[str]
) -> None:
    asking.register(desk, recorder, roles=roles, quorum=9)
    approval = await asked(desk)
    clients = people(desk)
    counted = set()
    for who in EVERYBODY:
        answer = await decide(clients[f"key-{who}"], approval, "approve")
        if answer.status_code == 403:
            assert answer.json()["code"] == "not_allowed"
        else:
            assert answer.status_code == 200
            counted.add(who)
    assert counted == may
    shown = (await desk.client.get(path(approval["id"]))).json()
    assert {vote["who"] for vote in shown["votes_cast"]} == {
        "person:key of default" if who == "all" else f"person:{who}" for who in may
    }


async def test_four_eyes_are_two_people(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder, four_eyes=True)
    desk.work()
    task = (await desk.post({"agent": "files", "user": "ana"})).json()["id"]
    await desk.waiting(task)
    (approval,) = (await desk.client.get("/v1/approvals", params={"task": task})).json()["items"]
    clients = people(desk)
    own = await decide(clients["key-ana"], approval, "approve")
    assert (own.status_code, own.json()["code"]) == (403, "not_allowed")
    assert (await decide(clients["key-bob"], approval, "approve")).status_code == 200
    assert (await desk.app.wait(task, timeout=PATIENCE_S)).result == "118.50"


async def test_nobody_signs_with_anothers_name(desk: Desk) -> None:
    operation = (await desk.unknown()).replace("#", "%23")
    ops = people(desk)["key-ops"]
    body = {"verdict": "happened", "reason": "seen", "result": 1}
    forged = await ops.post(f"/v1/operations/{operation}/settle", json={**body, "by": "boss"})
    assert (forged.status_code, forged.json()["errors"][0]["pointer"]) == (422, "/by")
    forged = await ops.put("/v1/pauses/tool:x", json={"reason": "r", "by": "boss"})
    assert forged.status_code == 422
    settled = await ops.post(f"/v1/operations/{operation}/settle", json={**body, "by": "ops"})
    assert (settled.status_code, settled.json()["settled_by"]) == (200, "person:ops")
    await ops.put("/v1/pauses/tool:x", json={"reason": "r"})
    assert (await ops.get("/v1/pauses/tool:x")).json()["by"] == "ops"
    task = await desk.submitted("listen", times=1)
    await ops.post(f"/v1/tasks/{task}/cancel", json={})
    trail = (await ops.get("/v1/audit")).json()["items"]
    assert {item["who"].removeprefix("person:") for item in trail} == {"ops"}


@pytest.mark.parametrize("store_kind", ["sqlite-memory"], indirect=True)
@pytest.mark.parametrize(
    "text",
    [
        "acme:s3cret:ana",
        "acme:s3cret:ana:",
        "acme:s3cret::approver",
        "acme:s3cret:ana:approver:more",
        "acme:s3cret:ana:*",
        "acme:s3cret:ana:Approver",
        "acme:s3cret:ana:approver+",
        "acme::ana:approver",
        "acme:s3cret:an\x07a:approver",
    ],
)
def test_entries_that_cannot_be_read_are_said_without_showing_them(store_kind: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"OUTLAST_API_KEYS: entry 2") as caught:
        Keys(SecretStr(f"acme:fine,{text}"))
    assert "s3cret" not in str(caught.value)


def test_one_person_may_have_two_keys(store_kind: str) -> None:
    keys = Keys(SecretStr("acme:old:ana:approver, acme:new:ana:approver+finance"))
    old, new = keys.principal_of("old"), keys.principal_of("new")
    assert old is not None
    assert new is not None
    assert (old.name, new.name, old.deciding, new.deciding) == (
        "ana",
        "ana",
        ("approver",),
        ("approver", "finance"),
    )
    assert keys.principal_of("newer") is None


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A stream that everything is logged to."""
    target = io.StringIO()
    with logging_alone():
        logs.install(stream=target, level="debug")
        yield target


async def test_keys_tokens_and_the_secret_are_in_no_log_and_no_problem(
    desk: Desk, recorder: Recorder, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking.register(desk, recorder)
    tokens: list[Any] = []

    @desk.app.agent
    async def calls(task: TaskContext) -> Any:
        callback = task.callback("paid", signed=True)
        tokens.append(callback)
        return await callback

    approval = await asked(desk)
    task = await desk.submitted("calls")
    await desk.waiting(task)
    callback = tokens[0]
    said = ""
    api_key = "canary-of-a-key"
    async with desk.served(api_keys=f"default:{api_key}:ops:operator", public_url="") as (server, client):
        headers = {"authorization": f"Bearer {api_key}"}
        desk.app._public_url = server.url
        made = await client.post(f"{path(approval['id'])}/links", json={"to": "boss"}, headers=headers)
        link = made.json()["url"]
        for request in (
            client.post(f"/v1/callbacks/{callback.token}", json=1),
            client.post(f"/v1/callbacks/{callback.token}x", json=1),
            client.post(f"/v1/callbacks/{callback.token}", content=b"{", headers={"content-type": "a/b"}),
            client.get(f"/v1/callbacks/{callback.token}"),
            client.post(link, data={"verdict": "approve"}),
            client.get(link + "x"),
            client.put(link),
            client.get("/v1/tasks", headers={"authorization": f"Bearer {api_key}x"}),
            client.post("/v1/rules", json={"tool": "x"}, headers=headers),
        ):
            answer = await request
            assert answer.status_code >= 400
            said += answer.text

        async def fault(*_: Any, **__: Any) -> Any:
            raise RuntimeError("a fault inside")

        monkeypatch.setattr(desk.store, "post", fault)
        monkeypatch.setattr(desk.store, "read_approval", fault)
        said += (await client.post(f"/v1/callbacks/{callback.token}", json=1)).text
        said += (await client.get(link)).text
    logging.getLogger("httpx2").info(
        'HTTP Request: POST %s "202"', f"https://x/v1/callbacks/{callback.token}"
    )
    logging.getLogger("proxy").info("GET %s by %s", link, callback.secret)
    assert "a fault inside" in stream.getvalue()
    written = stream.getvalue() + said
    for canary in (SECRET, api_key, callback.token, callback.secret, link.rpartition("/")[2]):
        assert canary not in written
