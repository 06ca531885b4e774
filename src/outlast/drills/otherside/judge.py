"""Judging: what the services and the ticket service logged, and the store holds, against the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outlast.drills.otherside.scene import Played, Scene, invoice_of
from outlast.drills.otherside.table import CHECKERS, Cell
from outlast.drills.stage import Check
from outlast.testing.checkers import CHECKERS as EVERY
from outlast.testing.checkers import check_all
from outlast.testing.recorder import Call

__all__ = ["Judged", "judge", "judge_the_store"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A cell as it was seen. told: what its callers were answered."""

    cell: Cell
    calls: int
    effects: int
    told: str
    checks: Sequence[Check]

    @property
    def name(self) -> str:
        """The cell's name."""
        return self.cell.name

    @property
    def what(self) -> str:
        """What was done."""
        return self.cell.what

    @property
    def why(self) -> str:
        """Why the table says what it says."""
        return self.cell.why

    @property
    def ok(self) -> bool:
        """Whether all is as the table has it."""
        return all(check.holds for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Answer the cell for programs."""
        return {
            "family": self.cell.family,
            "fault": self.cell.fault,
            "calls": self.calls,
            "effects": self.effects,
            "state": self.told,
            "ok": self.ok,
        }


def judge(scene: Scene, cell: Cell, played: Played, log: Sequence[Call]) -> Judged:
    """Judge one cell, when nothing of it is under way any more."""
    if cell.family == "middleware":
        words = [line["word"] for line in scene.lines(cell.fault)]
        calls, effects = words.count("began"), words.count("acted")
    else:
        own = [call for call in log if call.method == "POST" and _invoice(call) == invoice_of(cell.fault)]
        calls, effects = len(own), sum(call.effect == "created" for call in own)
    told = "+".join(sorted(set(played.told))) or "nothing"
    return Judged(
        cell=cell,
        calls=calls,
        effects=effects,
        told=told,
        checks=[
            Check(what="calls", expected=cell.right.calls, seen=calls),
            Check(what="effects", expected=cell.right.effects, seen=effects),
            Check(what="what callers were told", expected=cell.right.told, seen=told),
            *played.checks,
        ],
    )


def _invoice(call: Call) -> Any:
    return call.body.get("invoice") if isinstance(call.body, dict) else None


async def judge_the_store(scene: Scene, log: Sequence[Call]) -> Judged:
    """Ask every checker, when nothing is under way any more."""
    violations = check_all(await scene.app.store.dump(), recorder=[asdict(call) for call in log], quiet=True)
    posts = [call for call in log if call.method == "POST"]
    broken: dict[str, list[str]] = {name: [] for name in EVERY}
    for violation in violations:
        broken[violation.promise].append(violation.text)
    return Judged(
        cell=CHECKERS,
        calls=len(posts),
        effects=sum(call.effect == "created" for call in posts),
        told="broken" if violations else "kept",
        checks=[Check(what=name.replace("_", " "), expected=[], seen=seen) for name, seen in broken.items()],
    )
