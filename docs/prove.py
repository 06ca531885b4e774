"""Run the long proof and keep its report: ``python -m docs.prove``, or ``make prove``.

The simulation for as many schedules as asked for, on all cores, then storms on both stores until there were
as many kills, pauses and restarts. What was measured is kept in ``docs/explanation/prove.json`` with its date
and commit, and the page that tells it is made anew from that. The last line is the verdict, as is the exit
code.

The simulation can be stopped at any moment: what it has done is kept every few thousand schedules. Asked
again it goes on with the seeds that are left, in the same row while code and mixture are the same, and in a
row of its own after that, so that the report says which code did how many. ``--afresh`` forgets all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outlast import clock
from outlast.testing.simulation.coverage import Coverage
from outlast.testing.simulation.mixture import name_of_mixture
from outlast.testing.simulation.runs import SHOWN, Tally, pieces_of, run_apart

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "explanation" / "prove.json"
KEPT_EVERY = 10
"""After how many pieces it is kept what was done, and told."""


def main(arguments: list[str] | None = None) -> int:
    """Prove, keep what was measured, and tell; answer the exit code."""
    asked = _asked(arguments)
    kept: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    when = {
        "measured": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _commit(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }
    good = True
    if asked.schedules:
        good &= simulate(kept, asked, when)
    for store, options in (("sqlite", []), ("postgres", ["--postgres", "embedded"])):
        if store not in asked.stores:
            continue
        began = _load()
        command = [sys.executable, "-m", "outlast", "drill", "storm", "--json", "--seed", str(asked.seed)]
        command += ["--seconds", str(asked.seconds), *options]
        # Both stores have a half of each; only one of them has a server that can be down.
        command += ["--kills", str(-(-asked.kills // len(asked.stores)))]
        command += ["--pauses", str(-(-asked.pauses // len(asked.stores)))]
        command += ["--restarts", str(asked.restarts if options else 0)]
        code, told = _run(command)
        good &= code == 0
        kept.setdefault("storms", {})[store] = {**told, **when, "load": [began, _load()]}
        _keep(kept)
    subprocess.run([sys.executable, "-m", "docs.generate"], cwd=ROOT, check=True)
    print(json.dumps({"verdict": "pass" if good else "fail"}))
    return 0 if good else 1


def simulate(kept: dict[str, Any], asked: argparse.Namespace, when: dict[str, Any]) -> bool:
    """Run the schedules asked for but those that are on record, keeping what was done; answer whether nothing
    was broken and nothing is missing. when: what is kept beside it."""
    code, mixture = _code(), name_of_mixture()
    rows: list[dict[str, Any]] = [] if asked.afresh else kept.get("simulation", [])
    left = list(_left([span for row in rows for span in row["ranges"]], asked.seed, asked.schedules))
    pieces = [piece for first, count in left for piece in pieces_of(first, count)]
    if not pieces:
        return _tell(rows)
    row = next((row for row in rows if (row["code"], row["mixture"]) == (code, mixture)), None)
    if row is None or code.endswith(CHANGED):
        row = {"code": code, "mixture": mixture, "ranges": [], "told": [], "moves": [], "faults": []}
        row |= {"schedules": 0, "violations": 0, "seconds": 0.0, "cpu_s": 0.0}
        rows = [*rows, row]
    kept["simulation"] = rows
    total, done = sum(count for _, count in pieces), 0
    began = last = clock.monotonic()
    for number, ((first, count), tally) in enumerate(run_apart(pieces, jobs=asked.jobs), start=1):
        done, now = done + count, clock.monotonic()
        row["seconds"] = round(row["seconds"] + now - last, 1)
        last = now
        _count(row, first, tally)
        row.update(when)
        if number % KEPT_EVERY == 0 or number == len(pieces):
            _keep(kept)
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


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m docs.prove", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000_000, help="of the simulation; 0 for none")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that simulate")
    parser.add_argument("--afresh", action="store_true", help="forget the schedules that are on record")
    parser.add_argument("--kills", type=int, default=1_000, help="of processes, on both stores together")
    parser.add_argument("--pauses", type=int, default=1_000, help="the same for processes that are frozen")
    parser.add_argument("--restarts", type=int, default=100, help="of PostgreSQL")
    parser.add_argument("--seconds", type=float, default=60.0, help="of storm on each store, at least")
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule and campaign")
    parser.add_argument(
        "--stores", nargs="*", default=["sqlite", "postgres"], help="where storms blow, none for no storm"
    )
    asked = parser.parse_args(arguments)
    if unknown := set(asked.stores) - {"sqlite", "postgres"}:
        parser.error(f"no store {', '.join(sorted(unknown))}: there are sqlite and postgres")
    return asked


def _run(command: list[str]) -> tuple[int, dict[str, Any]]:
    """Run a command that prints one line of JSON at its end; answer its exit code, and that."""
    print(" ".join(command[1:]), flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    try:
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise SystemExit(f"it told nothing (exit code {done.returncode})") from None
    print(f"  exit code {done.returncode}", flush=True)
    return done.returncode, told


def _load() -> float:
    """Answer how many processes wanted a core in the last minute: of other people as well."""
    return round(os.getloadavg()[0], 1)


def _keep(kept: dict[str, Any]) -> None:
    RESULT.write_text(json.dumps(kept, indent=1) + "\n")


def _commit() -> str:
    return _git("rev-parse", "--short", "HEAD")


CHANGED = " and changes"


def _code() -> str:
    """Name the code that is run: the last commit that changed it, and whether it was changed since."""
    changed = CHANGED if _git("status", "--porcelain", "--", "src") else ""
    return _git("log", "-1", "--format=%h", "--", "src") + changed


def _git(*asked: str) -> str:
    return subprocess.run(
        ["git", *asked], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
