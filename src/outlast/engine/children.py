"""Child tasks: accepted as tasks and put on their parent's record in one transaction, then waited for.

Purpose: a task can have work done by others, thousands at a time, and have their ends as results of its own
operations.

Identity: the operation's key; the child's task id is made of its parent's id and that key, so that the same
spawn makes the same child however often the parent runs.

State: running from its record on; succeeded, or failed (``child_failed``, ``child_cancelled``), once the
parent has taken its end: where one worker runs both, as soon as the end is on disk; else from its inbox, once
it asks. A parent that never asks leaves it running then.

What is fenced: a child is accepted, and put on record, only while its parent runs under this epoch and no
cancel stands. The record of its end is written under the parent's epoch and consumes what the end has left
for the parent, wherever that lies; a delivery drops what it finds on record.

Failure by failure: killed before that transaction: there is neither child nor record, and the next attempt
spawns the same child. Killed after it: the next attempt finds the record, and so the child. The answer of a
submit is lost: submitted again, and recognised by its id. Refused, since the parent's lease
has passed or a cancel stands: the parent learns which, and ends accordingly. The child ends while its parent
is away: its end lies in the parent's inbox; so it does after a kill between the end and its record. An end's
result is copied into the parent's record, so that a replay does not depend on the child.

Not covered: a child that an operator runs again after its parent has taken its end.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from outlast import probes
from outlast.core import canonical, ids, values
from outlast.core.durations import Duration, microseconds
from outlast.core.operation import OperationState
from outlast.core.record import record
from outlast.engine import scopes
from outlast.engine.registry import AgentSpec
from outlast.engine.run import Run, Wait
from outlast.engine.steps import known, recorded, refuse_for_budget
from outlast.engine.waits import Waiting, on_disk, until
from outlast.engine.wording import MAX_ERROR_TEXT, event, failure
from outlast.errors import ChildCancelled, ChildFailed, InvalidKey, InvalidRequest
from outlast.store.entries import EndAttempt, RecordOperation
from outlast.store.posting import Cancel
from outlast.store.records import ANY_VERSION, InboxRow, OperationRow, Parent, Submission, TaskRef
from outlast.store.rows import EndRow

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


PLAIN: Final = Options()
"""Those of most children."""
_DIGEST_BITS: Final = 54
"""Of the 74 random bits of a child's id; the 20 before them are its number."""
_COUNT_DIGITS: Final = 6
"""Decimal digits that 20 bits hold whatever they are."""


def child_id(parent: str, key: str) -> str:
    """Make the id of the child that a parent's operation spawns; it sorts next to its parent, and those of a
    counted name by their number, so that children that are worked on together lie together on disk.

    Source: RFC 9562 section 6.2, method 1: the leading random bits are a counter.
    """
    digest = hashlib.sha256(f"{parent}\n{key}".encode()).digest()
    number = key.rpartition("#")[2]
    count = int(number[-_COUNT_DIGITS:]) if number.isascii() and number.isdecimal() else 0
    random = count << _DIGEST_BITS | int.from_bytes(digest[:8]) >> (64 - _DIGEST_BITS)
    return ids.new_id(ids.TASK, _made_ms(parent), random)


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

    __slots__ = ("_arguments", "_position", "_request", "_run", "_spec", "id", "key")

    def __init__(
        self, run: Run, key: str, spec: AgentSpec, position: int, request: str, arguments: str
    ) -> None:
        self.id = child_id(run.task, key)
        self.key = key
        self._position, self._request, self._arguments = position, request, arguments
        self._run = run
        self._spec = spec

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
        row = run.known.row(self.key)
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
        row = run.known.row(self.key)
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
        position = row.position if row is not None else run.known.next_position()
        timer = _Timer(kind="timer", name="result", key=key, position=position, request=request)
        return timer, None if row is None or row.state != "running" else row.due_at

    async def _ended(self, timer: _Timer | None, due_at: int | None) -> OperationRow:
        """Wait until the child's end is taken; answer the operation as it is recorded."""
        run, family = self._run, family_of(self._run)
        taken = family.wait(self.key)
        try:
            if timer is None or due_at is None:
                await taken
            else:
                await self._within(timer, due_at, taken)
            run.check()
            row = run.known.row(self.key)
            assert row is not None, "it was just put on record"
            return row
        except asyncio.CancelledError:
            if timer is not None and scopes.lost() and not run.sealed:
                timer.lose(run)
            raise
        finally:
            family.leave(self.key, taken)

    async def _within(self, timer: _Timer, due_at: int, taken: asyncio.Future[None]) -> None:
        """Wait for the end until a time limit; record and raise that it is over. due_at: 0 for one look."""
        run = self._run
        while not taken.done():
            left_us = due_at - run.host.session.database_now()
            if left_us <= 0:
                await self._last_look(timer, due_at or None, taken)
            else:
                await until(run, f"{self.key}!{timer.key}", "child", taken, left_us)

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


class Family:
    """The children of one run: those who wait for their ends, and the taking of those ends, many at a
    time."""

    def __init__(self, run: Run) -> None:
        self.spawned: dict[str, Child] = {}
        self._run = run
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._open = 0
        self._wait = ""
        """How the one wait is called that stands for all of ``_open``."""
        self._ready: list[str] = []
        self._taking: asyncio.Task[None] | None = None

    def wait(self, key: str) -> asyncio.Future[None]:
        """Answer a future, of the caller's own, of a child's end being on record; the task waits until all
        such have left."""
        if not self._open:
            self._run.begin_wait(f"{key}!", Wait(reason="child", due=None, stored=True))
            self._wait = f"{key}!"
        self._open += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = [future]
            self._run.inbox.when_ended(key, self._ended)
        else:
            waiting.append(future)
        return future

    def leave(self, key: str, future: asyncio.Future[None]) -> None:
        """Wait no more, or go on."""
        run = self._run
        run.inbox.handed.discard(future)
        waiting = self._waiting.get(key)
        if waiting is not None and future in waiting:
            waiting.remove(future)
        self._open -= 1
        if self._open:
            run.touched += 1
        else:
            run.end_wait(self._wait)

    def told(self, child: Child, ending: EndAttempt) -> bool:
        """Take the end of a child that this worker has brought to disk, asked for or not.

        Answers whether it was taken.
        """
        run = self._run
        if run.sealed:
            return False
        row = run.known.row(child.key)
        if row is not None and row.state in ("succeeded", "failed"):
            return True
        probes.reach("waits.before_take")
        error = None
        if ending.task_state != "succeeded":
            error = _failure(child.id, ending.task_state, ending.error or "{}")
        self._record(child, None, ending.result, error)
        return True

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
                refs = [TaskRef(tenant=run.tenant, task=self.spawned[key].id) for key in keys]
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
        if end is None or key not in self._waiting:
            # In the second case its own worker has told of it meanwhile.
            return
        if row is not None and row.state not in FINAL:
            # An operator runs it again: there will be another end.
            run.inbox.forget_end(key)
            run.inbox.when_ended(key, self._ended)
            return
        probes.reach("waits.before_take")
        child, result, error = self.spawned[key], None, None
        if row is None:
            error = failure(ChildFailed.code, f"child {child.id} is gone", reason="gone", retryable=False)
        elif row.error:
            error = _failure(child.id, row.state, row.error)
        else:
            result = row.result
        self._record(child, end, result, error)

    def _record(self, child: Child, end: InboxRow | None, result: str | None, error: str | None) -> None:
        """Put a child's end on record, and let those who wait for it go on.

        end: what lies in the inbox of it; None where its worker has told of it.
        """
        run, key, name = self._run, child.key, child.agent
        state: OperationState = "succeeded" if error is None else "failed"
        # Its other children end as well: their ends take this record along.
        run.append(
            RecordOperation(
                key=key,
                position=child._position,
                kind="child",
                name=name,
                state=state,
                request=child._request,
                arguments=child._arguments,
                result=result,
                error=error,
                takes=() if end is None else (end.number,),
                takes_end=end is None,
                events=(event(f"operation.{state}", operation=key, kind="child", name=name, child=child.id),),
            ),
            leisurely=True,
        )
        run.known.remember(key, child._position, "child", name, state, child._request, result, error)
        run.host.nursery.forget(run, child)
        for future in self._waiting.pop(key, ()):
            if not future.done():
                future.set_result(None)
                run.inbox.handed.add(future)


def family_of(run: Run) -> Family:
    """Answer a run's family; it has one from its first child on."""
    family: Family | None = run.family
    if family is None:
        family = run.family = Family(run)
    return family


def _failure(child: str, state: str, error: str) -> str:
    """Write what a parent has on record of a child that has not succeeded. state, error: those of its end."""
    said = values.decode(error)
    message = f"child {child} {'was cancelled' if state == 'cancelled' else 'failed'}"
    if said.get("message"):
        message += f": {said['message']}"
    code = ChildCancelled.code if state == "cancelled" else ChildFailed.code
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
        return before
    position = row.position if row is not None else run.known.next_position()
    child = Child(run, key, spec, position, request, text)
    held = run.spending.begin_child(key) if row is None else None
    if held is not None:
        # Whoever asks for its result is told.
        refuse_for_budget(run, key, position, "child", spec.name, request, held)
        return child
    family.spawned[key] = child
    if row is None or row.state == "running":
        run.host.nursery.expect(run, child)
    # What is on record was accepted with its record.
    if row is None:
        run.host.nursery.accept(run, key, _submission(run, child, spec, options))
    return child


def _submission(run: Run, child: Child, spec: AgentSpec, options: Options) -> Submission:
    deadline_us = spec.deadline_us if options.deadline_us is None else options.deadline_us
    left_s = run.remaining_s()
    if left_s is not None and not options.detached:
        # What is done for a task is never later than the task.
        left_us = max(1, int(left_s * 1_000_000))
        deadline_us = left_us if deadline_us is None else min(deadline_us, left_us)
    return Submission(
        tenant=run.tenant,
        task=child.id,
        key=None,
        request_digest="",
        agent=spec.name,
        version=ANY_VERSION if options.version is None else options.version,
        pool=spec.pool if options.pool is None else options.pool,
        priority=options.priority,
        input=child._arguments,
        user=run.loaded.user,
        deadline_us=deadline_us,
        trace=run.loaded.trace,
        budget=run.spending.of_child(),
        parent=Parent(
            task=run.task,
            epoch=run.epoch,
            key=child.key,
            position=child._position,
            request=child._request,
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
