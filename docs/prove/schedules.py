"""The simulation of the long proof: as many schedules as asked for, on all cores, kept as it goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs.prove.kept import Kept, code_now, row_of, where_and_when

from outlast import clock
from outlast.testing.simulation.coverage import Coverage
from outlast.testing.simulation.mixture import name_of_mixture
from outlast.testing.simulation.runs import SHOWN, Tally, pieces_of, run_apart

__all__ = ["prove"]

PART = "simulation"
KEPT_EVERY = 10
"""After how many pieces it is kept what was done, and told."""


def prove(kept: Kept, *, first: int, count: int, jobs: int, afresh: bool) -> bool:
    """Run the schedules of these seeds but those that are on record, keeping what was done; answer whether
    nothing was broken and nothing is missing."""
    code, mixture, when = code_now(), name_of_mixture(), where_and_when()
    rows: list[dict[str, Any]] = [] if afresh else kept.rows(PART)
    left = list(_left([span for row in rows for span in row["ranges"]], first, count))
    pieces = [piece for start, many in left for piece in pieces_of(start, many)]
    if not pieces:
        return _tell(rows)
    new = {"mixture": mixture, "ranges": [], "told": [], "moves": [], "faults": []}
    new |= {"schedules": 0, "violations": 0, "seconds": 0.0, "cpu_s": 0.0}
    row = row_of(rows, code, lambda row: row["mixture"] == mixture, new)
    total, done = sum(many for _, many in pieces), 0
    began = last = clock.monotonic()
    for number, ((start, many), tally) in enumerate(run_apart(pieces, jobs=jobs), start=1):
        done, now = done + many, clock.monotonic()
        row["seconds"] = round(row["seconds"] + now - last, 1)
        last = now
        _count(row, start, tally)
        row |= when
        if number % KEPT_EVERY == 0 or number == len(pieces):
            kept.keep(PART, rows)
            ahead = (now - began) / done * (total - done)
            print(
                f"simulation: {done:,} of {total:,}, {row['violations']} with violations,"
                f" {done / (now - began):.0f} a second, about {ahead / 60:.0f} min left",
                flush=True,
            )
    return _tell(rows)


def _count(row: dict[str, Any], first: int, tally: Tally) -> None:
    """Count in what came of the seeds from ``first`` on."""
    seen = Coverage()
    seen.add(map(tuple, row["moves"]), row["faults"])
    seen.add(tally.seen.moves, tally.seen.faults)
    row["ranges"] = _joined([*row["ranges"], [first, first + tally.schedules - 1]])
    row["schedules"] += tally.schedules
    row["violations"] += tally.broken
    row["cpu_s"] = round(row["cpu_s"] + tally.cpu_s, 1)
    row["told"] = (row["told"] + tally.told)[:SHOWN]
    row["moves"], row["faults"] = sorted(seen.moves), sorted(seen.faults)


def _tell(rows: list[dict[str, Any]]) -> bool:
    """Print what was broken and what no row has come through; answer whether there is nothing of either."""
    seen = Coverage()
    for row in rows:
        seen.add(map(tuple, row["moves"]), row["faults"])
        for told in row["told"]:
            print(f"{row['code']}: {told}", flush=True)
    if seen.missing:
        print(f"void, since it has not seen: {'; '.join(seen.missing)}", flush=True)
    return not seen.missing and not any(row["violations"] for row in rows)


def _left(ranges: list[list[int]], first: int, count: int) -> Iterator[tuple[int, int]]:
    """Answer the seeds that are not in ``ranges``, in order, as (first, how many)."""
    seed, end = first, first + count
    for begin, last in [*_joined(ranges), [end, end]]:
        if seed < min(begin, end):
            yield seed, min(begin, end) - seed
        seed = max(seed, last + 1)


def _joined(ranges: list[list[int]]) -> list[list[int]]:
    """Put ranges in order, and those that touch together."""
    joined: list[list[int]] = []
    for begin, last in sorted(ranges):
        if joined and begin <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([begin, last])
    return joined
