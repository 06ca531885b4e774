"""The seam for time, ids and randomness: everything in Outlast that needs one of them asks here.

A simulation puts its own ``Seams`` into the context; production uses the machine's. No value from here
decides anything stored: expiry and due times are the database's.
"""

from __future__ import annotations

import os
import time
from contextvars import ContextVar
from random import Random as Random
from typing import Protocol

from outlast.core import ids


class Seams(Protocol):
    """Where time, randomness and threads come from."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back and goes on while the process is stopped."""
        ...

    def unix_us(self) -> int:
        """Microseconds since the epoch by this machine's wall clock; for labels, never for decisions."""
        ...

    def random_bits(self, bits: int) -> int:
        """Unpredictable bits as an integer."""
        ...

    @property
    def inline(self) -> bool:
        """Whether threads are replaced by calls in place (simulation)."""
        ...


_gettime = time.clock_gettime
# CLOCK_BOOTTIME also counts while the machine sleeps, where the system has it.
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class MachineSeams:
    """The machine's own clocks and random source."""

    inline = False

    def monotonic(self) -> float:
        return _gettime(_CLOCK)

    def unix_us(self) -> int:
        return time.time_ns() // 1000

    def random_bits(self, bits: int) -> int:
        return int.from_bytes(os.urandom((bits + 7) // 8)) >> (-bits % 8)


_machine = MachineSeams()
_current: ContextVar[Seams | None] = ContextVar("outlast_seams", default=None)


def seams() -> Seams:
    """Answer the seams in force in this context."""
    return _current.get() or _machine


def install(replacement: Seams | None) -> None:
    """Put seams into force for this context and the tasks made from it; None brings the machine's back."""
    _current.set(replacement)


def monotonic() -> float:
    """Seconds on a clock that never goes back; see ``Seams.monotonic``."""
    replacement = _current.get()
    # Asked several times an operation, so the machine's own clock is read without a detour.
    return _gettime(_CLOCK) if replacement is None else replacement.monotonic()


def unix_us() -> int:
    """Microseconds since the epoch by this machine; for labels only."""
    return seams().unix_us()


def ahead_us(asked_at: int, now: int, heard_at: int) -> int:
    """Say by how much this machine's wall clock is ahead of another one; only what is sure.

    asked_at, heard_at: ``unix_us`` before the other clock was asked, and when it had answered ``now``;
    microseconds. Negative when it is behind; 0 when the question took as long as they may differ.
    """
    return max(0, asked_at - now) + min(0, heard_at - now)


def uniform() -> float:
    """A random number in [0, 1)."""
    return seams().random_bits(53) / (1 << 53)


def random_bits(bits: int) -> int:
    """Unpredictable bits as an integer."""
    return seams().random_bits(bits)


def new_id(prefix: str) -> str:
    """Make a new time-ordered id; see ``outlast.core.ids``."""
    source = seams()
    return ids.new_id(prefix, source.unix_us() // 1000, source.random_bits(74))


def seeded_random(seed: int) -> Random:
    """A repeatable generator, for agent code that wants more than one number from one recorded seed."""
    return Random(seed)
