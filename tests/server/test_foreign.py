"""What belongs to another tenant is not there: every route that names something, by the list of routes."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import httpx2
from tests.server.asking import asked, register
from tests.server.desk import Desk, settings

from outlast import TaskContext
from outlast.server import create_app
from outlast.testing.recorder import Recorder

NOBODYS = "task_01jz8f5s9ve5ptq3mwr7n1k2bd"
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/tasks/{task}/cancel"): {},
    ("POST", "/v1/tasks/{task}/signals/{name}"): {"said": 1},
    ("POST", "/v1/tasks/{task}/retry"): {"reason": "r"},
    ("POST", "/v1/tasks/{task}/fork"): {"reason": "r"},
    ("POST", "/v1/tasks/{task}/wake"): {"reason": "r"},
    ("POST", "/v1/tasks/{task}/acceptance"): {"verdict": "accepted", "reason": "r"},
    ("POST", "/v1/tasks/{task}/adopt"): {"reason": "r"},
    ("POST", "/v1/operations/{operation}/settle"): {"verdict": "happened", "reason": "r"},
    ("POST", "/v1/approvals/{approval}/decision"): {"verdict": "reject", "fingerprint": "f"},
    ("POST", "/v1/approvals/{approval}/links"): {"to": "eve"},
    ("DELETE", "/v1/rules/{number}"): {"reason": "r"},
    ("POST", "/v1/schedules/{id}/pause"): {"reason": "r"},
    ("POST", "/v1/schedules/{id}/resume"): {"reason": "r"},
    ("DELETE", "/v1/schedules/{id}"): {"reason": "r"},
    ("POST", "/v1/outside/{provider}/{session}/events"): {"event": "e-1"},
    ("DELETE", "/v1/pauses/{scope}"): {"reason": "r"},
}
"""Fair bodies; what a DELETE needs goes into its query."""
NAMES_NOTHING = {
    # A new row of the caller's own tenant, under a name that another one has as well.
    ("PUT", "/v1/schedules/{id}"),
    ("PUT", "/v1/pauses/{scope}"),
    # Its token names the tenant and is signed.
    ("POST", "/v1/callbacks/{token}"),
}


async def ask(
    client: httpx2.AsyncClient, method: str, route: str, named: dict[str, str], body: Any
) -> httpx2.Response:
    path = re.sub(r"{(\w+)}", lambda found: quote(named[found[1]], safe=":"), route)
    sent: dict[str, Any] = {"params": body} if method == "DELETE" else {} if body is None else {"json": body}
    return await client.request(method, path, **sent)


async def test_what_is_another_tenants_answers_404_on_every_route(desk: Desk, recorder: Recorder) -> None:
    register(desk, recorder)

    @desk.app.agent
    async def holds(context: TaskContext) -> None:
        await context.attach("voice", "s-1")
        await context.wait("word")

    approval = (await asked(desk))["id"]
    await desk.waiting(await desk.submitted("holds"))
    operation, _, _ = approval.rpartition("~")
    task, _, _ = operation.partition(":")
    app = desk.app
    await app.schedules.put("nightly", "echo", every="1d")
    rule = await app.rules.put("file", "deny", reason="r", by="ada", bounds={"amount": {"min": 10_000}})
    await app.pauses.set("tool:elsewhere", reason="r", by="ada")
    mine = {
        "task": task, "operation": operation, "approval": approval, "number": str(rule), "id": "nightly",
        "name": "word", "provider": "voice", "session": "s-1", "scope": "tool:elsewhere",
    }  # fmt: skip
    nobodys = {
        **mine, "task": NOBODYS, "operation": f"{NOBODYS}:a", "approval": f"{NOBODYS}:a~1", "id": "none",
        "number": "999", "session": "none", "scope": "tool:none",
    }  # fmt: skip
    api = create_app(app, settings(api_keys="bolt:key-b:eve:admin+operator+approver"), manage=False)
    bolt = desk.client_of(api, authorization="Bearer key-b")
    routes = [
        (method.upper(), route)
        for route, methods in api.openapi()["paths"].items()
        for method in methods
        if "{" in route and (method.upper(), route) not in NAMES_NOTHING
    ]
    assert len(routes) > 25
    before = await desk.store.dump()
    for method, route in routes:
        body = BODIES.get((method, route))
        assert method == "GET" or body is not None, (method, route)
        theirs = await ask(bolt, method, route, mine, body)
        assert theirs.status_code == 404, (method, route, theirs.status_code, theirs.text)
        # It says no more of what another tenant has than of what nobody has.
        none = await ask(bolt, method, route, nobodys, body)
        assert none.status_code == 404, (method, route)
        said = [dict(each.json(), detail="", instance="", trace="") for each in (theirs, none)]
        assert said[0] == said[1], (method, route)
    after = await desk.store.dump()
    # Their workers go on meanwhile.
    assert {table for table in after if after[table] != before[table]} <= {"sessions", "writers"}
    for route in sorted({route for method, route in routes if method == "GET"}):
        answer = await ask(desk.client, "GET", route, mine, None) if "events" not in route else None
        assert answer is None or answer.status_code in (200, 202, 204, 409), (route, answer and answer.text)


async def test_no_list_shows_what_is_another_tenants(desk: Desk, recorder: Recorder) -> None:
    register(desk, recorder)
    approval = (await asked(desk))["id"]
    app = desk.app
    await app.schedules.put("nightly", "echo", every="1d")
    await app.rules.put("file", "deny", reason="r", by="ada", bounds={"amount": {"min": 10_000}})
    await app.pauses.set("tool:elsewhere", reason="r", by="ada")
    await desk.unknown()
    api = create_app(app, settings(api_keys="bolt:key-b:eve:admin"), manage=False)
    bolt = desk.client_of(api, authorization="Bearer key-b")
    lists = [
        route
        for route, methods in api.openapi()["paths"].items()
        if "get" in methods and "{" not in route and route.startswith("/v1/")
    ]
    assert len(lists) >= 8
    for route in lists:
        assert (await bolt.get(route)).json() in ({"items": [], "next": None}, {"items": []}), route
        theirs = (await desk.client.get(route)).json()["items"]
        assert theirs, route
    assert approval


NONSENSE = [
    "%00",
    "a%00b",
    "%ED%A0%80",
    "%FF",
    "x" * 5_000,
    "%2e%2e%2fetc",
    "%20",
    "%0A",
    "%F0%9F%92%A5",
    "*",
    "1e9",
]
"""What may stand in a path where a name should."""


async def test_nonsense_in_a_path_is_refused_on_every_route_and_stores_nothing(desk: Desk) -> None:
    document = desk.api.openapi()["paths"]
    before = await desk.store.dump()
    asked_for = 0
    fair = {
        "task": NOBODYS, "operation": f"{NOBODYS}:a", "approval": f"{NOBODYS}:a~1", "number": "9",
        "id": "none", "session": "s-1", "provider": "voice", "name": "word", "scope": "all", "token": "t",
    }  # fmt: skip
    for route, methods in document.items():
        names = re.findall(r"{(\w+)}", route)
        for method, name, value in ((m.upper(), n, v) for m in methods for n in names for v in NONSENSE):
            if (method, route) in NAMES_NOTHING and name == "id" and value in ("*", "1e9"):
                continue
            path = route
            for each in names:
                path = path.replace(f"{{{each}}}", value if each == name else quote(fair[each], safe=":"))
            body = BODIES.get((method, route), {"reason": "r"})
            sent = {"params": body} if method == "DELETE" else {} if method == "GET" else {"json": body}
            answer = await desk.client.request(method, path, **sent)  # type: ignore[arg-type]
            asked_for += 1
            assert 400 <= answer.status_code < 500, (
                method,
                path[:120],
                answer.status_code,
                answer.text[:200],
            )
            assert answer.json()["code"], (method, path[:120])
            assert "\x00" not in answer.text
    assert asked_for > 300
    assert await desk.store.dump() == before
