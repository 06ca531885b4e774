"""``python -m outlast.testing.simulation``: run many schedules of the world's own mixture, or of one kind.

Ends with 0 when every promise was kept, with 1 when one was broken, and with 2 when the run is void: it is of
the world's own mixture, and has not come through every move and every fault that the world promises.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from outlast.testing.simulation.agents import AGENTS
from outlast.testing.simulation.coverage import FAULTS, PROMISED, UNREACHED, Coverage
from outlast.testing.simulation.schedule import run_schedule, varied
from outlast.testing.simulation.weather import Faults

_SHOWN = 10
"""How many schedules with violations are shown."""


def main(arguments: list[str] | None = None) -> int:
    """Run the schedules asked for and print what came of them."""
    asked = _asked(arguments)
    given = {
        name: getattr(asked, name)
        for name in ("workers", "tasks", "faults", "agents")
        if getattr(asked, name) is not None
    }
    began = time.perf_counter()
    broken = effects = crashed = 0
    seen = Coverage()
    for seed in range(asked.seed, asked.seed + asked.schedules):
        # Whoever asks for anything of their own gets that, and the plain world around it.
        report = run_schedule(seed, order=asked.order, **(given or varied(seed)))
        seen.add(report.moves, report.played)
        effects += report.effects
        crashed += bool(report.misfortunes)
        if asked.trace:
            print("\n".join(report.lines), file=sys.stderr)
        if report.violations:
            broken += 1
            if broken <= _SHOWN:
                print(report, file=sys.stderr)
            elif broken == _SHOWN + 1:
                print("further ones are only counted", file=sys.stderr)
    seconds = time.perf_counter() - began
    missing = [] if given else seen.missing
    if asked.json:
        print(json.dumps(_told(asked.schedules, broken, seconds, seen, missing)))
    else:
        print(
            f"{asked.schedules} schedules, {broken} with violations, {crashed} with misfortunes,"
            f" {effects} effects, {asked.schedules / seconds:.0f} schedules per second;"
            f" {len(seen.moves & PROMISED)} of {len(PROMISED)} moves, {len(seen.faults & FAULTS)} of"
            f" {len(FAULTS)} faults"
        )
    if missing:
        print(f"void, since it has not seen: {'; '.join(missing)}", file=sys.stderr)
    return 1 if broken else 2 if missing else 0


def _told(schedules: int, broken: int, seconds: float, seen: Coverage, missing: list[str]) -> dict[str, Any]:
    return {
        "schedules": schedules,
        "violations": broken,
        "transitions_covered": len(seen.moves & PROMISED),
        "fault_points_covered": len(seen.faults & FAULTS),
        "seconds": round(seconds, 3),
        "void": bool(missing),
        "missing": missing,
        "promised": {"transitions": len(PROMISED), "fault_points": len(FAULTS)},
        "unreached": {" ".join(move): why for move, why in sorted(UNREACHED.items())},
    }


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m outlast.testing.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000, help="how many, seed after seed")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
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
    return parser.parse_args(arguments)


def _agents(text: str) -> tuple[str, ...]:
    names = AGENTS if text == "all" else tuple(text.split(","))
    if not set(names) <= set(AGENTS):
        raise ValueError(text)
    return names


if __name__ == "__main__":
    sys.exit(main())
