"""Approvals and rules over HTTP: a decision is for exactly what was shown, and counts once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.server import asking
from tests.server.asking import asked, decide, filed, path, people
from tests.server.desk import PATIENCE_S, Desk

from outlast.errors import ApprovalConflict
from outlast.testing.recorder import Recorder

NOBODYS = "task_01jz8f5s9ve5ptq3mwr7n1k2bd"


async def test_an_approval_shows_exactly_what_will_be_sent(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    listed = await asked(desk)
    task = listed["task"]
    assert listed["id"] == f"{task}:file#1~1"
    assert listed["links"]["self"] == f"/v1/approvals/{task}:file%231~1"
    shown = await desk.client.get(listed["links"]["self"])
    assert shown.json() == {**listed, "votes_cast": []}
    assert (listed["state"], listed["subject"], listed["name"], listed["reason"]) == (
        "pending",
        "call",
        "file",
        "over by 38.50",
    )
    assert listed["shown"]["arguments"] == {"invoice": "INV-102", "amount": "118.50"}
    assert listed["fingerprint"].startswith("sha256:")
    assert (await desk.client.get(listed["links"]["operation"])).json()["id"] == listed["operation"]
    assert (await desk.client.get(f"/v1/tasks/{task}")).json()["asks"] == 1
    same = await desk.client.get(listed["links"]["self"], headers={"if-none-match": shown.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    decided = await decide(desk.client, listed, "approve", reason="agreed")
    assert (decided.status_code, decided.json()["state"], decided.json()["decided_by"]) == (
        200,
        "approved",
        "person:local",
    )
    assert decided.json()["decision_reason"] == "agreed"
    assert (await desk.app.wait(task, timeout=PATIENCE_S)).result == "118.50"
    after = await desk.client.get(listed["links"]["self"], headers={"if-none-match": shown.headers["etag"]})
    assert (after.status_code, after.json()["state"]) == (200, "used")
    assert [(vote["who"], vote["via"]) for vote in after.json()["votes_cast"]] == [("person:local", "api")]
    assert len(await filed(recorder)) == 1


async def test_the_stream_tells_of_it(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    await decide(desk.client, approval, "reject", reason="no")
    await desk.app.wait(approval["task"], timeout=PATIENCE_S)
    async with desk.client.stream("GET", f"/v1/tasks/{approval['task']}/events") as stream:
        lines = [line async for line in stream.aiter_lines()]
    kinds = [line.removeprefix("event: ") for line in lines if line.startswith("event: approval.")]
    assert kinds == ["approval.requested", "approval.rejected"]
    assert await filed(recorder) == []


@pytest.mark.parametrize(
    "key", ["a/decision", "a/links", "x~1", "half done?", "50%", "a//b", "..", "a#b&c=d"]
)
async def test_any_operation_key_can_be_addressed(desk: Desk, recorder: Recorder, key: str) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk, key=key)
    assert approval["id"] == f"{approval['task']}:{key}~1"
    for where in (approval["links"]["self"], path(approval["id"])):
        assert (await desk.client.get(where)).json()["id"] == approval["id"]
    answer = await desk.client.post(
        approval["links"]["decision"],
        json={"verdict": "approve", "fingerprint": approval["fingerprint"]},
    )
    assert (answer.status_code, answer.json()["id"]) == (200, approval["id"])
    assert (await desk.app.wait(approval["task"], timeout=PATIENCE_S)).result == "118.50"


async def test_a_decision_on_something_else_is_refused_with_what_is_asked(
    desk: Desk, recorder: Recorder
) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    answer = await decide(desk.client, approval, "approve", fingerprint="sha256:other")
    assert (answer.status_code, answer.json()["code"]) == (409, "fingerprint_mismatch")
    assert answer.json()["approval"] == approval
    assert await filed(recorder) == []


async def test_whoever_is_late_is_told_what_was_decided(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    clients = people(desk)
    first = await decide(clients["key-ana"], approval, "reject", reason="too much")
    assert (first.status_code, first.json()["decided_by"]) == (200, "person:ana")
    assert (await decide(clients["key-ana"], approval, "reject", reason="too much")).json() == first.json()
    for client, verdict in (("key-ana", "approve"), ("key-bob", "approve"), ("key-bob", "reject")):
        late = await decide(clients[client], approval, verdict)
        document = late.json()
        assert (late.status_code, document["code"], document["state"]) == (
            409,
            "approval_conflict",
            "rejected",
        )
        assert document["approval"] == first.json()
    view = await desk.app.wait(approval["task"], timeout=PATIENCE_S)
    assert view.result == {"code": "approval_denied", "reason": "person"}
    assert await filed(recorder) == []


async def test_an_edit_is_what_is_sent_and_decides_its_own_fingerprint(
    desk: Desk, recorder: Recorder
) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    for wrong, pointer in (
        ({"invoice": "INV-102", "amount": "much"}, "/arguments/amount"),
        ({"invoice": "INV-102"}, "/arguments/amount"),
    ):
        refused = await decide(desk.client, approval, "approve", arguments=wrong)
        assert (refused.status_code, [each["pointer"] for each in refused.json()["errors"]]) == (
            422,
            [pointer],
        )
    edited = await decide(
        desk.client, approval, "approve", arguments={"invoice": "INV-102", "amount": "80.00"}
    )
    assert (edited.status_code, edited.json()["edited"], edited.json()["state"]) == (200, True, "approved")
    assert edited.json()["fingerprint"] != approval["fingerprint"]
    assert (await desk.app.wait(approval["task"], timeout=PATIENCE_S)).result == "80.00"
    assert len(await filed(recorder)) == 1


async def test_a_question_is_answered_with_one_of_its_choices(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    question = await asked(desk, "wonders", choices=["red", 7, None])
    assert (question["subject"], question["reason"], question["shown"]["choices"]) == (
        "question",
        "Which one is it?",
        ["red", 7, None],
    )
    for body, pointer in (
        ({"verdict": "answer", "answer": "blue"}, "/answer"),
        ({"verdict": "answer", "answer": "7"}, "/answer"),
        ({"verdict": "answer"}, "/answer"),
        ({"verdict": "answer", "answer": 7, "arguments": {}}, "/arguments"),
        ({"verdict": "approve"}, "/verdict"),
        ({"verdict": "reject", "answer": 7}, "/answer"),
    ):
        refused = await decide(desk.client, question, **body)
        assert (refused.status_code, [each["pointer"] for each in refused.json()["errors"]]) == (
            422,
            [pointer],
        )
    answered = await decide(desk.client, question, "answer", answer=None)
    assert (answered.status_code, answered.json()["state"], answered.json()["answer"]) == (
        200,
        "approved",
        None,
    )
    assert (await desk.app.wait(question["task"], timeout=PATIENCE_S)).result is None


async def test_a_quorum_counts_people(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder, quorum=2)
    approval = await asked(desk)
    clients = people(desk)
    for _ in range(2):
        counted = await decide(clients["key-ana"], approval, "approve")
        assert (counted.status_code, counted.json()["state"], counted.json()["votes"]) == (200, "pending", 1)
    first = await desk.client.get(path(approval["id"]))
    assert (await decide(clients["key-bob"], approval, "approve")).json()["state"] == "approved"
    second = await desk.client.get(path(approval["id"]))
    assert first.headers["etag"] != second.headers["etag"]
    assert [vote["who"] for vote in second.json()["votes_cast"]] == ["person:ana", "person:bob"]
    assert (await desk.app.wait(approval["task"], timeout=PATIENCE_S)).result == "118.50"


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"fingerprint": None}, "/fingerprint"),
        ({"fingerprint": ""}, "/fingerprint"),
        ({"fingerprint": ...}, "/fingerprint"),
        ({"verdict": "yes"}, "/verdict"),
        ({"reason": "x" * 2_001}, "/reason"),
        ({"reason": "a\x00b"}, "/reason"),
        ({"by": "boss"}, "/by"),
        ({"arguments": "all"}, "/arguments"),
    ],
)
async def test_points_at_what_is_wrong(
    desk: Desk, recorder: Recorder, change: dict[str, Any], pointer: str
) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    body = {"verdict": "approve", "fingerprint": approval["fingerprint"], **change}
    body = {name: value for name, value in body.items() if value is not ...}
    answer = await desk.client.post(f"{path(approval['id'])}/decision", json=body)
    assert (answer.status_code, [each["pointer"] for each in answer.json()["errors"]]) == (422, [pointer])
    assert (await desk.client.get(path(approval["id"]))).json()["state"] == "pending"


async def test_approvals_are_listed_in_pages_by_state_and_task(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    approvals = [await asked(desk) for _ in range(3)]
    ids = [approval["id"] for approval in approvals]
    page = (await desk.client.get("/v1/approvals", params={"state": "pending", "limit": 2})).json()
    rest = (await desk.client.get("/v1/approvals", params={"limit": 2, "after": page["next"]})).json()
    assert [item["id"] for item in page["items"] + rest["items"]] == ids
    assert rest["next"] is None
    await decide(desk.client, approvals[0], "reject")
    pending = (await desk.client.get("/v1/approvals?state=pending")).json()["items"]
    assert [item["id"] for item in pending] == ids[1:]
    rejected = (await desk.client.get("/v1/approvals?state=rejected")).json()["items"]
    assert [item["id"] for item in rejected] == ids[:1]
    unknown = await desk.client.get("/v1/approvals", params={"after": f"{NOBODYS}:a~1"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "approval_not_found")


@pytest.mark.parametrize(
    "approval",
    [
        f"{NOBODYS}:file%231~1",
        "nonsense",
        f"{NOBODYS}:file",
        f"{NOBODYS}:~1",
        f"{NOBODYS}:a~0",
        f"{NOBODYS}:a~x",
        f"{NOBODYS}:a~%C2%B2",
        f"{NOBODYS}:%00~1",
    ],
)
async def test_unknown_ids_are_404(desk: Desk, approval: str) -> None:
    body = {"verdict": "approve", "fingerprint": "sha256:x"}
    for answer in (
        await desk.client.get(f"/v1/approvals/{approval}"),
        await desk.client.post(f"/v1/approvals/{approval}/decision", json=body),
        await desk.client.post(f"/v1/approvals/{approval}/links", json={"to": "ana"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "approval_not_found")


async def test_other_tenants_approvals_do_not_exist(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    approval = await asked(desk)
    bolt = people(desk)["key-bolt"]
    assert (await bolt.get("/v1/approvals")).json()["items"] == []
    for answer in (
        await bolt.get(path(approval["id"])),
        await decide(bolt, approval, "approve"),
        await bolt.post(f"{path(approval['id'])}/links", json={"to": "bolt"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "approval_not_found")
    assert (await desk.client.get(path(approval["id"]))).json()["state"] == "pending"


async def test_a_rule_that_stands_needs_no_question(desk: Desk, recorder: Recorder) -> None:
    asking.register(desk, recorder)
    rule = {"tool": "file", "verdict": "allow", "reason": "small", "bounds": {"amount": {"max": "120"}}}
    put = await desk.client.post("/v1/rules", json=rule)
    assert (put.status_code, put.json()["number"], put.json()["by"]) == (201, 1, "person:local")
    assert (await desk.client.get("/v1/rules")).json() == {"items": [put.json()], "next": None}
    task = await desk.ended("files")
    assert (await desk.app.get(task)).result == "118.50"
    gone = await desk.client.delete("/v1/rules/1", params={"reason": "budget spent"})
    assert (gone.status_code, gone.content) == (204, b"")
    again = await desk.client.delete("/v1/rules/1", params={"reason": "budget spent"})
    assert (again.status_code, again.json()["code"]) == (404, "rule_not_found")
    assert (await desk.client.get("/v1/rules")).json()["items"] == []
    assert (await asked(desk))["state"] == "pending"
    trail = (await desk.client.get("/v1/audit")).json()["items"]
    assert [item["reason"] for item in trail] == ["small", "budget spent"]


@pytest.mark.parametrize(
    "change",
    [
        {"bounds": {"amount": {"most": 1}}},
        {"bounds": {"amount": {"max": "much"}}},
        {"bounds": {"amount": {}}},
        {"bounds": []},
        {"verdict": "ask"},
        {"tool": "a b"},
        {"reason": ""},
    ],
)
async def test_a_rule_that_says_nothing_clear_is_refused(desk: Desk, change: dict[str, Any]) -> None:
    rule = {"tool": "file", "verdict": "allow", "reason": "small", **change}
    assert (await desk.client.post("/v1/rules", json=rule)).status_code == 422
    assert (await desk.client.get("/v1/rules")).json()["items"] == []


async def test_of_fifty_decisions_at_once_one_counts(desk: Desk, recorder: Recorder) -> None:
    """Half of them say yes, from the API, a link and the library."""
    asking.register(desk, recorder)
    clients = people(desk, public_url="http://localhost")
    for _ in range(4):
        await recorder.reset()
        approval = await asked(desk)
        links = [
            (await desk.app.approvals.link(approval["id"], to=f"linked-{number}", by="ops")).token
            for number in range(6)
        ]
        forms = [await _form(desk, token) for token in links]

        async def by_api(number: int, verdict: str, of: Any = approval) -> tuple[bool, str]:
            answer = await decide(clients[f"key-{_name(number)}"], of, verdict)
            body = answer.json()
            assert answer.status_code in (200, 409), body
            recorded = body if answer.status_code == 200 else body["approval"]
            return answer.status_code == 200, recorded["decided_by"]

        async def by_link(
            number: int, verdict: str, tokens: Any = links, sent: Any = forms
        ) -> tuple[bool, str]:
            which = number // 3 % 6
            form = {"form": sent[which], "verdict": verdict, "reason": ""}
            answer = await desk.client.post(f"/approve/{tokens[which]}", data=form)
            assert answer.status_code in (303, 409)
            return answer.status_code == 303, ""

        async def by_library(number: int, verdict: Any, of: Any = approval) -> tuple[bool, str]:
            try:
                view = await desk.app.approvals.decide(
                    of["id"], verdict, fingerprint=of["fingerprint"], by=_name(number)
                )
            except ApprovalConflict as conflict:
                return False, conflict.by
            return True, view.decided_by or ""

        racers = [
            (by_api, by_link, by_library)[number % 3](number, VERDICTS[number % 2]) for number in range(50)
        ]
        outcomes = await asyncio.gather(*racers)
        recorded = (await desk.client.get(path(approval["id"]))).json()
        (vote,) = recorded["votes_cast"]
        assert {by for _, by in outcomes if by} == {vote["who"]}
        # Whoever says the winner's word again, in the winner's name, is answered alike; nobody else is.
        same = [
            (f"person:{_name(number)}", VERDICTS[number % 2]) == (vote["who"], vote["verdict"])
            for number in range(50)
        ]
        assert [counted for counted, _ in outcomes] == same
        assert any(same)
        view = await desk.app.wait(approval["task"], timeout=PATIENCE_S)
        calls = await filed(recorder)
        if vote["verdict"] == "approve":
            assert (view.result, len(calls)) == ("118.50", 1)
        else:
            assert (view.result["code"], calls) == ("approval_denied", [])
        events = await desk.app.stored_events(approval["task"])
        assert sum(event.kind in ("approval.approved", "approval.rejected") for event in events) == 1


VERDICTS = ("approve", "reject")


def _name(number: int) -> str:
    """Answer in whose name a racer decides."""
    which = number // 3
    return (("ana", "bob", "adm")[which % 3], f"linked-{which % 6}", f"coder-{number}")[number % 3]


async def _form(desk: Desk, token: str) -> str:
    page = (await desk.client.get(f"/approve/{token}")).text
    return page.partition('name="form" value="')[2].partition('"')[0]
