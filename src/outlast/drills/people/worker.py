"""Run one worker of the drill: ``python -m outlast.drills.people.worker NAME POOLS FATE [SECONDS]``.

SECONDS: how far its clock is ahead. A line on its standard input, a number, moves it on by so many more.
"""

from __future__ import annotations

import sys

from outlast import clock
from outlast.drills.crew import settings
from outlast.drills.people.agents import Place, build
from outlast.drills.serving import serve
from outlast.settings import Settings


class WrongClock(clock.MachineSeams):
    """The machine's seams, with a wall clock that is wrong."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s

    def unix_us(self) -> int:
        return super().unix_us() + int(self.ahead_s * 1_000_000)

    def step(self, line: str) -> None:
        """Move it on by the seconds that a line says."""
        self.ahead_s += sum(float(word) for word in line.split())


if __name__ == "__main__":
    wrong = WrongClock(float(sys.argv[4]) if len(sys.argv) > 4 else 0.0)
    clock.install(wrong)
    serve(build(Settings().database_url, Place.of_environ()), settings(*sys.argv[1:4]), heard=wrong.step)
