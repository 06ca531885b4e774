"""``python -m outlast.testing.simulation``: run many schedules; end with 1 when a promise was broken."""

from __future__ import annotations

import argparse
import json
import sys
import time

from outlast.testing.simulation.agents import AGENTS
from outlast.testing.simulation.schedule import run_schedule
from outlast.testing.simulation.weather import Faults

_SHOWN = 10
"""How many schedules with violations are shown."""


def main(arguments: list[str] | None = None) -> int:
    """Run the schedules asked for and print what came of them."""
    parser = argparse.ArgumentParser(prog="python -m outlast.testing.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000, help="how many, seed after seed")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument(
        "--faults",
        type=Faults.parse,
        default="one_crash",
        help="a preset (calm, one_crash, everything), or name=value,…",
    )
    parser.add_argument(
        "--agents", type=_agents, default=("refund",), help=f"of {', '.join(AGENTS)}, by commas; or all"
    )
    parser.add_argument("--order", choices=("fifo", "any"), default="fifo", help="of one node's handles")
    parser.add_argument("--trace", action="store_true", help="print what happened, line by line")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    asked = parser.parse_args(arguments)
    began = time.perf_counter()
    broken = effects = crashed = 0
    for seed in range(asked.seed, asked.seed + asked.schedules):
        report = run_schedule(
            seed,
            workers=asked.workers,
            tasks=asked.tasks,
            faults=asked.faults,
            order=asked.order,
            agents=asked.agents,
        )
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
    if asked.json:
        print(json.dumps({"schedules": asked.schedules, "violations": broken, "seconds": round(seconds, 3)}))
    else:
        print(
            f"{asked.schedules} schedules, {broken} with violations, {crashed} with misfortunes,"
            f" {effects} effects, {asked.schedules / seconds:.0f} schedules per second"
        )
    return 1 if broken else 0


def _agents(text: str) -> tuple[str, ...]:
    names = AGENTS if text == "all" else tuple(text.split(","))
    if not set(names) <= set(AGENTS):
        raise ValueError(text)
    return names


if __name__ == "__main__":
    sys.exit(main())
