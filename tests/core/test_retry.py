"""The back-off's figures, its caps, and what counts as a Retry-After."""

from __future__ import annotations

import math
import random
from collections import Counter
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core.retry import (
    MAX_WAIT_S,
    Backoff,
    Stop,
    StopReason,
    delay_before,
    next_delay,
    parse_retry_after,
    sensible_wait,
)
from outlast.errors import ConfigurationError

CALM = Backoff(base_s=1, max_s=8, jitter_s=0, attempts=6, total_s=30)
JITTERED = Backoff(base_s=1, max_s=8, jitter_s=0.5, attempts=6, total_s=30)
NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).timestamp()

units = st.floats(0, 1, exclude_max=True)
seconds = st.floats(0, 1e6)


def test_the_plain_delays_are_1_2_4_8_8_and_then_the_sixth_attempt_was_the_last() -> None:
    delays: list[float] = []
    while not isinstance(delay := next_delay(CALM, len(delays), sum(delays), 0.0), Stop):
        delays.append(delay)
    assert delays == [1, 2, 4, 8, 8]
    assert sum(delays) == 23
    assert delay.reason is StopReason.ATTEMPTS
    assert "all 6 attempts" in delay.detail


def test_one_real_run() -> None:
    # Request at 0.0, 503 at 0.2; second at 1.5, 503 at 1.7; third at 3.8, 429 with Retry-After 5 at 4.0.
    assert next_delay(JITTERED, 0, 0.2, 0.6) == pytest.approx(1.3)
    assert next_delay(JITTERED, 1, 1.7, 0.2) == pytest.approx(2.1)
    assert next_delay(JITTERED, 2, 4.0, 0.8) == pytest.approx(4.4)
    assert next_delay(JITTERED, 2, 4.0, 0.8, 5.0) == 5.0


def test_retry_after_wins_only_when_longer() -> None:
    assert next_delay(CALM, 2, 0.0, 0.0, 3.9) == 4.0
    assert next_delay(CALM, 2, 0.0, 0.0, 4.1) == 4.1


@pytest.mark.parametrize("nonsense", [-1.0, math.nan, math.inf, -math.inf])
def test_a_senseless_wait_falls_back_to_the_formula(nonsense: float) -> None:
    assert next_delay(CALM, 1, 0.0, 0.0, nonsense) == 2.0


@pytest.mark.parametrize(
    ("elapsed", "retry_after", "expected"),
    [(22.0, None, 8.0), (22.0, 8.0, 8.0), (22.001, None, None), (0.0, 30.0, 30.0), (0.0, 30.001, None)],
)
def test_a_delay_that_would_pass_the_total_is_a_stop(
    elapsed: float, retry_after: float | None, expected: float | None
) -> None:
    verdict = next_delay(CALM, 3, elapsed, 0.0, retry_after)
    if expected is None:
        assert isinstance(verdict, Stop)
        assert verdict.reason is StopReason.TOTAL
        assert "30 s in all" in verdict.detail
    else:
        assert verdict == expected


@pytest.mark.parametrize(("done", "stops"), [(4, False), (5, True), (6, True)])
def test_the_cap_on_attempts_counts_the_first_send(done: int, stops: bool) -> None:
    assert isinstance(next_delay(CALM, done, 0.0, 0.0), Stop) is stops


def test_a_single_attempt_is_never_retried() -> None:
    verdict = next_delay(Backoff(attempts=1), 0, 0.0, 0.0)
    assert isinstance(verdict, Stop)
    assert verdict.reason is StopReason.ATTEMPTS


def test_full_jitter_spreads_from_nothing_to_the_bound() -> None:
    full = Backoff(base_s=1, max_s=8, mode="full")
    assert [delay_before(full, n, 0.5) for n in range(6)] == [0.5, 1, 2, 4, 4, 4]
    assert delay_before(full, 3, 0.0) == 0


@given(st.integers(0, 1000), units, st.floats(0, 1e300), seconds, seconds)
def test_every_delay_is_what_the_formula_says(
    n: int, u: float, base: float, bound: float, jitter: float
) -> None:
    plain = Backoff(base_s=base, max_s=bound, jitter_s=jitter)
    full = Backoff(base_s=base, max_s=bound, jitter_s=jitter, mode="full")
    grown = min(bound, base * 2.0**n)
    assert delay_before(plain, n, u) == grown + u * jitter
    assert delay_before(full, n, u) == u * grown


@pytest.mark.parametrize("base", [5e-324, 1e-9, 1.0, 1e308])
def test_a_huge_retry_number_reaches_the_bound_and_does_not_overflow(base: float) -> None:
    assert delay_before(Backoff(base_s=base, max_s=60, jitter_s=0), 10**400, 0.0) == 60


@given(st.integers(0, 20), seconds, units, st.none() | seconds)
def test_a_delay_never_ends_after_the_total(n: int, elapsed: float, u: float, asked: float | None) -> None:
    verdict = next_delay(JITTERED, n, elapsed, u, asked)
    if isinstance(verdict, Stop):
        assert n >= 5 or elapsed + max(delay_before(JITTERED, n, u), asked or 0) > 30
    else:
        assert n < 5
        assert elapsed + verdict <= 30
        assert verdict >= (asked or 0)


def test_a_thousand_clients_do_not_come_back_in_the_same_millisecond() -> None:
    draw = random.Random(7)
    for policy in (JITTERED, Backoff(base_s=1, max_s=8, mode="full")):
        waits = [next_delay(policy, 0, 0.0, draw.random()) for _ in range(1000)]
        per_ms = Counter(int(wait * 1000) for wait in waits if not isinstance(wait, Stop))
        assert sum(per_ms.values()) == 1000
        assert max(per_ms.values()) <= 12
        assert len(per_ms) > 350


@pytest.mark.parametrize("u", [-0.001, 1.0, math.nan])
def test_the_random_number_has_to_be_one(u: float) -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\)"):
        delay_before(CALM, 0, u)


def test_retries_are_not_negative() -> None:
    with pytest.raises(ValueError, match="from 0"):
        next_delay(CALM, -1, 0.0, 0.0)


@pytest.mark.parametrize(
    ("figures", "name"),
    [
        ({"base_s": -1.0}, "base_s"),
        ({"max_s": math.inf}, "max_s"),
        ({"jitter_s": math.nan}, "jitter_s"),
        ({"total_s": -0.1}, "total_s"),
        ({"attempts": 0}, "attempts"),
        ({"mode": "none"}, "mode"),
    ],
)
def test_a_senseless_policy_is_refused_by_name(figures: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Backoff(**figures)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("5", 5.0),
        ("0", 0.0),
        ("007", 7.0),
        (" 120\t", 120.0),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),  # IMF-fixdate
        ("Sunday, 01-Mar-26 12:01:00 GMT", 60.0),  # RFC 850
        ("Sun Mar  1 12:00:07 2026", 7.0),  # asctime
        ("Tue Mar 10 12:00:00 2026", 9 * 86400.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),  # past
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0.0),  # 1994, since 2094 is more than 50 years ahead
        ("Thu, 31 Dec 2026 23:59:60 GMT", datetime(2027, 1, 1, tzinfo=UTC).timestamp() - NOON),  # leap
    ],
)
def test_parse_retry_after_reads_both_forms(header: str, expected: float) -> None:
    assert parse_retry_after(header, NOON) == expected


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        " ",
        "-1",
        "+5",
        "1.5",
        "5s",
        "1e3",
        "5, 6",
        "٣",
        "nan",
        "soon",
        "9" * 400,
        "5\n",
        "Sun, 01 Mar 2026 12:00:30",
        "Sun, 01 Mar 2026 12:00:30 UTC",
        "Sun, 1 Mar 2026 12:00:30 GMT",
        "Sun, 31 Feb 2026 12:00:30 GMT",
        "Sun, 01 Mar 2026 24:00:00 GMT",
        "Sun, 01 Mar 2026 12:00:61 GMT",
        "Sun, 01 Mar 0000 12:00:00 GMT",
        "Monday, 29-Feb-27 12:00:00 GMT",
        "2026-03-01T12:00:30Z",
    ],
)
def test_parse_retry_after_ignores_nonsense(header: str | None) -> None:
    assert parse_retry_after(header, NOON) is None


@pytest.mark.parametrize(
    ("header", "year"),
    [
        ("Sunday, 01-Mar-76 12:00:00 GMT", 2076),  # 50 years to the second: still ahead
        ("Sunday, 01-Mar-76 12:00:01 GMT", None),  # more than that: 1976
        ("Sunday, 01-Mar-25 12:00:00 GMT", None),
        ("Sunday, 01-Mar-27 12:00:00 GMT", 2027),
    ],
)
def test_a_two_digit_year_is_at_most_50_years_ahead(header: str, year: int | None) -> None:
    expected = datetime(year, 3, 1, 12, tzinfo=UTC).timestamp() - NOON if year else 0.0
    assert parse_retry_after(header, NOON) == expected


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)), st.floats(0, 4e9))
def test_parse_retry_after_agrees_with_the_library_that_writes_dates(moment: datetime, now: float) -> None:
    moment = moment.replace(microsecond=0, tzinfo=UTC)
    header = format_datetime(moment, usegmt=True)
    assert parse_retry_after(header, now) == max(0.0, moment.timestamp() - now)


@given(st.text(max_size=60), st.floats(0, 4e9))
def test_parse_retry_after_never_raises(header: str, now: float) -> None:
    wait = parse_retry_after(header, now)
    assert wait is None or (math.isfinite(wait) and wait >= 0)


@pytest.mark.parametrize("asked", [0.0, 0.5, MAX_WAIT_S])
def test_a_wait_up_to_a_century_is_taken_as_it_is(asked: float) -> None:
    assert sensible_wait(asked) == asked


@pytest.mark.parametrize("asked", [None, -0.1, MAX_WAIT_S + 1, 1e300, math.inf, -math.inf, math.nan])
def test_a_wait_that_makes_no_sense_is_none(asked: float | None) -> None:
    assert sensible_wait(asked) is None
