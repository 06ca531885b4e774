"""What is on record of a request, under which key it goes, and what that says when nobody else can."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.desk import HOST, Desk, Other, token

from outlast.core.passages import seen
from outlast.core.settle import Asked, Open, plan
from outlast.store.passing import PASSED_BOUND
from outlast.store.records import Evidence
from outlast.testing.recorder import Rule
from outlast.testing.store_suite.scene import SECOND

SECRETS = {
    "Authorization": "Bearer canary-header", "Cookie": "a=canary-cookie", "X-Api-Key": "canary-key",
}  # fmt: skip


# ── what is on record ────────────────────────────────────────────────────────────────────────────


async def test_a_request_leaves_two_notes_and_no_secret(desk: Desk) -> None:
    _, said = await desk.called()
    body = {"invoice": "INV-1", "amount": "1.00", "memo": "canary-body"}
    await desk.send(said, f"{desk.tickets}?token=canary-query", json=body, headers=SECRETS)
    rows = await desk.rows(said)
    passed, ended = await desk.notes(said)
    assert [(row.source, row.attempt, row.says) for row in rows] == [
        ("gateway", 1, None),
        ("gateway", 1, "happened"),
    ]
    same = {
        "request": passed["request"], "acts": True, "method": "POST", "host": f"{HOST}:{desk.recorder.port}",
        "path": "/tickets",
    }  # fmt: skip
    size = len(json.dumps(body, separators=(",", ":")))
    assert passed == same | {"phase": "passed", "fingerprint": passed["fingerprint"], "bytes": size}
    assert ended == same | {
        "phase": "ended", "status": 201, "how": "answered", "says": "happened", "bytes": ended["bytes"],
    }  # fmt: skip
    assert ended["bytes"] > 10
    dump = json.dumps(await desk.store.dump())
    assert "canary" not in dump
    assert token(said) not in dump


async def test_what_passes_is_on_record_before_it_is_sent(desk: Desk) -> None:
    _, said = await desk.called()
    await desk.recorder.hold("call", at="arrived")
    sending = asyncio.create_task(desk.send(said))
    await desk.recorder.wait_for(held="call")
    assert [note["phase"] for note in await desk.notes(said)] == ["passed"]
    await desk.recorder.release("call")
    await sending
    assert [note["phase"] for note in await desk.notes(said)] == ["passed", "ended"]


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (200, "happened"), (201, "happened"), (302, None), (400, "did_not_happen"), (403, "did_not_happen"),
        (409, None), (422, "did_not_happen"), (429, "did_not_happen"), (500, None), (503, "did_not_happen"),
    ],
)  # fmt: skip
async def test_only_a_status_that_proves_it_says_so(
    closed_desk: Desk, other: Other, status: int, says: str | None
) -> None:
    desk, place = closed_desk, f"http://{HOST}:{other.port}"
    _, said = await desk.called()
    said = replace(said, hosts=(place,))
    other.answer = b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status
    async with desk.open(allow=(place,)):
        await desk.send(said, desk.reverse(f"{place}/"), "GET")
        await desk.send(said, desk.reverse(f"{place}/"), content=b"x")
    rows = await desk.rows(said)
    assert [row.says for row in rows] == [None, None, None, says], "a look-up says nothing"


async def test_one_of_several_that_did_nothing_says_nothing(desk: Desk) -> None:
    _, said = await desk.called()
    await desk.send(said)
    await desk.recorder.plan(Rule(status=400, act=False))
    await desk.send(said, json={"invoice": "INV-2", "amount": "1.00"})
    rows = await desk.rows(said)
    assert [row.says for row in rows] == [None, "happened", None, None]
    assert json.loads(rows[-1].data)["says"] == "did_not_happen"


async def test_what_is_refused_is_on_record_up_to_a_bound(desk: Desk) -> None:
    _, said = await desk.called()
    there = desk.reverse("http://elsewhere.test/")
    for _ in range(103):
        await desk.refused("forbidden_host", said, url=there)
    notes = await desk.notes(said)
    assert len(notes) == 100
    assert {(note["phase"], note["how"], note["host"]) for note in notes} == {
        ("refused", "forbidden_host", "elsewhere.test")
    }


async def test_an_operation_that_has_sent_too_much_sends_no_more(desk: Desk) -> None:
    _, said = await desk.called()
    note = Evidence(
        tenant=said.tenant,
        task=said.task,
        key=said.key,
        attempt=1,
        source="gateway",
        data='{"phase": "ended"}',
    )
    await desk.store.note([note] * (PASSED_BOUND - 2))
    assert (await desk.send(said)).status_code == 201
    assert (await desk.refused("too_many_requests", said)).status_code == 429


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────


async def keys(desk: Desk) -> list[str | None]:
    return [call.key for call in await desk.recorder.log()]


def ticket(invoice: str) -> dict[str, Any]:
    return {"json": {"invoice": invoice, "amount": "1.00"}}


async def test_each_request_has_a_key_of_its_own_and_keeps_it(desk: Desk) -> None:
    claimed, said = await desk.called()
    own = f"{said.task}:{said.key}"
    await desk.send(said, method="GET")
    await desk.send(said, **ticket("INV-1"))
    await desk.send(said, **ticket("INV-2"))
    await desk.send(said, **ticket("INV-1"))
    _, first, second, again = await keys(desk)
    assert first == again == own
    assert second is not None
    assert second.startswith(f"{own}.")
    assert len(second) == len(own) + 17
    # The next attempt sends them the other way round.
    await desk.scene.write(claimed, await desk.scene.outcome(claimed, said.key, "planned"))
    row = await desk.scene.operation(claimed, said.key)
    await desk.scene.write(
        claimed,
        desk.scene.intent(
            said.key, name=row.name, request=row.request, decision=row.decision, attempt=row.attempt,
            turn=row.turn, timeout_us=60 * SECOND,
        ),
    )  # fmt: skip
    said = replace(said, attempt=2)
    await desk.send(said, **ticket("INV-2"))
    await desk.send(said, **ticket("INV-1"))
    assert (await keys(desk))[4:] == [second, own]
    assert len(await desk.recorder.tickets()) == 2


async def test_requests_that_race_have_different_keys(closed_desk: Desk) -> None:
    desk, allow = closed_desk, (f"http://{HOST}:{closed_desk.recorder.port}",)
    _, said = await desk.called()
    # Through two gateways, which do not know of each other.
    async with desk.open(allow=allow) as one, desk.open(allow=allow) as other:
        urls = [url.replace(desk.url, each) for each in (one, other) for url in [desk.tickets] * 6]
        answers = await asyncio.gather(
            *(desk.send(said, url, **ticket(f"INV-{number}")) for number, url in enumerate(urls))
        )
    assert {answer.status_code for answer in answers} == {201}
    found = await keys(desk)
    assert len(set(found)) == len(urls)
    assert f"{said.task}:{said.key}" in found
    assert len(await desk.recorder.tickets()) == len(urls)


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        ("{own}", True), ("{own}.reserve", True), ('"{own}.reserve"', True), ("{own}reserve", False),
        ("other", False), ("{own}x.reserve", False), ("", False),
    ],
)  # fmt: skip
async def test_a_request_may_name_its_part_of_the_operation(desk: Desk, named: str, kept: bool) -> None:
    _, said = await desk.called()
    own = f"{said.task}:{said.key}"
    named = named.format(own=own)
    await desk.send(said, headers={"Idempotency-Key": named})
    assert await keys(desk) == [named.strip('"') if kept else own]


# ── what it says when nobody else can ────────────────────────────────────────────────────────────


def opened(**changes: Any) -> Open:
    base = {
        "effect": "queryable", "first_intent_at": 0, "deadline_at": 10, "timeout_us": 10,
        "key_window_us": None, "visible_within_us": 5, "can_find": True, "sender_gone": True,
        "may_send": True,
    }  # fmt: skip
    return Open(**{**base, **changes})


def test_what_was_seen_as_done_is_never_taken_for_absent() -> None:
    absent = Asked(answer="absent", at=20)
    assert plan(opened(), 20, absent).action == "send_again"
    assert plan(opened(seen="acted"), 20, absent).action == "person"
    assert plan(opened(seen="acted"), 20).action == "ask"
    assert plan(opened(seen="acted"), 20, Asked(answer="found", at=20)).action == "happened"
    assert "gateway" in plan(opened(seen="acted", effect="manual"), 20).why
    keyed = opened(seen="acted", effect="keyed", key_window_us=1000, can_find=False)
    assert plan(keyed, 20).action == "send_again", "under the same key, which the other side knows"


def test_what_all_did_nothing_did_not_happen() -> None:
    for effect in ("manual", "queryable", "keyed"):
        assert plan(opened(seen="nothing", effect=effect, key_window_us=1000), 20).action == "did_not_happen"
    assert opened(seen="nothing").answered
    assert not opened(seen="acted").answered
    assert plan(opened(seen="nothing", late="contradictory"), 20).action == "person"


def test_no_notes_say_nothing() -> None:
    assert seen([]) is None
