"""The context of a tool call: time, the guard, and what ``sending`` notes."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from outlast import probes
from outlast.core.outcome import Failed, Unknown
from outlast.errors import DeadlineExceeded, LeaseLost, Rejected
from outlast.testing.recorder import Rule
from outlast.tools.classify import outcome_of_exception

INVOICE = {"invoice": "INV-102", "amount": "118.50"}


async def outcome_of(call: Any, body: Any) -> Any:
    try:
        await body
    except BaseException as exc:  # whatever it is, it is what the test is about
        return outcome_of_exception(exc, began=call.began, changes=True)
    return None


async def test_the_operation_is_the_key(make_call) -> None:
    call = make_call()
    assert (call.operation, call.idempotency_key) == ("task_1:act-3", "task_1:act-3")
    assert (call.task, call.tenant, call.epoch, call.attempt, call.query) == ("task_1", "acme", 7, 1, False)


async def test_what_remains_never_falls_below_zero(make_call) -> None:
    assert 4 < make_call(within=5.0).remaining() <= 5
    assert make_call(within=-5.0).remaining() == 0


async def test_the_client_is_asked_for_once_and_only_when_used(make_call, client) -> None:
    asked: list[str] = []

    def ask() -> Any:
        asked.append("client")
        return client

    call = make_call(client=ask)
    assert asked == []
    assert call.http is call.http
    assert asked == ["client"]


class TestSending:
    async def test_guard_then_probe_then_the_mark(self, make_call) -> None:
        order: list[str] = []
        call = make_call(guard=lambda: order.append("guard"))
        probes.install(lambda point: order.append(f"{point} {call.began}"))
        try:
            async with call.sending():
                order.append(f"body {call.began}")
        finally:
            probes.install(None)
        assert order == ["guard", "http.before_send False", "body True"]

    @pytest.mark.parametrize("lost", [True, False])
    async def test_it_does_not_open_when_nothing_may_be_sent(self, make_call, lost: bool) -> None:
        def refuse() -> None:
            raise LeaseLost("lost")

        call = make_call(guard=refuse) if lost else make_call(within=-1.0)
        with pytest.raises(LeaseLost if lost else DeadlineExceeded):
            async with call.sending():
                pytest.fail("entered")
        assert not call.began

    async def test_a_query_does_not_begin(self, make_call) -> None:
        call = make_call(query=True)
        async with call.sending():
            pass
        assert not call.began

    async def test_what_is_raised_passes_through_and_is_unknown(self, make_call) -> None:
        error = KeyError("x")

        async def body() -> None:
            async with call.sending():
                raise error

        call = make_call()
        with pytest.raises(KeyError) as caught:
            await body()
        assert caught.value is error
        assert isinstance(await outcome_of(call, body()), Unknown)

    async def test_one_refused_connection_is_not_sent(self, make_call) -> None:
        async def body() -> None:
            async with call.sending():
                raise ConnectionRefusedError

        call = make_call()
        said = await outcome_of(call, body())
        assert isinstance(said, Failed)
        assert said.kind == "not_sent"

    async def test_a_refused_connection_after_a_send_that_went_out_is_unknown(self, make_call) -> None:
        async def body() -> None:
            async with call.sending():
                pass
            async with call.sending():
                raise ConnectionRefusedError

        call = make_call()
        assert isinstance(await outcome_of(call, body()), Unknown)

    async def test_a_block_that_broke_may_have_sent_something(self, make_call) -> None:
        async def body() -> None:
            try:
                async with call.sending():
                    raise KeyError
            except KeyError:
                async with call.sending():
                    raise ConnectionRefusedError from None

        call = make_call()
        assert isinstance(await outcome_of(call, body()), Unknown)

    async def test_after_one_that_did_nothing_it_is_not_sent(self, make_call) -> None:
        async def body() -> None:
            try:
                async with call.sending():
                    raise ConnectionRefusedError
            except ConnectionRefusedError:
                async with call.sending():
                    raise ConnectionRefusedError from None

        call = make_call()
        assert (await outcome_of(call, body())).kind == "not_sent"

    async def test_the_verdict_of_the_tool_is_believed(self, make_call) -> None:
        async def body() -> None:
            async with call.sending():
                raise Rejected("declined")

        call = make_call()
        assert (await outcome_of(call, body())).kind == "rejected"

    async def test_around_call_http_it_changes_nothing(self, make_call, recorder) -> None:
        await recorder.plan(Rule.refuse(422), Rule.act_then_reset())

        async def body() -> None:
            async with call.sending():
                await call.http.post(f"{recorder.url}/tickets", json=INVOICE)

        call = make_call()
        assert (await outcome_of(call, body())).kind == "invalid"
        call = make_call()
        assert isinstance(await outcome_of(call, body()), Unknown)

    async def test_a_client_of_ones_own(self, make_call, recorder) -> None:
        await recorder.plan(Rule.act_then_reset(), Rule.refuse(422))

        async def body() -> None:
            async with call.sending(), httpx2.AsyncClient(trust_env=False) as own:
                answer = await own.post(f"{recorder.url}/tickets", json=INVOICE)
                answer.raise_for_status()

        call = make_call()
        assert isinstance(await outcome_of(call, body()), Unknown)
        call = make_call()
        assert (await outcome_of(call, body())).kind == "invalid"
        assert [each.effect for each in await recorder.log()] == ["created", None]
