"""How people write a length of time: seconds, a timedelta, or text such as ``"10m"``, ``"1h30m"``,
``"250ms"``."""

from __future__ import annotations

import re
from datetime import timedelta

from outlast.errors import InvalidRequest

Duration = float | int | str | timedelta
_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)")
MAX_US = 100 * 365 * 86_400_000_000
"""A hundred years; longer is refused as a mistake."""


def microseconds(value: Duration, *, what: str, zero: bool = False) -> int:
    """Answer a duration in whole microseconds.

    value: seconds as a number, a timedelta, or text of parts ``<number><us|ms|s|m|h|d>``. what: its name, for
    the error. zero: whether nothing is allowed. Raises InvalidRequest for nonsense, negative, too long.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str | timedelta):
        raise InvalidRequest(f"{what} must be a duration, not {type(value).__name__}")
    if isinstance(value, int) and abs(value) > MAX_US:
        # Before it becomes a float, which cannot hold every number, nor every number be shown.
        raise InvalidRequest(f"{what} is no length of time: a hundred years is the most")
    if isinstance(value, timedelta):
        amount = value / timedelta(microseconds=1)
    elif isinstance(value, int | float):
        amount = float(value) * 1_000_000
    else:
        text = value.strip().lower()
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise InvalidRequest(
                f"{what} {value!r} is not a duration; write seconds, or text such as '10m' or '1h30m'"
            )
        amount = sum(float(number) * _UNITS[unit] for number, unit in parts)
    # NaN fails both comparisons.
    if not (amount > 0 or (zero and amount == 0)):
        raise InvalidRequest(f"{what} must be {'zero or ' if zero else ''}more than zero, not {value!r}")
    if not amount <= MAX_US:
        raise InvalidRequest(f"{what} {value!r} is longer than a hundred years")
    return max(int(amount), 0 if zero else 1)
