"""How long to wait before trying again, and when to stop.

Delay before retry n, counted from 0:

    plain   min(max, base * 2^n) + U(0, jitter)
    full    U(0, min(max, base * 2^n))

``Retry-After`` (RFC 9110 section 10.2.3) wins when it is longer. Attempts and total time are hard caps,
whichever comes first. The random number is an argument: jitter is what keeps a thousand clients from coming
back in the same millisecond, and a test has to be able to say which one it was.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Literal

from outlast.core.record import record
from outlast.errors import ConfigurationError

__all__ = [
    "MAX_WAIT_S",
    "Backoff",
    "Stop",
    "StopReason",
    "delay_before",
    "next_delay",
    "parse_date",
    "parse_retry_after",
    "sensible_wait",
]

MAX_WAIT_S: Final = 36_525 * 86_400.0
"""A century: the end of a longer wait may be an instant that no database holds, or no calendar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A retry policy. Times are in seconds.

    ``attempts`` counts sends, the first one included. ``total_s`` is measured from the first send to the
    start of the last. ``jitter_s`` is used by the mode ``plain`` only. Raises ``ConfigurationError`` when a
    figure makes no sense.
    """

    base_s: float = 1.0
    max_s: float = 8.0
    jitter_s: float = 0.5
    mode: Literal["plain", "full"] = "plain"
    attempts: int = 6
    total_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("base_s", "max_s", "jitter_s", "total_s"):
            seconds = getattr(self, name)
            if not (math.isfinite(seconds) and seconds >= 0):
                raise ConfigurationError(f"{name} must be a finite number of seconds from 0, not {seconds}")
        if self.attempts < 1:
            raise ConfigurationError(
                f"attempts counts the first send, so it is at least 1, not {self.attempts}"
            )
        if self.mode not in ("plain", "full"):
            raise ConfigurationError(f"mode must be 'plain' or 'full', not {self.mode!r}")


class StopReason(StrEnum):
    """Which cap ended the retries."""

    ATTEMPTS = "attempts_exhausted"
    TOTAL = "time_exhausted"


@record
class Stop:
    """No further retry. ``detail`` is for people, ``reason`` for programs."""

    reason: StopReason
    detail: str


def delay_before(policy: Backoff, retry: int, u: float) -> float:
    """Compute the formula's delay in seconds before a retry, without caps and without ``Retry-After``.

    ``retry`` counts from 0; ``u`` is a random number in [0, 1). No retry number is too large. Raises
    ``ValueError`` for a negative retry or a ``u`` outside its range.
    """
    if retry < 0:
        raise ValueError(f"retries are counted from 0, not {retry}")
    if not 0 <= u < 1:
        raise ValueError(f"u must be in [0, 1), not {u}")
    try:
        # 5000 doublings take the smallest double past the largest one.
        grown = math.ldexp(policy.base_s, min(retry, 5000))
    except OverflowError:
        grown = math.inf
    bound = min(policy.max_s, grown)
    return u * bound if policy.mode == "full" else bound + u * policy.jitter_s


def next_delay(
    policy: Backoff, retries_done: int, elapsed_s: float, u: float, retry_after_s: float | None = None
) -> float | Stop:
    """Decide how many seconds to wait before the next retry, or that there is none.

    ``retries_done`` is 0 after the first send; ``elapsed_s`` are the seconds since the first send; ``u`` is
    a random number in [0, 1); ``retry_after_s`` is what the other side asked for, ``None`` if nothing.
    A wait that would end after ``total_s`` is a ``Stop`` at once, not a shorter wait: coming back before the
    time that was asked for does not help. Raises ``ValueError`` as ``delay_before`` does.
    """
    delay = delay_before(policy, retries_done, u)
    if retry_after_s is not None and math.isfinite(retry_after_s):
        delay = max(delay, retry_after_s)
    if retries_done + 1 >= policy.attempts:
        return Stop(reason=StopReason.ATTEMPTS, detail=f"all {policy.attempts} attempts were made")
    if elapsed_s + delay > policy.total_s:
        return Stop(
            reason=StopReason.TOTAL,
            detail=f"waiting {delay:.3f} s after {elapsed_s:.3f} s would pass the {policy.total_s} s in all",
        )
    return delay


_DAYS: Final = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
_LONG_DAYS: Final = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH: Final = rf"(?P<month>{'|'.join(_MONTHS)})"
_TIME: Final = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_SECONDS: Final = re.compile(r"[0-9]+")
# RFC 9110 section 5.6.7. Matched by hand, since strptime reads the names of days in the process's locale.
_DATES: Final = (
    re.compile(rf"(?:{_DAYS}), (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    re.compile(rf"(?:{_LONG_DAYS}), (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    re.compile(rf"(?:{_DAYS}) {_MONTH} (?P<day>[0-9]{{2}}| [0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)


def parse_retry_after(header: str | None, now_unix_s: float) -> float | None:
    """Read a ``Retry-After`` header (RFC 9110 section 10.2.3) as seconds from now.

    Takes whole seconds and the three date formats of section 5.6.7; ``now_unix_s`` is the time now, in
    seconds since 1970. Returns 0 for a date in the past, and ``None`` for a missing header and for whatever
    the standard does not allow (negative, fractional, out of a double's range), so that the caller falls
    back to its formula. Never raises for any header.
    """
    if header is None:
        return None
    text = header.strip(" \t")
    if _SECONDS.fullmatch(text):
        seconds = float(text)
        return seconds if math.isfinite(seconds) else None
    moment = parse_date(text, now_unix_s)
    return None if moment is None else max(0.0, moment - now_unix_s)


def parse_date(header: str | None, now_unix_s: float) -> float | None:
    """Read a date of HTTP (RFC 9110 section 5.6.7) as seconds since 1970, ``None`` where it is none.

    ``now_unix_s`` says which century a year of two digits is of. Never raises for any header.
    """
    text = "" if header is None else header.strip(" \t")
    for pattern in _DATES:
        if match := pattern.fullmatch(text):
            return _unix_s(match, now_unix_s)
    return None


def sensible_wait(asked_s: float | None) -> float | None:
    """Answer the seconds that the other side asked to be left alone, ``None`` where they make no sense.

    Those are negative or endless ones, and those above ``MAX_WAIT_S``: the caller falls back to its formula.
    """
    return None if asked_s is None or not 0 <= asked_s <= MAX_WAIT_S else asked_s


def _unix_s(match: re.Match[str], now_unix_s: float) -> float | None:
    day, hour, minute, second = (int(match[name]) for name in ("day", "hour", "minute", "second"))
    month = _MONTHS.index(match["month"]) + 1
    year = int(match["year"])
    if second > 60:
        return None
    try:
        if len(match["year"]) == 2:
            year = _full_year(year, (month, day, hour, minute, second), now_unix_s)
        # The standard allows a leap second, datetime does not: count it from the second before.
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)
    except ValueError:
        return None
    return moment.timestamp() + (second == 60)


def _full_year(two_digits: int, rest: tuple[int, ...], now_unix_s: float) -> int:
    # RFC 9110: more than 50 years ahead means the latest past year with the same last two digits.
    now = datetime.fromtimestamp(now_unix_s, UTC)
    year = now.year + (two_digits - now.year) % 100
    latest = (now.year + 50, now.month, now.day, now.hour, now.minute, now.second)
    return year - 100 if (year, *rest) > latest else year
