"""Runs of many schedules, one after the other or in several processes.

Purpose: what a run of seeds comes to, whoever ran which of them.

Identity: the seeds, and the arguments of their schedules. Whoever runs them in pieces, in whatever number of
processes, comes to the same.

State: a ``Tally``; two of them add up.

Failure by failure: a process that dies ends the run, which has proved nothing of what was not yielded before.
Where the process that asked for the run dies, the others end as well.

Not covered: several machines.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any, Final

from outlast.testing.simulation.coverage import Coverage
from outlast.testing.simulation.loop import Order
from outlast.testing.simulation.mixture import varied
from outlast.testing.simulation.schedule import Report, run_schedule

__all__ = ["PIECE", "SHOWN", "Tally", "pieces_of", "run", "run_apart"]

SHOWN: Final = 10
"""How many schedules with violations are kept in words."""
PIECE: Final = 200
"""How many schedules a process takes at once."""


@dataclass(slots=True)
class Tally:
    """What came of some schedules.

    broken: how many broke a promise; told: the first of them, by seed. struck: how many had misfortunes that
    fall on workers. cpu_s: seconds of processor time that they took.
    """

    schedules: int = 0
    broken: int = 0
    struck: int = 0
    effects: int = 0
    told: list[str] = field(default_factory=list)
    seen: Coverage = field(default_factory=Coverage)
    cpu_s: float = field(default=0.0, compare=False)

    def count(self, report: Report) -> None:
        """Count a schedule in."""
        self.schedules += 1
        self.effects += report.effects
        self.struck += bool(report.misfortunes)
        self.seen.add(report.moves, report.played)
        if report.violations:
            self.broken += 1
            if len(self.told) < SHOWN:
                self.told.append(str(report))

    def add(self, other: Tally) -> None:
        """Add what came of the seeds that follow."""
        self.schedules += other.schedules
        self.broken += other.broken
        self.struck += other.struck
        self.effects += other.effects
        self.told = (self.told + other.told)[:SHOWN]
        self.seen.add(other.seen.moves, other.seen.faults)
        self.cpu_s += other.cpu_s


def run(
    first: int,
    count: int,
    given: Mapping[str, Any] | None = None,
    order: Order = "fifo",
    tell: Callable[[Report], None] | None = None,
) -> Tally:
    """Run the schedules of ``count`` seeds in this process and answer what came of them.

    given: arguments of every one of them; None for the world's own mixture. order: see ``SimulationLoop``.
    tell: called with each report.
    """
    tally = Tally()
    began = time.process_time()
    with _collecting() as collect:
        for seed in range(first, first + count):
            report = run_schedule(seed, order=order, **(given or varied(seed)))
            tally.count(report)
            if tell is not None:
                tell(report)
            del report
            # A world is full of circles, and the next one lives best in the memory that this one leaves.
            collect()
    tally.cpu_s = time.process_time() - began
    return tally


@contextmanager
def _collecting() -> Iterator[Callable[[], object]]:
    """Collect garbage between schedules instead of within them, and never what was there before."""
    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield gc.collect
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def pieces_of(first: int, count: int) -> Iterator[tuple[int, int]]:
    """Cut ``count`` seeds into pieces of (first, how many)."""
    for start in range(first, first + count, PIECE):
        yield start, min(PIECE, first + count - start)


def run_apart(
    pieces: Iterable[tuple[int, int]],
    given: Mapping[str, Any] | None = None,
    order: Order = "fifo",
    *,
    jobs: int,
) -> Iterator[tuple[tuple[int, int], Tally]]:
    """Run pieces of seeds in ``jobs`` processes; yield each with what came of it, in their order.

    Whoever leaves early waits for the pieces that are under way, no longer.
    """
    asked = list(pieces)
    if jobs == 1:
        for piece in asked:
            yield piece, run(*piece, given, order)
        return
    # Not by a fork: nothing of this process, its threads and patches, is to be there.
    apart = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=apart, initializer=_begin)
    try:
        each = [pool.submit(run, *piece, given, order) for piece in asked]
        for piece, future in zip(asked, each, strict=True):
            yield piece, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Leave it to whoever asked for the run to be interrupted, and end when they are gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
