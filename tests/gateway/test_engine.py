"""A worker and a gateway: tools that go through it, foreign code with a token, workers that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.engine.house import House
from tests.engine.test_settler import cut_off, left_to_a_person, put_back, silenced
from tests.gateway.desk import HOST, SECRET, Desk

from outlast import Outlast, TaskContext, ToolCall
from outlast.core import values
from outlast.core.retry import Backoff
from outlast.engine import facts
from outlast.engine.declaring import tool_spec
from outlast.errors import ConfigurationError, ToolFailed, ToolRejected
from outlast.store.records import OperationRow
from outlast.store.rows import EvidenceRow
from outlast.testing.recorder import Recorder, Rule

QUICK = Backoff(base_s=0.02, max_s=0.16, jitter_s=0, attempts=6)


@pytest.fixture
async def house(desk: Desk) -> AsyncIterator[House]:
    """An app whose tools go through the desk's gateway."""
    made = House(desk.store)
    made.app = Outlast("tests", store=desk.store, secret=SECRET, gateway_url=desk.url)
    async with made:
        yield made


def register(house: House, desk: Desk, **options: Any) -> Any:
    """Register a tool that goes through the gateway, and an agent that calls it once."""
    tickets = f"http://{HOST}:{desk.recorder.port}/tickets"

    async def create(call: ToolCall, invoice: str) -> str:
        reply = await call.http.post(tickets, json={"invoice": invoice, "amount": "1.00"})
        return str(reply.json()["id"])

    body = options.pop("body", create)
    given = {"effect": "manual", "gateway": True, "timeout": 20, "retry": QUICK, **options}
    tool = house.app.tool(name="create", **given)(body)  # type: ignore[arg-type]

    @house.app.agent
    async def files(task: TaskContext, invoice: str = "INV-1") -> Any:
        try:
            return await task.call(tool, invoice)
        except (ToolFailed, ToolRejected) as error:
            return f"failed: {error.reason} {error}"

    return files


async def test_a_tool_goes_through_and_its_answer_comes_back(house: House, desk: Desk) -> None:
    view = await house.run(register(house, desk))
    (call,) = await desk.recorder.log()
    assert (view.result, call.effect) == (call.ticket, "created")
    assert (call.key, call.epoch) == (f"{view.id}:create#1", 1)
    assert call.deadline_ms is not None
    assert call.deadline_ms <= 20_000
    evidence = await desk.store.read_evidence("default", view.id, "create#1")
    assert [(row.source, row.says) for row in evidence] == [("gateway", None), ("gateway", "happened")]


async def test_what_the_other_side_says_is_what_the_tool_gets(house: House, desk: Desk) -> None:
    files = register(house, desk)
    await desk.recorder.plan(Rule(status=400, act=False), Rule(status=503, act=False))
    view = await house.run(files)
    assert "400 from POST tickets.test" in view.result
    assert (await house.run(files)).result.startswith("R-"), "503 was not processed, and is tried again"


async def test_what_the_gateway_refuses_was_not_sent(house: House, desk: Desk) -> None:
    async def elsewhere(call: ToolCall, invoice: str) -> None:
        await call.http.post("https://elsewhere.test/x", json={})

    view = await house.run(register(house, desk, body=elsewhere))
    assert "forbidden" in view.result
    assert "forbidden_host" in view.result
    assert await desk.recorder.log() == []


async def test_a_gateway_that_is_away_leaves_it_to_be_tried_again(closed_desk: Desk) -> None:
    desk = closed_desk
    house = House(desk.store)
    async with desk.open(allow=(f"http://{HOST}:{desk.recorder.port}",)) as url:
        pass
    house.app = Outlast("tests", store=desk.store, secret=SECRET, gateway_url=url)
    async with house:
        handle = await house.submit(register(house, desk))
        house.start()
        await house.reached(handle, "operation.failed")
        view = await house.ended(handle)
    assert "not_sent" in view.result
    assert await desk.recorder.log() == []


async def test_a_redirect_is_not_followed_past_the_gateway(house: House, desk: Desk) -> None:
    async def look(call: ToolCall, invoice: str) -> int:
        answer = await call.http.get(f"http://{HOST}:{desk.recorder.port}/tickets", raises=False)
        return answer.status_code

    await desk.recorder.plan(Rule(status=302, method="GET"))
    view = await house.run(register(house, desk, body=look, effect="read"))
    assert view.result == 302
    assert len(await desk.recorder.log()) == 1


# ── foreign code ─────────────────────────────────────────────────────────────────────────────────


async def test_foreign_code_sends_with_the_token_it_is_given(house: House, desk: Desk) -> None:
    place = f"http://{HOST}:{desk.recorder.port}"

    async def in_sandbox(call: ToolCall, invoice: str) -> int:
        token = call.gateway_token([f"{place}/tickets"])
        assert call.began
        assert call.gateway_url == desk.url
        async with httpx2.AsyncClient(proxy=desk.url, trust_env=False) as client:
            answer = await client.post(
                f"{place}/tickets",
                json={"invoice": invoice, "amount": "1.00"},
                headers={"Proxy-Authorization": f"Bearer {token}"},
            )
        return answer.status_code

    view = await house.run(register(house, desk, body=in_sandbox, gateway=False))
    assert view.result == 201
    (call,) = await desk.recorder.log()
    assert (call.key, call.epoch) == (f"{view.id}:create#1", 1)


async def test_once_a_token_is_out_an_exception_is_unknown(house: House, desk: Desk) -> None:
    async def in_sandbox(call: ToolCall, invoice: str) -> None:
        call.gateway_token([HOST])
        raise RuntimeError("the sandbox broke")

    handle = await house.submit(register(house, desk, body=in_sandbox, gateway=False))
    house.start()
    await house.reached(handle, "operation.unknown")


async def test_what_no_token_can_be_made_of_is_said(house: House, desk: Desk) -> None:
    said: list[str] = []

    async def careless(call: ToolCall, invoice: str) -> None:
        for hosts in (
            [],
            "api.example.com",
            ["ftp://x"],
            ["host"] * 65,
            ["a" * 60 + f"{n}.test" for n in range(64)],
        ):
            with pytest.raises(ConfigurationError) as raised:
                call.gateway_token(hosts)
            said.append(str(raised.value))
        assert not call.began

    await house.run(register(house, desk, body=careless, gateway=False))
    assert [words for words in ("at least one", "at least one", "neither", "at most 64", "too long")] == [
        next(word for word in ("at least one", "neither", "at most 64", "too long") if word in text)
        for text in said
    ]


async def test_a_tool_that_needs_a_gateway_has_to_be_told_of_one(desk: Desk) -> None:
    app = Outlast("tests", store=desk.store, secret=SECRET)

    @app.tool(gateway=True)
    async def create(call: ToolCall) -> None: ...

    with pytest.raises(ConfigurationError, match="OUTLAST_GATEWAY_URL"):
        app.worker()


# ── forks ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["http", "in a sandbox", "in a sandbox that names its key"])
async def test_a_call_that_a_fork_took_over_goes_through_under_the_first_key(
    house: House, desk: Desk, way: str
) -> None:
    place = f"http://{HOST}:{desk.recorder.port}"

    async def create(call: ToolCall, invoice: str) -> list[str]:
        made = []
        for number in (1, 2):
            ticket = {"invoice": f"{invoice}-{number}", "amount": "1.00"}
            if way == "http":
                reply = await call.http.post(f"{place}/tickets", json=ticket, part=f"part-{number}")
            else:
                headers = {"Outlast-Token": call.gateway_token([place])}
                if "names" in way:
                    headers["Idempotency-Key"] = f'"{call.idempotency_key}.{number}"'
                reply = await desk.client.post(desk.tickets, json=ticket, headers=headers)
            made.append(str(reply.json()["id"]))
        return made

    files = register(house, desk, body=create, effect="idempotent", gateway=way == "http")
    view = await house.run(files)
    first = [call.key for call in await desk.recorder.log()]
    assert len(set(first)) == 2
    assert all(str(key).startswith(f"{view.id}:create#1") for key in first)
    fork = await house.app.fork(view.id, before="create#1", reason="another way", by="kim")
    assert (await house.ended(fork)).result == view.result, "the other side knows what it has made"
    # A fork of the fork, whose notes are of three tasks.
    again = await house.app.fork(fork.id, before="create#1", reason="once more", by="kim")
    assert (await house.ended(again)).result == view.result
    assert [call.key for call in await desk.recorder.log()] == first * 3
    assert len(await desk.recorder.tickets()) == 2


# ── workers that are lost ────────────────────────────────────────────────────────────────────────


async def by_invoice(call: ToolCall, recorder: Recorder, invoice: str) -> str | None:
    answer = await call.http.get(f"{recorder.url}/tickets", params={"invoice": invoice})
    return answer.json()[0]["id"] if answer.json() else None


@pytest.mark.parametrize("gateway", [True, False])
async def test_after_the_loss_of_a_worker_absence_counts_where_a_gateway_stands(
    house: House, desk: Desk, gateway: bool
) -> None:
    place = f"http://{HOST}:{desk.recorder.port}"
    late, go = asyncio.Event(), asyncio.Event()
    frozen: list[asyncio.Task[httpx2.Response]] = []

    async def send(token: str, invoice: str) -> httpx2.Response:
        if not frozen:
            late.set()
            await go.wait()
        async with httpx2.AsyncClient(trust_env=False) as client:
            return await client.post(
                desk.tickets, json={"invoice": invoice, "amount": "1.00"}, headers={"Outlast-Token": token}
            )

    async def create(call: ToolCall, invoice: str) -> str:
        token = call.gateway_token([place])
        if call.epoch > 1:
            return str((await send(token, invoice)).json()["id"])
        # Code of its own, which nothing here can cut; it is frozen until everything is over.
        sandbox = asyncio.create_task(send(token, invoice))
        await late.wait()
        frozen.append(sandbox)
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def find(call: ToolCall, invoice: str) -> str | None:
        return await by_invoice(call, desk.recorder, invoice)

    files = register(
        house,
        desk,
        body=create,
        find=find,
        effect="queryable",
        visible_within=0.1,
        timeout=3,
        gateway=gateway,
    )
    # Where it can, the lost worker says at the end of its time that its call is over.
    heard_again = silenced(house)
    handle = await house.submit(files)
    lost = house.start(lease_s=0.6, renew_s=0.1, grace_s=30.0)
    await asyncio.wait_for(late.wait(), 20)
    cut_off(house, lost)
    postponed = put_back(house)
    house.start()
    if gateway:
        view = await house.ended(handle)
        assert view.result.startswith("R-")
    else:
        assert len(await left_to_a_person(postponed)) > 1
        place_ = await house.place(f"{handle.id}:create#1")
        assert place_ is not None
        assert "may still be able to send" in place_.why
    go.set()
    answer = await frozen[0]
    # Its time was over before anybody else sent.
    assert answer.json()["code"] == "token_expired"
    assert len(await desk.recorder.tickets()) == (1 if gateway else 0)
    heard_again()


def row(number: int, phase: str, request: str, says: str | None = None, attempt: int = 2) -> EvidenceRow:
    data = values.encode({"phase": phase, "request": request, "acts": True, "says": says})
    return EvidenceRow(number=number, attempt=attempt, source="gateway", data=data, at=number)


@pytest.mark.parametrize("gateway", [True, False])
def test_facts_count_the_sender_as_gone_behind_a_gateway(gateway: bool) -> None:
    async def create(call: ToolCall) -> None: ...

    tool = tool_spec(create, {"gateway": gateway})
    sent = OperationRow(
        tenant="t",
        task="k",
        key="o",
        position=1,
        kind="tool",
        name="create",
        state="unknown",
        request="r",
        attempt=2,
    )

    def known(*evidence: EvidenceRow) -> facts.Known:
        return facts.gather(tool, sent, None, evidence, may_send=True)

    assert known().facts.sender_gone is gateway
    nothing = (row(1, "passed", "a"), row(2, "ended", "a", "did_not_happen"))
    assert known(*nothing).facts.seen == ("nothing" if gateway else None)
    # An earlier attempt that is open is not answered by the last one.
    before = row(0, "passed", "z", attempt=1)
    assert known(before, *nothing).facts.seen is None
    acted = (row(1, "passed", "a"), row(2, "ended", "a", "happened"))
    assert known(*acted).facts.seen == "acted"
    assert known(*acted).facts.late is None, "its result is nobody's to make up"
    said = EvidenceRow(
        number=3, attempt=2, source="person", data='{"verdict": "did_not_happen"}', at=3, says=None
    )
    assert known(*acted, said).facts.late == "contradictory"
