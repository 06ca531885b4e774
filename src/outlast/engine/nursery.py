"""What a worker does for the children of all its runs: it submits them and reads their ends, many at a time,
and tells ends to parents that it runs itself.

Purpose: a fan-out costs a transaction for hundreds of children, not one each; and where one worker runs a
child and its parent, the end need not be delivered and read.

State: what was asked for and is not under way yet; while one batch is under way the next collects. Which
children the runs of this process have whose ends they do not know.

What is fenced: see ``children``. An end is told once it is on disk, with what it has left for the parent; the
record by which the parent takes it consumes that.

Failure by failure: a submit is refused: its parent learns why, and nobody else. The parent's attempt is over
when a child's end has reached the disk, or something else was made of the end than its worker said: it is
delivered like any other. Killed in between: it lies there, and whoever looks next delivers it.

Not covered: ends of children that another worker runs, or that the database decides, go by the delivery.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from outlast import probes
from outlast.engine.children import FINAL, READ, Child
from outlast.engine.journal import Told
from outlast.engine.run import Run
from outlast.store.contract import BatchRejected, Store
from outlast.store.entries import EndAttempt
from outlast.store.records import Submission, Submitted, TaskRef
from outlast.store.rows import EndRow, TaskRow

T = TypeVar("T")
GROUP: Final = 200
"""Children that are submitted at once: the first of many are claimed while the others are on their way."""


class Host(Protocol):
    """What the nursery needs of the worker."""

    store: Store

    async def insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Ask the store, again and again while it is away."""
        ...

    def straggle(self, task: asyncio.Task[Any]) -> None:
        """Watch over work that outlives its run."""
        ...


@dataclass(slots=True, eq=False)
class _Brood:
    """Children of one run that are submitted together. promise: done once it is known what became of them;
    the run does not rest before, and its ending does not overtake them."""

    run: Run
    promise: asyncio.Future[None]
    keys: list[str] = field(default_factory=list)
    submissions: list[Submission] = field(default_factory=list)


class Nursery:
    """Submits children, reads their ends, and tells those that it can."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._expected: dict[tuple[str, str], tuple[Run, Child]] = {}
        self._broods: list[_Brood] = []
        self._asked: list[tuple[list[TaskRef], asyncio.Future[dict[TaskRef, EndRow]]]] = []
        self._submitting: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None

    def accept(self, run: Run, key: str, submission: Submission) -> None:
        """Have a child accepted and put on record."""
        brood = self._broods[-1] if self._broods else None
        if brood is None or brood.run is not run or len(brood.keys) >= GROUP:
            brood = self._begin(run)
        brood.keys.append(key)
        brood.submissions.append(submission)
        run.promises[key] = brood.promise

    def _begin(self, run: Run) -> _Brood:
        loop = asyncio.get_running_loop()
        brood = _Brood(run=run, promise=loop.create_future())
        self._broods.append(brood)
        run.active += 1
        if self._submitting is None or self._submitting.done():
            self._submitting = loop.create_task(self._submit())
            self._host.straggle(self._submitting)
        return brood

    async def read(self, refs: list[TaskRef]) -> dict[TaskRef, EndRow]:
        """Read how tasks have ended, together with whatever else is read now; those that are."""
        future: asyncio.Future[dict[TaskRef, EndRow]] = asyncio.get_running_loop().create_future()
        self._asked.append((refs, future))
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._host.straggle(self._reading)
        return await future

    def expect(self, run: Run, child: Child) -> None:
        """Note that a run has a child whose end it does not know."""
        self._expected[run.tenant, child.id] = (run, child)

    def forget(self, run: Run, child: Child) -> None:
        """Note that it knows, or that its attempt is over."""
        name = (run.tenant, child.id)
        # The next attempt may be here already.
        if name in self._expected and self._expected[name][0] is run:
            del self._expected[name]

    def leave(self, run: Run) -> None:
        """Forget all children of a run that is over."""
        if run.family is not None:
            for child in run.family.spawned.values():
                self.forget(run, child)

    def expects(self, run: Run) -> bool:
        """Answer whether a run of this process is to know how this one's task ends."""
        return (run.tenant, run.task) in self._expected

    def teller(self, run: Run, ending: EndAttempt) -> Told:
        """Answer whom to tell what became of the end of a task whose parent runs here."""
        name = (run.tenant, run.task)

        def told(other: str | None, error: Exception | None) -> None:
            if error is not None or ending.task_state not in FINAL:
                # Nothing was written, or it goes on.
                return
            parent, child = self._expected.get(name, (None, None))
            if other is not None or parent is None or not parent.family.told(child, ending):
                self._host.store.wakes.hint("posts")

        return told

    async def _submit(self) -> None:
        # Children that are spawned in this turn of the loop join the first group.
        await asyncio.sleep(0)
        while self._broods:
            group = [self._broods.pop(0)]
            size = len(group[0].keys)
            while self._broods and size + len(self._broods[0].keys) <= GROUP:
                size += len(self._broods[0].keys)
                group.append(self._broods.pop(0))
            try:
                await self._submit_all([(brood.run, one) for brood in group for one in brood.submissions])
            finally:
                for brood in group:
                    _keep(brood)

    async def _submit_all(self, group: list[tuple[Run, Submission]]) -> None:
        try:
            await self._accept(group)
        # A fault of the group is its parents' to know: they would wait for ever.
        except Exception as error:
            if isinstance(error, BatchRejected) and len(group) > 1:
                # One of them is at fault, and the others have nothing to do with it.
                half = len(group) // 2
                await self._submit_all(group[:half])
                await self._submit_all(group[half:])
                return
            for run, _ in group:
                run.unstorable(error)

    async def _accept(self, group: list[tuple[Run, Submission]]) -> None:
        probes.reach("children.before_submit")
        batch = [submission for _, submission in group]
        answers: list[Submitted] = await self._host.insist(lambda: self._host.store.submit(batch))
        probes.reach("children.after_submit")
        stale = []
        for (run, _), answer in zip(group, answers, strict=True):
            if answer.kind == "stale":
                if run not in stale:
                    stale.append(run)
            elif answer.kind != "accepted":
                raise ValueError(f"a child without a key was answered {answer.kind}")
        for run in stale:
            await self._refused(run)

    async def _refused(self, run: Run) -> None:
        """A parent may not have children any more: since it is cancelled, or since it is somebody else's."""
        ref = TaskRef(tenant=run.tenant, task=run.task)
        row = (await self._tasks([ref])).get(ref)
        if row is not None and row.cancelling and row.epoch == run.epoch:
            run.interrupt("cancelled", "a cancel stands")
        else:
            run.interrupt("lost", "another worker holds the task")

    async def _read(self) -> None:
        await asyncio.sleep(0)
        while self._asked:
            asked = [self._asked.pop(0)]
            while self._asked and sum(len(refs) for refs, _ in asked) < READ:
                asked.append(self._asked.pop(0))
            try:
                refs = [ref for refs, _ in asked for ref in refs]
                rows = await self._host.insist(functools.partial(self._host.store.read_ends, refs))
                found = {TaskRef(tenant=row.tenant, task=row.task): row for row in rows}
            # Whoever asked gets the fault, whatever it is, and the next group goes on.
            except Exception as error:
                for _, future in asked:
                    if not future.done():
                        future.set_exception(error)
                continue
            for _, future in asked:
                if not future.done():
                    future.set_result(found)

    async def _tasks(self, refs: list[TaskRef]) -> dict[TaskRef, TaskRow]:
        rows = await self._host.insist(lambda: self._host.store.read_tasks(refs))
        return {TaskRef(tenant=row.tenant, task=row.task): row for row in rows}


def _keep(brood: _Brood) -> None:
    """Let a run rest, and end, since it is known what became of its children."""
    run = brood.run
    for key in brood.keys:
        run.promises.pop(key, None)
    run.active -= 1
    if not brood.promise.done():
        brood.promise.set_result(None)
    run.quiet()
