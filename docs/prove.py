"""Run the long proof and keep its report: ``python -m docs.prove``, or ``make prove``.

The simulation for as many schedules as asked for, then storms on both stores until there were as many kills,
pauses and restarts. What was measured is kept in ``docs/explanation/prove.json`` with its date and commit,
and the page that tells it is made anew from that. The last line is the verdict, as is the exit code.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "explanation" / "prove.json"


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
        command = [sys.executable, "-m", "outlast.testing.simulation", "--schedules", str(asked.schedules)]
        code, told = _run([*command, "--seed", str(asked.seed), "--json"])
        good &= code == 0
        kept["simulation"] = {**told, **when}
        _keep(kept)
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


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m docs.prove", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000_000, help="of the simulation; 0 for none")
    parser.add_argument("--kills", type=int, default=1_000, help="of processes, on both stores together")
    parser.add_argument("--pauses", type=int, default=1_000, help="the same for processes that are frozen")
    parser.add_argument("--restarts", type=int, default=100, help="of PostgreSQL")
    parser.add_argument("--seconds", type=float, default=60.0, help="of storm on each store, at least")
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule and campaign")
    parser.add_argument("--stores", nargs="+", choices=("sqlite", "postgres"), default=["sqlite", "postgres"])
    return parser.parse_args(arguments)


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
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
