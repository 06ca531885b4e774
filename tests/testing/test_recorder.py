"""The Recorder does what it was told, and its log says what it did."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from outlast.testing.recorder import Recorder, RecorderError, Rule

INVOICE = {"invoice": "INV-102", "amount": "118.50"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process() -> AsyncIterator[Recorder]:
    async with Recorder() as recorder:
        yield recorder


@pytest.fixture
async def recorder(process: Recorder) -> Recorder:
    await process.reset()
    return process


@pytest.fixture
async def client(recorder: Recorder) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=recorder.url, timeout=5, trust_env=False) as client:
        yield client


def key(text: str) -> dict[str, str]:
    return {"Idempotency-Key": text}


class TestTickets:
    async def test_a_ticket_is_made_read_listed_and_withdrawn_once(self, recorder, client):
        made = await client.post("/tickets", json={**INVOICE, "note": "lunch"}, headers=key("k1"))
        assert made.status_code == 201
        ticket = made.json()
        assert made.headers["location"] == f"/tickets/{ticket['id']}"
        assert ticket["id"] == "R-55821"
        assert {name: ticket[name] for name in ("invoice", "amount", "note", "state", "idempotency_key")} == {
            **INVOICE, "note": "lunch", "state": "open", "idempotency_key": "k1",
        }  # fmt: skip
        await client.post("/tickets", json={"invoice": "INV-7", "amount": 3}, headers=key("k2"))

        async def ids(**params: str) -> list[str]:
            return [each["id"] for each in (await client.get("/tickets", params=params)).json()]

        assert await ids() == ["R-55821", "R-55822"]
        assert await ids(idempotency_key="k1") == ["R-55821"]
        assert await ids(invoice="INV-7") == ["R-55822"]
        assert await ids(idempotency_key="k1", invoice="INV-7") == []
        assert (await client.get("/tickets/R-55821")).json() == ticket
        assert (await client.post("/tickets/R-55821/withdraw")).json()["state"] == "withdrawn"
        assert (await client.post("/tickets/R-55821/withdraw")).status_code == 409
        assert [call.effect for call in await recorder.log() if call.effect] == [
            "created",
            "created",
            "withdrawn",
        ]

    async def test_a_note_may_be_set_twice(self, recorder, client):
        await client.post("/tickets", json=INVOICE)
        for _ in range(2):
            answer = await client.put("/tickets/R-55821/note", json={"text": "hi"})
            assert answer.json()["note"] == "hi"
        assert [call.effect for call in await recorder.log()] == ["created", "noted", "noted"]

    @pytest.mark.parametrize(
        ("method", "path", "body", "status"),
        [
            ("POST", "/tickets", b"{", 400),
            ("POST", "/tickets", b'{"amount": 1}', 422),
            ("POST", "/tickets", b'{"invoice": "", "amount": 1}', 422),
            ("POST", "/tickets", '{"invoice": "INV-102", "amount": "118.5元"}'.encode(), 422),
            ("POST", "/tickets", b'{"invoice": "INV-102", "amount": "NaN"}', 422),
            ("POST", "/tickets", b'{"invoice": "INV-102", "amount": 0}', 422),
            ("GET", "/tickets/R-1", b"", 404),
            ("POST", "/tickets/R-1/withdraw", b"", 404),
            ("PUT", "/tickets/R-1/note", b'{"text": "hi"}', 404),
            ("DELETE", "/tickets", b"", 405),
            ("GET", "/elsewhere", b"", 404),
        ],
    )
    async def test_nonsense_is_refused_and_logged_without_an_effect(
        self, recorder, client, method, path, body, status
    ):
        assert (await client.request(method, path, content=body)).status_code == status
        (call,) = await recorder.log()
        assert (call.method, call.path, call.status, call.effect) == (method, path, status, None)


class TestKeys:
    async def test_a_repeat_gets_the_first_answer(self, recorder, client):
        first = await client.post("/tickets", json=INVOICE, headers=key("k1"))
        other_spelling = b'{ "amount":"118.50",  "invoice":"INV-102"}'
        second = await client.post("/tickets", content=other_spelling, headers=key('"k1"'))
        assert (second.status_code, second.json()) == (201, first.json())
        assert second.headers["idempotent-replayed"] == "true"
        log = await recorder.log()
        assert [(call.key, call.effect, call.ticket, call.replayed) for call in log] == [
            ("k1", "created", "R-55821", False),
            ("k1", None, "R-55821", True),
        ]

    async def test_other_content_under_the_same_key_is_refused(self, recorder, client):
        await client.post("/tickets", json=INVOICE, headers=key("k1"))
        other = await client.post("/tickets", json={**INVOICE, "amount": "180"}, headers=key("k1"))
        assert other.status_code == 422
        other_path = await client.post("/tickets/R-55821/withdraw", json=INVOICE, headers=key("k1"))
        assert other_path.status_code == 422
        assert [ticket["amount"] for ticket in await recorder.tickets()] == ["118.50"]

    async def test_a_twin_in_flight_is_told_so_and_later_gets_the_first_answer(self, recorder, client):
        await recorder.hold("mail room", at="arrived")
        first = asyncio.create_task(client.post("/tickets", json=INVOICE, headers=key("k1")))
        await recorder.wait_for(held="mail room")
        assert (await client.post("/tickets", json=INVOICE, headers=key("k1"))).status_code == 409
        await recorder.release("mail room")
        ticket = (await first).json()
        assert (await client.post("/tickets", json=INVOICE, headers=key("k1"))).json() == ticket
        assert len(await recorder.tickets()) == 1

    async def test_keys_are_ignored_when_told(self, recorder, client):
        await recorder.configure(dedupe=False)
        for _ in range(2):
            await client.post("/tickets", json=INVOICE, headers=key("k1"))
        assert [ticket["idempotency_key"] for ticket in await recorder.tickets()] == ["k1", "k1"]

    async def test_a_key_is_forgotten_after_its_window(self, recorder, client):
        await client.post("/tickets", json=INVOICE, headers=key("k1"))
        await recorder.configure(key_window_ms=0)
        again = await client.post("/tickets", json=INVOICE, headers=key("k1"))
        assert again.json()["id"] == "R-55822"

    async def test_a_refused_call_does_not_use_its_key_up(self, recorder, client):
        assert (
            await client.post("/tickets", json={**INVOICE, "amount": "x"}, headers=key("k"))
        ).status_code == 422
        assert (await client.post("/tickets", json=INVOICE, headers=key("k"))).status_code == 201

    async def test_an_older_epoch_is_refused_when_told(self, recorder, client):
        await recorder.configure(check_epochs=True)
        answers = [
            await client.post("/tickets", json=INVOICE, headers={**key("k"), "Outlast-Epoch": epoch})
            for epoch in ("2", "1", "2", "3")
        ]
        assert [answer.status_code for answer in answers] == [201, 409, 201, 201]
        assert answers[1].json()["code"] == "stale_epoch"
        assert len(await recorder.tickets()) == 1


class TestMisbehaving:
    """Every way to end a call: what the client sees, and what the log says was done."""

    @pytest.mark.parametrize(
        ("rule", "seen", "acted"),
        [
            (Rule.hang(), httpx2.ReadTimeout, False),
            (Rule.act_then_hang(), httpx2.ReadTimeout, True),
            (Rule.act_then_late(60_000), httpx2.ReadTimeout, True),
            (Rule.act_then_reset(), httpx2.ReadError, True),
            (Rule.reset_before_acting(), httpx2.ReadError, False),
            (Rule.act_then_close(), httpx2.RemoteProtocolError, True),
            (Rule.act_then_half(), httpx2.RemoteProtocolError, True),
            (Rule.act_then_garbage(), httpx2.RemoteProtocolError, True),
            (Rule.act_then_answer(502), 502, True),
            (Rule.refuse(500), 500, False),
            (Rule.refuse(429, retry_after="5"), 429, False),
            (Rule.act_then_late(1), 201, True),
            (Rule.act_then_trickle(0), 201, True),
            (Rule.act_late(1), 201, True),
        ],
        ids=lambda value: f"{value.then}-{value.act}-{value.status}" if isinstance(value, Rule) else None,
    )
    async def test_once_and_then_honest_again(
        self, recorder: Recorder, client: httpx2.AsyncClient, rule: Rule, seen: Any, acted: bool
    ) -> None:
        await recorder.plan(rule)
        sent = client.post("/tickets", json=INVOICE, headers=key("k1"), timeout=httpx2.Timeout(5, read=0.3))
        if isinstance(seen, int):
            assert (await sent).status_code == seen
        else:
            with pytest.raises(seen):
                await sent
        (call,) = await recorder.wait_for(calls=1, method="POST", acted=acted)
        assert call.effect == ("created" if acted else None)
        assert len(await recorder.tickets()) == (1 if acted else 0)
        again = await client.post("/tickets", json=INVOICE, headers=key("k1"))
        assert (again.status_code, again.json()["id"]) == (201, "R-55821")
        assert [each.replayed for each in await recorder.log()] == [False, acted]

    async def test_a_retry_after_is_sent_as_it_stands(self, recorder, client):
        waits = ["5", "Wed, 21 Oct 2026 07:28:00 GMT", "soon"]
        await recorder.plan(*(Rule.refuse(503, retry_after=wait) for wait in waits))
        answers = [await client.post("/tickets", json=INVOICE) for _ in waits]
        assert [answer.headers["retry-after"] for answer in answers] == waits

    async def test_a_body_of_ones_own(self, recorder, client):
        stream = Rule.act_then_answer(
            200, headers={"Content-Type": "text/event-stream"}, body="event: error\n\n"
        )
        await recorder.plan(stream)
        answer = await client.post("/tickets", json=INVOICE)
        assert (answer.status_code, answer.text) == (200, "event: error\n\n")
        assert answer.headers["content-type"] == "text/event-stream"

    async def test_a_stale_query_does_not_see_young_tickets(self, recorder, client):
        await client.post("/tickets", json=INVOICE, headers=key("k1"))
        await recorder.plan(Rule.stale(60_000))
        assert (await client.get("/tickets", params={"idempotency_key": "k1"})).json() == []
        assert (await client.get("/tickets/R-55821")).status_code == 404
        await recorder.plan(instead=True)
        assert len((await client.get("/tickets")).json()) == 1

    async def test_rules_choose_by_key_path_method_and_number(self, recorder, client):
        await recorder.plan(
            Rule.refuse(503).on(key="k2"),
            Rule.refuse(500).on(path="/tickets/*", times=2),
            Rule.refuse(418).on(nth=3),
            Rule.refuse(504).on(method="GET"),
        )
        seen = [
            (await client.post("/tickets", json=INVOICE, headers=key("k1"))).status_code,  # the first POST
            (await client.post("/tickets", json=INVOICE, headers=key("k2"))).status_code,  # the second
            (await client.post("/tickets", json=INVOICE, headers=key("k2"))).status_code,  # the third: nth
            (await client.post("/tickets", json=INVOICE, headers=key("k2"))).status_code,
            (await client.post("/tickets/R-55821/withdraw")).status_code,
            (await client.post("/tickets/R-55821/withdraw")).status_code,
            (await client.post("/tickets/R-55821/withdraw")).status_code,
            (await client.get("/tickets")).status_code,
            (await client.get("/tickets")).status_code,
        ]
        assert seen == [201, 503, 418, 201, 500, 500, 200, 504, 200]

    async def test_a_rule_can_be_for_one_invoice_in_a_body_or_a_query(self, recorder, client):
        await recorder.plan(
            Rule.refuse(503).on(invoice="INV-7"), Rule.refuse(504).on(method="GET", invoice="INV-7")
        )
        seen = [
            (await client.post("/tickets", json=INVOICE)).status_code,
            (await client.post("/tickets", content=b"no JSON")).status_code,
            (await client.post("/tickets", json={**INVOICE, "invoice": "INV-7"})).status_code,
            (await client.get("/tickets")).status_code,
            (await client.get("/tickets", params={"invoice": "INV-7"})).status_code,
        ]
        assert seen == [201, 400, 503, 200, 504]

    async def test_a_call_is_acted_on_after_its_client_has_gone(self, recorder, client):
        await recorder.hold("queue", at="arrived")
        with pytest.raises(httpx2.ReadTimeout):
            await client.post(
                "/tickets", json=INVOICE, headers=key("k1"), timeout=httpx2.Timeout(5, read=0.2)
            )
        assert (await client.get("/tickets", params={"idempotency_key": "k1"})).json() == []
        await recorder.release("queue")
        (call,) = await recorder.wait_for(key="k1", ended=True)
        assert (call.effect, call.client_gone) == ("created", True)
        assert len(await recorder.tickets()) == 1

    async def test_a_call_can_be_held_between_its_effect_and_its_answer(self, recorder, client):
        await recorder.hold("done", at="acted")
        sent = asyncio.create_task(client.post("/tickets", json=INVOICE))
        (call,) = await recorder.wait_for(held="done")
        assert (call.effect, call.ending, sent.done()) == ("created", None, False)
        await recorder.release("done")
        assert (await sent).status_code == 201
        (call,) = await recorder.log()
        assert (call.held, call.ending) == (None, "answer")

    async def test_the_log_says_when_the_client_gave_up_on_a_hanging_call(self, recorder, client):
        await recorder.plan(Rule.act_then_hang())
        with pytest.raises(httpx2.ReadTimeout):
            await client.post("/tickets", json=INVOICE, timeout=httpx2.Timeout(5, read=0.2))
        (call,) = await recorder.wait_for(client_gone=True)
        assert (call.ending, call.status) == ("hang", None)


class TestLog:
    async def test_a_call_is_logged_with_everything_it_brought(self, recorder, client):
        headers = {
            **key('"task-1:act-3"'),
            "Outlast-Epoch": "7",
            "Outlast-Deadline": "9500",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        }
        await client.post("/tickets", json=INVOICE, headers=headers)
        (call,) = await recorder.log()
        assert (call.number, call.method, call.path, call.key) == (1, "POST", "/tickets", "task-1:act-3")
        assert (call.epoch, call.deadline_ms, call.traceparent) == (7, 9500, headers["traceparent"])
        assert (call.body, call.ending, call.status) == (INVOICE, "answer", 201)
        assert call.body_digest.startswith("sha256:")
        assert call.ended_at is not None
        assert call.acted_at is not None
        assert call.arrived_at <= call.acted_at <= call.ended_at

    async def test_log_tickets_and_keys_survive_a_kill_on_the_same_port(self, tmp_path: Path) -> None:
        async with (
            Recorder(database=tmp_path / "r.db") as recorder,
            httpx2.AsyncClient(trust_env=False) as client,
        ):
            await recorder.plan(Rule.act_then_hang())
            url = recorder.url
            sent = asyncio.create_task(client.post(f"{url}/tickets", json=INVOICE, headers=key("k1")))
            await recorder.wait_for(ended=True)
            await recorder.hold("never", at="arrived")
            other = asyncio.create_task(client.post(f"{url}/tickets", json=INVOICE, headers=key("k2")))
            await recorder.wait_for(held="never")
            recorder.kill()
            for task in (sent, other):
                with pytest.raises(httpx2.TransportError):
                    await task
            await asyncio.to_thread(recorder.start)
            assert recorder.url == url
            answered, open_ = await recorder.log()
            assert (answered.effect, answered.ending) == ("created", "hang")
            assert (open_.effect, open_.ending) == (None, None)
            again = await client.post(f"{url}/tickets", json=INVOICE, headers=key("k1"))
            assert again.json()["id"] == "R-55821"
            assert (await recorder.log(after=2))[0].replayed

    async def test_waiting_for_what_does_not_come_shows_the_log(self, recorder, client):
        await client.get("/tickets")
        with pytest.raises(TimeoutError, match='"path": "/tickets"'):
            await recorder.wait_for(method="POST", timeout=0.05)

    async def test_a_rule_that_does_not_exist_is_refused(self, recorder):
        with pytest.raises(RecorderError, match="no explode"):
            await recorder._ask("POST", "/_plan", {"rules": [{"explode": True}]})


class TestProcess:
    async def test_it_ends_with_the_process_that_started_it(self, tmp_path: Path) -> None:
        script = textwrap.dedent(
            f"""
            import os, sys
            from outlast.testing.recorder import Recorder
            recorder = Recorder(database={str(tmp_path / "r.db")!r}).start()
            print(recorder.pid, flush=True)
            sys.stdin.read()
            """
        )
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert parent.stdout is not None
        child = int(await parent.stdout.readline())
        ended = os.pidfd_open(child)
        try:
            parent.send_signal(signal.SIGKILL)
            await parent.wait()
            gone = asyncio.Event()
            asyncio.get_running_loop().add_reader(ended, gone.set)
            await asyncio.wait_for(gone.wait(), 10)
        finally:
            asyncio.get_running_loop().remove_reader(ended)
            os.close(ended)

    async def test_by_hand_it_serves_until_it_is_told_to_end(self, tmp_path: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "outlast.testing.recorder", "--database", str(tmp_path / "r.db"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            url = json.loads(await process.stdout.readline())["url"]
            async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
                await client.post("/_plan", json={"rules": [{"act": False, "status": 418}]})
                assert (await client.post("/tickets", json=INVOICE)).status_code == 418
                assert [call["effect"] for call in (await client.get("/_log")).json()] == [None]
        finally:
            process.terminate()
        assert await process.wait() == 0

    def test_start_and_stop_without_a_loop(self) -> None:
        recorder = Recorder()
        recorder.start()
        folder = recorder._database.parent
        assert recorder.start() is recorder  # running already
        assert recorder.pid is not None
        recorder.stop()
        recorder.stop()
        assert recorder.pid is None
        assert not folder.exists()

    def test_a_file_that_cannot_be_opened_is_an_error_at_the_start(self, tmp_path: Path) -> None:
        with pytest.raises(RecorderError, match="exit code 1"):
            Recorder(database=tmp_path / "no" / "folder.db").start()
