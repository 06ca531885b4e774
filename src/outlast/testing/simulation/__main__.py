"""``python -m outlast.testing.simulation``: run many schedules of the world's own mixture, or of one kind.

Ends with 0 when every promise was kept, with 1 when one was broken, and with 2 when the run is void: it is of
the world's own mixture, and has not come through every move and every fault that the world promises.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from outlast.testing.simulation.agents import AGENTS
from outlast.testing.simulation.coverage import FAULTS, PROMISED, UNREACHED
from outlast.testing.simulation.mixture import name_of_mixture
from outlast.testing.simulation.runs import PIECE, SHOWN, Tally, pieces_of, run, run_apart
from outlast.testing.simulation.schedule import Report
from outlast.testing.simulation.weather import Faults

_TOLD_EVERY_S = 10.0
"""How often it is said how far the run has come."""


def main(arguments: list[str] | None = None) -> int:
    """Run the schedules asked for and print what came of them."""
    asked = _asked(arguments)
    given = {
        name: getattr(asked, name)
        for name in ("workers", "tasks", "faults", "agents")
        if getattr(asked, name) is not None
    }
    began = time.perf_counter()
    tally = _run(asked, given)
    for told in tally.told:
        print(told, file=sys.stderr)
    if tally.broken > SHOWN:
        print("further ones are only counted", file=sys.stderr)
    seconds = time.perf_counter() - began
    missing = [] if given else tally.seen.missing
    if asked.json:
        told_of = {"schedules": asked.schedules, "violations": tally.broken}
        print(json.dumps({**told_of, **_told(tally, seconds, missing), "jobs": asked.jobs}))
    else:
        print(
            f"{asked.schedules} schedules, {tally.broken} with violations, {tally.struck} with misfortunes,"
            f" {tally.effects} effects, {asked.schedules / seconds:.0f} schedules per second;"
            f" {len(tally.seen.moves & PROMISED)} of {len(PROMISED)} moves,"
            f" {len(tally.seen.faults & FAULTS)} of {len(FAULTS)} faults"
        )
    if missing:
        print(f"void, since it has not seen: {'; '.join(missing)}", file=sys.stderr)
    return 1 if tally.broken else 2 if missing else 0


def _run(asked: argparse.Namespace, given: dict[str, Any]) -> Tally:
    """Run what is asked for, and say on the way how far it has come."""
    if asked.trace:
        return run(asked.seed, asked.schedules, given, asked.order, _trace)
    tally, last = Tally(), time.perf_counter()
    pieces = pieces_of(asked.seed, asked.schedules)
    for _, piece in run_apart(pieces, given, asked.order, jobs=asked.jobs):
        tally.add(piece)
        if time.perf_counter() - last > _TOLD_EVERY_S:
            last = time.perf_counter()
            done = f"{tally.schedules:,} of {asked.schedules:,} schedules"
            print(f"{done}, {tally.broken} with violations", file=sys.stderr)
    return tally


def _trace(report: Report) -> None:
    print("\n".join(report.lines), file=sys.stderr)


def _told(tally: Tally, seconds: float, missing: list[str]) -> dict[str, Any]:
    seen = tally.seen
    return {
        "transitions_covered": len(seen.moves & PROMISED),
        "fault_points_covered": len(seen.faults & FAULTS),
        "seconds": round(seconds, 3),
        "cpu_seconds": round(tally.cpu_s, 3),
        "mixture": name_of_mixture(),
        "void": bool(missing),
        "missing": missing,
        "promised": {"transitions": len(PROMISED), "fault_points": len(FAULTS)},
        "unreached": {" ".join(move): why for move, why in sorted(UNREACHED.items())},
    }


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m outlast.testing.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000, help="how many, seed after seed")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument(
        "--jobs", type=int, help="processes, by default one a core; what comes of it is the same"
    )
    parser.add_argument("--workers", type=int)
    parser.add_argument("--tasks", type=int)
    parser.add_argument(
        "--faults",
        type=Faults.parse,
        help="a preset (calm, one_crash, everything, turmoil), or name=value,…",
    )
    parser.add_argument("--agents", type=_agents, help=f"of {', '.join(AGENTS)}, by commas; or all")
    parser.add_argument("--order", choices=("fifo", "any"), default="fifo", help="of one node's handles")
    parser.add_argument("--trace", action="store_true", help="print what happened, line by line")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    asked = parser.parse_args(arguments)
    if asked.schedules < 1 or (asked.jobs or 1) < 1:
        parser.error("schedules and jobs are at least one")
    # To begin a process takes as long as a piece does.
    asked.jobs = min(asked.jobs or os.cpu_count() or 1, -(-asked.schedules // PIECE))
    return asked


def _agents(text: str) -> tuple[str, ...]:
    names = AGENTS if text == "all" else tuple(text.split(","))
    if not set(names) <= set(AGENTS):
        raise ValueError(text)
    return names


if __name__ == "__main__":
    sys.exit(main())
