"""Submitting over HTTP: what is accepted is stored, what is refused is not."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest
from tests.server.desk import Desk

from outlast.errors import StoreUnavailable

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class TestAccepting:
    async def test_answers_202_with_the_stored_task_and_where_it_is(self, desk: Desk) -> None:
        answer = await desk.post(
            {
                "agent": "echo",
                "input": {"value": 7},
                "user": "ada",
                "pool": "batch",
                "priority": 3,
                "deadline": "10m",
            }
        )
        task = answer.json()
        assert answer.status_code == 202
        assert answer.headers["location"] == f"/v1/tasks/{task['id']}" == task["links"]["self"]
        assert answer.headers["retry-after"] == "1"
        assert "idempotent-replayed" not in answer.headers
        stored = await desk.app.get(task["id"])
        assert (stored.agent, stored.input, stored.user, stored.pool, stored.priority) == (
            "echo",
            {"value": 7},
            "ada",
            "batch",
            3,
        )
        assert stored.deadline_at is not None
        assert (stored.deadline_at - stored.submitted_at).total_seconds() == 600

    async def test_takes_seconds_a_start_and_a_version(self, desk: Desk) -> None:
        body = {"agent": "echo", "deadline": 90.5, "run_at": "2999-01-01T00:00:00+02:00", "version": "1"}
        task = (await desk.post(body)).json()
        assert (task["state"], task["reason"], task["version"]) == ("waiting", "timer", "1")
        stored = await desk.app.get(task["id"])
        assert stored.deadline_at is not None
        assert (stored.deadline_at - stored.submitted_at).total_seconds() == 90.5

    async def test_takes_the_trace_along(self, desk: Desk) -> None:
        await desk.post({"agent": "echo"}, traceparent=TRACE)
        (row,) = (await desk.store.dump())["inputs"]
        assert row["trace"] == TRACE

    @pytest.mark.parametrize(
        "broken",
        [
            "x",
            TRACE.upper(),
            "ff" + TRACE[2:],
            TRACE + "-more",
            TRACE.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
            TRACE.replace("00f067aa0ba902b7", "0" * 16),
        ],
    )
    async def test_leaves_a_broken_trace_behind(self, desk: Desk, broken: str) -> None:
        assert (await desk.post({"agent": "echo"}, traceparent=broken)).status_code == 202
        (row,) = (await desk.store.dump())["inputs"]
        assert row["trace"] is None


class TestIdempotency:
    async def test_answers_the_first_task_again(self, desk: Desk) -> None:
        body = {"agent": "echo", "input": {"value": 1}}
        first = await desk.post(body, **{"idempotency-key": "inv-102"})
        again = await desk.post(body, **{"idempotency-key": "inv-102"})
        assert again.status_code == 202
        assert again.json()["id"] == first.json()["id"]
        assert again.headers["idempotent-replayed"] == "true"
        assert await desk.stored() == 1

    async def test_a_quoted_key_is_the_bare_one(self, desk: Desk) -> None:
        body = {"agent": "echo"}
        first = await desk.post(body, **{"idempotency-key": 'say "hi" \\o/'})
        again = await desk.post(body, **{"idempotency-key": '"say \\"hi\\" \\\\o/"'})
        assert again.json()["id"] == first.json()["id"]
        assert first.json()["key"] == 'say "hi" \\o/'

    async def test_refuses_the_key_for_another_request(self, desk: Desk) -> None:
        await desk.post({"agent": "echo", "input": {"value": 118.5}}, **{"idempotency-key": "k"})
        answer = await desk.post({"agent": "echo", "input": {"value": 180}}, **{"idempotency-key": "k"})
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_conflict")
        assert await desk.stored() == 1

    async def test_refuses_a_number_that_readers_would_take_for_another(self, desk: Desk) -> None:
        # A key binds a request by its digest (RFC 8785), which knows integers up to 2^53 - 1.
        answer = await desk.post({"agent": "echo", "input": {"value": [2**53]}}, **{"idempotency-key": "k"})
        assert (answer.status_code, answer.json()["code"]) == (422, "unserializable")
        assert [item["pointer"] for item in answer.json()["errors"]] == ["/input/value/0"]
        assert await desk.stored() == 0

    @pytest.mark.parametrize(
        "key",
        ["", "x" * 256, "a\tb", '"open', '"a"b', '"a\\x"', '""', '"' + "x" * 256 + '"', "gr\u00fc\u00df"],
    )
    async def test_refuses_a_key_that_breaks_the_rules(self, desk: Desk, key: str) -> None:
        answer = await desk.client.post(
            "/v1/tasks", json={"agent": "echo"}, headers=[(b"idempotency-key", key.encode("latin-1"))]
        )
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_key")
        assert await desk.stored() == 0

    async def test_takes_the_longest_key(self, desk: Desk) -> None:
        answer = await desk.post({"agent": "echo"}, **{"idempotency-key": "x" * 255})
        assert answer.json()["key"] == "x" * 255

    async def test_refuses_two_keys(self, desk: Desk) -> None:
        answer = await desk.client.post(
            "/v1/tasks",
            json={"agent": "echo"},
            headers=[("idempotency-key", "a"), ("idempotency-key", "b")],
        )
        assert answer.json()["code"] == "invalid_key"

    # SQLite has one writer: a twin is never open elsewhere.
    @pytest.mark.parametrize("store_kind", ["postgres"], indirect=True)
    async def test_a_twin_that_is_still_open_is_busy(self, desk: Desk, database_url: str) -> None:
        connection = await asyncpg.connect(database_url)
        try:
            async with connection.transaction():
                await desk.app.submit("echo", {"value": 1}, key="k", connection=connection)
                answer = await desk.post({"agent": "echo", "input": {"value": 1}}, **{"idempotency-key": "k"})
        finally:
            await connection.close()
        assert (answer.status_code, answer.json()["code"]) == (503, "busy")
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("store_kind", ["sqlite-memory"], indirect=True)
class TestRefusing:
    """Before any store is asked; so one will do."""

    @pytest.mark.parametrize(
        ("body", "code", "pointer"),
        [
            ({}, "invalid_request", "/agent"),
            ([], "invalid_request", ""),
            (None, "invalid_request", ""),
            ("echo", "invalid_request", ""),
            ({"agent": 5}, "invalid_request", "/agent"),
            ({"agent": ""}, "invalid_request", "/agent"),
            ({"agent": "a\u0000b"}, "invalid_request", "/agent"),
            ({"agent": "\ud800"}, "invalid_request", "/agent"),
            ({"agent": "echo", "input": [1]}, "invalid_request", "/input"),
            ({"agent": "echo", "input": {"valeu": 1}}, "invalid_input", "/input/valeu"),
            ({"agent": "talk", "input": {"lines": "many"}}, "invalid_input", "/input/lines"),
            ({"agent": "echo", "extra/~": 1}, "invalid_request", "/extra~1~0"),
            ({"agent": "echo", "priority": 1001}, "invalid_request", "/priority"),
            ({"agent": "echo", "priority": True}, "invalid_request", "/priority"),
            ({"agent": "echo", "deadline": 0}, "invalid_request", "/deadline"),
            ({"agent": "echo", "deadline": True}, "invalid_request", "/deadline"),
            ({"agent": "echo", "deadline": "soon"}, "invalid_request", "/deadline"),
            ({"agent": "echo", "deadline": 10**400}, "invalid_request", "/deadline"),
            ({"agent": "echo", "run_at": 1700000000}, "invalid_request", "/run_at"),
            ({"agent": "echo", "run_at": "2027-01-01T00:00:00"}, "invalid_request", "/run_at"),
            ({"agent": "echo", "user": "a\u0000b"}, "invalid_request", "/user"),
            ({"agent": "echo", "pool": "two words"}, "invalid_request", "/pool"),
            ({"agent": "echo", "version": ""}, "invalid_request", "/version"),
        ],
    )
    async def test_points_at_what_is_wrong(self, desk: Desk, body: Any, code: str, pointer: str) -> None:
        answer = await desk.post(json.dumps(body).encode())
        document = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.status_code, document["status"], document["code"]) == (422, 422, code)
        assert [item["pointer"] for item in document["errors"]] == [pointer]
        assert await desk.stored() == 0

    async def test_names_the_agents_there_are(self, desk: Desk) -> None:
        answer = await desk.post({"agent": "ecko"})
        assert (answer.status_code, answer.json()["code"]) == (422, "agent_not_found")
        assert "echo" in answer.json()["detail"]

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b'{"agent": "echo",}',
            b'{"agent": "echo", "input": {"value": NaN}}',
            b'{"agent": "echo", "input": {"value": -Infinity}}',
            b'{"agent": "echo", "input": {"value": 1e999}}',
            b'{"agent": "echo", "agent": "talk"}',
            b'{"agent": "echo", "input": {"value": {"a": 1, "a": 1}}}',
            b'{"agent": "echo\xff"}',
            b'\xef\xbb\xbf{"agent": "echo"}',
            '{"agent": "echo"}'.encode("utf-16"),
            b'{"agent": "echo", "input": {"value": ' + b"[" * 200_000 + b"]" * 200_000 + b"}}",
            b'{"agent": "echo", "input": {"value": ' + b"9" * 5_000 + b"}}",
        ],
        ids=lambda body: str(body[:40]),
    )
    async def test_refuses_what_is_no_json(self, desk: Desk, body: bytes) -> None:
        answer = await desk.post(body)
        expected = ("bad_json", 400) if body else ("invalid_request", 422)
        assert (answer.json()["code"], answer.status_code) == expected
        assert await desk.stored() == 0

    @pytest.mark.parametrize(
        "kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16"]
    )
    async def test_refuses_what_is_not_said_to_be_json(self, desk: Desk, kind: str) -> None:
        headers = {"content-type": kind} if kind else {}
        answer = await desk.client.post("/v1/tasks", content=b'{"agent": "echo"}', headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
        assert await desk.stored() == 0

    @pytest.mark.parametrize("kind", ["application/json; charset=UTF-8", "application/vnd.acme+json"])
    async def test_takes_json_by_its_other_names(self, desk: Desk, kind: str) -> None:
        answer = await desk.client.post(
            "/v1/tasks", content=b'{"agent": "echo"}', headers={"content-type": kind}
        )
        assert answer.status_code == 202

    async def test_says_that_the_store_is_away(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        async def away(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("the database is away", retry_after=2.5)

        monkeypatch.setattr(desk.store, "submit", away)
        answer = await desk.post({"agent": "echo"})
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert answer.headers["retry-after"] == "3"


class TestValues:
    """What JSON can hold comes back as it was sent, or is refused by name."""

    @pytest.mark.parametrize(
        "text",
        [
            "123456789012345678901234567890",
            "-" + "7" * 400,
            '"a\\u0000b"',
            '"\\ud800"',
            '{"\\u0000": [1.5e300, true, null]}',
            "[" * 190 + "]" * 190,
        ],
    )
    async def test_come_back_whole(self, desk: Desk, text: str) -> None:
        desk.work()
        body = f'{{"agent": "echo", "input": {{"value": {text}}}}}'.encode()
        answer = await desk.post(body, prefer="wait=20")
        assert answer.status_code == 200, answer.text
        task = answer.json()
        assert task["input"] == {"value": json.loads(text)}
        assert task["result"] == json.loads(text)

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("[" * 300 + "]" * 300, "unserializable"),
            ("9" * 4_100, "unserializable"),
            ('"' + "x" * 1_100_000 + '"', "value_too_large"),
        ],
        ids=["deep", "digits", "large"],
    )
    async def test_are_refused_by_name(self, desk: Desk, text: str, code: str) -> None:
        answer = await desk.post(f'{{"agent": "echo", "input": {{"value": {text}}}}}'.encode())
        document = answer.json()
        assert (answer.status_code, document["code"]) == (422, code)
        assert document["errors"][0]["pointer"].startswith("/input")
        assert len(answer.content) < 2_000
        assert await desk.stored() == 0

    async def test_a_body_over_the_limit_is_not_read(self, desk: Desk) -> None:
        answer = await desk.post(b'{"agent": "echo", "input": {"value": "' + b"x" * 5_000_000 + b'"}}')
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
        assert await desk.stored() == 0

    async def test_the_limit_itself_is_within(self, desk: Desk) -> None:
        start, end = b'{"agent": "echo", "input": {}, "user": null', b"}"
        body = start + b" " * (2_000_000 - len(start) - len(end)) + end
        assert (await desk.post(body)).status_code == 202
        assert (await desk.post(body[:-1] + b" }")).status_code == 413


class TestWaiting:
    async def test_holds_the_answer_for_the_end(self, desk: Desk) -> None:
        desk.work()
        answer = await desk.post({"agent": "echo", "input": {"value": "v"}}, prefer="respond-async, wait=20")
        assert answer.status_code == 200
        assert answer.headers["preference-applied"] == "wait=20"
        assert "retry-after" not in answer.headers
        assert (answer.json()["state"], answer.json()["result"]) == ("succeeded", "v")

    async def test_answers_202_when_the_end_does_not_come(self, desk: Desk) -> None:
        answer = await desk.post({"agent": "echo"}, prefer="wait=1")
        assert answer.status_code == 202
        assert answer.headers["preference-applied"] == "wait=1"
        assert (answer.json()["state"], answer.headers["retry-after"]) == ("queued", "1")

    async def test_a_replay_of_an_ended_task_is_202_unless_waited_for(self, desk: Desk) -> None:
        desk.work()
        body = {"agent": "echo"}
        first = await desk.post(body, prefer="wait=20", **{"idempotency-key": "k"})
        again = await desk.post(body, **{"idempotency-key": "k"})
        assert (again.status_code, again.json()) == (202, first.json())
        waited = await desk.post(body, prefer="wait=20", **{"idempotency-key": "k"})
        assert (waited.status_code, waited.headers["idempotent-replayed"]) == (200, "true")
