"""Judging: a cell as it was seen, and the store as it is at the end, by every checker.

What is right in a cell is each drill's own to say; what a judged cell is, and how the store is judged, is one
thing for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from outlast.drills.cells import Named
from outlast.drills.stage import Check
from outlast.store.contract import Store
from outlast.testing.checkers import CHECKERS, check_all
from outlast.testing.recorder import Call

__all__ = ["Judged", "judge_the_store", "what_checkers_say"]

C = TypeVar("C", bound=Named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged(Generic[C]):
    """A cell as it was seen.

    calls, effects: on the other side. columns: what else the drill tells of it, by the names that programs
    know it by, in order.
    """

    cell: C
    calls: int
    effects: int
    columns: Mapping[str, str]
    checks: Sequence[Check]

    @property
    def ok(self) -> bool:
        """Whether all is as the table has it."""
        return all(check.holds for check in self.checks)

    @property
    def problems(self) -> list[Check]:
        """What is not as the table has it."""
        return [check for check in self.checks if not check.holds]

    def as_json(self) -> dict[str, Any]:
        """Answer the cell for programs."""
        counts = {"calls": self.calls, "effects": self.effects}
        return {**self.cell.labels, **counts, **self.columns, "ok": self.ok}


async def judge_the_store(
    store: Store,
    cell: C,
    log: Sequence[Call],
    *,
    accepted: Iterable[tuple[str, str]] | None = None,
    **columns: str,
) -> Judged[C]:
    """Ask every checker, when nothing is under way any more.

    cell: that this is. log: of the other side. accepted: tenant and task of whatever was acknowledged, where
    that is known. columns: besides its state, which is ``kept`` or ``broken``.
    """
    checks = await what_checkers_say(store, log, accepted=accepted)
    posts = [call for call in log if call.method == "POST"]
    return Judged(
        cell=cell,
        calls=len(posts),
        effects=sum(call.effect is not None for call in posts),
        columns={"state": "kept" if all(check.holds for check in checks) else "broken", **columns},
        checks=checks,
    )


async def what_checkers_say(
    store: Store,
    log: Sequence[Call],
    *,
    accepted: Iterable[tuple[str, str]] | None = None,
    quiet: bool = True,
) -> list[Check]:
    """Ask every checker, and answer what each of them says.

    log, accepted: as for ``judge_the_store``. quiet: whether nothing is under way any more.
    """
    violations = check_all(
        await store.dump(), accepted=accepted, recorder=[asdict(call) for call in log], quiet=quiet
    )
    broken: dict[str, list[str]] = {name: [] for name in CHECKERS}
    for violation in violations:
        broken[violation.promise].append(violation.text)
    return [Check(what=name.replace("_", " "), expected=[], seen=seen) for name, seen in broken.items()]
