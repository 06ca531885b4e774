"""What comes of a run, and how two of them differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from outlast.testing.checkers import Dump


@dataclass(frozen=True)
class Outcome:
    """What came of a run: what each player was answered, and every row, without what order alone decides."""

    answers: tuple[str, ...]
    rows: str


def differences(outcome: Outcome, serial: list[Outcome]) -> Iterator[str]:
    """Tell how a run differs from the nearest of the others."""
    best: list[str] | None = None
    for one in serial:
        found = []
        for number, (is_, was) in enumerate(zip(outcome.answers, one.answers, strict=True)):
            if is_ != was:
                found.append(f"  {'ABC'[number]} is answered {is_}\n    and not {was}")
        mine, theirs = json.loads(outcome.rows), json.loads(one.rows)
        for table in mine:
            for row in mine[table]:
                if row not in theirs[table]:
                    found.append(f"  {table} has   {row}")
            for row in theirs[table]:
                if row not in mine[table]:
                    found.append(f"  {table} lacks {row}")
            if not found and len(mine[table]) != len(theirs[table]):
                found.append(f"  {table} has {len(mine[table])} rows and not {len(theirs[table])}")
        if best is None or len(found) < len(best):
            best = found
    yield from best or []


_ORDER_ALONE = {
    "audit": ("number",),
    "queue": ("xid", "seq"),
    "posts": ("seq",),
    "writers": ("number",),
}
"""Columns that say in which order things were made, of rows that are the same whatever it was."""


def comparable(dump: Dump) -> str:
    """Take away what order alone decides."""
    lanes = {
        row["id"]: [row[name] for name in ("pool", "agent", "version", "tenant", "priority")]
        for row in dump["lanes"]
    }
    queued = {(row["tenant"], row["id"], row["lane"]) for row in dump["tasks"] if row["state"] == "queued"}
    found: dict[str, list[str]] = {}
    for table, rows in dump.items():
        # A lane in which nothing stands is nobody's business.
        kept: list[str] = []
        if table == "lanes":
            continue
        for row in rows:
            # An entry that its head does not stand by is found stale by a claim.
            if table == "queue" and (row["tenant"], row["task"], row["lane"]) not in queued:
                continue
            row = {name: value for name, value in row.items() if name not in _ORDER_ALONE.get(table, ())}
            if "lane" in row:
                row["lane"] = lanes.get(row["lane"])
            kept.append(json.dumps(row, sort_keys=True))
        found[table] = sorted(kept)
    return json.dumps(found)


FAILED = "!! "
"""What stands before an answer that is an error."""


def plain(answer: Any) -> Any:
    """Write an answer in plain values."""
    if is_dataclass(answer) and not isinstance(answer, type):
        return {name: plain(value) for name, value in asdict(answer).items()}
    if isinstance(answer, list | tuple):
        return [plain(one) for one in answer]
    if isinstance(answer, Exception):
        return f"{FAILED}{type(answer).__name__}: {answer}"
    return answer
