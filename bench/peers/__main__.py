"""``python -m bench.peers [--json] [--only ENGINE] [--drill NAME]``: play every drill in every engine.

Takes some minutes: every cell starts processes of its own, one cell at a time. A peer that is not installed
(``python -m bench.peers.install``) is shown as not run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.peers.crew import ROOT, PlayerError
from bench.peers.drills import DRILLS, Played, Stage, play
from bench.peers.install import PEERS, versions
from bench.peers.matrix import ROWS, Row
from bench.peers.part import Part
from outlast.testing.recorder import Recorder
from outlast.testing.servers import EmbeddedPostgres

Cells = dict[str, dict[str, Any]]
NOT_RUN = "not run"


async def _cell(row: Row, drill: str, stage: Stage) -> dict[str, Any]:
    """Play one cell; a drill that does not get to its end says why, and is no verdict."""
    try:
        return _told(await play(drill, stage, honours=row.honours))
    except (PlayerError, TimeoutError) as error:
        return {"text": NOT_RUN, "why": str(error).partition("\n")[0]}


def _told(played: Played) -> dict[str, Any]:
    return {
        **asdict(played.verdict),
        "end": played.report.end,
        "words": played.report.words,
        "stale": None if played.stale is None else f"{played.stale.end}: {played.stale.words}",
        "moved": played.moved,
    }


async def _run(rows: Sequence[Row], drills: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    installed = {engine: versions(engine) for engine in ("outlast", *PEERS)}
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="outlast-peers-"))  # the logs of what went wrong stay
        server = stack.enter_context(EmbeddedPostgres())
        databases = {engine: server.create_database(engine) for engine in installed}
        async with Recorder() as recorder:
            for number, row in enumerate(rows):
                cells: Cells = {}
                for drill in (name for name in row.drills if name in drills):
                    if installed[row.engine] is None:
                        cells[drill] = {"text": NOT_RUN, "why": "not installed"}
                        continue
                    part = Part(
                        engine=row.engine,
                        way=row.way,
                        begins=True,
                        database=databases[row.engine],
                        tickets=recorder.url,
                        run=f"INV-{number}-{drill}",
                        named=row.named,
                    )
                    cells[drill] = await _cell(row, drill, Stage(recorder=recorder, part=part, folder=folder))
                    print(f"{row.engine}, {row.shown}, {drill}: {cells[drill]['text']}", file=sys.stderr)
                found.append(
                    {"engine": row.engine, "way": row.shown, "honours_keys": row.honours, "cells": cells}
                )
        if not any("why" in cell for row in found for cell in row["cells"].values()):
            shutil.rmtree(folder)
    return found


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def table(report: dict[str, Any]) -> str:
    """Answer a report as Markdown: a line for each row of the matrix, a column for each drill."""
    lines = [
        f"| engine | used as | service | {' | '.join(DRILLS)} |",
        f"| --- | --- | --- |{' --- |' * len(DRILLS)}",
    ]
    for row in report["rows"]:
        shown = [_shown(row["cells"].get(drill)) for drill in DRILLS]
        service = "honours keys" if row["honours_keys"] else "ignores keys"
        lines.append(f"| {row['engine']} | {row['way']} | {service} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _shown(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    if "calls" not in cell:
        return NOT_RUN
    return f"{cell['calls']} → {cell['effects']}: {cell['text']}{', moved' if cell['moved'] else ''}"


def main() -> None:
    """Play what is asked for and print the matrix."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--only", choices=("outlast", *PEERS), action="append", help="one engine")
    parser.add_argument("--drill", choices=tuple(DRILLS), action="append", help="one drill")
    options = parser.parse_args()
    rows = [row for row in ROWS if not options.only or row.engine in options.only]
    report = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
        "versions": {engine: versions(engine) for engine in ("outlast", *PEERS)},
        "rows": asyncio.run(_run(rows, options.drill or tuple(DRILLS))),
    }
    print(json.dumps(report, indent=2) if options.json else table(report))


if __name__ == "__main__":
    main()
