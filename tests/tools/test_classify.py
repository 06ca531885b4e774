"""The tables that turn answers and exceptions into outcomes, without a network."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core.outcome import Failed, Succeeded, Unknown
from outlast.errors import (
    DeadlineExceeded,
    Forbidden,
    Invalid,
    LeaseLost,
    NotSent,
    Rejected,
    ToolVerdict,
    Uncertain,
)
from outlast.tools import classify
from outlast.tools.classify import (
    classify_exception,
    classify_response,
    of_resend,
    outcome_of_exception,
    rows,
)
from outlast.tools.verdicts import HttpUncertain, verdict

NOW = 1_760_000_000.0  # Thu, 09 Oct 2025 08:53:20 GMT

# What each status of HTTP means, written a second time by hand. Whatever is not here is listed below by its
# class.
MEANINGS = {
    400: "rejected", 401: "forbidden", 402: "rejected", 403: "forbidden", 404: "rejected", 405: "rejected",
    406: "rejected", 407: "forbidden", 408: "unknown", 409: "conflict", 410: "rejected", 411: "rejected",
    412: "rejected", 413: "rejected", 414: "rejected", 415: "rejected", 416: "rejected", 417: "rejected",
    418: "rejected", 421: "not_sent", 422: "invalid", 423: "rejected", 424: "rejected", 425: "not_sent",
    426: "rejected", 428: "rejected", 429: "throttled", 431: "rejected", 451: "forbidden", 503: "not_sent",
}  # fmt: skip


def meaning(status: int) -> str:
    if status in MEANINGS:
        return MEANINGS[status]
    return {2: "succeeded", 4: "rejected"}.get(status // 100, "unknown")


def name(outcome: Failed | Unknown | None) -> str:
    return "succeeded" if outcome is None else "unknown" if isinstance(outcome, Unknown) else outcome.kind


def request_error(kind: type[httpx2.RequestError]) -> httpx2.RequestError:
    return kind("secret", request=httpx2.Request("POST", "http://user:secret@tickets/new?token=secret"))


class TestStatuses:
    @pytest.mark.parametrize("status", [0, 100, 101, 199, *range(200, 600), 600, 999, -1])
    def test_every_status(self, status: int) -> None:
        said = classify_response(status, {}, NOW)
        assert name(said) == meaning(status)
        if isinstance(said, Failed):
            assert said.retryable == (said.kind in ("not_sent", "throttled"))
            assert said.status == status

    @pytest.mark.parametrize("status", [421, 425, 429, 503])
    @pytest.mark.parametrize(
        ("header", "wait"),
        [("7", 7.0), ("Thu, 09 Oct 2025 08:54:20 GMT", 60.0), ("soon", None), ("", None), (None, None)],
    )
    def test_a_wait_makes_it_throttled(self, status: int, header: str | None, wait: float | None) -> None:
        said = classify_response(status, {} if header is None else {"retry-after": header}, NOW)
        assert isinstance(said, Failed)
        assert said.retry_after_s == wait
        assert said.kind == ("throttled" if wait is not None or status == 429 else "not_sent")

    @pytest.mark.parametrize(
        ("date", "wait"),
        [
            ("Thu, 09 Oct 2025 09:54:13 GMT", 7.0),
            ("Thu, 09 Oct 2025 07:54:13 GMT", 7207.0),
            ("Thu, 09 Oct 2025 09:54:30 GMT", 0.0),
            # What is no date is not looked at.
            ("soon", 3660.0),
            ("", 3660.0),
        ],
    )
    def test_a_wait_until_a_date_is_counted_by_the_clock_over_there(self, date: str, wait: float) -> None:
        said = classify_response(429, {"retry-after": "Thu, 09 Oct 2025 09:54:20 GMT", "date": date}, NOW)
        assert isinstance(said, Failed)
        assert said.retry_after_s == wait

    @pytest.mark.parametrize("status", [400, 409, 422, 500, 502])
    def test_a_wait_changes_nothing_else(self, status: int) -> None:
        said = classify_response(status, {"retry-after": "7"}, NOW)
        assert said == classify_response(status, {}, NOW)

    @given(st.integers(), st.dictionaries(st.sampled_from(("retry-after", "date")), st.text()))
    def test_no_answer_is_an_exception(self, status: int, headers: dict[str, str]) -> None:
        classify_response(status, headers, NOW)


class TestExceptions:
    @pytest.mark.parametrize("began", [False, True])
    @pytest.mark.parametrize(
        "exc",
        [
            httpx2.ConnectError("x"), httpx2.ConnectTimeout("x"), httpx2.PoolTimeout("x"),
            httpx2.ProxyError("x"), ConnectionRefusedError(), socket.gaierror(),
        ],
    )  # fmt: skip
    def test_never_sent_whatever_began(self, exc: BaseException, began: bool) -> None:
        said = classify_exception(exc, began)
        assert isinstance(said, Failed)
        assert (said.kind, said.retryable) == ("not_sent", True)

    @pytest.mark.parametrize("exc", [httpx2.UnsupportedProtocol("x"), httpx2.InvalidURL("x")])
    def test_never_sendable(self, exc: BaseException) -> None:
        said = classify_exception(exc, True)
        assert isinstance(said, Failed)
        assert (said.kind, said.retryable) == ("error", False)

    @pytest.mark.parametrize("began", [False, True])
    @pytest.mark.parametrize(
        "kind",
        [
            httpx2.ReadTimeout, httpx2.WriteTimeout, httpx2.ReadError, httpx2.WriteError, httpx2.CloseError,
            httpx2.RemoteProtocolError, httpx2.LocalProtocolError, httpx2.DecodingError,
            httpx2.TooManyRedirects, httpx2.NetworkError, httpx2.TransportError,
        ],
    )  # fmt: skip
    def test_sent_whatever_began(self, kind: type[httpx2.RequestError], began: bool) -> None:
        assert isinstance(classify_exception(kind("x"), began), Unknown)

    @pytest.mark.parametrize("exc", [TimeoutError(), asyncio.CancelledError()])
    def test_a_time_limit_depends(self, exc: BaseException) -> None:
        assert isinstance(classify_exception(exc, True), Unknown)
        said = classify_exception(exc, False)
        assert isinstance(said, Failed)
        assert (said.kind, said.retryable) == ("not_sent", True)

    def test_every_error_of_the_client_is_in_a_table(self) -> None:
        # HTTPStatusError has an answer and is looked at by its status.
        def leaves(kind: type[BaseException]) -> set[type[BaseException]]:
            return set().union(*(leaves(sub) for sub in kind.__subclasses__())) or {kind}

        ours = {kind for kind in leaves(httpx2.RequestError) if kind.__module__.startswith("httpx2")}
        assert len(ours) > 10
        assert [kind for kind in ours if classify_exception(kind("x"), True) is None] == []  # type: ignore[call-arg]

    def test_anything_else_is_not_judged(self) -> None:
        assert classify_exception(ValueError(), True) is None


class TestBodies:
    """What a tool body raised, as the engine asks it."""

    @pytest.mark.parametrize("changes", [False, True])
    @pytest.mark.parametrize("began", [False, True])
    @pytest.mark.parametrize(
        ("exc", "kind", "retryable", "wait"),
        [
            (Rejected("no"), "rejected", False, None),
            (NotSent(), "not_sent", True, None),
            (NotSent("later", retry_after=4.5), "throttled", True, 4.5),
            (Invalid("amount"), "invalid", False, None),
            (Forbidden("no right"), "forbidden", False, None),
        ],
    )
    def test_the_tools_word_is_believed(
        self, exc: ToolVerdict, kind: str, retryable: bool, wait: float | None, began: bool, changes: bool
    ) -> None:
        said = outcome_of_exception(exc, began=began, changes=changes)
        assert isinstance(said, Failed)
        assert (said.kind, said.retryable, said.retry_after_s) == (kind, retryable, wait)
        assert said.reason

    @pytest.mark.parametrize("began", [False, True])
    def test_so_is_its_doubt(self, began: bool) -> None:
        said = outcome_of_exception(Uncertain("R-1 or R-2"), began=began, changes=True)
        assert isinstance(said, Unknown)
        assert said.clue == "R-1 or R-2"

    @pytest.mark.parametrize(
        "exc", [ValueError("secret"), ToolVerdict("secret"), KeyError("secret"), OSError("secret")]
    )
    def test_anything_else_is_unknown_once_it_changes_and_began(self, exc: Exception) -> None:
        for began, changes in ((False, False), (False, True), (True, False)):
            said = outcome_of_exception(exc, began=began, changes=changes)
            assert isinstance(said, Failed)
            assert (said.kind, said.retryable) == ("error", False)
        assert isinstance(outcome_of_exception(exc, began=True, changes=True), Unknown)

    @pytest.mark.parametrize(
        ("exc", "kind"), [(LeaseLost("x"), "not_sent"), (DeadlineExceeded("x"), "deadline")]
    )
    def test_a_guard_that_refused(self, exc: Exception, kind: str) -> None:
        assert name(outcome_of_exception(exc, began=False, changes=True)) == kind
        assert name(outcome_of_exception(exc, began=True, changes=False)) == kind
        assert name(outcome_of_exception(exc, began=True, changes=True)) == "unknown"

    def test_an_error_of_connecting_speaks_only_for_itself(self) -> None:
        exc = httpx2.ConnectError("x")
        assert name(outcome_of_exception(exc, began=False, changes=True)) == "not_sent"
        assert name(outcome_of_exception(exc, began=True, changes=True)) == "unknown"

    @pytest.mark.parametrize(
        ("parts", "expected"),
        [
            ([NotSent()], "not_sent"),
            ([NotSent(), Rejected()], "rejected"),
            ([Rejected(), Uncertain()], "unknown"),
            ([ExceptionGroup("inner", [Invalid()]), NotSent()], "invalid"),
        ],
    )
    def test_a_group_is_as_sure_as_its_least_sure_part(self, parts: list[Exception], expected: str) -> None:
        assert name(outcome_of_exception(ExceptionGroup("x", parts), began=True, changes=True)) == expected

    @pytest.mark.parametrize(("status", "expected"), [(422, "invalid"), (502, "unknown"), (429, "throttled")])
    def test_raise_for_status_of_ones_own_client(self, status: int, expected: str) -> None:
        answer = httpx2.Response(
            status, request=httpx2.Request("POST", "http://tickets/?token=secret"), text="secret"
        )
        with pytest.raises(httpx2.HTTPStatusError) as caught:
            answer.raise_for_status()
        said = outcome_of_exception(caught.value, began=False, changes=True)
        assert name(said) == expected
        assert "secret" not in repr(said)
        # Something went out, and nothing says that it was only this request.
        assert name(outcome_of_exception(caught.value, began=True, changes=True)) == "unknown"

    @pytest.mark.parametrize(
        "exc",
        [
            ValueError("secret"),
            request_error(httpx2.ReadTimeout),
            request_error(httpx2.ConnectError),
            TimeoutError("secret"),
        ],
    )
    @pytest.mark.parametrize("began", [False, True])
    def test_texts_hold_no_messages(self, exc: BaseException, began: bool) -> None:
        said = outcome_of_exception(exc, began=began, changes=True)
        assert "secret" not in repr(said)
        if isinstance(exc, httpx2.RequestError):
            assert "POST tickets/new" in said.reason

    def test_a_foreign_exception_is_named_with_its_place(self) -> None:
        def broken() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as caught:
            broken()
        said = outcome_of_exception(caught.value, began=False, changes=True)
        assert "ZeroDivisionError in test_classify.py:" in said.reason
        assert said.reason.endswith("(broken)")


class TestResend:
    @pytest.mark.parametrize("status", [400, 403, 409, 422, 429, 503])
    def test_no_refusal_of_a_resend_settles_the_earlier_attempt(self, status: int) -> None:
        said = classify_response(status, {}, NOW)
        assert said is not None
        assert isinstance(of_resend(said), Unknown)

    @pytest.mark.parametrize("outcome", [Succeeded(result=1), Unknown(reason="x")])
    def test_success_and_doubt_stay(self, outcome: Any) -> None:
        assert of_resend(outcome) is outcome


class TestVerdicts:
    @pytest.mark.parametrize("status", [400, 401, 409, 421, 422, 425, 429, 503, 408, 500])
    def test_an_outcome_survives_being_raised(self, status: int) -> None:
        said = classify_response(status, {"retry-after": "3"}, NOW)
        assert said is not None
        assert outcome_of_exception(verdict(said), began=True, changes=True) == said

    def test_a_failure_is_unknown_while_another_request_may_have_acted(self) -> None:
        said = classify_response(422, {}, NOW)
        assert said is not None
        open_ = True
        raised = verdict(said, lambda: open_)
        assert isinstance(outcome_of_exception(raised, began=True, changes=True), Unknown)
        open_ = False
        assert outcome_of_exception(raised, began=True, changes=True) == said

    def test_doubt_keeps_its_clue(self) -> None:
        raised = verdict(Unknown(reason="no answer", clue="ReadTimeout"))
        assert isinstance(raised, HttpUncertain)
        assert (raised.clue, raised.status) == ("ReadTimeout", None)


class TestRows:
    def test_the_reference_says_what_the_code_does(self) -> None:
        by_seen = {row.seen: row for row in rows()}
        for status in range(200, 600):
            row = by_seen.get(str(status)) or next(
                row
                for row in rows()
                if "-" in row.seen and int(row.seen.split("-")[0]) <= status <= int(row.seen.split("-")[1])
            )
            assert name(classify_response(status, {}, NOW)) == row.outcome
        for kind in (httpx2.ConnectError, httpx2.ReadTimeout, httpx2.PoolTimeout, httpx2.RemoteProtocolError):
            assert name(classify_exception(kind("x"), True)) == by_seen[kind.__name__].outcome
        for kind in (Rejected, Invalid, Forbidden, NotSent, Uncertain):
            assert (
                name(outcome_of_exception(kind("x"), began=True, changes=True))
                == by_seen[kind.__name__].outcome
            )
        assert all(row.why for row in rows())

    def test_only_the_module_decides(self) -> None:
        assert len(rows()) > len(classify._STATUSES)
