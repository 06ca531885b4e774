"""What call.http makes of every way a service can answer or not answer; the Recorder's log is the judge."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import httpx2
import pytest

from outlast import errors, probes
from outlast.core.outcome import Failed, Unknown
from outlast.errors import Forbidden, Invalid, LeaseLost, NotSent, Rejected, ToolVerdict, Uncertain
from outlast.testing.recorder import Rule
from outlast.tools.classify import outcome_of_exception
from outlast.tools.http import make_client

INVOICE = {"invoice": "INV-102", "amount": "118.50"}
QUICK = 0.4
"""Seconds that a test waits for an answer that does not come."""


async def ending(call: Any, body: Any) -> tuple[type[BaseException] | None, Any]:
    """Run a body as the engine does: what it raised, and the outcome that this is."""
    try:
        await body
    except BaseException as exc:  # whatever it is, it is what the test is about
        return type(exc), outcome_of_exception(exc, began=call.began, changes=True)
    return None, None


# rule of the Recorder, whether it acted, the verdict that the body sees, the outcome
ENDINGS: list[Any] = [
    (Rule.act_then_hang(), True, Uncertain, Unknown),
    (Rule.hang(), False, Uncertain, Unknown),
    (Rule.act_then_late(60_000), True, Uncertain, Unknown),
    (Rule.act_then_trickle(20), True, Uncertain, Unknown),
    (Rule.act_then_reset(), True, Uncertain, Unknown),
    (Rule.reset_before_acting(), False, Uncertain, Unknown),
    (Rule.act_then_close(), True, Uncertain, Unknown),
    (Rule.act_then_half(), True, Uncertain, Unknown),
    (Rule.act_then_garbage(), True, Uncertain, Unknown),
    (Rule.act_then_answer(500), True, Uncertain, Unknown),
    (Rule.act_then_answer(502), True, Uncertain, Unknown),
    (Rule.act_then_answer(504), True, Uncertain, Unknown),
    (Rule.act_then_answer(599), True, Uncertain, Unknown),
    (Rule.refuse(500), False, Uncertain, Unknown),
    (Rule.refuse(408), False, Uncertain, Unknown),
    (Rule.act_then_answer(303, headers={"Location": "/tickets/R-55821"}), True, Uncertain, Unknown),
    (Rule.act_then_answer(307, headers={"Location": "/tickets"}), True, Uncertain, Unknown),
    (Rule.refuse(400), False, Rejected, "rejected"),
    (Rule.refuse(404), False, Rejected, "rejected"),
    (Rule.refuse(409), False, Rejected, "conflict"),
    (Rule.refuse(418), False, Rejected, "rejected"),
    (Rule.refuse(422), False, Invalid, "invalid"),
    (Rule.refuse(401), False, Forbidden, "forbidden"),
    (Rule.refuse(403), False, Forbidden, "forbidden"),
    (Rule.refuse(425), False, NotSent, "not_sent"),
    (Rule.refuse(503), False, NotSent, "not_sent"),
    (Rule.refuse(503, retry_after="4"), False, NotSent, "throttled"),
    (Rule.refuse(429), False, NotSent, "throttled"),
]


def name_of(value: Any) -> str | None:
    if isinstance(value, Rule):
        return f"{value.then}-{value.status or ''}-{'acted' if value.act else 'not'}{value.delay_ms or ''}"
    return None


@pytest.mark.parametrize(("rule", "acted", "raised", "outcome"), ENDINGS, ids=name_of)
async def test_every_ending_is_sent_once_and_told_apart(
    recorder, make_call, rule: Rule, acted: bool, raised: type[ToolVerdict], outcome: Any
) -> None:
    await recorder.plan(rule)
    call = make_call()
    kind, said = await ending(call, call.http.post(f"{recorder.url}/tickets", json=INVOICE, timeout=QUICK))
    assert kind is not None
    assert issubclass(kind, raised)
    if outcome is Unknown:
        assert isinstance(said, Unknown)
    else:
        assert isinstance(said, Failed)
        assert said.kind == outcome
        assert said.retryable == (outcome in ("not_sent", "throttled"))
        assert said.status == rule.status
    log = await recorder.log()
    assert [each.effect for each in log] == (["created"] if acted else [None])
    assert call.began


async def test_a_request_carries_key_epoch_deadline_and_trace(recorder, make_call) -> None:
    call = make_call(within=5.0)
    answer = await call.http.post(f"{recorder.url}/tickets", json=INVOICE)
    assert answer.json()["id"] == "R-55821"
    (logged,) = await recorder.log()
    assert (logged.key, logged.epoch, logged.traceparent) == ("task_1:act-3", 7, call.traceparent)
    assert 0 < logged.deadline_ms <= 5000
    found = await make_call(query=True).http.get(
        f"{recorder.url}/tickets", params={"idempotency_key": call.idempotency_key}
    )
    assert [ticket["id"] for ticket in found.json()] == ["R-55821"]


async def test_a_request_says_whose_epoch_it_carries() -> None:
    seen: list[tuple[str, str]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.headers["outlast-task"], request.headers["outlast-epoch"]))
        return httpx2.Response(204)

    from outlast import clock
    from outlast.tools.call import ToolCall

    async with make_client(transport=httpx2.MockTransport(answer)) as client:
        call = ToolCall(
            idempotency_key="task_9:act-1", task="task_9", tenant="acme", epoch=4, attempt=1,
            deadline=clock.monotonic() + 5, client=lambda: client,
        )  # fmt: skip
        await call.http.post("http://tickets/tickets", json=INVOICE)
    assert seen == [("task_9", "4")]


async def test_a_second_attempt_under_the_same_key_gets_the_first_ticket(recorder, make_call) -> None:
    await recorder.plan(Rule.act_then_reset())
    with pytest.raises(Uncertain):
        await make_call().http.post(f"{recorder.url}/tickets", json=INVOICE)
    again = await make_call(attempt=2).http.post(f"{recorder.url}/tickets", json=INVOICE)
    assert again.json()["id"] == "R-55821"
    assert [each.replayed for each in await recorder.log()] == [False, True]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"quoted_key": True}, "task_1:act-3"),
        ({"part": "attach"}, "task_1:act-3.attach"),
        ({"headers": {"idempotency-key": "mine"}}, "mine"),
    ],
)
async def test_a_key_can_be_quoted_have_a_part_or_be_the_callers(recorder, make_call, options, key) -> None:
    await make_call().http.post(f"{recorder.url}/tickets", json=INVOICE, **options)
    (logged,) = await recorder.log()
    assert logged.key == key


async def test_the_quoted_key_is_a_structured_string() -> None:
    seen: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers["idempotency-key"])
        return httpx2.Response(204)

    from outlast import clock
    from outlast.tools.call import ToolCall

    async with make_client(transport=httpx2.MockTransport(answer)) as client:
        call = ToolCall(
            idempotency_key='t:a"b\\c', task="t", tenant="acme", epoch=1, attempt=1,
            deadline=clock.monotonic() + 5, client=lambda: client,
        )  # fmt: skip
        await call.http.post("http://tickets/", quoted_key=True)
        await call.http.post("http://tickets/")
    assert seen == ['"t:a\\"b\\\\c"', 't:a"b\\c']
    assert call.began


class TestNothingLeaves:
    """Before the first byte every failure is an ordinary one."""

    async def test_refused(self, recorder, make_call) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            call = make_call()
            kind, said = await ending(
                call, call.http.post(f"http://127.0.0.1:{closed.getsockname()[1]}/tickets")
            )
        assert issubclass(kind, NotSent)
        assert (said.kind, said.retryable, call.began) == ("not_sent", True, False)

    async def test_no_such_name(self, make_call) -> None:
        call = make_call()
        kind, said = await ending(call, call.http.post("http://nowhere.invalid/tickets"))
        assert issubclass(kind, NotSent)
        assert (said.kind, call.began) == ("not_sent", False)

    async def test_tls_that_fails(self, recorder, make_call) -> None:
        call = make_call()
        kind, said = await ending(call, call.http.post(f"https://127.0.0.1:{recorder.port}/tickets"))
        assert issubclass(kind, NotSent)
        assert (said.kind, call.began) == ("not_sent", False)
        assert await recorder.log() == []

    async def test_no_free_connection(self, recorder, make_call) -> None:
        async with make_client(max_connections=1, trust_env=False) as client:
            await recorder.hold("busy")
            first = make_call(client=lambda: client)
            taken = asyncio.create_task(first.http.post(f"{recorder.url}/tickets", json=INVOICE))
            await recorder.wait_for(held="busy")
            call = make_call(client=lambda: client)
            kind, said = await ending(
                call, call.http.post(f"{recorder.url}/tickets", json=INVOICE, timeout=0.1)
            )
            await recorder.release("busy")
            await taken
        assert issubclass(kind, NotSent)
        assert (said.kind, call.began, first.began) == ("not_sent", False, True)
        assert len(await recorder.log()) == 1

    async def test_a_connection_that_is_not_made_in_time(self, make_call) -> None:
        # A listener with a full backlog does not answer the next connection.
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            full.setblocking(False)
            others = [socket.socket() for _ in range(4)]
            for other in others:
                other.setblocking(False)
                other.connect_ex(full.getsockname())
            call = make_call()
            url = f"http://127.0.0.1:{full.getsockname()[1]}/"
            kind, said = await ending(call, call.http.post(url, timeout=0.2))
            for other in others:
                other.close()
        assert issubclass(kind, NotSent)
        assert (said.kind, call.began) == ("not_sent", False)

    @pytest.mark.parametrize("url", ["ftp://tickets/", "http://tickets:port/", "tickets"])
    async def test_a_url_that_is_none(self, make_call, url) -> None:
        call = make_call()
        _, said = await ending(call, call.http.post(url))
        assert (said.kind, said.retryable, call.began) == ("error", False, False)

    async def test_headers_that_break_http(self, recorder, make_call) -> None:
        call = make_call()
        headers = {"X-Note": "two\nlines"}
        _, said = await ending(call, call.http.post(f"{recorder.url}/tickets", json=INVOICE, headers=headers))
        assert (said.kind, said.retryable) == ("error", False)
        assert await recorder.log() == []

    async def test_the_guard_refuses_at_the_start(self, recorder, make_call) -> None:
        def refuse() -> None:
            raise LeaseLost("the trust deadline is over")

        call = make_call(guard=refuse)
        kind, said = await ending(call, call.http.post(f"{recorder.url}/tickets", json=INVOICE))
        assert (kind, said.kind, call.began) == (LeaseLost, "not_sent", False)
        assert await recorder.log() == []

    async def test_the_guard_is_asked_again_when_the_connection_stands(self, recorder, make_call) -> None:
        asked: list[str] = []

        def refuse_the_second() -> None:
            asked.append("guard")
            if len(asked) == 2:
                raise LeaseLost("the lease ran out while the connection was made")

        call = make_call(guard=refuse_the_second)
        kind, said = await ending(call, call.http.post(f"{recorder.url}/tickets", json=INVOICE))
        assert (kind, said.kind, call.began) == (LeaseLost, "not_sent", False)
        assert await recorder.log() == []

    async def test_the_deadline_is_over(self, recorder, make_call) -> None:
        call = make_call(within=-1.0)
        kind, said = await ending(call, call.http.post(f"{recorder.url}/tickets", json=INVOICE))
        assert (kind, said.kind, said.retryable) == (errors.DeadlineExceeded, "deadline", True)
        assert await recorder.log() == []

    async def test_guard_then_probe_then_bytes(self, recorder, make_call) -> None:
        order: list[str] = []
        call = make_call(guard=lambda: order.append("guard"))
        probes.install(lambda point: order.append(f"{point} {call.began}"))
        try:
            await call.http.post(f"{recorder.url}/tickets", json=INVOICE)
        finally:
            probes.install(None)
        assert order == ["guard", "guard", "http.before_send False", "http.after_answer True"]


class TestTime:
    async def test_a_deadline_ends_a_request_and_its_connection(self, recorder, make_call) -> None:
        await recorder.plan(Rule.act_then_hang())
        call = make_call(within=QUICK)
        kind, said = await ending(call, call.http.post(f"{recorder.url}/tickets", json=INVOICE, timeout=30))
        assert issubclass(kind, Uncertain)
        assert isinstance(said, Unknown)
        (logged,) = await recorder.wait_for(client_gone=True)
        assert logged.effect == "created"

    async def test_a_cancelled_request_is_unknown_and_its_connection_closed(
        self, recorder, make_call
    ) -> None:
        await recorder.plan(Rule.act_then_hang())
        call = make_call()
        sent = asyncio.create_task(call.http.post(f"{recorder.url}/tickets", json=INVOICE))
        await recorder.wait_for(ended=True)
        sent.cancel()
        kind, said = await ending(call, sent)
        assert (kind, type(said)) == (asyncio.CancelledError, Unknown)
        await recorder.wait_for(client_gone=True)

    async def test_cancelled_before_it_was_sent_is_not_unknown(self, recorder, make_call) -> None:
        call = make_call()
        sent = asyncio.create_task(call.http.post(f"{recorder.url}/tickets", json=INVOICE))
        sent.cancel()
        _, said = await ending(call, sent)
        assert (said.kind, said.retryable, call.began) == ("not_sent", True, False)

    @pytest.mark.parametrize(
        ("header", "wait"),
        [("5", 5), ("0", 0), ("86400", 86_400), ("soon", None), ("-3", None), ("1.5", None)],
    )
    async def test_a_wait_in_seconds(self, recorder, make_call, header, wait) -> None:
        await recorder.plan(Rule.refuse(429, retry_after=header))
        with pytest.raises(NotSent) as caught:
            await make_call().http.post(f"{recorder.url}/tickets", json=INVOICE)
        assert caught.value.retry_after == wait

    async def test_a_wait_as_a_date(self, recorder, make_call) -> None:
        await recorder.plan(Rule.refuse(503, retry_after="Fri, 31 Dec 2100 23:59:59 GMT"))
        with pytest.raises(NotSent) as caught:
            await make_call().http.post(f"{recorder.url}/tickets", json=INVOICE)
        assert caught.value.retry_after > 86_400


class TestOverrides:
    async def test_a_tool_may_look_for_itself(self, recorder, make_call) -> None:
        await recorder.plan(Rule.refuse(409))
        answer = await make_call().http.post(f"{recorder.url}/tickets", json=INVOICE, raises=False)
        assert answer.status_code == 409

    @pytest.mark.parametrize(
        ("option", "status", "outcome"),
        [("declined", 502, "rejected"), ("not_sent", 500, "not_sent"), ("unknown", 409, None)],
    )
    async def test_a_status_may_mean_something_else(
        self, recorder, make_call, option, status, outcome
    ) -> None:
        await recorder.plan(Rule.refuse(status))
        call = make_call()
        post = call.http.post(f"{recorder.url}/tickets", json=INVOICE, **{option: {status}})
        _, said = await ending(call, post)
        assert getattr(said, "kind", None) == outcome

    async def test_an_accepted_status_is_an_answer(self, recorder, make_call) -> None:
        answer = await make_call().http.delete(f"{recorder.url}/tickets/R-1", accepted={404, 405})
        assert answer.status_code == 405

    async def test_raise_for_status_of_an_answer_says_the_same(self, recorder, make_call) -> None:
        await recorder.plan(Rule.refuse(422), Rule.refuse(502))
        for expected in ("invalid", None):
            call = make_call()
            answer = await call.http.post(f"{recorder.url}/tickets", json=INVOICE, raises=False)
            with pytest.raises(httpx2.HTTPStatusError) as caught:
                answer.raise_for_status()
            said = outcome_of_exception(caught.value, began=call.began, changes=True)
            assert getattr(said, "kind", None) == expected


class TestSeveralRequests:
    """A failure of a later request says nothing about an earlier one that went out."""

    async def test_a_lookup_then_a_refusal_is_a_failure(self, recorder, make_call) -> None:
        await recorder.plan(Rule.refuse(422))
        call = make_call()
        await call.http.get(f"{recorder.url}/tickets")
        _, said = await ending(call, call.http.post(f"{recorder.url}/tickets", json=INVOICE))
        assert said.kind == "invalid"

    @pytest.mark.parametrize("rule", [Rule.refuse(422), Rule.refuse(429), Rule.refuse(404)])
    async def test_a_refusal_after_a_done_one_is_unknown(self, recorder, make_call, rule) -> None:
        await recorder.plan(rule.on(path="/tickets/*"))
        call = make_call()
        ticket = (await call.http.post(f"{recorder.url}/tickets", json=INVOICE)).json()
        url = f"{recorder.url}/tickets/{ticket['id']}/withdraw"
        kind, said = await ending(call, call.http.post(url, part="withdraw"))
        assert issubclass(kind, ToolVerdict)
        assert not issubclass(kind, Uncertain)  # the body sees what this request came to
        assert isinstance(said, Unknown)

    async def test_two_refusals_are_a_failure(self, recorder, make_call) -> None:
        await recorder.plan(Rule.refuse(404), Rule.refuse(403))
        call = make_call()
        with pytest.raises(Rejected):
            await call.http.post(f"{recorder.url}/tickets", json=INVOICE)
        _, said = await ending(call, call.http.post(f"{recorder.url}/tickets", json=INVOICE, part="two"))
        assert said.kind == "forbidden"

    async def test_a_sibling_that_was_cut_off_is_not_forgotten(self, recorder, make_call) -> None:
        await recorder.plan(Rule.act_then_hang().on(key="task_1:act-3.one"))
        call = make_call()

        async def second() -> None:
            await recorder.wait_for(key="task_1:act-3.one", ended=True)
            with socket.socket() as closed:
                closed.bind(("127.0.0.1", 0))
                await call.http.post(f"http://127.0.0.1:{closed.getsockname()[1]}/", part="two")

        async def both() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(call.http.post(f"{recorder.url}/tickets", json=INVOICE, part="one"))
                group.create_task(second())

        _, said = await ending(call, both())
        assert isinstance(said, Unknown)

    async def test_a_failed_look_up_is_an_ordinary_failure_when_told(self, recorder, make_call) -> None:
        await recorder.plan(Rule.act_then_hang().on(method="GET", times=2))
        call = make_call()
        kind, said = await ending(
            call, call.http.get(f"{recorder.url}/tickets", changes=False, timeout=QUICK)
        )
        assert issubclass(kind, NotSent)
        assert (said.kind, call.began) == ("not_sent", False)
        _, said = await ending(call, call.http.get(f"{recorder.url}/tickets", timeout=QUICK))
        assert isinstance(said, Unknown)  # by itself a GET may act, in the services that are
        assert call.began

    async def test_a_query_does_not_begin_a_call(self, recorder, make_call) -> None:
        call = make_call(query=True)
        await call.http.get(f"{recorder.url}/tickets")
        assert not call.began


class TestAnswers:
    async def test_redirects_of_a_get_are_followed_inside_one_origin(self, recorder, make_call) -> None:
        move = Rule.act_then_answer(307, headers={"Location": "/tickets"})
        await recorder.plan(move.on(method="GET", path="/old"))
        answer = await make_call().http.get(f"{recorder.url}/old")
        assert (answer.status_code, answer.json()) == (200, [])

    async def test_redirects_to_elsewhere_are_not(self, recorder, make_call) -> None:
        with socket.create_server(("127.0.0.1", 0)) as elsewhere:
            target = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/"
            await recorder.plan(Rule.act_then_answer(302, headers={"Location": target}).on(method="GET"))
            with pytest.raises(Uncertain):
                await make_call().http.get(f"{recorder.url}/tickets")
            elsewhere.setblocking(False)
            with pytest.raises(BlockingIOError):
                elsewhere.accept()

    async def test_redirects_without_end_are_not_either(self, recorder, make_call) -> None:
        move = Rule.act_then_answer(302, headers={"Location": "/tickets"})
        await recorder.plan(move.on(method="GET", times=None))
        with pytest.raises(Uncertain):
            await make_call().http.get(f"{recorder.url}/tickets")
        assert len(await recorder.log()) == 6

    @pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
    async def test_a_large_answer_of_a_done_call_is_unknown(self, recorder, make_call, more, fits) -> None:
        await recorder.plan(Rule.act_then_answer(200, body="x" * (1000 + more)))
        call = make_call()
        post = call.http.post(f"{recorder.url}/tickets", json=INVOICE, max_bytes=1000)
        if fits:
            assert len((await post).content) == 1000
        else:
            _, said = await ending(call, post)
            assert isinstance(said, Unknown)

    async def test_a_large_refusal_is_a_refusal(self, recorder, make_call) -> None:
        await recorder.plan(Rule.refuse(422, body="x" * 2000))
        with pytest.raises(Invalid):
            await make_call().http.post(f"{recorder.url}/tickets", json=INVOICE, max_bytes=1000)

    async def test_cookies_do_not_travel_between_calls(self, recorder, make_call, client) -> None:
        sent: list[str | None] = []

        def answer(request: httpx2.Request) -> httpx2.Response:
            sent.append(request.headers.get("cookie"))
            return httpx2.Response(200, headers={"Set-Cookie": "session=acme"})

        async with make_client(transport=httpx2.MockTransport(answer)) as other:
            for _ in range(2):
                await make_call(client=lambda: other).http.post("http://tickets/")
        assert sent == [None, None]

    async def test_a_transport_that_fails_is_unknown_once_it_was_asked(self, make_call) -> None:
        def fail(request: httpx2.Request) -> httpx2.Response:
            raise ValueError("a defect")

        async with make_client(transport=httpx2.MockTransport(fail)) as other:
            call = make_call(client=lambda: other)
            kind, said = await ending(call, call.http.post("http://tickets/"))
        assert (kind, type(said), call.began) == (ValueError, Unknown, True)


class TestSecrets:
    CANARY = "canary-9f3a"

    @pytest.mark.parametrize(
        "rule",
        [
            Rule.refuse(422),
            Rule.refuse(503),
            Rule.act_then_reset(),
            Rule.act_then_hang(),
            Rule.act_then_answer(500),
        ],
        ids=name_of,
    )
    async def test_no_text_and_no_log_line_holds_one(
        self, recorder, make_call, rule, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        await recorder.plan(
            Rule(**{**{name: getattr(rule, name) for name in ("act", "then", "status")}, "body": self.CANARY})
        )
        call = make_call()
        url = recorder.url.replace("http://", f"http://user:{self.CANARY}@") + "/tickets"
        post = call.http.post(
            url,
            json={**INVOICE, "note": self.CANARY},
            params={"token": self.CANARY},
            headers={"Authorization": f"Bearer {self.CANARY}"},
            timeout=QUICK,
        )
        with pytest.raises(ToolVerdict) as caught:
            await post
        said = outcome_of_exception(caught.value, began=call.began, changes=True)
        texts = [repr(caught.value), str(caught.value), repr(said), caplog.text]
        assert [text for text in texts if self.CANARY in text] == []
        assert "POST 127.0.0.1" in said.reason
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
        assert len(await recorder.log()) == 1  # and it was sent

    async def test_lines_of_other_users_of_the_client_stay(self, recorder, make_call, caplog) -> None:
        caplog.set_level(logging.INFO)
        async with httpx2.AsyncClient(trust_env=False) as other:
            await other.get(f"{recorder.url}/tickets")
        await make_call().http.get(f"{recorder.url}/tickets")
        assert len([line for line in caplog.records if line.name == "httpx2"]) == 1
