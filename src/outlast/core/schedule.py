"""When a schedule fires: cron in a time zone, an interval, or once; and what becomes of missed firings.

Purpose: from what is stored (a timing and the first instant that has not fired) and the database's time, say
which instants fire now and which comes next. Whoever works it out comes to the same answer.

Cron: five fields as Debian's cron reads them (``cronsim``), or ``@hourly`` and its like, in an IANA zone.
They name times of a wall clock, and wall clocks are put forward and back:

- a local time that does not exist fires once, at the first instant after the gap;
- a local time that occurs twice fires once, at its first occurrence;
- what runs every hour of the day (``*/15 * * * *``, ``7 * * * *``) follows real time through both; what runs
  every N minutes of some hours (``*/15 0-6 * * *``) goes on through a repeated hour.

Interval: real time, counted from the instant before, whatever the zones do.

Clock: none; instants are microseconds since the epoch. Zones are the tables that Python finds, the system's
first. Two processes with different tables may disagree on an instant to come; the store compares it.

Not covered: leap seconds; two changes of a zone's offset within one day.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from outlast.core import canonical, ids
from outlast.core.durations import Duration, microseconds
from outlast.core.record import record
from outlast.errors import InvalidKey, InvalidRequest, InvalidSchedule

Missed = Literal["skip", "once", "all"]
MISSED: Final = ("skip", "once", "all")
Overlap = Literal["allow", "skip"]
OVERLAPS: Final = ("allow", "skip")

SECOND_US: Final = 1_000_000
LATE_US: Final = 60 * SECOND_US
"""An instant that is this late has been missed; until then it is on time."""
MIN_EVERY_US: Final = SECOND_US
MAX_CRON_CHARS: Final = 255
MAX_MISSED: Final = 1_000
MAX_JITTER_US: Final = 86_400 * SECOND_US
_ON_TIME: Final = LATE_US // MIN_EVERY_US + 1
"""So many instants can be on time at once."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = timedelta(days=1)
_SECOND: Final = timedelta(seconds=1)
_ZONE: Final = re.compile(r"[A-Za-z0-9_+\-]+(?:/[A-Za-z0-9_+\-]+)*")
# Files beside the zones that are no zones, or mean another one on each machine.
_NO_ZONES: Final = ("localtime", "posixrules", "Factory")
_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@record
class Cron:
    """Times of a wall clock. expression: five fields. zone: an IANA name."""

    expression: str
    zone: str = "UTC"


@record
class Every:
    """An interval in real time."""

    every_us: int


@record
class Once:
    """One instant."""

    at: int


Timing = Cron | Every | Once


@record
class Due:
    """What is to be done now. fires: instants, in order. next_at: the first that lies ahead, None for no
    more. note: what was left out, for people."""

    fires: tuple[int, ...]
    next_at: int | None
    note: str | None = None


# -- reading what a caller says ----------------------------------------------------------------------------


def timing_of(
    *,
    cron: str | None = None,
    zone: str | None = None,
    every: Duration | None = None,
    at: datetime | None = None,
) -> Timing:
    """Check what a caller says of the times: exactly one of ``cron`` (with ``zone``), ``every``, ``at``.

    Raises InvalidSchedule with the pointer to what is wrong.
    """
    given = [name for name, value in (("cron", cron), ("every", every), ("at", at)) if value is not None]
    if len(given) != 1:
        said = " and ".join(given) or "none of them"
        raise InvalidSchedule(f"a schedule has one of cron, every and at; this one has {said}")
    if zone is not None and cron is None:
        raise InvalidSchedule("a zone goes with cron only", pointer="/zone")
    if cron is not None:
        return _cron_of(cron, "UTC" if zone is None else zone)
    if every is not None:
        every_us = length_of(every, "every")
        if every_us < MIN_EVERY_US:
            raise InvalidSchedule(f"every must be a second or more, not {every!r}", pointer="/every")
        return Every(every_us=every_us)
    assert at is not None
    if at.tzinfo is None:
        raise InvalidSchedule("at needs an instant with a time zone", pointer="/at")
    return Once(at=(at - _EPOCH) // timedelta(microseconds=1))


def length_of(value: Duration, what: str, *, zero: bool = False) -> int:
    """Check a length of time; answer microseconds. Raises InvalidSchedule that points to ``what``."""
    try:
        return microseconds(value, what=what, zero=zero)
    except InvalidRequest as error:
        raise InvalidSchedule(str(error), pointer=f"/{what}") from None
    except OverflowError:
        raise InvalidSchedule(f"{what} is longer than a hundred years", pointer=f"/{what}") from None


def _cron_of(expression: object, zone: object) -> Cron:
    if not isinstance(expression, str) or len(expression) > MAX_CRON_CHARS:
        raise InvalidSchedule(f"cron is text of at most {MAX_CRON_CHARS} characters", pointer="/cron")
    text = " ".join(expression.split())
    text = _MACROS.get(text.lower(), text)
    if len(text.split(" ")) != 5:
        raise InvalidSchedule(
            f"cron {expression!r} has not five fields: minute, hour, day of month, month, day of week",
            pointer="/cron",
        )
    cron = Cron(expression=text, zone=_check_zone(zone))
    try:
        fires = next_after(cron, 0) is not None
    except CronSimError as error:
        if not _names_no_day(text):
            said = str(error)
            raise InvalidSchedule(
                f"cron {expression!r}: {said[:1].lower()}{said[1:]}", pointer="/cron"
            ) from None
        fires = False
    if not fires:
        raise InvalidSchedule(f"cron {expression!r} never fires: no year has such a day", pointer="/cron")
    return cron


def _names_no_day(expression: str) -> bool:
    """Whether a refused expression is well written, for a day that none of its months has."""
    minute, hour, day, month, weekday = expression.split(" ")
    try:
        for days, months in (("*", month), (day, "*")):
            CronSim(f"{minute} {hour} {days} {months} {weekday}", datetime(2000, 1, 1))
    except CronSimError:
        return False
    return True


def _check_zone(zone: object) -> str:
    if isinstance(zone, str) and len(zone) <= ids.MAX_NAME_CHARS and _ZONE.fullmatch(zone):
        try:
            _zone(zone)
        # What the tables' reader raises for names that are folders, other files, or not there.
        except (KeyError, ValueError, OSError):
            pass
        else:
            return zone
    raise InvalidSchedule(
        f"there is no time zone {str(zone)[:100]!r}; use an IANA name such as Europe/Berlin", pointer="/zone"
    )


@lru_cache(maxsize=1_000)
def _zone(name: str) -> ZoneInfo:
    if name in _NO_ZONES or name.startswith(("posix/", "right/")):
        raise ValueError(name)
    return ZoneInfo(name)


def check_id(value: object) -> str:
    """Accept a schedule's id: a name without a slash, since it stands in a path. Raises InvalidKey."""
    text = ids.check_name(value, "schedule id")
    if "/" in text:
        raise InvalidKey("schedule id has a slash; use letters, digits and _ - . : only")
    return text


# -- how it is stored --------------------------------------------------------------------------------------


def written(timing: Timing) -> str:
    """Write a timing as the text that is stored; equal timings give equal texts."""
    plain: dict[str, object]
    if isinstance(timing, Cron):
        plain = {"cron": timing.expression, "zone": timing.zone}
    elif isinstance(timing, Every):
        plain = {"every_us": timing.every_us}
    else:
        plain = {"at_us": timing.at}
    return canonical.canonical(plain).decode()


def read(stored: Mapping[str, Any]) -> Timing:
    """Read a stored timing, the inverse of ``written`` (after JSON)."""
    if "cron" in stored:
        return Cron(expression=stored["cron"], zone=stored["zone"])
    if "every_us" in stored:
        return Every(every_us=stored["every_us"])
    return Once(at=stored["at_us"])


def instant_text(instant: int) -> str:
    """Write an instant as RFC 3339 in UTC."""
    return (_EPOCH + timedelta(microseconds=instant)).isoformat().replace("+00:00", "Z")


def firing_key(schedule: str, instant: int) -> str:
    """Make the idempotency key of the task that a schedule fires for an instant."""
    return f"schedule:{schedule}:{instant_text(instant)}"


def spread(tenant: str, schedule: str, instant: int, jitter_us: int) -> int:
    """Answer how long after its instant a firing's task may start: up to ``jitter_us``, the same wherever it
    is worked out."""
    if not jitter_us:
        return 0
    seen = hashlib.sha256(f"{tenant}\n{schedule}\n{instant}".encode()).digest()
    return int.from_bytes(seen[:8]) % (jitter_us + 1)


# -- which instants ----------------------------------------------------------------------------------------


def next_after(timing: Timing, instant: int) -> int | None:
    """Answer the first instant strictly after one, None when there is none.

    Of an interval the one given is itself an instant of the schedule.
    """
    match timing:
        case Cron():
            return _cron_after(timing, instant)
        case Every():
            return instant + timing.every_us
        case Once():
            return timing.at if timing.at > instant else None


def first_after(timing: Timing, now: int) -> int | None:
    """Answer the first instant of a schedule that is made now. One that fires once may lie behind."""
    return timing.at if isinstance(timing, Once) else next_after(timing, now)


def going_on(timing: Timing, first: int | None, now: int) -> int | None:
    """Answer the first instant ahead of a schedule that was paused, None for no more: what passed meanwhile
    is not made up for. first: what would have fired next."""
    if first is None or first > now:
        return first
    match timing:
        case Cron():
            return next_after(timing, now)
        case Every():
            return first + ((now - first) // timing.every_us + 1) * timing.every_us
        case Once():
            return None


def preview(timing: Timing, first: int | None, count: int) -> list[int]:
    """Answer up to ``count`` instants from the first one on."""
    found: list[int] = []
    while first is not None and len(found) < count:
        found.append(first)
        first = next_after(timing, first)
    return found


def pending(timing: Timing, first: int, now: int, limit: int) -> tuple[list[int], bool]:
    """Answer the newest instants from ``first`` to now, at most ``limit``, and whether older ones were left
    out. Costs about as much for a year as for an hour."""
    match timing:
        case Once():
            return [first], False
        case Every():
            newest = (now - first) // timing.every_us
            oldest = max(0, newest - limit + 1)
            return [first + n * timing.every_us for n in range(oldest, newest + 1)], oldest > 0
        case Cron():
            # A window that doubles until it holds enough, so that a minutely schedule that slept for a year
            # is not gone through minute by minute.
            window = limit * 60 * SECOND_US
            while True:
                begin = max(first - 1, now - window)
                found: list[int] = []
                each = next_after(timing, begin)
                while each is not None and each <= now:
                    found.append(each)
                    each = next_after(timing, each)
                if begin < first:
                    # The one that is stored, whatever this process's tables say of it.
                    if not found or found[0] != first:
                        found.insert(0, first)
                    return found[-limit:], len(found) > limit
                if len(found) >= limit:
                    return found[-limit:], True
                window *= 2


def decide(timing: Timing, missed: Missed, max_missed: int, first: int, now: int) -> Due:
    """Say what fires of everything from ``first`` to now, by the policy on missed firings.

    ``skip``: only what is on time (less than a minute late). ``once``: the newest instant for all, if any was
    missed. ``all``: each, but only the newest ``max_missed``, and never fewer than are on time.
    """
    instants, more = pending(timing, first, now, max(max_missed, _ON_TIME) if missed == "all" else _ON_TIME)
    next_at = next_after(timing, instants[-1])
    if not more and now - instants[0] <= LATE_US:
        return Due(fires=tuple(instants), next_at=next_at)
    if missed == "all":
        kept = max(max_missed, sum(now - instant <= LATE_US for instant in instants))
        more = more or len(instants) > kept
        instants = instants[-kept:]
        note = f"more than {kept} were missed; those before {instant_text(instants[0])} were dropped"
        return Due(fires=tuple(instants), next_at=next_at, note=note if more else None)
    if missed == "once":
        note = f"fired once for all that were missed since {instant_text(first)}"
        return Due(fires=(instants[-1],), next_at=next_at, note=note if more or len(instants) > 1 else None)
    on_time = tuple(instant for instant in instants if now - instant <= LATE_US)
    last = max(instant for instant in (first, *instants) if now - instant > LATE_US)
    span = f"{instant_text(first)} to {instant_text(last)}" if last > first else instant_text(first)
    return Due(fires=on_time, next_at=next_at, note=f"missed and skipped: {span}")


# -- cron in a zone ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parsed:
    """What matters of an expression where clocks change."""

    hourly: bool
    minutely: bool

    @staticmethod
    @lru_cache(maxsize=1_000)
    def of(expression: str) -> _Parsed:
        """Look at an expression. Raises CronSimError."""
        simulator = CronSim(expression, datetime(2000, 1, 1))
        return _Parsed(len(simulator.hours) == 24, expression.startswith("*"))


def _local_after(expression: str, local: datetime) -> datetime | None:
    """Answer the next wall-clock time of an expression, as if no clock were ever changed."""
    return next(CronSim(expression, local), None)


def _cron_after(cron: Cron, instant: int) -> int | None:
    parsed = _Parsed.of(cron.expression)
    zone = _zone(cron.zone)
    moment = _EPOCH + timedelta(microseconds=instant)
    offset = _offset(zone, moment)
    local = _wall(moment, offset)
    # Between two changes of the offset the wall clock is real time, shifted; each stretch is gone through so.
    while True:
        match = _local_after(cron.expression, local)
        if match is None:
            return None
        found = match.replace(tzinfo=UTC) - offset
        change = _change(zone, moment, found, offset)
        if change is None:
            repeated = found.astimezone(zone).fold == 1
            if not repeated or parsed.hourly or parsed.minutely:
                return (found - _EPOCH) // timedelta(microseconds=1)
            moment, local = found, match
            continue
        offset = _offset(zone, change)
        moment, local = change, _wall(change, offset)
        if match < local and not parsed.hourly:
            # The clock was put forward over it.
            return (change - _EPOCH) // timedelta(microseconds=1)
        # The stretch begins with its first instant.
        local -= _SECOND


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _wall(moment: datetime, offset: timedelta) -> datetime:
    return (moment + offset).replace(tzinfo=None)


def _change(zone: ZoneInfo, after: datetime, until: datetime, offset: timedelta) -> datetime | None:
    """Answer the first instant above ``after``, up to ``until``, at which the zone's offset is another."""
    low = after
    while low < until:
        high = min(low + _DAY, until)
        if _offset(zone, high) != offset:
            break
        low = high
    else:
        return None
    # Changes happen at whole seconds.
    low = low.replace(microsecond=0)
    high = high.replace(microsecond=0)
    while high - low > _SECOND:
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        if _offset(zone, middle) != offset:
            high = middle
        else:
            low = middle
    return high
