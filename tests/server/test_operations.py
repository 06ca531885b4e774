"""The reconciliation queue over HTTP: what is unknown, and how a person settles it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.desk import PATIENCE_S, Desk, settings

from outlast import TaskContext, ToolCall, Uncertain, ledger
from outlast.server import create_app
from outlast.store.records import Evidence

HAPPENED = {"verdict": "happened", "reason": "the bank has it", "result": {"letter": 9}, "by": "ada"}


async def settle(desk: Desk, operation: str, **body: Any) -> Any:
    return await desk.client.post(f"/v1/operations/{operation}/settle", json=body)


async def test_the_queue_lists_what_is_unknown_in_pages(desk: Desk) -> None:
    operations = sorted([await desk.unknown(), await desk.unknown(), await desk.unknown()])
    page = (await desk.client.get("/v1/operations?state=unknown&limit=2")).json()
    rest = (await desk.client.get("/v1/operations", params={"after": page["next"], "limit": 2})).json()
    assert [item["id"] for item in page["items"] + rest["items"]] == operations
    assert rest["next"] is None


async def test_a_list_leaves_the_values_to_those_who_look_at_one(desk: Desk) -> None:
    """They are up to megabytes each: they are not even read."""
    operation = await desk.unknown("x" * 500_000)
    for path in ("/v1/operations", f"/v1/tasks/{operation.partition(':')[0]}/operations"):
        answer = await desk.client.get(path)
        assert len(answer.content) < 2_000
        (item,) = answer.json()["items"]
        assert {"arguments", "result"} & set(item) == set()
        assert (item["id"], item["state"], item["attempt"], item["error"]["code"]) == (
            operation,
            "unknown",
            1,
            "unknown",
        )
        assert item["idempotency_key"] == operation
        shown = (await desk.client.get(item["links"]["self"])).json()
        assert (shown["arguments"], shown["result"]) == ({"to": "x" * 500_000}, None)
        assert shown["fingerprint"] == item["fingerprint"]
    (view,) = await desk.app.operations.list()
    assert view.arguments is None
    ((row, _),) = [await desk.app.operations.show(view.id)]
    assert row.arguments == {"to": "x" * 500_000}


async def test_much_evidence_is_shown_in_parts_the_newest_first(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much there is, one answer has so many pieces, and so many bytes."""
    operation = await desk.unknown()
    task, key = operation.split(":")
    notes = [
        Evidence(tenant="default", task=task, key=key, attempt=1, source="late", data=f'"{text}"')
        for text in ("a", "b", "c" * 4000, "d", "e")
    ]
    before = (await desk.app.operations.show(operation))[1]
    assert before.earlier is None
    await desk.app.store.note(notes)
    (_, whole) = await desk.app.operations.show(operation)
    assert [one.data[:1] for one in whole[len(before) :]] == list("abcde")
    assert whole.earlier is None

    path = f"/v1/operations/{operation.replace('#', '%23')}"

    async def parts() -> list[list[int]]:
        found: list[list[int]] = []
        earlier = None
        while True:
            query = {} if earlier is None else {"evidence_before": earlier}
            shown = (await desk.client.get(path, params=query)).json()
            (_, near) = await desk.app.operations.show(operation, evidence_before=earlier)
            found.append([one["number"] for one in shown["evidence"]])
            assert ([one.number for one in near], near.earlier) == (found[-1], shown["evidence_earlier"])
            earlier = near.earlier
            if earlier is None:
                return found

    first = len(before) + 1
    everything = list(range(1, first + 5))
    assert await parts() == [everything]
    monkeypatch.setattr(ledger, "EVIDENCE_PAGE", 2)
    told = await parts()
    assert told[0] == everything[-2:]
    assert sorted(number for part in told for number in part) == everything
    monkeypatch.setattr(ledger, "EVIDENCE_PAGE", 100)
    monkeypatch.setattr(ledger, "EVIDENCE_ROOM", 3000)
    assert await parts() == [everything[first + 1 :], everything[: first + 1]]
    for wrong in (0, -1, 2**31, "x"):
        answer = await desk.client.get(path, params={"evidence_before": wrong})
        assert answer.status_code == 422


async def test_an_operation_is_shown_with_its_evidence(desk: Desk) -> None:
    operation = await desk.unknown()
    shown = (await desk.client.get(f"/v1/operations/{operation.replace('#', '%23')}")).json()
    assert (shown["id"], shown["name"], shown["effect"], shown["state"]) == (
        operation,
        "send_letter",
        "manual",
        "unknown",
    )
    assert shown["links"]["settle"] == f"/v1/operations/{operation.replace('#', '%23')}/settle"
    assert (await desk.client.get(shown["links"]["self"])).json() == shown


async def test_the_queue_says_since_when_and_what_comes_next(desk: Desk) -> None:
    operation = await desk.unknown()
    (listed,) = (await desk.client.get("/v1/operations?state=unknown")).json()["items"]
    path = f"/v1/operations/{operation.replace('#', '%23')}"
    shown = (await desk.client.get(path)).json()
    assert listed["queue"] == shown["queue"]
    queue = shown["queue"]
    assert (queue["ask_at"], queue["asked"], queue["sender_gone"]) == (None, 1, True)
    assert shown["intent_at"] < queue["since"]
    assert [event["kind"] for event in shown["timeline"]] == ["operation.started", "operation.unknown"]
    plan = (await desk.client.get(shown["links"]["plan"])).json()
    assert plan == {"operation": operation, "state": "unknown", "action": "person", "why": queue["why"],
                    "at": None, "asked": 1, "refused_until": shown["visible_at"]}  # fmt: skip
    # The tool says nothing of when its effect shows, so that it is open to people when the call is over.
    assert shown["visible_at"] == shown["deadline_at"]
    await settle(desk, operation.replace("#", "%23"), **HAPPENED)
    shown = (await desk.client.get(path)).json()
    assert shown["queue"] is None
    assert [event["kind"] for event in shown["timeline"]][2:] == ["operation.settled"]
    plan = (await desk.client.get(f"{path}/plan")).json()
    assert (plan["action"], plan["state"], plan["why"]) == ("nothing", "succeeded", "it is succeeded")


async def test_how_unknowns_ended_is_told_by_tool(desk: Desk) -> None:
    async def stats(client: Any = desk.client) -> Any:
        return (await client.get("/v1/operations/stats")).json()["items"]

    assert await stats() == []
    operations = [(await desk.unknown()).replace("#", "%23") for _ in range(12)]
    (counted,) = await stats()
    assert counted == {"tool": "send_letter", "unknown": 12, "happened": 0, "did_not_happen": 0,
                       "sent_again": 0, "share": None, "hint": None}  # fmt: skip
    for number, operation in enumerate(operations[:11]):
        verdict = (
            {"verdict": "did_not_happen", "reason": "not there", "forced": True} if number > 3 else HAPPENED
        )
        assert (await settle(desk, operation, **verdict)).status_code == 200
    (counted,) = await stats()
    assert (counted["unknown"], counted["happened"], counted["did_not_happen"]) == (1, 4, 7)
    assert counted["share"] == pytest.approx(7 / 11)
    assert "classified wrongly" in counted["hint"]
    api = create_app(desk.app, settings(api_keys="bolt:key-b"), manage=False)
    assert await stats(desk.client_of(api, authorization="Bearer key-b")) == []


async def test_a_key_that_ends_like_a_route_names_its_operation(desk: Desk) -> None:
    @desk.app.agent
    async def posts(task: TaskContext) -> None:
        await task.call("send_letter", to="the bank", key="draw/plan")

    desk.work()
    task = await desk.submitted("posts")
    await desk.waiting(task)
    path = f"/v1/operations/{task}:draw%2Fplan"
    shown = (await desk.client.get(path)).json()
    assert (shown["key"], shown["links"]["self"], shown["links"]["plan"]) == (
        "draw/plan",
        path,
        f"{path}/plan",
    )
    assert (await desk.client.get(shown["links"]["plan"])).json()["operation"] == f"{task}:draw/plan"
    assert (await desk.client.get(f"/v1/operations/{task}:draw/plan")).status_code == 404
    assert (await settle(desk, f"{task}:draw%2Fplan", **HAPPENED)).status_code == 200


async def test_a_result_that_the_agent_could_not_use_is_refused(desk: Desk) -> None:
    @desk.app.tool(effect="manual", timeout="1h")
    async def weigh(call: ToolCall) -> int:
        raise Uncertain("the scales are stuck")

    @desk.app.agent
    async def post(task: TaskContext) -> int:
        return int(await task.call(weigh))

    desk.work()
    task = await desk.submitted("post")
    await desk.waiting(task)
    operation = f"{task}:weigh%231"
    for result in ("heavy", {"grams": 20}):
        refused = await settle(desk, operation, **{**HAPPENED, "result": result})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert [each["pointer"] for each in refused.json()["errors"]] == ["/result"]
    assert (await settle(desk, operation, **{**HAPPENED, "result": 20})).status_code == 200
    assert (await desk.app.wait(task, timeout=PATIENCE_S)).result == 20


@pytest.mark.parametrize(
    "operation",
    [
        "task_01jz8f5s9ve5ptq3mwr7n1k2bd:send_letter%231",
        "nonsense",
        "a:b",
        "task_01jz8f5s9ve5ptq3mwr7n1k2bd:%00",
        "task_01jz8f5s9ve5ptq3mwr7n1k2bd:",
        "task_01jz8f5s9ve5ptq3mwr7n1k2bd:a/b",
    ],
)
async def test_unknown_ids_are_404(desk: Desk, operation: str) -> None:
    for answer in (
        await desk.client.get(f"/v1/operations/{operation}"),
        await desk.client.get(f"/v1/operations/{operation}/plan"),
        await settle(desk, operation, **HAPPENED),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "operation_not_found")


async def test_what_happened_goes_on_with_its_result(desk: Desk) -> None:
    operation = (await desk.unknown()).replace("#", "%23")
    answer = await settle(desk, operation, **HAPPENED)
    assert (answer.status_code, answer.json()["state"], answer.json()["settled_by"]) == (
        200,
        "succeeded",
        "person:ada",
    )
    view = await desk.app.wait(answer.json()["task"], timeout=PATIENCE_S)
    assert view.result == {"letter": 9}
    evidence = (await desk.client.get(f"/v1/operations/{operation}")).json()["evidence"]
    assert [item["source"] for item in evidence][-1] == "person"
    assert "the bank has it" in str(evidence[-1]["data"])
    assert (await desk.client.get("/v1/operations")).json()["items"] == []


async def test_what_did_not_happen_waits_for_the_call_to_be_over(desk: Desk) -> None:
    operation = (await desk.unknown()).replace("#", "%23")
    early = await settle(desk, operation, verdict="did_not_happen", reason="not at the bank")
    assert (early.status_code, early.json()["code"], early.json()["state"]) == (
        409,
        "settlement_conflict",
        "too_early",
    )
    assert early.json()["operation"]["state"] == "unknown"
    forced = await settle(desk, operation, verdict="did_not_happen", reason="not at the bank", forced=True)
    assert (forced.status_code, forced.json()["state"]) == (200, "failed")


async def test_a_conflict_shows_what_is_recorded(desk: Desk) -> None:
    operation = (await desk.unknown()).replace("#", "%23")
    first = (await settle(desk, operation, **HAPPENED)).json()
    late = await settle(desk, operation, verdict="did_not_happen", reason="no", forced=True)
    assert (late.status_code, late.json()["code"], late.json()["state"]) == (
        409,
        "settlement_conflict",
        "succeeded",
    )
    assert late.json()["operation"] == first


async def test_a_turn_that_moved_on_is_a_conflict(desk: Desk) -> None:
    operation = (await desk.unknown()).replace("#", "%23")
    turn = (await desk.client.get(f"/v1/operations/{operation}")).json()["turn"]
    assert (await settle(desk, operation, **HAPPENED, turn=turn + 1)).status_code == 409
    assert (await settle(desk, operation, **HAPPENED, turn=2**31 - 1)).status_code == 409
    assert (await settle(desk, operation, **HAPPENED, turn=2**31)).status_code == 422
    assert (await settle(desk, operation, **HAPPENED, turn=turn)).status_code == 200


async def test_without_a_name_the_key_stands_for_the_person(desk: Desk) -> None:
    operation = (await desk.unknown()).replace("#", "%23")
    answer = await settle(desk, operation, verdict="happened", reason="seen")
    assert answer.json()["settled_by"] == "person:local"


@pytest.mark.parametrize(
    ("change", "code", "pointer"),
    [
        ({"verdict": "perhaps"}, "invalid_request", "/verdict"),
        ({"reason": ""}, "invalid_request", "/reason"),
        ({"reason": None}, "invalid_request", "/reason"),
        ({"by": "a\u0000b"}, "invalid_request", "/by"),
        ({"turn": -1}, "invalid_request", "/turn"),
        ({"forced": "yes"}, "invalid_request", "/forced"),
        ({"turns": 1}, "invalid_request", "/turns"),
        ({"result": [[10**4_001]]}, "unserializable", "/result/0/0"),
    ],
)
async def test_points_at_what_is_wrong(desk: Desk, change: dict[str, Any], code: str, pointer: str) -> None:
    operation = (await desk.unknown()).replace("#", "%23")
    answer = await settle(desk, operation, **{**HAPPENED, **change})
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert [item["pointer"] for item in answer.json()["errors"]] == [pointer]
    assert (await desk.client.get(f"/v1/operations/{operation}")).json()["state"] == "unknown"


async def test_other_tenants_operations_do_not_exist(desk: Desk) -> None:
    operation = (await desk.unknown()).replace("#", "%23")
    api = create_app(desk.app, settings(api_keys="bolt:key-b"), manage=False)
    bolt = desk.client_of(api, authorization="Bearer key-b")
    assert (await bolt.get("/v1/operations")).json()["items"] == []
    assert (await bolt.get(f"/v1/operations/{operation}")).status_code == 404
    nobodys = {name: value for name, value in HAPPENED.items() if name != "by"}
    assert (await bolt.post(f"/v1/operations/{operation}/settle", json=nobodys)).status_code == 404
    assert (await desk.client.get(f"/v1/operations/{operation}")).json()["state"] == "unknown"
