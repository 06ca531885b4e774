"""When schedules fire, as tables: clocks put forward and back, leap days, what never fires or was missed."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core import schedule, values
from outlast.core.schedule import (
    LATE_US,
    SECOND_US,
    Cron,
    Due,
    Every,
    Once,
    decide,
    first_after,
    going_on,
    next_after,
    pending,
    preview,
    spread,
    timing_of,
)
from outlast.errors import InvalidKey, InvalidRequest, InvalidSchedule

MINUTE = 60 * SECOND_US
HOUR = 60 * MINUTE


def us(text: str) -> int:
    """An instant from RFC 3339."""
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def fires(cron: str, zone: str, after: str, count: int) -> list[str]:
    """The next instants of a cron, as its zone's clocks show them."""
    timing = timing_of(cron=cron, zone=zone)
    shown = []
    instant: int | None = us(after)
    for _ in range(count):
        assert instant is not None
        instant = next_after(timing, instant)
        assert instant is not None
        local = datetime.fromtimestamp(instant / 1_000_000, ZoneInfo(zone))
        shown.append(local.strftime("%m-%d %H:%M:%S%z").replace(":00+", "+").replace(":00-", "-"))
    return shown


# ── clocks put forward ───────────────────────────────────────────────────────────────────────────

FORWARD = [
    # Berlin, 2026-03-29: 01:59:59 +01 is followed by 03:00 +02.
    ("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00+01:00",
     ["03-28 02:30+0100", "03-29 03:00+0200", "03-30 02:30+0200"]),
    ("0 2 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00", ["03-29 03:00+0200", "03-30 02:00+0200"]),
    # Several that do not exist fire once, and what is at the end of the gap anyway does not fire again.
    ("0,20,40 2 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00", ["03-29 03:00+0200", "03-30 02:00+0200"]),
    ("30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00",
     ["03-29 03:00+0200", "03-29 03:30+0200", "03-30 02:30+0200"]),
    ("0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00", ["03-29 03:00+0200", "03-30 02:00+0200"]),
    ("*/20 2 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00", ["03-29 03:00+0200", "03-30 02:00+0200"]),
    ("0 */2 * * *", "Europe/Berlin", "2026-03-28T23:30+01:00",
     ["03-29 00:00+0100", "03-29 03:00+0200", "03-29 04:00+0200"]),
    # What follows real time has no hole and nothing more.
    ("*/20 * * * *", "Europe/Berlin", "2026-03-29T01:20+01:00",
     ["03-29 01:40+0100", "03-29 03:00+0200", "03-29 03:20+0200"]),
    ("7 * * * *", "Europe/Berlin", "2026-03-29T00:30+01:00", ["03-29 01:07+0100", "03-29 03:07+0200"]),
    # A day on which the date does not come round otherwise.
    ("30 2 29 3 *", "Europe/Berlin", "2026-01-01T00:00+01:00", ["03-29 03:00+0200", "03-29 02:30+0200"]),
    # New York, 2026-03-08: 02:00 is 03:00.
    ("30 2 * * *", "America/New_York", "2026-03-07T12:00-05:00", ["03-08 03:00-0400", "03-09 02:30-0400"]),
    ("0 1 * * *", "America/New_York", "2026-03-07T12:00-05:00", ["03-08 01:00-0500", "03-09 01:00-0400"]),
    ("0 3 * * *", "America/New_York", "2026-03-07T12:00-05:00", ["03-08 03:00-0400", "03-09 03:00-0400"]),
    # Lord Howe, 2026-10-04: 02:00 is 02:30.
    ("10 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00+10:30", ["10-04 02:30+1100", "10-05 02:10+1100"]),
    ("30 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00+10:30", ["10-04 02:30+1100", "10-05 02:30+1100"]),
    ("*/10 * * * *", "Australia/Lord_Howe", "2026-10-04T01:45+10:30",
     ["10-04 01:50+1030", "10-04 02:30+1100"]),
    # Apia had no 30 December 2011.
    ("0 12 * * *", "Pacific/Apia", "2011-12-29T06:00-10:00",
     ["12-29 12:00-1000", "12-31 00:00+1400", "12-31 12:00+1400"]),
]  # fmt: skip


@pytest.mark.parametrize(("cron", "zone", "after", "expected"), FORWARD)
def test_a_local_time_that_does_not_exist_fires_once_after_the_gap(
    cron: str, zone: str, after: str, expected: list[str]
) -> None:
    assert fires(cron, zone, after, len(expected)) == expected


# ── clocks put back ──────────────────────────────────────────────────────────────────────────────

BACK = [
    # Berlin, 2026-10-25: 02:59:59 +02 is followed by 02:00 +01.
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00+02:00", ["10-25 02:30+0200", "10-26 02:30+0100"]),
    ("0,30 2,3 * * *", "Europe/Berlin", "2026-10-24T12:00+02:00",
     ["10-25 02:00+0200", "10-25 02:30+0200", "10-25 03:00+0100", "10-25 03:30+0100", "10-26 02:00+0100"]),
    # Asked in the middle of the second pass, the first is over.
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T02:15+01:00", ["10-26 02:30+0100"]),
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T02:45+02:00", ["10-26 02:30+0100"]),
    ("0 */2 * * *", "Europe/Berlin", "2026-10-25T00:30+02:00", ["10-25 02:00+0200", "10-25 04:00+0100"]),
    # What follows real time goes on.
    ("*/30 * * * *", "Europe/Berlin", "2026-10-25T02:15+02:00",
     ["10-25 02:30+0200", "10-25 02:00+0100", "10-25 02:30+0100", "10-25 03:00+0100"]),
    ("*/30 1-2 * * *", "Europe/Berlin", "2026-10-25T02:15+02:00",
     ["10-25 02:30+0200", "10-25 02:00+0100", "10-25 02:30+0100", "10-26 01:00+0100"]),
    ("7 * * * *", "Europe/Berlin", "2026-10-25T01:30+02:00",
     ["10-25 02:07+0200", "10-25 02:07+0100", "10-25 03:07+0100"]),
    # New York, 2026-11-01: 01:59:59 -04 is followed by 01:00 -05.
    ("30 1 * * *", "America/New_York", "2026-10-31T12:00-04:00", ["11-01 01:30-0400", "11-02 01:30-0500"]),
    ("0 2 * * *", "America/New_York", "2026-10-31T12:00-04:00", ["11-01 02:00-0500", "11-02 02:00-0500"]),
    # Lord Howe, 2026-04-05: 01:59:59 +11 is followed by 01:30 +10:30.
    ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00+11:00", ["04-05 01:45+1100", "04-06 01:45+1030"]),
    ("45 * * * *", "Australia/Lord_Howe", "2026-04-05T01:00+11:00",
     ["04-05 01:45+1100", "04-05 01:45+1030", "04-05 02:45+1030"]),
    ("15 * * * *", "Australia/Lord_Howe", "2026-04-05T01:00+11:00",
     ["04-05 01:15+1100", "04-05 02:15+1030", "04-05 03:15+1030"]),
]  # fmt: skip


@pytest.mark.parametrize(("cron", "zone", "after", "expected"), BACK)
def test_a_local_time_that_occurs_twice_fires_at_the_first(
    cron: str, zone: str, after: str, expected: list[str]
) -> None:
    assert fires(cron, zone, after, len(expected)) == expected


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"]
)
def test_whatever_the_clocks_do_a_daily_cron_fires_once_a_day(zone: str) -> None:
    for hour in range(4):
        timing = timing_of(cron=f"30 {hour} * * *", zone=zone)
        instant, days = us("2025-12-31T23:59Z") + 12 * HOUR, []
        for _ in range(365):
            instant = next_after(timing, instant) or 0
            days.append(datetime.fromtimestamp(instant / 1_000_000, ZoneInfo(zone)).date())
        assert all(later - earlier == timedelta(days=1) for earlier, later in pairwise(days)), (zone, hour)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "UTC", "Asia/Kolkata"])
def test_every_five_minutes_is_every_five_minutes_of_real_time(zone: str) -> None:
    timing = timing_of(cron="*/5 * * * *", zone=zone)
    for begin in ("2026-03-07T20:00Z", "2026-03-28T20:00Z", "2026-10-24T20:00Z", "2026-10-31T20:00Z"):
        instants = preview(timing, next_after(timing, us(begin)), 200)
        assert {later - earlier for earlier, later in pairwise(instants)} == {5 * MINUTE}


@given(
    minute=st.sampled_from(["0", "30", "*/15", "7,52", "*"]),
    hour=st.sampled_from(["*", "2", "1-3", "*/2", "0,2,23"]),
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]),
    start=st.integers(us("2026-01-01T00:00Z"), us("2027-01-01T00:00Z")),
)
def test_instants_rise_and_do_not_depend_on_where_one_begins(
    minute: str, hour: str, zone: str, start: int
) -> None:
    timing = timing_of(cron=f"{minute} {hour} * * *", zone=zone)
    first = next_after(timing, start)
    assert first is not None
    assert first > start
    second = next_after(timing, first)
    assert second is not None
    assert second > first
    # From anywhere in between the next is the same one.
    for place in (first - 1, (start + first) // 2, start):
        assert place < start or next_after(timing, place) == first
    assert next_after(timing, (first + second) // 2) == second


# ── dates ────────────────────────────────────────────────────────────────────────────────────────


def test_a_leap_day_comes_every_four_years_and_not_in_2100() -> None:
    assert [
        datetime.fromtimestamp(at / 1_000_000, UTC).date().isoformat()
        for at in preview(
            timing_of(cron="0 12 29 2 *"),
            first_after(timing_of(cron="0 12 29 2 *"), us("2091-01-01T00:00Z")),
            3,
        )
    ] == ["2092-02-29", "2096-02-29", "2104-02-29"]


@pytest.mark.parametrize(
    ("macro", "fields"),
    [("@daily", "0 0 * * *"), ("@Hourly", "0 * * * *"), ("@weekly", "0 0 * * 0"), ("@yearly", "0 0 1 1 *")],
)
def test_macros_are_what_they_stand_for(macro: str, fields: str) -> None:
    assert timing_of(cron=macro, zone="Europe/Berlin") == Cron(expression=fields, zone="Europe/Berlin")


def test_white_space_makes_no_other_schedule() -> None:
    assert timing_of(cron="  0  3\t* * 1-5 ") == timing_of(cron="0 3 * * 1-5")


# ── what is refused ──────────────────────────────────────────────────────────────────────────────

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"cron": "0 0 30 2 *"}, "never fires", "/cron"),
    ({"cron": "0 0 31 2,4,6,9,11 *"}, "never fires", "/cron"),
    ({"cron": "61 * * * *"}, "bad minute", "/cron"),
    ({"cron": "* 24 * * *"}, "bad hour", "/cron"),
    ({"cron": "* * 0 * *"}, "bad day-of-month", "/cron"),
    ({"cron": "* * * 13 *"}, "bad month", "/cron"),
    ({"cron": "* * * * 9"}, "bad day-of-week", "/cron"),
    ({"cron": "*/0 * * * *"}, "bad minute", "/cron"),
    ({"cron": ""}, "five fields", "/cron"),
    ({"cron": "* * * *"}, "five fields", "/cron"),
    ({"cron": "* * * * * *"}, "five fields", "/cron"),
    ({"cron": "@reboot"}, "five fields", "/cron"),
    ({"cron": "0," * 200 + "0 * * * *"}, "255", "/cron"),
    ({"cron": 5}, "text", "/cron"),
    ({"cron": "0 0 * * *", "zone": "Mars/Olympus_Mons"}, "no time zone", "/zone"),
    ({"cron": "0 0 * * *", "zone": "America"}, "no time zone", "/zone"),
    ({"cron": "0 0 * * *", "zone": ""}, "no time zone", "/zone"),
    ({"cron": "0 0 * * *", "zone": "../../etc/passwd"}, "no time zone", "/zone"),
    ({"cron": "0 0 * * *", "zone": "localtime"}, "no time zone", "/zone"),
    ({"cron": "0 0 * * *", "zone": "right/Europe/Berlin"}, "no time zone", "/zone"),
    ({"cron": "0 0 * * *", "zone": "Europe/Berlin\0"}, "no time zone", "/zone"),
    ({"cron": "0 0 * * *", "zone": "+02:00"}, "no time zone", "/zone"),
    ({"every": 0}, "more than zero", "/every"),
    ({"every": -60}, "more than zero", "/every"),
    ({"every": "0s"}, "more than zero", "/every"),
    ({"every": 0.5}, "a second or more", "/every"),
    ({"every": "300y"}, "not a duration", "/every"),
    ({"every": f"{300 * 365}d"}, "hundred years", "/every"),
    ({"every": 300 * 365 * 86_400}, "hundred years", "/every"),
    ({"every": 10**400}, "hundred years", "/every"),
    ({"every": float("nan")}, "more than zero", "/every"),
    ({"every": float("inf")}, "hundred years", "/every"),
    ({"every": True}, "duration", "/every"),
    ({"every": 60, "zone": "UTC"}, "cron only", "/zone"),
    ({"at": datetime(2027, 1, 1)}, "time zone", "/at"),
    ({}, "none of them", ""),
    ({"every": 60, "cron": "* * * * *"}, "cron and every", ""),
]  # fmt: skip


@pytest.mark.parametrize(("said", "words", "pointer"), BAD, ids=lambda value: str(value)[:40])
def test_nonsense_is_refused_by_name(said: dict[str, Any], words: str, pointer: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        timing_of(**said)
    assert words in str(caught.value)
    assert caught.value.pointer == pointer


@given(st.lists(st.text("0123456789*/,-#LWMONjanß²", max_size=8), min_size=5, max_size=5))
def test_whatever_is_written_is_a_cron_or_refused(fields: list[str]) -> None:
    try:
        timing = timing_of(cron=" ".join(fields))
    except InvalidRequest:
        return
    assert next_after(timing, us("2026-01-01T00:00Z")) is not None


def test_a_cron_that_never_fires_is_seen_at_once() -> None:
    begun = time.perf_counter()
    with pytest.raises(InvalidSchedule):
        timing_of(cron="0 0 30 2 *", zone="Europe/Berlin")
    assert time.perf_counter() - begun < 1


@pytest.mark.parametrize("id", ["", " ", "\t", "a b", "a/b", "x" * 121, "a\x7fb", "é", None])
def test_an_id_that_cannot_be_addressed_is_refused(id: Any) -> None:
    with pytest.raises(InvalidKey):
        schedule.check_id(id)
    assert schedule.check_id("nightly-report_2.eu:x") == "nightly-report_2.eu:x"


# ── storing ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "timing",
    [
        Cron(expression="0 3 * * *", zone="Europe/Berlin"),
        Every(every_us=90 * SECOND_US),
        Once(at=us("2027-01-01T00:00Z")),
    ],
)
def test_what_is_written_is_read(timing: schedule.Timing) -> None:
    assert schedule.read(values.decode(schedule.written(timing))) == timing


def test_a_firing_has_one_key_whose_parts_cannot_be_confused() -> None:
    instant = us("2026-03-29T01:00Z")
    assert schedule.firing_key("nightly", instant) == "schedule:nightly:2026-03-29T01:00:00Z"
    names = ["a", "a:2026-03-29T01:00:00Z", "a:00Z", "a:01"]
    instants = [instant, instant + 1, instant + 61 * SECOND_US]
    keys = {schedule.firing_key(name, at) for name in names for at in instants}
    assert len(keys) == len(names) * len(instants)
    assert max(map(len, (schedule.firing_key("x" * 120, at) for at in instants))) <= 255


def test_jitter_is_bounded_and_the_same_everywhere() -> None:
    found = [
        spread("acme", "nightly", us("2026-01-01T00:00Z") + n * HOUR, 60 * SECOND_US) for n in range(200)
    ]
    assert all(0 <= each <= 60 * SECOND_US for each in found)
    assert len(set(found)) > 150
    assert found[3] == spread("acme", "nightly", us("2026-01-01T03:00Z"), 60 * SECOND_US)
    assert spread("acme", "nightly", us("2026-01-01T03:00Z"), 0) == 0


# ── missed firings ───────────────────────────────────────────────────────────────────────────────

NOON = us("2026-06-01T12:00Z")
HOURLY = timing_of(cron="0 * * * *")
NEXT = NOON + HOUR

MISSED: list[tuple[str, int, int, int, list[int], int]] = [
    # policy, most, first, now, fires, next
    ("once", 100, NOON, NOON + SECOND_US, [NOON], NEXT),
    ("skip", 100, NOON, NOON + SECOND_US, [NOON], NEXT),
    ("all", 1, NOON, NOON + SECOND_US, [NOON], NEXT),
    # A minute late is on time, a little more is missed.
    ("skip", 100, NOON, NOON + LATE_US, [NOON], NEXT),
    ("skip", 100, NOON, NOON + LATE_US + 1, [], NEXT),
    ("once", 100, NOON, NOON + LATE_US + 1, [NOON], NEXT),
    # Three missed, and one that is on time.
    ("skip", 100, NOON - 3 * HOUR, NOON + SECOND_US, [NOON], NEXT),
    ("once", 100, NOON - 3 * HOUR, NOON + SECOND_US, [NOON], NEXT),
    ("all", 100, NOON - 3 * HOUR, NOON + SECOND_US, [NOON - n * HOUR for n in (3, 2, 1, 0)], NEXT),
    ("all", 2, NOON - 3 * HOUR, NOON + SECOND_US, [NOON - HOUR, NOON], NEXT),
    # Missed only.
    ("skip", 100, NOON - 3 * HOUR, NOON + 5 * MINUTE, [], NEXT),
    ("once", 100, NOON - 3 * HOUR, NOON + 5 * MINUTE, [NOON], NEXT),
    ("all", 3, NOON - 3 * HOUR, NOON + 5 * MINUTE, [NOON - n * HOUR for n in (2, 1, 0)], NEXT),
]


@pytest.mark.parametrize("timing", [HOURLY, Every(every_us=HOUR)], ids=["cron", "every"])
@pytest.mark.parametrize(("policy", "most", "first", "now", "expected", "following"), MISSED)
def test_what_becomes_of_missed_firings(
    timing: Any, policy: Any, most: int, first: int, now: int, expected: list[int], following: int
) -> None:
    due = decide(timing, policy, most, first, now)
    assert (list(due.fires), due.next_at) == (expected, following)


@pytest.mark.parametrize("most", [1, 2, 100])
def test_what_is_on_time_was_not_missed(most: int) -> None:
    """A look that comes a little late passes over nothing, however few missed firings are made up for."""
    often = Every(every_us=SECOND_US)
    due = decide(often, "all", most, NOON, NOON + 5 * SECOND_US)
    assert (due.fires, due.note) == (tuple(NOON + n * SECOND_US for n in range(6)), None)
    late = decide(often, "all", most, NOON, NOON + 10 * MINUTE)
    assert late.fires == tuple(NOON + 10 * MINUTE - n * SECOND_US for n in range(max(most, 61) - 1, -1, -1))
    assert late.note
    minutely = decide(timing_of(cron="* * * * *"), "all", most, NOON - MINUTE, NOON)
    assert (minutely.fires, minutely.note) == ((NOON - MINUTE, NOON), None)


def test_what_is_left_out_is_said() -> None:
    dropped = decide(HOURLY, "all", 2, NOON - 9 * HOUR, NOON).note
    assert dropped == "more than 2 were missed; those before 2026-06-01T11:00:00Z were dropped"
    skipped = decide(HOURLY, "skip", 100, NOON - 2 * HOUR, NOON).note
    assert skipped == "missed and skipped: 2026-06-01T10:00:00Z to 2026-06-01T11:00:00Z"
    assert decide(HOURLY, "skip", 100, NOON, NOON + 5 * MINUTE).note == (
        "missed and skipped: 2026-06-01T12:00:00Z"
    )
    assert decide(HOURLY, "once", 100, NOON - 2 * HOUR, NOON).note == (
        "fired once for all that were missed since 2026-06-01T10:00:00Z"
    )
    assert decide(HOURLY, "once", 100, NOON, NOON + 5 * MINUTE).note is None
    assert decide(HOURLY, "all", 100, NOON - 2 * HOUR, NOON).note is None


def test_one_that_fires_once_is_over_afterwards() -> None:
    once = Once(at=NOON)
    assert first_after(once, NOON + HOUR) == NOON
    assert decide(once, "once", 100, NOON, NOON) == Due(fires=(NOON,), next_at=None)
    assert decide(once, "once", 100, NOON, NOON + HOUR) == Due(fires=(NOON,), next_at=None)
    assert decide(once, "skip", 100, NOON, NOON + HOUR).fires == ()


@pytest.mark.parametrize(
    "timing", [timing_of(cron="* * * * *", zone="Europe/Berlin"), Every(every_us=SECOND_US)]
)
def test_catching_up_costs_no_more_after_a_year(timing: Any) -> None:
    begun = time.perf_counter()
    for policy in schedule.MISSED:
        due = decide(timing, policy, 100, NOON - 365 * 24 * HOUR, NOON + 1)
        assert due.fires[-1] == NOON
        assert due.next_at is not None
        assert due.next_at > NOON + 1
    assert time.perf_counter() - begun < 1


@given(
    every=st.integers(1, 400),
    behind=st.integers(0, 40_000),
    limit=st.integers(1, 120),
    unit=st.sampled_from([SECOND_US, MINUTE]),
)
def test_the_newest_pending_instants_are_those_of_going_one_by_one(
    every: int, behind: int, limit: int, unit: int
) -> None:
    timing, first = Every(every_us=every * unit), NOON - behind * unit
    slowly = list(range(first, NOON + 1, timing.every_us))
    assert pending(timing, first, NOON, limit) == (slowly[-limit:], len(slowly) > limit)


@pytest.mark.parametrize("limit", [1, 3, 10, 61, 500])
@pytest.mark.parametrize("cron", ["* * * * *", "*/7 2-5 * * *", "0 9 * * 1-5", "0 0 1 * *"])
def test_the_newest_pending_instants_of_a_cron_are_those_of_going_one_by_one(cron: str, limit: int) -> None:
    timing = timing_of(cron=cron, zone="Europe/Berlin")
    first = next_after(timing, us("2026-03-28T00:00Z"))
    assert first is not None
    for now in (first, first + 3 * HOUR, first + 50 * HOUR, first + 40 * 24 * HOUR):
        slowly, each = [], first
        while each <= now:
            slowly.append(each)
            each = next_after(timing, each) or 0
        assert pending(timing, first, now, limit) == (slowly[-limit:], len(slowly) > limit)


# ── going on after a pause ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("timing", "first", "now", "expected"),
    [
        (HOURLY, NOON, NOON + 90 * MINUTE, NOON + 2 * HOUR),
        (HOURLY, NOON, NOON - 1, NOON),
        (HOURLY, NOON, NOON, NOON + HOUR),
        (Every(every_us=HOUR), NOON + MINUTE, NOON + 150 * MINUTE, NOON + 3 * HOUR + MINUTE),
        (Every(every_us=HOUR), NOON + MINUTE, NOON, NOON + MINUTE),
        (Once(at=NOON), NOON, NOON + MINUTE, None),
        (Once(at=NOON), NOON, NOON - MINUTE, NOON),
        (Once(at=NOON), None, NOON - MINUTE, None),
    ],
)
def test_what_passed_during_a_pause_is_not_made_up_for(
    timing: Any, first: int | None, now: int, expected: int | None
) -> None:
    assert going_on(timing, first, now) == expected
