"""The simulation of the long proof: as many schedules as asked for, on all cores, kept as it goes."""

from __future__ import annotations

from collections.abc import Iterator

from docs.prove.kept import CHANGED, Kept, Row, code_now, row_of, where_and_when

from outlast import clock
from outlast.testing.simulation.coverage import Coverage
from outlast.testing.simulation.mixture import name_of_mixture
from outlast.testing.simulation.runs import SHOWN, Tally, pieces_of, run_apart

__all__ = ["broken", "prove"]

PART = "simulation"
KEPT_EVERY = 10
"""After how many pieces it is kept what was done, and told."""

Span = list[int]
"""The first seed and the last."""


def prove(kept: Kept, *, first: int, count: int, jobs: int, afresh: bool) -> bool:
    """Run the schedules of these seeds but those that are on record, keeping what was done; answer whether
    nothing is missing, and nothing broke that no later code has played without.

    A piece in which something broke counts as done for the code that played it, and for no other.
    """
    code, mixture, when = code_now(), name_of_mixture(), where_and_when()
    rows: list[Row] = [] if afresh else kept.rows(PART)
    mine = [span for row in rows if row["code"] == code for span in row["ranges"]]
    done = _joined([span for row in rows for span in row["ranges"]])
    done = _without(done, [piece for _, piece in broken(rows)])
    left = list(_left([*done, *([] if code.endswith(CHANGED) else mine)], first, count))
    pieces = [piece for start, many in left for piece in pieces_of(start, many)]
    if not pieces:
        return _tell(rows)
    new = {"mixture": mixture, "ranges": [], "broken": [], "told": [], "moves": [], "faults": []}
    new |= {"schedules": 0, "violations": 0, "seconds": 0.0, "cpu_s": 0.0}
    row = row_of(rows, code, lambda row: row["mixture"] == mixture, new)
    total, run = sum(many for _, many in pieces), 0
    began = last = clock.monotonic()
    for number, ((start, many), tally) in enumerate(run_apart(pieces, jobs=jobs), start=1):
        run, now = run + many, clock.monotonic()
        row["seconds"] = round(row["seconds"] + now - last, 1)
        last = now
        _count(row, start, tally)
        row |= when
        if number % KEPT_EVERY == 0 or number == len(pieces):
            kept.keep(PART, rows)
            ahead = (now - began) / run * (total - run)
            print(
                f"simulation: {run:,} of {total:,}, {row['violations']} with violations,"
                f" {run / (now - began):.0f} a second, about {ahead / 60:.0f} min left",
                flush=True,
            )
    return _tell(rows)


def _count(row: Row, first: int, tally: Tally) -> None:
    """Count in what came of the seeds from ``first`` on."""
    seen = Coverage()
    seen.add(map(tuple, row["moves"]), row["faults"])
    seen.add(tally.seen.moves, tally.seen.faults)
    piece = [first, first + tally.schedules - 1]
    row["ranges"] = _joined([*row["ranges"], piece])
    if tally.broken:
        row["broken"] = [*row.get("broken", []), piece]
    row["schedules"] += tally.schedules
    row["violations"] += tally.broken
    row["cpu_s"] = round(row["cpu_s"] + tally.cpu_s, 1)
    row["told"] = (row["told"] + tally.told)[:SHOWN]
    row["moves"], row["faults"] = sorted(seen.moves), sorted(seen.faults)


def broken(rows: list[Row]) -> list[tuple[Row, Span]]:
    """Answer the pieces in which something broke, with their rows, that no later row has played without."""
    found = []
    for number, row in enumerate(rows):
        for piece in row.get("broken", []):
            later = [_without(other["ranges"], other.get("broken", [])) for other in rows[number + 1 :]]
            if not any(begin <= piece[0] and piece[1] <= last for spans in later for begin, last in spans):
                found.append((row, piece))
    return found


def _tell(rows: list[Row]) -> bool:
    """Print what is broken and what no row has come through; answer whether there is nothing of either."""
    seen, found = Coverage(), broken(rows)
    for row in rows:
        seen.add(map(tuple, row["moves"]), row["faults"])
        if any(row is other for other, _ in found):
            for told in row["told"]:
                print(f"{row['code']}: {told}", flush=True)
    if seen.missing:
        print(f"void, since it has not seen: {'; '.join(seen.missing)}", flush=True)
    return not seen.missing and not found


def _left(ranges: list[Span], first: int, count: int) -> Iterator[tuple[int, int]]:
    """Answer the seeds that are not in ``ranges``, in order, as (first, how many)."""
    seed, end = first, first + count
    for begin, last in [*_joined(ranges), [end, end]]:
        if seed < min(begin, end):
            yield seed, min(begin, end) - seed
        seed = max(seed, last + 1)


def _without(ranges: list[Span], holes: list[Span]) -> list[Span]:
    """Answer ranges without the seeds of others."""
    left = list(ranges)
    for first, last in holes:
        left = [
            part
            for begin, end in left
            for part in ([begin, min(end, first - 1)], [max(begin, last + 1), end])
            if part[0] <= part[1]
        ]
    return left


def _joined(ranges: list[Span]) -> list[Span]:
    """Put ranges in order, and those that touch together."""
    joined: list[Span] = []
    for begin, last in sorted(ranges):
        if joined and begin <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([begin, last])
    return joined
