"""Run the long proof and keep its report: ``python -m docs.prove``, or ``make prove``.

The simulation for as many schedules as asked for, on all cores, then storms on both stores until there were
as many kills, pauses and restarts. What was measured is kept in ``docs/explanation/prove.json`` with its date
and commit, and the page that tells it is made anew from that. The last line is the verdict, as is the exit
code.

It can be stopped at any moment: what was done is kept every few thousand schedules, and after every few
campaigns. Asked again it goes on with what is left, in the same row while the code is the same, and in a row
of its own after that, so that the report says which code did how much. ``--afresh`` forgets all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from docs.prove import schedules, storms
from docs.prove.kept import ROOT, Kept


def main(arguments: list[str] | None = None) -> int:
    """Prove, keep what was measured, and tell; answer the exit code."""
    asked = _asked(arguments)
    kept, good = Kept(), True
    if asked.schedules:
        good &= schedules.prove(
            kept, first=asked.seed, count=asked.schedules, jobs=asked.jobs, afresh=asked.afresh
        )
    # Both stores have a half of each; only one of them has a server that can be down.
    share = storms.Wanted(
        seconds=asked.seconds,
        kills=-(-asked.kills // max(1, len(asked.stores))),
        pauses=-(-asked.pauses // max(1, len(asked.stores))),
        restarts=asked.restarts,
    )
    for store in asked.stores:
        good &= storms.prove(kept, store, share, seed=asked.seed, afresh=asked.afresh)
    subprocess.run([sys.executable, "-m", "docs.generate"], cwd=ROOT, check=True)
    print(json.dumps({"verdict": "pass" if good else "fail"}))
    return 0 if good else 1


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m docs.prove", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000_000, help="of the simulation; 0 for none")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that simulate")
    parser.add_argument("--afresh", action="store_true", help="forget what is on record of what is asked for")
    parser.add_argument("--kills", type=int, default=1_000, help="of processes, on both stores together")
    parser.add_argument("--pauses", type=int, default=1_000, help="the same for processes that are frozen")
    parser.add_argument("--restarts", type=int, default=100, help="of PostgreSQL")
    parser.add_argument("--seconds", type=float, default=60.0, help="of storm on each store, at least")
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule and campaign")
    parser.add_argument(
        "--stores", nargs="*", default=[*storms.STORES], help="where storms blow, none for no storm"
    )
    asked = parser.parse_args(arguments)
    if unknown := set(asked.stores) - set(storms.STORES):
        parser.error(f"no store {', '.join(sorted(unknown))}: there are {' and '.join(storms.STORES)}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
