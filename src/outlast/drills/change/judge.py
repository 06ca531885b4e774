"""Judging: what the ticket service logged and the store holds, against the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outlast.drills.change.scene import Played, Scene, posts_of
from outlast.drills.change.table import CHECKERS, Cell
from outlast.drills.stage import Check
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.checkers import CHECKERS as EVERY
from outlast.testing.checkers import check_all
from outlast.testing.recorder import Call

__all__ = ["Judged", "judge", "judge_the_store"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A cell as it was seen. state: of its tasks. settled_by: whoever settled what was unknown, most of all a
    person; the worker alone otherwise."""

    cell: Cell
    calls: int
    effects: int
    state: str
    settled_by: str
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
            "settled_by": self.settled_by,
            "ok": self.ok,
        }


async def judge(scene: Scene, cell: Cell, played: Played, log: Sequence[Call]) -> Judged:
    """Judge one cell, when nothing of it is under way any more."""
    right = cell.right
    calls = posts_of(log, cell.fault)
    made = [call for call in calls if call.effect is not None]
    ends = sorted({(await scene.app.get(task)).state for task in played.tasks})
    twice = [key for key, count in Counter(call.key for call in made).items() if count > 1]
    checks = [
        Check(what="effects made twice under one key", expected=[], seen=twice),
        Check(what="ends of its tasks", expected=[right.end], seen=ends),
        *played.checks,
    ]
    if right.calls is not None:
        checks[:0] = [
            Check(what="calls", expected=right.calls, seen=len(calls)),
            Check(what="effects", expected=right.effects, seen=len(made)),
        ]
    return Judged(
        cell=cell,
        calls=len(calls),
        effects=len(made),
        state="/".join(ends) or "none",
        settled_by=await _settled_by(scene, played),
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
        effects=sum(call.effect is not None for call in posts),
        state="broken" if violations else "kept",
        settled_by="checkers",
        checks=[Check(what=name.replace("_", " "), expected=[], seen=seen) for name, seen in broken.items()],
    )


async def _settled_by(scene: Scene, played: Played) -> str:
    who = {
        (view.settled_by or "worker").partition(":")[0]
        for task in played.tasks
        for view in await scene.app.operations.list(task=task)
    }
    return next((each for each in ("person", "settler", "worker") if each in who), "nobody")
