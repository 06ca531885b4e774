"""What the long proof has done so far: a file beside the pages, a row for each code that did some of it."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

__all__ = ["CHANGED", "ROOT", "Kept", "Row", "code_now", "row_of", "where_and_when"]

ROOT: Final = Path(__file__).parents[2]
RESULT: Final = Path(__file__).parents[1] / "explanation" / "prove.json"
CHANGED: Final = " and changes"
"""What follows the name of code that is not as it was committed."""

Row = dict[str, Any]


class Kept:
    """The rows of every part of the proof, in one file.

    Parts may run at once, in processes of their own: each reads the file anew before it writes its own rows,
    under a lock, and the file is never half written.
    """

    def __init__(self, path: Path = RESULT) -> None:
        self._path = path

    def rows(self, part: str) -> list[Row]:
        """Answer the rows of a part, none if there are none."""
        rows: list[Row] = self._read().get(part, [])
        return rows

    def keep(self, part: str, rows: list[Row]) -> None:
        """Put down the rows of a part, and leave the others."""
        place = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(place, fcntl.LOCK_EX)
            written = self._path.with_suffix(".new")
            written.write_text(json.dumps({**self._read(), part: rows}, indent=1) + "\n")
            os.replace(written, self._path)
        finally:
            os.close(place)

    def _read(self) -> dict[str, list[Row]]:
        kept: dict[str, list[Row]] = json.loads(self._path.read_text()) if self._path.exists() else {}
        return kept


def row_of(rows: list[Row], code: str, like: Callable[[Row], bool], new: Row) -> Row:
    """Answer the row in which this code goes on, which is put behind the others where there is none.

    Code that was changed since it was committed never goes on in a row: nobody knows whether it is the same.
    """
    row = next((row for row in rows if row["code"] == code and like(row)), None)
    if row is None or code.endswith(CHANGED):
        row = {"code": code, **new}
        rows.append(row)
    return row


def code_now() -> str:
    """Name the code that is run: the last commit that changed it, and whether it was changed since."""
    changed = CHANGED if _git("status", "--porcelain", "--", "src") else ""
    return _git("log", "-1", "--format=%h", "--", "src") + changed


def where_and_when() -> Row:
    """Answer what stands beside every row."""
    return {
        "measured": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }


def _git(*asked: str) -> str:
    return subprocess.run(
        ["git", *asked], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
