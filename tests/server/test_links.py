"""Approval links: opening one shows, and never decides; the page's form decides, once."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from tests.server import asking
from tests.server.asking import asked, decide, filed, path, people
from tests.server.desk import PATIENCE_S, SECRET, Desk, settings

from outlast import Ask, TaskContext, ToolCall, tokens
from outlast.server import create_app
from outlast.testing.recorder import Recorder

RIGHT_TO_LEFT = "\u202e"


async def linked(desk: Desk, approval: dict[str, Any], to: str = "boss", **more: Any) -> str:
    """Make a link and answer its path."""
    answer = await desk.client.post(f"{path(approval['id'])}/links", json={"to": to, **more})
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    url: str = answer.json()["url"]
    assert url.startswith("http://localhost/approve/")
    return url.removeprefix("http://localhost")


def form_of(page: httpx2.Response) -> str:
    return html.unescape(page.text.partition('name="form" value="')[2].partition('"')[0])


async def send(desk: Desk, link: str, verdict: str, *, headers: Any = None, **more: str) -> httpx2.Response:
    """Open the page and send its form."""
    page = await desk.client.get(link)
    fields = {"form": form_of(page), "verdict": verdict, "reason": "agreed", **more}
    return await desk.client.post(link, data=fields, headers=headers)


async def state(desk: Desk, approval: dict[str, Any]) -> dict[str, Any]:
    return dict((await desk.client.get(path(approval["id"]))).json())


async def test_a_link_shows_what_will_be_done_and_decides_in_a_second_step(
    desk: Desk, recorder: Recorder
) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    link = await linked(desk, approval)
    for method in ("GET", "HEAD", "GET"):
        page = await desk.client.request(method, link)
        assert page.status_code == 200
    for part in (
        "INV-102",
        "118.50",
        "over by 38.50",
        "file",
        approval["fingerprint"],
        "boss",
        approval["task"],
    ):
        assert part in page.text
    assert (await state(desk, approval))["state"] == "pending"
    done = await send(desk, link, "approve")
    assert (done.status_code, done.headers["location"], done.content) == (303, link, b"")
    recorded = await state(desk, approval)
    assert (recorded["decided_by"], recorded["decision_reason"]) == ("person:boss", "agreed")
    assert [vote["via"] for vote in recorded["votes_cast"]] == ["link by local"]
    assert (await desk.app.wait(approval["task"], timeout=PATIENCE_S)).result == "118.50"
    after = await desk.client.get(link)
    assert "<form" not in after.text
    assert "person:boss" in after.text
    assert len(await filed(recorder)) == 1


async def test_a_link_that_was_used_decides_nothing_more(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    link = await linked(desk, approval)
    page = await desk.client.get(link)
    form = {"form": form_of(page), "verdict": "reject", "reason": "no"}
    assert (await desk.client.post(link, data=form)).status_code == 303
    # A doubled click says the same; another word is too late, and is told so.
    assert (await desk.client.post(link, data=form)).status_code == 303
    late = await desk.client.post(link, data={**form, "verdict": "approve"})
    assert late.status_code == 409
    assert "Too late" in late.text
    assert "rejected" in late.text
    assert "<form" not in late.text
    await desk.app.wait(approval["task"], timeout=PATIENCE_S)
    assert await filed(recorder) == []


async def test_whoever_comes_second_is_told_of_the_first(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    link = await linked(desk, approval)
    page = await desk.client.get(link)
    await decide(desk.client, approval, "reject", reason="mine")
    late = await desk.client.post(link, data={"form": form_of(page), "verdict": "approve", "reason": ""})
    assert late.status_code == 409
    assert "person:local" in late.text
    assert "mine" in late.text


def _without(name: str) -> Callable[[dict[str, str]], dict[str, str]]:
    return lambda form: {key: value for key, value in form.items() if key != name}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (_without("form"), 404),
        (_without("verdict"), 422),
        (lambda form: {**form, "form": form["form"][:-3]}, 404),
        (lambda form: {**form, "verdict": "perhaps"}, 422),
        (lambda form: {**form, "verdict": "answer"}, 422),
        (lambda form: {**form, "reason": "x" * 2_001}, 422),
        (lambda form: {**form, "reason": "x" * 70_000}, 422),
        (lambda form: {**form, **{f"f{number}": "1" for number in range(20)}}, 422),
    ],
)
async def test_a_form_that_no_page_has_made_decides_nothing(
    desk: Desk, recorder: Recorder, change: Any, status: int
) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    link = await linked(desk, approval)
    form = {"form": form_of(await desk.client.get(link)), "verdict": "approve", "reason": ""}
    answer = await desk.client.post(link, data=change(form))
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    for kind in ("application/json", "text/plain", "multipart/form-data; boundary=x"):
        blunt = await desk.client.post(link, content=b"verdict=approve", headers={"content-type": kind})
        assert blunt.status_code == 422
    assert (await state(desk, approval))["state"] == "pending"


async def test_a_form_is_good_for_its_own_link_and_fingerprint(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder, quorum=2)
    approval = await asked(desk)
    mine, yours = await linked(desk, approval, "ana"), await linked(desk, approval, "bob")
    form = {"form": form_of(await desk.client.get(mine)), "verdict": "approve", "reason": ""}
    assert (await desk.client.post(yours, data=form)).status_code == 404
    # Meanwhile somebody changes what is asked about.
    edit = {"invoice": "INV-102", "amount": "90.00"}
    await decide(desk.client, approval, "approve", arguments=edit)
    again = await desk.client.post(mine, data=form)
    assert again.status_code == 409
    assert "Look again" in again.text
    assert "90.00" in again.text
    assert (await state(desk, approval))["votes"] == 1
    assert (await send(desk, mine, "approve")).status_code == 303
    assert (await desk.app.wait(approval["task"], timeout=PATIENCE_S)).result == "90.00"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin", "origin": "null"}, 303),
        ({"sec-fetch-site": "same-origin", "origin": "http://localhost"}, 303),
    ],
)
async def test_other_sites_cannot_send_the_form(
    desk: Desk, recorder: Recorder, headers: dict[str, str], status: int
) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    answer = await send(desk, await linked(desk, approval), "reject", headers=headers)
    assert answer.status_code == status
    assert (await state(desk, approval))["state"] == ("pending" if status == 403 else "rejected")


async def test_links_that_are_none_all_look_the_same(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    link = await linked(desk, approval)
    parts = ("default", approval["id"], "boss", "ops", "approver")
    gone = ("default", "task_01jz8f5s9ve5ptq3mwr7n1k2bd:file#1~1", "boss", "ops", "approver")
    said = set()
    for token in (
        "nonsense",
        "%C3%A9",
        link.removeprefix("/approve/")[:-3],
        tokens.sign(SECRET, "approval-link", parts, expires_at=1),
        tokens.sign(SECRET, "callback", parts),
        tokens.sign("another-secret-of-theirs", "approval-link", parts),
        tokens.sign(SECRET, "approval-link", gone),
    ):
        page = await desk.client.get(f"/approve/{token}")
        assert page.status_code == 404
        said.add(page.text)
        assert (await desk.client.post(f"/approve/{token}", data={"verdict": "approve"})).status_code == 404
    assert len(said) == 1
    assert (await state(desk, approval))["state"] == "pending"


async def test_a_link_stands_no_longer_than_its_approval(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder, expires="1h")
    approval = await asked(desk)
    made = await desk.client.post(f"{path(approval['id'])}/links", json={"to": "boss", "expires_in": "7d"})
    assert made.json()["expires_at"] == approval["expires_at"]
    for wrong in ({"to": "boss", "expires_in": "31d"}, {"to": "boss", "expires_in": 0}, {"to": ""}, {}):
        assert (await desk.client.post(f"{path(approval['id'])}/links", json=wrong)).status_code == 422


async def test_the_page_is_closed_to_everybody_else(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    link = await linked(desk, await asked(desk))
    for page in (await desk.client.get(link), await desk.client.get("/approve/nonsense")):
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["referrer-policy"] == "no-referrer"
        assert "noindex" in page.headers["x-robots-tag"]
        assert page.headers["x-frame-options"] == "DENY"
        assert "<script" not in page.text


async def test_what_a_task_says_cannot_change_the_page(desk: Desk, recorder: Recorder) -> None:
    evil = f"</pre><script>alert(1)</script>\"'{RIGHT_TO_LEFT}05.811\x07"

    @desk.app.tool(name="tool", effect="idempotent", approval=lambda text: Ask(f"<b>{evil}</b>"))
    async def tool(call: ToolCall, text: str) -> None:
        raise AssertionError("nobody approved")

    @desk.app.agent
    async def agent(task: TaskContext) -> None:
        await task.call(tool, evil)

    approval = await asked(desk, "agent")
    page = await desk.client.get(await linked(desk, approval, to=f"<i>{RIGHT_TO_LEFT}boss"))
    for bad in ("<script", "<b>", "<i>", RIGHT_TO_LEFT, "\x07", "</pre><"):
        assert bad not in page.text.replace("</pre>\n", "")
    assert "\\u{202e}" in page.text
    assert "&lt;script&gt;" in page.text


async def test_a_question_is_answered_on_its_page(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    question = await asked(desk, "wonders", choices=["red", {"shade": 7}])
    link = await linked(desk, question)
    page = await desk.client.get(link)
    assert "Which one is it?" in page.text
    assert page.text.count('type="radio"') == 2
    for wrong in ("", "2", "-1", "x"):
        assert (await send(desk, link, "answer", choice=wrong)).status_code == 422
    assert (await send(desk, link, "answer", choice="1")).status_code == 303
    assert (await desk.app.wait(question["task"], timeout=PATIENCE_S)).result == {"shade": 7}
    free = await asked(desk, "wonders")
    assert (await send(desk, await linked(desk, free), "answer", answer="the later one")).status_code == 303
    assert (await desk.app.wait(free["task"], timeout=PATIENCE_S)).result == "the later one"


async def test_who_may_make_links(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder, roles=("finance",))
    approval = await asked(desk)
    clients = people(desk, public_url="http://localhost")
    desk.app._public_url = "http://localhost/"

    async def make(who: str, to: str) -> httpx2.Response:
        return await clients[f"key-{who}"].post(f"{path(approval['id'])}/links", json={"to": to})

    for who, to, status in (
        ("ana", "ana", 403),  # an approver, but not of finance
        ("sub", "sub", 403),
        ("eve", "bob", 403),  # not in another's name
        ("eve", "eve", 201),
        ("ops", "eve", 201),
        ("adm", "eve", 201),
        ("all", "eve", 201),
    ):
        answer = await make(who, to)
        assert answer.status_code == status, (who, to, answer.text)
    link = (await make("ops", "mallory")).json()["url"].removeprefix("http://localhost")
    assert (await send(desk, link, "approve")).status_code == 303
    recorded = await state(desk, approval)
    assert (recorded["decided_by"], recorded["votes_cast"][0]["via"]) == ("person:mallory", "link by ops")


async def test_four_eyes_hold_for_links_too(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder, four_eyes=True)
    desk.work()
    answer = await desk.post({"agent": "files", "user": "adm"})
    task = answer.json()["id"]
    await desk.waiting(task)
    (approval,) = (await desk.client.get("/v1/approvals", params={"task": task})).json()["items"]
    clients = people(desk)
    desk.app._public_url = "http://localhost"
    refused = await clients["key-adm"].post(f"{path(approval['id'])}/links", json={"to": "ana"})
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")
    made = await clients["key-ops"].post(f"{path(approval['id'])}/links", json={"to": "adm"})
    link = made.json()["url"].removeprefix("http://localhost")
    page = await send(desk, link, "approve")
    assert page.status_code == 403
    assert (await state(desk, approval))["state"] == "pending"


async def test_without_a_public_url_links_lead_to_this_machine_only(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    refused = await people(desk)["key-ops"].post(f"{path(approval['id'])}/links", json={"to": "ana"})
    assert (refused.status_code, refused.json()["code"]) == (500, "configuration_error")
    assert "OUTLAST_PUBLIC_URL" in refused.json()["detail"]


async def test_a_link_is_served_to_whoever_has_it(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    link = await linked(desk, approval)
    api = create_app(desk.app, settings(api_keys="acme:key-a"), manage=False)
    outside = desk.client_of(api, host="agents.example")
    assert (await outside.get(link)).status_code == 200


async def test_many_scanners_decide_nothing(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    link = await linked(desk, approval)
    methods = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")
    purposes = ({"purpose": "prefetch"}, {"sec-purpose": "prefetch;prerender"}, {"user-agent": "bot"})
    await asyncio.gather(
        *(desk.client.request(method, link, headers=headers) for method in methods for headers in purposes)
    )
    assert (await state(desk, approval))["state"] == "pending"
