"""Child tasks: accepted as tasks and put on their parent's record in one transaction, then waited for.

Purpose: a task can have work done by others, thousands at a time, and have their ends as results of its own
operations.

Identity: the operation's key; the child's task id is made of its parent's id and that key, so that the same
spawn makes the same child however often the parent runs.

State: running from its record on; succeeded, or failed (``child_failed``, ``child_cancelled``), once the
parent has taken its end. A parent that never asks for the result leaves it running.

What is fenced: a child is accepted, and put on record, only while its parent runs under this epoch and no
cancel stands. The record of its end is written under the parent's epoch and consumes what the end has posted.

Failure by failure: killed before that transaction: there is neither child nor record, and the next attempt
spawns the same child. Killed after it: the next attempt finds the record, and so the child. The answer of a
submit is lost: submitted again, and recognised by its id. Refused, since the parent's lease
has passed or a cancel stands: the parent learns which, and ends accordingly. The child ends while its parent
is away: its end lies in the parent's inbox. An end's result is copied into the parent's record, so that a
replay does not depend on the child.

Not covered: a child that an operator runs again after its parent has taken its end.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol, TypeVar

from outlast import probes
from outlast.core import canonical, ids, values
from outlast.core.durations import Duration, microseconds
from outlast.core.operation import OperationState
from outlast.core.record import record
from outlast.engine import scopes
from outlast.engine.registry import AgentSpec
from outlast.engine.run import Run
from outlast.engine.steps import known, recorded, refuse_for_budget
from outlast.engine.waits import Waiting, on_disk, until
from outlast.engine.wording import MAX_ERROR_TEXT, event, failure
from outlast.errors import ChildCancelled, ChildFailed, InvalidKey, InvalidRequest
from outlast.store.contract import BatchRejected, Store
from outlast.store.entries import RecordOperation
from outlast.store.posting import Cancel
from outlast.store.records import ANY_VERSION, InboxRow, OperationRow, Parent, Submission, Submitted, TaskRef
from outlast.store.rows import EndRow, TaskRow

T = TypeVar("T")
GROUP: Final = 200
"""Children that are submitted at once: the first of many are claimed while the others are on their way."""
READ: Final = 200
"""Children whose ends are read at once; each may have a result of a megabyte."""
FINAL: Final = ("succeeded", "failed", "cancelled")


@record
class Options:
    """What a parent asks of a child besides its input. version: None for whatever a worker serves."""

    detached: bool = False
    pool: str | None = None
    priority: int = 0
    deadline_us: int | None = None
    version: str | None = None


def child_id(parent: str, key: str) -> str:
    """Make the id of the child that a parent's operation spawns; it sorts next to its parent."""
    digest = hashlib.sha256(f"{parent}\n{key}".encode()).digest()
    return ids.new_id(ids.TASK, _made_ms(parent), int.from_bytes(digest[:10]) >> 6)


@lru_cache(maxsize=256)
def _made_ms(task: str) -> int:
    try:
        return ids.unix_ms_of(task)
    except InvalidKey:
        return 0


class Child:
    """A child task, at once; whether it is accepted yet is another question.

    id: of its task. Awaiting it answers its result.
    """

    def __init__(self, run: Run, key: str, spec: AgentSpec) -> None:
        self.id = child_id(run.task, key)
        self.key = key
        self._run = run
        self._spec = spec
        self._calls = 0

    @property
    def agent(self) -> str:
        """Its agent's name."""
        return self._spec.name

    def __repr__(self) -> str:
        return f"Child({self.id!r}, agent={self.agent!r})"

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._result(None, None).__await__()

    def accepted(self) -> Coroutine[Any, Any, None]:
        """Wait until the child is stored as a task."""
        return self._accepted()

    def result(self, timeout: Duration | None = None) -> Coroutine[Any, Any, Any]:
        """Wait for the child's end and answer its result.

        timeout: how long, by the database's clock; recorded. Raises ChildFailed, ChildCancelled, WaitTimeout,
        now as on every replay. After a WaitTimeout the child goes on, and may be asked for again.
        """
        if timeout is None:
            return self._result(None, None)
        timeout_us = microseconds(timeout, what="timeout", zero=True)
        return self._result(scopes.take(f"{self._spec.name}.timeout", None), timeout_us)

    def cancel(self, reason: str = "") -> Coroutine[Any, Any, None]:
        """Cancel the child; one that has ended stays as it is."""
        return self._cancel(reason)

    async def _accepted(self) -> None:
        self._run.check()
        promise = self._run.promises.get(self.key)
        if promise is not None:
            await asyncio.wait({promise})
            self._run.check()

    async def _cancel(self, reason: str) -> None:
        run = self._run
        await self._accepted()
        row = run.rows.get(self.key)
        if row is not None and row.state in ("succeeded", "failed"):
            return
        request = Cancel(tenant=run.tenant, task=self.id, by="parent", reason=reason[:MAX_ERROR_TEXT])
        await _busily(run, lambda: run.host.store.cancel([request]))

    async def _result(self, timer_key: str | None, timeout_us: int | None) -> Any:
        run = self._run
        run.check(waits=True)
        timer, due_at = None, None
        if timer_key is not None:
            timer, due_at = self._timer(timer_key)
        row = run.rows.get(self.key)
        if row is None or row.state not in ("succeeded", "failed"):
            if timer is not None and due_at is None and timeout_us:
                await on_disk(run, timer.begun(timeout_us))
                due_at = run.host.session.database_now() + timeout_us
            # Without any time it looks once.
            row = await self._ended(timer, due_at if timer is None else due_at or 0)
        if timer is not None and due_at is not None:
            # It came in time, so that nothing is to wake the task for it any more.
            timer.record(run, "succeeded")
        return self._spec.signature.restore(recorded(run, row))

    def _timer(self, key: str) -> tuple[_Timer, int | None]:
        """Answer the time limit of a wait for the result, and when it is over, if that is on record."""
        run = self._run
        request = canonical.fingerprint("timer", "result", {"child": self.id})
        row = known(run, key, "timer", "result", request)
        if row is not None and row.state in ("succeeded", "failed"):
            recorded(run, row)
        position = row.position if row is not None else run.next_position()
        timer = _Timer(kind="timer", name="result", key=key, position=position, request=request)
        return timer, None if row is None or row.state != "running" else row.due_at

    async def _ended(self, timer: _Timer | None, due_at: int | None) -> OperationRow:
        """Wait until the child's end is taken; answer the operation as it is recorded."""
        run, family = self._run, family_of(self._run)
        self._calls += 1
        name = f"{self.key}!{self._calls}"
        taken = family.wait(self.key)
        try:
            while not taken.done():
                left_us = None if due_at is None else due_at - run.host.session.database_now()
                if timer is not None and left_us is not None and left_us <= 0:
                    await self._last_look(timer, due_at or None, taken)
                else:
                    await until(run, name, "child", taken, left_us)
            run.check()
            return run.rows[self.key]
        except asyncio.CancelledError:
            if timer is not None and scopes.lost() and not run.sealed:
                timer.lose(run)
            raise
        finally:
            family.leave(self.key, taken)

    async def _last_look(self, timer: _Timer, due_at: int | None, taken: asyncio.Future[None]) -> None:
        """What was posted by then counts, though nobody may have told of it. due_at: None for one look."""
        run = self._run
        await _busily(run, run.read_inbox)
        end = run.inbox.end_of(self.key)
        if taken.done():
            return
        if end is None or (due_at is not None and end.at > due_at):
            timer.time_out(run, f"child {self.id} did not end in time")
        await until(run, f"{timer.key}!", "child", taken, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timer(Waiting):
    """The time limit of a wait for a child's result."""

    def begun(self, timeout_us: int) -> RecordOperation:
        """Make the record that it runs."""
        return RecordOperation(
            key=self.key,
            position=self.position,
            kind=self.kind,
            name=self.name,
            state="running",
            request=self.request,
            due_in_us=timeout_us,
        )


@record
class Spawned:
    """A child's operation as its parent has it on record, or is about to."""

    child: Child
    position: int
    request: str
    arguments: str


class Family:
    """The children of one run: those who wait for their ends, and the taking of those ends, many at a
    time."""

    def __init__(self, run: Run) -> None:
        self.spawned: dict[str, Spawned] = {}
        self._run = run
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._ready: list[str] = []
        self._taking: asyncio.Task[None] | None = None

    def wait(self, key: str) -> asyncio.Future[None]:
        """Answer a future, of the caller's own, of a child's end being on record."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = []
            self._run.inbox.when_ended(key, self._ended)
        waiting.append(future)
        return future

    def leave(self, key: str, future: asyncio.Future[None]) -> None:
        """Wait no more, or go on."""
        self._run.inbox.handed.discard(future)
        waiting = self._waiting.get(key)
        if waiting is not None and future in waiting:
            waiting.remove(future)

    def _ended(self, key: str) -> None:
        self._ready.append(key)
        if self._taking is None or self._taking.done():
            # The run does not rest before its children's ends are on record.
            self._run.active += 1
            loop = asyncio.get_running_loop()
            self._taking = loop.create_task(self._take(), context=scopes.outside_races())
            self._run.host.straggle(self._taking)

    async def _take(self) -> None:
        run = self._run
        try:
            # Ends that are heard in one turn of the loop are taken together.
            await asyncio.sleep(0)
            while self._ready and not run.sealed:
                keys, self._ready = self._ready[:READ], self._ready[READ:]
                refs = [TaskRef(tenant=run.tenant, task=self.spawned[key].child.id) for key in keys]
                rows = await run.host.nursery.read(refs)
                run.check()
                for key, ref in zip(keys, refs, strict=True):
                    self._take_one(key, rows.get(ref))
        finally:
            run.active -= 1
            run.touched += 1
            run.quiet()

    def _take_one(self, key: str, row: EndRow | None) -> None:
        run = self._run
        end = run.inbox.end_of(key)
        if end is None:
            return
        if row is not None and row.state not in FINAL:
            # An operator runs it again: there will be another end.
            run.inbox.forget_end(key)
            run.inbox.when_ended(key, self._ended)
            return
        probes.reach("waits.before_take")
        self._record(key, end, row)
        for future in self._waiting.pop(key, ()):
            if not future.done():
                future.set_result(None)
                run.inbox.handed.add(future)

    def _record(self, key: str, end: InboxRow, row: EndRow | None) -> None:
        run, spawned = self._run, self.spawned[key]
        child = spawned.child
        result, error = None, None
        if row is None or row.error:
            error = _failure(child.id, row)
        else:
            result = row.result
        state: OperationState = "succeeded" if error is None else "failed"
        name = child.agent
        run.append(
            RecordOperation(
                key=key,
                position=spawned.position,
                kind="child",
                name=name,
                state=state,
                request=spawned.request,
                arguments=spawned.arguments,
                result=result,
                error=error,
                takes=(end.number,),
                events=(event(f"operation.{state}", operation=key, kind="child", name=name, child=child.id),),
            )
        )
        run.remember(key, spawned.position, "child", name, state, spawned.request, result, error)


def family_of(run: Run) -> Family:
    """Answer a run's family; it has one from its first child on."""
    family: Family | None = run.family
    if family is None:
        family = run.family = Family(run)
    return family


def _failure(child: str, row: EndRow | None) -> str:
    if row is None:
        return failure(ChildFailed.code, f"child {child} is gone", reason="gone", retryable=False)
    said = values.decode(row.error or "{}")
    message = f"child {child} {'was cancelled' if row.state == 'cancelled' else 'failed'}"
    if said.get("message"):
        message += f": {said['message']}"
    code = ChildCancelled.code if row.state == "cancelled" else ChildFailed.code
    return failure(code, message, reason=str(said.get("code", code)), retryable=False)


def spawn(run: Run, key: str, spec: AgentSpec, given: Any, options: Options) -> Child:
    """Spawn a child, or find the one that this operation spawned before. Raises InvalidInput."""
    run.check()
    plain = values.normalise({} if given is None else given)
    if not isinstance(plain, dict):
        raise InvalidRequest(f"the input of agent {spec.name} must be an object of its parameters by name")
    spec.signature.check(plain)
    text = values.encode(plain, what="input")
    request = canonical.fingerprint(
        "child", spec.name, {"input": plain, "version": options.version or "", "detached": options.detached}
    )
    row = known(run, key, "child", spec.name, request)
    family = family_of(run)
    before = family.spawned.get(key)
    if before is not None:
        return before.child
    child = Child(run, key, spec)
    position = row.position if row is not None else run.next_position()
    held = run.spending.begin_child(key) if row is None else None
    if held is not None:
        # Whoever asks for its result is told.
        refuse_for_budget(run, key, position, "child", spec.name, request, held)
        return child
    spawned = Spawned(child=child, position=position, request=request, arguments=text)
    family.spawned[key] = spawned
    # What is on record was accepted with its record.
    if row is None:
        run.host.nursery.accept(run, _submission(run, spawned, spec, options), _promise(run, key))
    return child


def _promise(run: Run, key: str) -> asyncio.Future[None]:
    """Keep the run from resting, and its ending from overtaking, until the child is accepted."""
    promise: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def over(_: asyncio.Future[None]) -> None:
        run.promises.pop(key, None)
        run.active -= 1
        run.quiet()

    run.promises[key] = promise
    run.active += 1
    promise.add_done_callback(over)
    return promise


def _submission(run: Run, spawned: Spawned, spec: AgentSpec, options: Options) -> Submission:
    deadline_us = spec.deadline_us if options.deadline_us is None else options.deadline_us
    left_s = run.remaining_s()
    if left_s is not None and not options.detached:
        # What is done for a task is never later than the task.
        left_us = max(1, int(left_s * 1_000_000))
        deadline_us = left_us if deadline_us is None else min(deadline_us, left_us)
    return Submission(
        tenant=run.tenant,
        task=spawned.child.id,
        key=None,
        request_digest="",
        agent=spec.name,
        version=ANY_VERSION if options.version is None else options.version,
        pool=spec.pool if options.pool is None else options.pool,
        priority=options.priority,
        input=spawned.arguments,
        user=run.loaded.user,
        deadline_us=deadline_us,
        trace=run.loaded.trace,
        budget=run.spending.of_child(),
        parent=Parent(
            task=run.task,
            epoch=run.epoch,
            key=spawned.child.key,
            position=spawned.position,
            request=spawned.request,
            detached=options.detached,
        ),
    )


async def _busily(run: Run, work: Callable[[], Awaitable[Any]]) -> None:
    run.active += 1
    try:
        await run.host.insist(work)
    finally:
        run.active -= 1
        run.quiet()
    run.check()


# -- for all runs of a process -----------------------------------------------------------------------------


class Host(Protocol):
    """What the nursery needs of the worker."""

    store: Store

    async def insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Ask the store, again and again while it is away."""
        ...

    def straggle(self, task: asyncio.Task[Any]) -> None:
        """Watch over work that outlives its run."""
        ...


@record
class _Newborn:
    run: Run
    submission: Submission
    promise: asyncio.Future[None]


class Nursery:
    """Submits children and reads their ends, many at a time; while one batch is under way the next
    collects."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._newborn: list[_Newborn] = []
        self._asked: list[tuple[list[TaskRef], asyncio.Future[dict[TaskRef, EndRow]]]] = []
        self._submitting: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None

    def accept(self, run: Run, submission: Submission, promise: asyncio.Future[None]) -> None:
        """Have a child accepted and put on record."""
        self._newborn.append(_Newborn(run=run, submission=submission, promise=promise))
        if self._submitting is None or self._submitting.done():
            self._submitting = asyncio.get_running_loop().create_task(self._submit())
            self._host.straggle(self._submitting)

    async def read(self, refs: list[TaskRef]) -> dict[TaskRef, EndRow]:
        """Read how tasks have ended, together with whatever else is read now; those that are."""
        future: asyncio.Future[dict[TaskRef, EndRow]] = asyncio.get_running_loop().create_future()
        self._asked.append((refs, future))
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._host.straggle(self._reading)
        return await future

    async def _submit(self) -> None:
        # Children that are spawned in this turn of the loop join the first group.
        await asyncio.sleep(0)
        while self._newborn:
            group, self._newborn = self._newborn[:GROUP], self._newborn[GROUP:]
            await self._submit_group(group)

    async def _submit_group(self, group: list[_Newborn]) -> None:
        try:
            await self._accept(group)
        # A fault of the group is its parents' to know: they would wait for ever.
        except Exception as error:
            if isinstance(error, BatchRejected) and len(group) > 1:
                # One of them is at fault, and the others have nothing to do with it.
                half = len(group) // 2
                await self._submit_group(group[:half])
                await self._submit_group(group[half:])
                return
            for one in group:
                _settle(one.promise, cancel=True)
                one.run.unstorable(error)

    async def _accept(self, group: list[_Newborn]) -> None:
        probes.reach("children.before_submit")
        batch = [one.submission for one in group]
        answers: list[Submitted] = await self._host.insist(lambda: self._host.store.submit(batch))
        probes.reach("children.after_submit")
        for one, answer in zip(group, answers, strict=True):
            if answer.kind == "accepted":
                _settle(one.promise)
            elif answer.kind == "stale":
                await self._refused(one)
            else:
                raise ValueError(f"a child without a key was answered {answer.kind}")

    async def _refused(self, one: _Newborn) -> None:
        """A parent may not have children any more: since it is cancelled, or since it is somebody else's."""
        run = one.run
        ref = TaskRef(tenant=run.tenant, task=run.task)
        row = (await self._tasks([ref])).get(ref)
        if row is not None and row.cancelling and row.epoch == run.epoch:
            run.interrupt("cancelled", "a cancel stands")
        else:
            run.interrupt("lost", "another worker holds the task")
        _settle(one.promise, cancel=True)

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


def _settle(promise: asyncio.Future[None], *, cancel: bool = False) -> None:
    if promise.done():
        return
    if cancel:
        promise.cancel()
    else:
        promise.set_result(None)
