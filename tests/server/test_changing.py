"""Rounds, forks, versions, verdicts and outside events over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.server.asking import people
from tests.server.desk import PATIENCE_S, Desk, frames, settings

from outlast import Outlast, TaskContext, ToolCall
from outlast.server import create_app

NOBODYS = "task_01jz8f5s9ve5ptq3mwr7n1k2bd"
STREAM = {"accept": "text/event-stream"}
PAGE = {"accept": "application/json"}
WHY = {"reason": "the fault is found"}


async def post(desk: Desk, path: str, **body: Any) -> Any:
    return await desk.client.post(f"/v1/{path}", json=body)


class TestRounds:
    async def test_a_failed_task_has_a_next_round_in_the_same_stream(self, desk: Desk) -> None:
        task = await desk.ended("break_down")
        last = (await desk.app.get(task)).last_event
        streams = f"/v1/tasks/{task}/events"
        assert (await desk.client.get(f"{streams}?after={last}", headers=STREAM)).status_code == 204
        answer = await post(desk, f"tasks/{task}/retry", **WHY)
        body = answer.json()
        assert (answer.status_code, body["round"], body["id"]) == (202, 2, task)
        # It may have failed again before it was looked at for the answer.
        assert answer.headers.get("retry-after") == (None if body["state"] == "failed" else "1")
        async with desk.served() as (_, client), asyncio.timeout(PATIENCE_S):
            seen: list[str] = []
            async with client.stream("GET", f"{streams}?after={last}", headers=STREAM) as response:
                assert response.status_code == 200
                async for frame in frames(response):
                    if "event" in frame:
                        seen.append(frame["event"])
            assert (seen[0], seen[-1]) == ("task.retried", "task.failed")
            everything: list[int] = []
            async with client.stream("GET", streams, headers=STREAM) as response:
                async for frame in frames(response):
                    if "event" in frame:
                        everything.append(int(frame["id"]))
            assert everything == list(range(1, last + len(seen) + 1))
        gone = await desk.client.get(f"{streams}?after={last + len(seen)}", headers=STREAM)
        assert gone.status_code == 204

    async def test_a_page_of_an_earlier_rounds_end_says_that_there_is_more(self, desk: Desk) -> None:
        task = await desk.submitted("echo")
        await desk.app.cancel(task)
        page = (await desk.client.get(f"/v1/tasks/{task}/events", headers=PAGE)).json()
        assert ([item["kind"] for item in page["items"]][-1], page["next"]) == ("task.cancelled", None)
        await post(desk, f"tasks/{task}/retry", **WHY)
        page = (await desk.client.get(f"/v1/tasks/{task}/events?limit=2", headers=PAGE)).json()
        assert ([item["kind"] for item in page["items"]][-1], page["next"]) == ("task.cancelled", 2)

    async def test_what_did_not_end_badly_is_not_tried_again(self, desk: Desk) -> None:
        task = await desk.ended("echo")
        answer = await post(desk, f"tasks/{task}/retry", **WHY)
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["state"]) == (
            409,
            "task_not_ended",
            "succeeded",
        )
        assert (await post(desk, f"tasks/{NOBODYS}/retry", **WHY)).status_code == 404

    @pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": "r", "deadline": "soon"}, {"why": "r"}])
    async def test_a_request_that_cannot_be_read_changes_nothing(self, desk: Desk, body: Any) -> None:
        task = await desk.submitted("echo")
        await desk.app.cancel(task)
        answer = await post(desk, f"tasks/{task}/retry", **body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert (await desk.app.get(task)).round == 1


class TestForks:
    async def test_a_fork_is_a_task_of_its_own(self, desk: Desk) -> None:
        task = await desk.ended("echo", value=7)
        answer = await post(desk, f"tasks/{task}/fork", input={"value": 8}, **WHY)
        made = answer.json()
        assert (answer.status_code, made["forked_from"], made["input"]) == (202, task, {"value": 8})
        assert answer.headers["location"] == f"/v1/tasks/{made['id']}"
        assert (await desk.app.wait(made["id"], timeout=PATIENCE_S)).result == 8

    async def test_a_repeat_under_a_key_is_the_first_fork(self, desk: Desk) -> None:
        task = await desk.ended("echo", value=7)
        url, keyed = f"/v1/tasks/{task}/fork", {"Idempotency-Key": '"once"'}
        answers = await asyncio.gather(
            *(desk.client.post(url, json={"input": {"value": 8}, **WHY}, headers=keyed) for _ in range(5))
        )
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        replayed = [answer.headers.get("idempotent-replayed") for answer in answers]
        assert sorted(replayed, key=str) == [None, *["true"] * 4]
        other = await desk.client.post(url, json={"input": {"value": 9}, **WHY}, headers=keyed)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
        # The tenant's keys are one space, whatever they stand for.
        new = {"agent": "echo", "input": {"value": 8}}
        submitted = await desk.client.post("/v1/tasks", json=new, headers=keyed)
        assert submitted.json()["code"] == "idempotency_conflict"
        await desk.client.post("/v1/tasks", json=new, headers={"Idempotency-Key": "other"})
        again = await desk.client.post(url, json=WHY, headers={"Idempotency-Key": "other"})
        assert again.json()["code"] == "idempotency_conflict"
        broken = await desk.client.post(url, json=WHY, headers={"Idempotency-Key": ""})
        assert (broken.status_code, broken.json()["code"]) == (422, "invalid_key")
        # Without a key each request makes one.
        more = [(await post(desk, f"tasks/{task}/fork", **WHY)).json()["id"] for _ in range(2)]
        assert len({*more, answers[0].json()["id"]}) == 3

    async def test_a_prefix_that_is_not_settled_names_what_is_open(self, desk: Desk) -> None:
        operation = await desk.unknown()
        task = operation.partition(":")[0]
        refused = await post(desk, f"tasks/{task}/fork", **WHY)
        problem = refused.json()
        assert (refused.status_code, problem["code"]) == (409, "unsettled_prefix")
        assert problem["operations"] == [operation]
        missing = await post(desk, f"tasks/{task}/fork", before="x", **WHY)
        assert (missing.status_code, missing.json()["code"]) == (404, "operation_not_found")
        nonsense = await post(desk, f"tasks/{task}/fork", before="a\x00b", **WHY)
        assert (nonsense.status_code, nonsense.json()["code"]) == (422, "invalid_key")
        wrong = await post(desk, f"tasks/{task}/fork", before="send_letter#1", input={"by": 1}, **WHY)
        assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_input")
        assert {each["pointer"] for each in wrong.json()["errors"]} <= {"/input/by", "/input/to", "/input"}
        assert await desk.stored() == 1

    async def test_the_key_that_was_sent_is_shown(self, desk: Desk) -> None:
        operation = await desk.unknown()
        task = operation.partition(":")[0]
        made = (await post(desk, f"tasks/{task}/fork", before="send_letter#1", **WHY)).json()["id"]
        await desk.waiting(made)
        (taken,) = (await desk.client.get(f"/v1/tasks/{made}/operations")).json()["items"]
        assert (taken["id"], taken["idempotency_key"]) == (f"{made}:send_letter#1", operation)


class TestVersions:
    async def test_are_counted_and_adopted(self, desk: Desk) -> None:
        desk.work()
        task = await desk.submitted("listen", times=1)
        await desk.waiting(task)
        (row,) = (await desk.client.get("/v1/versions")).json()["items"]
        assert row == {
            "agent": "listen",
            "version": "1",
            "queued": 0,
            "running": 0,
            "waiting": 1,
            "served_by": 1,
        }
        other = Outlast("desk", store=desk.store)

        @other.agent(name="listen", version="2")
        async def listen(task: TaskContext, times: int) -> Any:
            return await task.wait("word", key="other")

        client = desk.client_of(create_app(other, settings(), manage=False))
        dry = (await client.post(f"/v1/tasks/{task}/adopt", json={"dry_run": True, **WHY})).json()
        assert (dry["adopted"], dry["fits"], dry["version"], dry["goes_on_at"]) == (
            False,
            True,
            "2",
            ["other"],
        )
        assert (await desk.app.get(task)).version == "1"
        done = await client.post(f"/v1/tasks/{task}/adopt", json=WHY)
        assert (done.status_code, done.json()["adopted"]) == (200, True)
        assert (await desk.app.get(task)).version == "2"
        # This service has no such code.
        none = await post(desk, f"tasks/{task}/adopt", version="2", **WHY)
        assert (none.status_code, none.json()["code"]) == (422, "agent_not_found")

    async def test_what_runs_is_not_adopted(self, desk: Desk) -> None:
        desk.work()
        task = await desk.submitted("stand")
        await desk.begun.wait()
        answer = await post(desk, f"tasks/{task}/adopt", **WHY)
        assert (answer.status_code, answer.json()["code"]) == (409, "version_in_use")
        woken = await post(desk, f"tasks/{task}/wake", **WHY)
        assert (woken.status_code, woken.json()["state"]) == (200, "running")


class TestAcceptance:
    async def test_verdicts_are_given_one_after_the_other(self, desk: Desk) -> None:
        task = await desk.ended("echo", value=7)
        path = f"tasks/{task}/acceptance"
        first = await post(desk, path, verdict="accepted", evidence={"sum": 7}, seen=0, **WHY)
        assert first.status_code == 201
        assert (first.json()["number"], first.json()["by"]) == (1, "person:local")
        late = await post(desk, path, verdict="rejected", seen=0, **WHY)
        assert (late.status_code, late.json()["code"]) == (409, "acceptance_conflict")
        assert (await post(desk, path, verdict="rejected", **WHY)).status_code == 201
        listed = (await desk.client.get(f"/v1/{path}")).json()["items"]
        assert [(each["number"], each["verdict"], each["evidence"]) for each in listed] == [
            (1, "accepted", {"sum": 7}),
            (2, "rejected", {}),
        ]
        shown = (await desk.client.get(f"/v1/tasks/{task}")).json()
        assert (shown["accepted"], shown["links"]["acceptance"]) == ("rejected", f"/v1/{path}")

    async def test_only_what_succeeded_is_judged(self, desk: Desk) -> None:
        task = await desk.ended("break_down")
        answer = await post(desk, f"tasks/{task}/acceptance", verdict="accepted", **WHY)
        assert (answer.status_code, answer.json()["code"]) == (409, "task_not_ended")
        for body in (
            {"verdict": "fine", **WHY},
            {"verdict": "accepted"},
            {"verdict": "accepted", "seen": -1},
        ):
            assert (await post(desk, f"tasks/{task}/acceptance", **body)).status_code == 422
        assert (await desk.client.get(f"/v1/tasks/{NOBODYS}/acceptance")).status_code == 404


class TestOutside:
    async def test_events_of_a_session_reach_the_one_task_that_holds_it(self, desk: Desk) -> None:
        @desk.app.agent
        async def converse(task: TaskContext, session: str) -> Any:
            await task.attach("vendor", session)
            event = await task.events_of("vendor")
            return [event.session, event.id, event.data]

        desk.work()
        session = "thread/42 a"
        task = await desk.submitted("converse", session=session)
        await desk.waiting(task)
        path = "outside/vendor/thread%2F42%20a/events"
        answer = await post(desk, path, event="evt_1", data={"text": "hello"})
        assert (answer.status_code, answer.json()) == (202, {"task": task, "status": "accepted"})
        ended = await desk.app.wait(task, timeout=PATIENCE_S)
        assert ended.result == [session, "evt_1", {"text": "hello"}]
        gone = await post(desk, path, event="evt_2")
        assert (gone.status_code, gone.json()["code"]) in {(409, "task_ended"), (404, "not_found")}

    async def test_a_repeat_is_harmless_and_another_data_is_not(self, desk: Desk) -> None:
        @desk.app.agent
        async def hold(task: TaskContext) -> None:
            await task.attach("vendor", "s-1", run="r-1")
            await task.sleep("1h")

        desk.work()
        task = await desk.submitted("hold")
        await desk.waiting(task)
        path = "outside/vendor/s-1/events"
        answers = [
            await post(desk, path, event="e", run="r-1", data=data) for data in ({"n": 1}, {"n": 1}, {"n": 2})
        ]
        assert [answer.status_code for answer in answers] == [202, 200, 422]
        assert answers[1].json() == {"task": task, "status": "repeated"}
        assert answers[2].json()["code"] == "signal_conflict"

    @pytest.mark.parametrize("path", ["outside/vendor/s/events", "outside/other/s-1/events"])
    async def test_nobody_holds_it(self, desk: Desk, path: str) -> None:
        answer = await post(desk, path, event="e")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")

    @pytest.mark.parametrize("body", [{}, {"event": ""}, {"event": "e", "run": ""}, {"event": 7}])
    async def test_an_event_has_an_id(self, desk: Desk, body: Any) -> None:
        answer = await post(desk, "outside/vendor/s/events", **body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


class TestBudgetsAndUndo:
    async def test_a_budget_travels_with_the_task(self, desk: Desk) -> None:
        answer = await post(desk, "tasks", agent="echo", budget={"operations": 3, "cost": "1.50"})
        assert answer.json()["budget"] == {"operations": 3, "cost": "1.50"}
        for budget in ({"money": 1}, {"operations": -1}, {"tokens": "many"}, {"cost": "much"}, 5):
            refused = await post(desk, "tasks", agent="echo", budget=budget)
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
            assert all(each["pointer"].startswith("/budget") for each in refused.json()["errors"])

    async def test_a_cancel_undoes_first_where_that_is_asked_for(self, desk: Desk) -> None:
        undone: list[str] = []

        @desk.app.tool(effect="idempotent")
        async def withdraw(call: ToolCall, result: str) -> None:
            undone.append(result)

        @desk.app.tool(effect="idempotent", undo=withdraw)
        async def file(call: ToolCall) -> str:
            return "t-1"

        @desk.app.agent
        async def files(task: TaskContext) -> None:
            await task.call(file)
            await task.wait("word")

        desk.work()
        task = await desk.submitted("files")
        await desk.waiting(task)
        answer = await post(desk, f"tasks/{task}/cancel", reason="enough", undo=True)
        assert (answer.status_code, answer.json()["cancelling"]) == (202, True)
        ended = await desk.app.wait(task, timeout=PATIENCE_S)
        assert (ended.state, undone) == ("cancelled", ["t-1"])
        assert ended.error is not None
        assert ended.error["compensation"] == {"state": "complete", "undone": ["file#1"], "left": []}


STEERING = [
    (f"tasks/{NOBODYS}/retry", WHY, {"ops"}),
    (f"tasks/{NOBODYS}/fork", WHY, {"ops"}),
    (f"tasks/{NOBODYS}/wake", WHY, {"ops"}),
    (f"tasks/{NOBODYS}/adopt", WHY, {"ops"}),
    (f"tasks/{NOBODYS}/acceptance", {"verdict": "accepted", **WHY}, {"ops", "ana"}),
    ("outside/vendor/s/events", {"event": "e"}, {"ops", "sub"}),
]


@pytest.mark.parametrize("store_kind", ["sqlite-memory"], indirect=True)
@pytest.mark.parametrize(("path", "body", "allowed"), STEERING)
async def test_who_may(desk: Desk, path: str, body: Any, allowed: set[str]) -> None:
    clients = people(desk)
    may = set()
    for who in ("ana", "ops", "sub", "eve"):
        answer = await clients[f"key-{who}"].post(f"/v1/{path}", json=body)
        assert answer.status_code in (403, 404), answer.text
        if answer.status_code == 404:
            may.add(who)
    assert may == allowed
