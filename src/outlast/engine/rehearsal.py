"""A rehearsal: run an agent's function against a journal, and do nothing.

Purpose: before a task that lives is given to other code, say whether that code asks for what the journal
holds, and where it would go on.

Identity: none; it takes no lease and writes nothing. What it saw of the task (version, epoch, last event) is
compared when the task is adopted, so that what happened meanwhile is not overlooked.

State: every operation that has ended answers from the journal. One that has not, or that the journal does not
know, ends the branch that asked for it: that is where the new code would go on. Branches of an open race are
all run. What the code only says (events) or reads (the clock, chance) beyond the journal does not end a
branch.

Failure by failure: the code asks for another operation under a key of the journal: a difference, and the end
of its branch. The journal holds what the code never asked for: left over where the code was past it, not
reached where it goes on before. Its effect stands, and nobody may ask for it again. The code raises by
itself, or takes longer than its time: said so.

Not covered: plain code between two operations runs as it would on any replay; it must not do anything
outside, here as there. Code that computes without ever awaiting anything cannot be stopped.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NoReturn, cast

from outlast import clock
from outlast.core import values
from outlast.core.operation import OperationKind, changes_something
from outlast.core.record import record
from outlast.engine import racing, scopes
from outlast.engine.children import Child
from outlast.engine.context import TaskContext, tool_spec_of
from outlast.engine.host import CallbackPlace, Host
from outlast.engine.limits import Limits
from outlast.engine.registry import AgentSpec, Registry
from outlast.engine.run import Interruption, Run, Unrecorded, Wait
from outlast.engine.settings import WorkerSettings
from outlast.engine.waits import CALLBACK
from outlast.engine.wording import text_of
from outlast.errors import OperationError, OutlastError
from outlast.store.entries import Entry, RecordOperation
from outlast.store.records import Claimed, Loaded, OperationRow

TIME_S: Final = 30.0
"""How long the code may take between its operations, in all."""
CUT_S: Final = 1.0
"""How long code that is cut may take to end."""
ENDED: Final = ("succeeded", "failed")
PlaceOf = Callable[[str, str, str, bool], CallbackPlace]
"""Where a callback is answered, by tenant, task, key, and whether its answer has to be signed."""


@record
class Rehearsed:
    """What a rehearsal found.

    met: operations that the code asked for and the journal answered. differences: where the code asks for
    another operation than the journal holds. left_over: keys of ended operations that the code was past and
    did not ask for. not_reached: keys of ended operations behind the place where it goes on; it may ask for
    them yet, or never. effects_left: keys of calls that may have acted outside and that the code has not
    asked for; under another name it would make them once more. goes_on_at: keys of the operations that it
    would make next. ended: whether the function came to its end, be it by a failure that the journal holds.
    failed: what it raised by itself, or that it took too long.
    """

    met: int
    differences: tuple[str, ...]
    left_over: tuple[str, ...]
    not_reached: tuple[str, ...]
    effects_left: tuple[str, ...]
    goes_on_at: tuple[str, ...]
    ended: bool
    failed: str | None

    @property
    def fits(self) -> bool:
        """Whether the code can take the journal over."""
        return not self.differences and self.failed is None


class _Nobody:
    """Stands for the journal's writer: has room for everything, and takes nothing."""

    full = False

    async def room(self) -> None:
        """Have room."""


class _Childless:
    """Stands for the nursery: a rehearsal has no children, and nobody tells it of those on record."""

    def expect(self, run: Run, child: Child) -> None:
        """Let it pass."""


class _Stage:
    """The host of a rehearsal: knows the time, and does nothing."""

    draining = False
    grace_ends: float | None = None
    trusted_until = float("inf")
    id = "rehearsal"

    def __init__(self, registry: Registry, now: int, place_of: PlaceOf | None) -> None:
        self.registry = registry
        self.settings = WorkerSettings()
        self.limits = Limits()
        self.session = self
        self.journal = _Nobody()
        self.nursery = _Childless()
        self._offset = now - clock.monotonic() * 1_000_000
        self._place_of = place_of

    def trusted(self) -> bool:
        """Say yes: nothing is sent."""
        return True

    def database_now(self) -> int:
        """Answer the database's time."""
        return int(clock.monotonic() * 1_000_000 + self._offset)

    def callback(self, tenant: str, task: str, key: str, signed: bool) -> CallbackPlace:
        """Answer where a callback is answered: agents give that away in what they ask for."""
        if self._place_of is None:
            raise Unrecorded(key)
        return self._place_of(tenant, task, key, signed)

    def __getattr__(self, name: str) -> NoReturn:
        raise Unrecorded(name)


class _Rehearsal(Run):
    """A run that ends wherever it would have to do something."""

    def __init__(self, host: Host, claimed: Claimed, loaded: Loaded, spec: AgentSpec) -> None:
        # What has come and was not taken yet, the next attempt takes: that is where the code goes on.
        super().__init__(host, claimed, replace(loaded, inbox=()), spec)
        self.met: set[str] = set()
        self.goes_on_at: list[str] = []
        self.differences: list[str] = []

    def meet(self, key: str, kind: OperationKind, name: str, row: OperationRow | None) -> None:
        """Let what the journal holds pass, and end the branch at anything else."""
        if row is not None and row.state in ENDED:
            self.met.add(key)
        elif row is not None and (kind == "child" or name.startswith(CALLBACK)):
            # Made, and not waited for yet.
            self.met.add(key)
        elif row is not None or kind != "value":
            self._goes_on(key)

    def append(self, entry: Entry, *, leisurely: bool = False) -> None:
        """Leave aside what the code says or reads, and end the branch at anything else."""
        key = getattr(entry, "key", None)
        if not isinstance(entry, RecordOperation) or entry.kind != "value":
            self._goes_on(key)
        if entry.name == racing.NAME:
            # It goes on at its branches, unless one of them has come to its end.
            self._goes_on(None if any(each.startswith(f"{key}/") for each in self.goes_on_at) else key)

    async def commit(self, entry: Entry) -> str | None:
        """End the branch: nothing is written."""
        self._goes_on(getattr(entry, "key", None))

    def begin_wait(self, key: str, wait: Wait) -> None:
        """End the branch: what it waits for has not come."""
        self._goes_on(key.partition("!")[0])

    def interrupt(self, kind: Interruption, detail: str = "") -> None:
        """Note a difference."""
        if kind == "mismatched":
            self.differences.append(detail)

    def quiet(self) -> None:
        """Never suspend."""

    def _goes_on(self, key: str | None) -> NoReturn:
        # What the code asks for while it unwinds, it would not ask for in a run.
        if key is not None and key not in self.goes_on_at and not _cut(sys.exc_info()[1]):
            self.goes_on_at.append(key)
        raise Unrecorded(key)

    def not_met(self) -> list[OperationRow]:
        """Answer the operations that nobody asked for, but those inside of one that was."""
        inside = tuple(f"{key}/" for key in self.met)
        return [
            row
            for row in sorted(self.known.rows.values(), key=lambda row: row.position)
            if row.kind not in ("value", "compensation")
            and row.key not in self.met
            and not row.key.startswith(inside)
        ]


def _cut(error: BaseException | None) -> bool:
    """Whether code that handles this unwinds since it was cut."""
    if isinstance(error, BaseExceptionGroup):
        return any(_cut(one) for one in error.exceptions)
    return isinstance(error, Unrecorded | asyncio.CancelledError)


async def rehearse(
    registry: Registry,
    spec: AgentSpec,
    claimed: Claimed,
    loaded: Loaded,
    *,
    now: int,
    place_of: PlaceOf | None = None,
) -> Rehearsed:
    """Run an agent version against a task's journal; nothing is written, nothing is sent.

    claimed, loaded: the task as it stands, read without a lease. now: the database's time. place_of: where
    callbacks are answered.
    """
    run = _Rehearsal(cast(Host, _Stage(registry, now, place_of)), claimed, loaded, spec)
    context = TaskContext(run, tool_spec_of(registry.tools))
    # In a task of its own, since the scope belongs to it, and a difference cancels it.
    performing = asyncio.create_task(_perform(run, context))
    try:
        await asyncio.wait({performing}, timeout=TIME_S)
    finally:
        late = performing.cancel()
    ended, failed = False, None
    if late:
        await asyncio.wait({performing}, timeout=CUT_S)
        failed = f"it took more than {TIME_S:g} s"
    elif not performing.cancelled():
        ended, failed = performing.result()
    if not late and (run.differences or run.goes_on_at):
        # What it raised then was made of operations that were cut, and so was its end.
        ended, failed = False, None
    rows = run.not_met()
    left_over, not_reached = _parted(run, [row for row in rows if row.state in ENDED])
    return Rehearsed(
        met=len(run.met),
        differences=tuple(run.differences),
        left_over=left_over,
        not_reached=not_reached,
        effects_left=tuple(row.key for row in rows if _may_have_acted(row) and row.key not in run.goes_on_at),
        goes_on_at=tuple(run.goes_on_at),
        ended=ended,
        failed=failed,
    )


def _may_have_acted(row: OperationRow) -> bool:
    """Whether a call was sent, and is not known to have done nothing."""
    acts = row.kind == "tool" and row.attempt > 0 and changes_something(row.effect or "manual")
    return acts and row.state != "failed"


def _parted(run: _Rehearsal, rows: list[OperationRow]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Part what nobody asked for into what the code was past, and what it has not come to."""
    reached = max((run.known.rows[key].position for key in run.met), default=-1)
    if not run.goes_on_at and not run.differences:
        return tuple(row.key for row in rows), ()
    return (
        tuple(row.key for row in rows if row.position < reached),
        tuple(row.key for row in rows if row.position >= reached),
    )


async def _perform(run: _Rehearsal, context: TaskContext) -> tuple[bool, str | None]:
    """Run the function; answer whether it came to its end, and what it raised by itself."""
    scopes.enter(scopes.Scope(path="", owner=asyncio.current_task()))
    try:
        arguments: dict[str, Any] = run.spec.signature.check(values.decode(run.loaded.input))
        await run.spec.function(context, **arguments)
    except (Unrecorded, asyncio.CancelledError):
        return False, None
    except OperationError:
        # A failure that the journal holds, and that its task would end by: the code has come to its end.
        return True, None
    except OutlastError as error:
        return False, str(error)
    except KeyboardInterrupt:
        raise
    # Agent code may raise anything, and groups of what its branches were cut with.
    except BaseException as error:
        return False, text_of(error)
    return True, None
