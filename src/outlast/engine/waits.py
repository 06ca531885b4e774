"""Waiting: timers, signals and callbacks. A task that waits holds no worker, no slot and no connection.

Purpose: whatever an agent waits for is found, whether it came before, during or after the wait was recorded.

Identity: the operation's key. A callback's signal is named after its operation, so that nothing else can be
taken for it.

State: running with a due time, if there is one; then succeeded with what came, or failed: ``wait_timeout``,
or ``lost_race``. A wait that is answered at once is recorded with its answer.

Clock: the database's. A due time is fixed by the first record and stands whatever happens since; what was
posted by then counts, however late this process looks at it.

What is fenced: the record that takes a signal is written under the task's epoch, and consumes the row in the
same transaction.

Failure by failure: killed before the wait is on record: made afresh. Killed before the take is on record: the
row is still there, and goes to the same wait. Posted in the moment of suspending: the task's facts have
moved, and the suspension becomes a wake-up.

Not covered: a wait that agent code abandons by its own cancellation stays open on record until its time is
over; use ``first`` or ``timeout=``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NoReturn

from outlast import clock, probes
from outlast.core import canonical, values
from outlast.core.operation import OperationKind, OperationState
from outlast.engine import racing, scopes
from outlast.engine.inbox import Ear
from outlast.engine.run import Run, Wait
from outlast.engine.steps import known, recorded, under_way
from outlast.engine.wording import event, failure
from outlast.errors import LeaseLost, WaitTimeout
from outlast.store.contract import BatchRejected
from outlast.store.entries import AppendEvents, Entry, RecordOperation
from outlast.store.records import InboxRow, OperationRow

CALLBACK = "callback:"
"""What the names of callbacks' signals begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A wait as it stands on record, or will."""

    kind: OperationKind
    name: str
    key: str
    position: int
    request: str

    def record(self, run: Run, state: OperationState, **more: Any) -> None:
        """Put a state of it on record, and keep a final one in memory."""
        result, error = more.get("result"), more.get("error")
        said = {"operation": self.key, "kind": self.kind, "name": self.name}
        if error is not None:
            said["reason"] = values.decode(error)["code"]
        word = "started" if state == "running" else state
        run.append(
            RecordOperation(
                key=self.key,
                position=self.position,
                kind=self.kind,
                name=self.name,
                state=state,
                request=self.request,
                events=(event(f"operation.{word}", **said),),
                **more,
            )
        )
        if state in ("succeeded", "failed"):
            run.known.remember(
                self.key, self.position, self.kind, self.name, state, self.request, result, error
            )

    def lose(self, run: Run) -> None:
        """Record that another branch of its race was first, so that no timer wakes the task for it."""
        error = failure(racing.LOST, "another branch was first", retryable=False)
        self.record(run, "failed", error=error, lost=True)

    def time_out(self, run: Run, message: str) -> NoReturn:
        """Record that its time is over, and raise as every replay will."""
        self.record(run, "failed", error=failure(WaitTimeout.code, message, retryable=False))
        recorded(run, run.known.rows[self.key])
        raise AssertionError("unreachable")


async def on_disk(run: Run, entry: Entry) -> None:
    """Record an entry and wait until it is on disk; a run that cannot do so ends."""
    # A wait may be over by itself while the end of its attempt is on its way: nothing comes after that.
    run.check()
    run.active += 1
    try:
        await run.commit(entry)
    except LeaseLost:
        run.interrupt("lost", "another worker holds the task")
        raise asyncio.CancelledError from None
    except BatchRejected as error:
        run.unstorable(error)
        raise asyncio.CancelledError from None
    finally:
        run.active -= 1
        run.quiet()
    run.check()


async def sleep(run: Run, key: str, due_in_us: int | None, due_at: int | None) -> None:
    """Wait for a recorded timer; long ones give up the slot and the lease."""
    run.check(waits=True)
    request = canonical.fingerprint(
        "timer", "sleep", {"in": due_in_us, "at": None if due_at is None else str(due_at)}
    )
    row = known(run, key, "timer", "sleep", request)
    if key in run.waits:
        raise under_way(key)
    now = run.host.session.database_now()
    if row is not None:
        if row.state in ("succeeded", "failed"):
            recorded(run, row)
            return
        left_us = (row.due_at or now) - now
    else:
        left_us = due_in_us if due_in_us is not None else (due_at or now) - now
    waiting = _waiting(run, row, "timer", "sleep", key, request)
    if row is None:
        waiting.record(run, "running", due_in_us=due_in_us, due_at=due_at)
    left = max(0.0, left_us / 1_000_000)
    run.begin_wait(key, Wait(reason="timer", due=clock.monotonic() + left, stored=True))
    try:
        await asyncio.sleep(left)
        run.check()
    except asyncio.CancelledError:
        if scopes.lost() and not run.sealed:
            waiting.lose(run)
        raise
    finally:
        run.end_wait(key)
    waiting.record(run, "succeeded")


def _waiting(
    run: Run, row: OperationRow | None, kind: OperationKind, name: str, key: str, request: str
) -> Waiting:
    position = row.position if row is not None else run.known.next_position()
    return Waiting(kind=kind, name=name, key=key, position=position, request=request)


async def wait(run: Run, key: str, name: str, timeout_us: int | None) -> Any:
    """Wait for a signal of a name and answer its data, or answer it from the journal."""
    run.check(waits=True)
    # How long it may take is no part of what is asked for: the first record says, whatever the code says
    # since.
    request = canonical.fingerprint("signal", name, {})
    row = known(run, key, "signal", name, request)
    if row is not None and row.state in ("succeeded", "failed"):
        return recorded(run, row)
    if key in run.works.stepping:
        raise under_way(key)
    waiting = _waiting(run, row, "signal", name, key, request)
    if row is not None:
        return await _listen(run, waiting, row.due_at, None)
    # In line before anything is awaited, so that waits stand in the order in which they were made.
    ear = run.inbox.listen(name, key, waiting.position, None)
    if ear.row is None and timeout_us == 0:
        return await _look_once(run, waiting, ear)
    return await _listen(run, waiting, None, timeout_us, ear)


async def _look_once(run: Run, waiting: Waiting, ear: Ear) -> Any:
    taken = False
    run.works.stepping.add(waiting.key)
    run.active += 1
    try:
        await run.host.insist(run.read_inbox)
        run.check()
        row = ear.row
        if row is None:
            waiting.time_out(run, f"no signal {waiting.name} lies there")
        taken = True
        return _take(run, waiting, row)
    finally:
        run.inbox.leave(ear, taken=taken)
        run.works.stepping.discard(waiting.key)
        run.active -= 1
        run.quiet()


async def _listen(
    run: Run, waiting: Waiting, due_at: int | None, timeout_us: int | None, ear: Ear | None = None
) -> Any:
    """Wait for the signal. timeout_us: of a wait that is not on record yet."""
    fresh = ear is not None
    ear = ear or run.inbox.listen(waiting.name, waiting.key, waiting.position, due_at)
    taken = False
    run.works.stepping.add(waiting.key)
    try:
        if ear.row is None and fresh:
            await on_disk(run, _begun(waiting, timeout_us))
            if timeout_us is not None:
                # Counted from when it was on disk: never earlier than the record says.
                due_at = run.host.session.database_now() + timeout_us
                ear.due_at = due_at
        row = await _arrival(run, waiting, ear, due_at)
        taken = True
        return _take(run, waiting, row)
    except asyncio.CancelledError:
        if scopes.lost() and not run.sealed:
            waiting.lose(run)
        raise
    finally:
        run.inbox.leave(ear, taken=taken)
        run.works.stepping.discard(waiting.key)


def _begun(waiting: Waiting, timeout_us: int | None) -> RecordOperation:
    said = {"operation": waiting.key, "kind": waiting.kind, "name": waiting.name}
    return RecordOperation(
        key=waiting.key,
        position=waiting.position,
        kind=waiting.kind,
        name=waiting.name,
        state="running",
        request=waiting.request,
        due_in_us=timeout_us,
        events=(event("operation.started", **said),),
    )


async def _arrival(run: Run, waiting: Waiting, ear: Ear, due_at: int | None) -> InboxRow:
    """Answer the row that comes for an ear; record and raise that none came in time."""
    while True:
        row = ear.row
        if row is not None:
            run.check()
            return row
        left_us = None if due_at is None else due_at - run.host.session.database_now()
        if left_us is not None and left_us <= 0:
            # What was posted by then counts, though nobody may have told of it, and though it may be on its
            # way to disk yet: that holds the task's head, which an entry of ours waits for.
            await on_disk(run, AppendEvents(events=()))
            await _busily(run)
            if ear.row is None:
                waiting.time_out(run, f"no signal {waiting.name} came in time")
            continue
        await until(run, waiting.key, "signal", ear.arrived, left_us)


async def _busily(run: Run) -> None:
    run.active += 1
    try:
        await run.host.insist(run.read_inbox)
    finally:
        run.active -= 1
        run.quiet()
    run.check()


async def until(run: Run, key: str, reason: str, arrived: asyncio.Future[Any], left_us: int | None) -> None:
    """Wait until a future of the caller's own is done, or for so long; as a wait of the task, which may
    suspend meanwhile."""
    left_s = None if left_us is None else left_us / 1_000_000
    due = None if left_s is None else clock.monotonic() + left_s
    run.begin_wait(key, Wait(reason=reason, due=due, stored=True))
    try:
        if left_s is None:
            await arrived
        else:
            await asyncio.wait({arrived}, timeout=left_s)
    finally:
        run.end_wait(key)


def _take(run: Run, waiting: Waiting, row: InboxRow) -> Any:
    probes.reach("waits.before_take")
    waiting.record(run, "succeeded", result=row.data, takes=(row.number,))
    return values.decode(row.data)


class Callback:
    """A place that somebody outside can answer to, once.

    token: whoever has it can answer. url: where to send the answer, None unless the app knows its public URL.
    secret: what the answer is signed with, None where it need not be. The wait is open from the moment that
    it is made, and so is its time limit.
    """

    def __init__(self, run: Run, key: str, name: str, timeout_us: int | None, *, signed: bool) -> None:
        run.check()
        self.name = name
        place = run.host.callback(run.tenant, run.task, key, signed)
        self.token, self.url, self.secret = place.token, place.url, place.secret
        self._run, self._key = run, key
        self._due_at: int | None = None
        self._recording: asyncio.Future[None] | None = None
        signal = CALLBACK + key
        request = canonical.fingerprint("signal", signal, {"name": name})
        row = known(run, key, "signal", signal, request)
        self._waiting = _waiting(run, row, "signal", signal, key, request)
        if row is None:
            self._begin(timeout_us)
        else:
            self._due_at = row.due_at

    def __repr__(self) -> str:
        return f"Callback({self.name!r})"

    def _begin(self, timeout_us: int | None) -> None:
        recording = self._recording = asyncio.get_running_loop().create_future()

        def told(refused: str | None, error: Exception | None) -> None:
            if timeout_us is not None:
                self._due_at = self._run.host.session.database_now() + timeout_us
            if not recording.done():
                recording.set_result(None)

        self._run.host.journal.append(self._run, _begun(self._waiting, timeout_us), told)

    def wait(self) -> Any:
        """Wait for the answer; answers its data. Raises WaitTimeout, now as on every replay."""
        return self._wait()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        run, key = self._run, self._key
        run.check(waits=True)
        row = run.known.row(key)
        if row is not None and row.state in ("succeeded", "failed"):
            return recorded(run, row)
        if key in run.works.stepping:
            raise under_way(key)
        if self._recording is not None:
            # Other waits do not put the task to sleep before this one is on disk.
            run.active += 1
            try:
                await asyncio.wait({self._recording})
            finally:
                run.active -= 1
                run.quiet()
            run.check()
        return await _listen(run, self._waiting, self._due_at, None)
