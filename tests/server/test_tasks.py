"""Reading tasks over HTTP: views, lists, results, and who may see them."""

from __future__ import annotations

import pytest
from tests.server.desk import Desk, settings

from outlast.server import create_app

NOBODYS = "task_01jz8f5s9ve5ptq3mwr7n1k2bd"


class TestOneTask:
    async def test_says_when_to_ask_again_while_it_lives(self, desk: Desk) -> None:
        task = await desk.submitted("echo")
        answer = await desk.client.get(f"/v1/tasks/{task}")
        assert (answer.status_code, answer.headers["retry-after"]) == (200, "1")
        assert answer.json()["links"]["events"] == f"/v1/tasks/{task}/events"

    async def test_has_no_hurry_once_it_ended(self, desk: Desk) -> None:
        task = await desk.ended("echo", value={"a": [1, None]})
        answer = await desk.client.get(f"/v1/tasks/{task}")
        assert "retry-after" not in answer.headers
        assert (answer.json()["state"], answer.json()["result"]) == ("succeeded", {"a": [1, None]})

    async def test_is_not_sent_again_unchanged(self, desk: Desk) -> None:
        task = await desk.submitted("echo")
        first = await desk.client.get(f"/v1/tasks/{task}")
        seen = {"if-none-match": first.headers["etag"]}
        same = await desk.client.get(f"/v1/tasks/{task}", headers=seen)
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", first.headers["etag"])
        desk.work()
        await desk.app.wait(task, timeout=20)
        other = await desk.client.get(f"/v1/tasks/{task}", headers=seen)
        assert other.status_code == 200
        assert other.headers["etag"] != first.headers["etag"]

    async def test_is_held_for_its_end(self, desk: Desk) -> None:
        desk.work()
        task = await desk.submitted("stand")
        await desk.begun.wait()
        desk.gate.set()
        answer = await desk.client.get(f"/v1/tasks/{task}", headers={"prefer": "wait=20"})
        assert answer.headers["preference-applied"] == "wait=20"
        assert (answer.json()["state"], answer.json()["result"]) == ("succeeded", "gone through")

    @pytest.mark.parametrize("place", ["", "/result", "/events", "/attempts", "/operations"])
    @pytest.mark.parametrize(
        "task", [NOBODYS, "nonsense", "task_%00", "ses_01jz8f5s9ve5ptq3mwr7n1k2bd", "%FF"]
    )
    async def test_unknown_ones_are_404(self, desk: Desk, task: str, place: str) -> None:
        answer = await desk.client.get(f"/v1/tasks/{task}{place}")
        assert (answer.status_code, answer.json()["code"]) == (404, "task_not_found")

    async def test_attempts_are_listed(self, desk: Desk) -> None:
        task = await desk.ended("echo")
        (attempt,) = (await desk.client.get(f"/v1/tasks/{task}/attempts")).json()["items"]
        assert (attempt["epoch"], attempt["end"], attempt["version"]) == (1, "succeeded", "1")

    async def test_the_ledger_is_listed(self, desk: Desk) -> None:
        operation = await desk.unknown()
        task = operation.partition(":")[0]
        (item,) = (await desk.client.get(f"/v1/tasks/{task}/operations")).json()["items"]
        assert (item["id"], item["state"]) == (operation, "unknown")
        shown = (await desk.client.get(item["links"]["self"])).json()
        assert shown["arguments"] == {"to": "the bank"}
        assert {name: shown[name] for name in item} == item

    async def test_the_ledger_is_listed_in_pages(self, desk: Desk) -> None:
        task = await desk.ended("steps", count=5)
        path, seen, after = f"/v1/tasks/{task}/operations", [], None
        for _ in range(3):
            page = (
                await desk.client.get(path, params={"limit": 2, **({"after": after} if after else {})})
            ).json()
            seen += [item["key"] for item in page["items"]]
            after = page["next"]
        assert (seen, after) == ([f"one#{number}" for number in range(1, 6)], None)
        assert (await desk.client.get(path, params={"state": "unknown"})).json()["items"] == []
        assert (await desk.client.get(path, params={"limit": 201})).status_code == 422
        assert (await desk.client.get(path, params={"state": "nonsense"})).status_code == 422


class TestResults:
    async def test_are_202_while_the_task_lives(self, desk: Desk) -> None:
        task = await desk.submitted("echo")
        answer = await desk.client.get(f"/v1/tasks/{task}/result", headers={"prefer": "wait=1"})
        assert (answer.status_code, answer.headers["retry-after"]) == (202, "1")
        assert answer.json() == {
            "id": task,
            "state": "queued",
            "result": None,
            "error": None,
            "effects_open": 0,
            "ended_at": None,
        }

    async def test_are_waited_for(self, desk: Desk) -> None:
        desk.work()
        task = await desk.submitted("echo", value=[1, 2])
        answer = await desk.client.get(f"/v1/tasks/{task}/result", headers={"prefer": "wait=20"})
        assert (answer.status_code, answer.json()["result"]) == (200, [1, 2])
        assert "retry-after" not in answer.headers

    async def test_say_why_a_task_failed(self, desk: Desk) -> None:
        task = await desk.ended("break_down")
        answer = await desk.client.get(f"/v1/tasks/{task}/result")
        body = answer.json()
        assert (answer.status_code, body["state"], body["result"]) == (200, "failed", None)
        assert "step seven" in body["error"]["message"]
        assert body["error"]["code"]
        assert body["ended_at"] is not None


class TestLists:
    async def test_are_newest_first_in_pages(self, desk: Desk) -> None:
        tasks = [await desk.submitted("echo", value=number) for number in range(5)]
        seen: list[str] = []
        query = "?limit=2"
        while True:
            page = (await desk.client.get(f"/v1/tasks{query}")).json()
            seen += [item["id"] for item in page["items"]]
            if page["next"] is None:
                break
            query = f"?limit=2&before={page['next']}"
        # Of those made in the same millisecond, chance says which is the newer.
        assert seen == sorted(tasks, reverse=True)

    async def test_leave_values_out(self, desk: Desk) -> None:
        await desk.submitted("echo", value="a secret")
        answer = await desk.client.get("/v1/tasks")
        assert "a secret" not in answer.text

    async def test_are_filtered(self, desk: Desk) -> None:
        done = await desk.ended("echo")
        later = (await desk.post({"agent": "stand", "run_at": "2999-01-01T00:00:00Z"})).json()["id"]

        async def found(query: str) -> list[str]:
            return [item["id"] for item in (await desk.client.get(f"/v1/tasks?{query}")).json()["items"]]

        assert await found("state=succeeded") == [done]
        assert await found("agent=stand") == [later]
        assert await found("state=waiting&agent=echo") == []

    @pytest.mark.parametrize(
        ("query", "name"),
        [
            ("state=done", "state"),
            ("agent=a%00b", "agent"),
            ("agent=", "agent"),
            ("limit=0", "limit"),
            ("limit=201", "limit"),
            ("limit=many", "limit"),
            ("before=%00", "before"),
            ("before=ses_01jz8f5s9ve5ptq3mwr7n1k2bd", "before"),
        ],
    )
    async def test_refuse_what_cannot_be_asked(self, desk: Desk, query: str, name: str) -> None:
        answer = await desk.client.get(f"/v1/tasks?{query}")
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert [(item["in"], item["name"]) for item in answer.json()["errors"]] == [("query", name)]


class TestTenants:
    async def test_see_their_own_only(self, desk: Desk) -> None:
        api = create_app(desk.app, settings(api_keys="acme:key-a,bolt:key-b"), manage=False)
        acme = desk.client_of(api, authorization="Bearer key-a")
        bolt = desk.client_of(api, authorization="bearer key-b")
        task = (await acme.post("/v1/tasks", json={"agent": "echo"}, headers={"idempotency-key": "k"})).json()
        assert task["tenant"] == "acme"
        for place in ("", "/result", "/events", "/attempts", "/operations"):
            assert (await bolt.get(f"/v1/tasks/{task['id']}{place}")).status_code == 404
        assert (await bolt.get("/v1/tasks")).json()["items"] == []
        twin = await bolt.post(
            "/v1/tasks", json={"agent": "talk", "input": {"lines": 1}}, headers={"idempotency-key": "k"}
        )
        assert (twin.status_code, "idempotent-replayed" in twin.headers) == (202, False)
        assert [item["id"] for item in (await acme.get("/v1/tasks")).json()["items"]] == [task["id"]]
