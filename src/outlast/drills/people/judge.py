"""Judging: what the ticket service logged and the store holds, against the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outlast.drills.people.scene import Played, Scene, posts_of
from outlast.drills.people.table import CHECKERS, Cell
from outlast.drills.stage import Check
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.checkers import CHECKERS as EVERY
from outlast.testing.checkers import check_all
from outlast.testing.recorder import Call

__all__ = ["Judged", "judge", "judge_the_store"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A cell as it was seen. state: of its tasks. decided_by: who decided on its calls, if anybody did."""

    cell: Cell
    calls: int
    effects: int
    state: str
    decided_by: str
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
            "state": self.state,
            "decided_by": self.decided_by,
            "ok": self.ok,
        }


async def judge(scene: Scene, cell: Cell, played: Played, log: Sequence[Call]) -> Judged:
    """Judge one cell, when nothing of it is under way any more."""
    right = cell.right
    calls = posts_of(log, cell.fault)
    made = [call for call in calls if call.effect == "created"]
    wanted = right.calls if played.calls is None else played.calls
    ends = sorted({(await scene.app.get(task)).state for task in played.tasks})
    twice = [key for key, count in Counter(call.key for call in calls).items() if count > 1]
    checks = [
        Check(what="calls", expected=wanted, seen=len(calls)),
        Check(what="effects", expected=wanted if right.effects is None else right.effects, seen=len(made)),
        Check(what="calls made twice", expected=[], seen=twice),
        *played.checks,
    ]
    if right.end is not None:
        checks.append(Check(what="ends of its tasks", expected=[right.end], seen=ends))
    return Judged(
        cell=cell,
        calls=len(calls),
        effects=len(made),
        state="/".join(ends) or ("either" if right.end is None else "none"),
        decided_by=await _decided_by(scene, played),
        checks=checks,
    )


async def judge_the_store(scene: Scene, log: Sequence[Call]) -> Judged:
    """Ask every checker, when nothing is under way any more."""
    violations = check_all(
        await scene.app.store.dump(),
        accepted=[(DEFAULT_TENANT, task) for task in scene.submitted],
        recorder=[asdict(call) for call in log],
        quiet=True,
    )
    posts = [call for call in log if call.method == "POST"]
    broken: dict[str, list[str]] = {name: [] for name in EVERY}
    for violation in violations:
        broken[violation.promise].append(violation.text)
    return Judged(
        cell=CHECKERS,
        calls=len(posts),
        effects=sum(call.effect == "created" for call in posts),
        state="broken" if violations else "kept",
        decided_by="checkers",
        checks=[Check(what=name.replace("_", " "), expected=[], seen=seen) for name, seen in broken.items()],
    )


async def _decided_by(scene: Scene, played: Played) -> str:
    states = [one.state for task in played.tasks for one in await scene.approvals(task)]
    if any(state in ("used", "rejected", "approved") for state in states):
        return "person"
    return "time" if "expired" in states else "nobody"
