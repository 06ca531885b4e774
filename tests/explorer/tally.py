"""What was played, counted; and where the counts of the long form are kept for the docs."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.explorer.exploring import Explorer

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "docs" / "explanation" / "explorer.json"


@dataclass(frozen=True)
class Tally:
    """casts, runs: how many were played. most: runs of the cast that had most. redundant: runs that came to
    what another had come to. cut: casts that were not played to their end. seconds: of the clock on the
    wall."""

    casts: int = 0
    runs: int = 0
    most: int = 0
    redundant: int = 0
    cut: int = 0
    findings: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, explorer: Explorer, *, plain: bool) -> Tally:
        """Count what was played of one cast; plain: all up to a number of switches."""
        cut = not (explorer.through or plain)
        runs = explorer.runs
        return cls(casts=1, runs=runs, most=runs, redundant=explorer.redundant, cut=int(cut))

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            casts=self.casts + other.casts,
            runs=self.runs + other.runs,
            most=max(self.most, other.most),
            redundant=self.redundant + other.redundant,
            cut=self.cut + other.cut,
            findings=self.findings + other.findings,
            seconds=self.seconds + other.seconds,
        )

    def __str__(self) -> str:
        return (
            f"{self.casts} casts, {self.runs} runs (at most {self.most} of one;"
            f" {self.redundant} told nothing new), {self.cut} not played to their end,"
            f" {self.findings} findings, {self.seconds:.0f} s"
        )

    def told(self) -> dict[str, Any]:
        """Answer the counts by name, seconds rounded."""
        return {**asdict(self), "seconds": round(self.seconds, 1)}


def keep(form: str, part: str, tallies: Mapping[str, Tally]) -> None:
    """Keep counts for the docs, by form, setting and part; what was parted otherwise before is forgotten."""
    kept: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    when = {
        "measured": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    for setting, tally in tallies.items():
        of = part.partition("/")[2]
        before = kept.setdefault(form, {}).get(setting, {})
        beside = {name: told for name, told in before.items() if name.partition("/")[2] == of}
        kept[form][setting] = {**beside, part: {**tally.told(), **when}}
    RESULT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
