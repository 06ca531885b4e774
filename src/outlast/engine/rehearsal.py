"""A rehearsal: run an agent's function against a journal, and do nothing.

Purpose: before a task that lives is given to other code, say whether that code asks for what the journal
holds, and where it would go on.

Identity: none; it takes no lease and writes nothing. What it saw of the task (version, epoch, last event) is
compared when the task is adopted, so that what happened meanwhile is not overlooked.

State: every operation that has ended answers from the journal. One that has not, or that the journal does not
know, ends the branch that asked for it: that is where the new code would go on.

Failure by failure: the code asks for another operation under a key of the journal: a difference, and the end
of the rehearsal. The journal holds what the code never asked for: left over; its effect stands, and nobody
will ask again. The code raises by itself, or computes for longer than its time: said so.

Not covered: plain code between two operations runs as it would on any replay; it must not do anything
outside, here as there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

from outlast import clock
from outlast.core import values
from outlast.core.operation import OperationKind
from outlast.engine import scopes
from outlast.engine.context import TaskContext, tool_spec_of
from outlast.engine.limits import Limits
from outlast.engine.registry import AgentSpec, Registry
from outlast.engine.run import Host, Interruption, Run
from outlast.engine.settings import WorkerSettings
from outlast.engine.wording import text_of
from outlast.errors import OutlastError
from outlast.store.records import Claimed, Loaded, OperationRow

TIME_S: Final = 30.0
"""How long the code may compute between its operations, in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What a rehearsal found.

    met: operations that the code asked for and the journal answered. differences: where the code asks for
    another operation than the journal holds. left_over: keys of ended operations that the code did not ask
    for. goes_on_at: keys of the operations that it would make next. ended: whether the function came to its
    end. failed: what it raised by itself, or that it took too long.
    """

    met: int
    differences: tuple[str, ...]
    left_over: tuple[str, ...]
    goes_on_at: tuple[str, ...]
    ended: bool
    failed: str | None

    @property
    def fits(self) -> bool:
        """Whether the code can take the journal over."""
        return not self.differences and self.failed is None


class _Unrecorded(BaseException):
    """The code has come to what the journal does not hold."""


class _Stage:
    """The host of a rehearsal: knows the time, and does nothing."""

    draining = False
    grace_ends: float | None = None
    trusted_until = float("inf")
    id = "rehearsal"

    def __init__(self, registry: Registry, now: int) -> None:
        self.registry = registry
        self.settings = WorkerSettings()
        self.limits = Limits()
        self.session = self
        self._offset = now - clock.monotonic() * 1_000_000

    def trusted(self) -> bool:
        """Say yes: nothing is sent."""
        return True

    def database_now(self) -> int:
        """Answer the database's time."""
        return int(clock.monotonic() * 1_000_000 + self._offset)

    def __getattr__(self, name: str) -> NoReturn:
        raise _Unrecorded(name)


class _Rehearsal(Run):
    """A run that ends wherever it would have to do something."""

    def __init__(self, host: Host, claimed: Claimed, loaded: Loaded, spec: AgentSpec) -> None:
        super().__init__(host, claimed, loaded, spec)
        self.met: set[str] = set()
        self.goes_on_at: list[str] = []
        self.differences: list[str] = []

    def meet(self, key: str, kind: OperationKind, name: str, row: OperationRow | None) -> None:
        """Let what the journal holds pass, and end the branch at anything else."""
        if row is not None and row.state in ("succeeded", "failed"):
            self.met.add(key)
            return
        if key not in self.goes_on_at:
            self.goes_on_at.append(key)
        raise _Unrecorded(f"{kind} {name}")

    def interrupt(self, kind: Interruption, detail: str = "") -> None:
        """Note a difference."""
        if kind == "mismatched":
            self.differences.append(detail)

    def left_over(self) -> tuple[str, ...]:
        """Answer the ended operations that nobody asked for, but those inside of one that was."""
        inside = tuple(f"{key}/" for key in self.met)
        return tuple(
            row.key
            for row in sorted(self.rows.values(), key=lambda row: row.position)
            if row.state in ("succeeded", "failed")
            and row.kind not in ("value", "compensation")
            and row.key not in self.met
            and not row.key.startswith(inside)
        )


async def rehearse(
    registry: Registry, spec: AgentSpec, claimed: Claimed, loaded: Loaded, *, now: int
) -> Rehearsed:
    """Run an agent version against a task's journal; nothing is written, nothing is sent.

    claimed, loaded: the task as it stands, read without a lease. now: the database's time.
    """
    run = _Rehearsal(cast(Host, _Stage(registry, now)), claimed, loaded, spec)
    context = TaskContext(run, tool_spec_of(registry.tools))
    failed: str | None = None
    ended = False
    try:
        async with asyncio.timeout(TIME_S):
            # In a task of its own, since the scope belongs to it, and a difference cancels it.
            ended = await asyncio.create_task(_perform(run, context))
    except TimeoutError:
        failed = f"it computed for more than {TIME_S:g} s"
    except OutlastError as error:
        failed = str(error)
    # Agent code may raise anything.
    except Exception as error:
        failed = text_of(error)
    if run.differences or run.goes_on_at:
        # What it raised then was made of operations that were cut.
        failed = failed if failed and failed.startswith("it computed") else None
    return Rehearsed(
        met=len(run.met),
        differences=tuple(run.differences),
        left_over=() if run.differences else _behind(run),
        goes_on_at=tuple(run.goes_on_at),
        ended=ended,
        failed=failed,
    )


def _behind(run: _Rehearsal) -> tuple[str, ...]:
    """Answer what was left over for good: what the code may yet ask for behind its next operation is not."""
    if not run.goes_on_at:
        return run.left_over()
    met = [run.rows[key].position for key in run.met]
    return tuple(key for key in run.left_over() if met and run.rows[key].position < max(met))


async def _perform(run: _Rehearsal, context: TaskContext) -> bool:
    scopes.enter(scopes.Scope(path="", owner=asyncio.current_task()))
    try:
        arguments: dict[str, Any] = run.spec.signature.check(values.decode(run.loaded.input))
        await run.spec.function(context, **arguments)
    except _Unrecorded:
        return False
    except asyncio.CancelledError:
        return False
    return True
