"""One attempt: a claimed task, its agent coroutine, its open operations, and how it ends.

Purpose: run the agent's function from the top under one lease, and bring it to exactly one ending.

Identity: (tenant, task, epoch).

State: *open* (operations may be made), then *sealed* (every further operation raises CancelledError and
writes nothing). A run is sealed by the first interruption: lost, suspended, cancelled, expired, drained,
outpaced (somebody else settled one of its operations), mismatched, unstorable.

Facts: a run knows how far it has heard what was posted for its task, and says so when it suspends. It counts
a fact as heard only after it has read what was posted, so that no wake-up is lost in between.

What is fenced: everything it writes goes through the journal under its epoch.

Failure by failure: the lease is lost: the coroutine is cancelled, calls already sent are left to answer,
their answers become evidence. A wait is all that is left: after ``linger_s`` of quiet the lease is given
back, then the coroutine is cancelled. A cancel stands, the deadline passes or the worker drains: calls under
way get ``grace_s``, but for those that change nothing and steps in processes, which a cancel and a deadline
cut at once; what is still open then is unknown and stays in the ledger. Agent code that does not end when it
is cancelled is left behind: the attempt ends on time without it, and it keeps its slot until it returns.

Not covered: code that was left behind goes on computing, but nothing that it does can be written or sent.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

from outlast import clock, probes, telemetry
from outlast.core import retry, values
from outlast.core.operation import OperationKind, OperationState
from outlast.core.record import record
from outlast.core.transitions import WAITING_REASONS
from outlast.engine import mismatch, scopes
from outlast.engine.finding import Inquiries
from outlast.engine.inbox import Inbox
from outlast.engine.journal import Journal
from outlast.engine.limits import Limits
from outlast.engine.registry import AgentSpec, Registry
from outlast.engine.session import Session
from outlast.engine.settings import WorkerSettings
from outlast.engine.spending import Spending
from outlast.engine.wording import event, failure, text_of
from outlast.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LeaseLost,
    OperationError,
    OutlastError,
)
from outlast.store.approving import ApprovalRow
from outlast.store.contract import BatchRejected, Store
from outlast.store.entries import AppendEvents, EndAttempt, Entry
from outlast.store.posting import News
from outlast.store.records import Claimed, Evidence, Loaded, OperationRow, TaskRef
from outlast.tools.passing import Pass

T = TypeVar("T")
Interruption = Literal[
    "lost", "suspended", "expired", "drained", "outpaced", "mismatched", "unstorable", "cancelled"
]


CUTS_AT_ONCE = ("lost", "cancelled", "expired")
"""What cuts harmless work at once, instead of letting it end."""
LEAST_S = 0.25
"""What agent code that was cancelled gets after the grace time, to unwind."""
CALM_TURNS = 16
"""Turns of the loop in which nothing may happen before a task suspends, however short it lingers."""


class Unrecorded(BaseException):
    """A rehearsal has come to what the journal does not hold; the branch goes no further."""


class Outpaced(Exception):
    """The ledger moved on under a lease that still stands: begin again from what is on disk."""


@record
class CallbackPlace:
    """Where a callback is answered. url: None where the app does not know where it is reached. secret: what
    the answer has to be signed with, None where it need not be."""

    token: str
    url: str | None
    secret: str | None


@record
class GatewayPlace:
    """A gateway, and how to sign for it. url: None where the app does not know where it listens."""

    url: str | None
    sign: Callable[[Pass], str]


class Host(Protocol):
    """What a run needs of the worker that runs it."""

    settings: WorkerSettings
    registry: Registry
    journal: Journal
    session: Session
    store: Store
    inquiries: Inquiries
    limits: Limits
    nursery: Any
    """Submits children and reads their ends; see ``nursery.Nursery``."""
    gateway: GatewayPlace | None
    """None where nobody can sign for one."""
    draining: bool
    grace_ends: float | None
    """When the time to let calls end is over, once the worker leaves; by the monotonic clock."""

    def make_room(self) -> None:
        """A run needs its slot no more."""
        ...

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call a blocking function without blocking the loop."""
        ...

    async def in_process(
        self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> str:
        """Call a function in a process of its own; answer its result as JSON text."""
        ...

    def callback(self, tenant: str, task: str, key: str, signed: bool) -> CallbackPlace:
        """Answer where a callback is answered."""
        ...

    def http_client(self) -> Any:
        """The process's shared HTTP client."""
        ...

    async def insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Ask the store, again and again while it is away."""
        ...

    def keep_evidence(self, evidence: Evidence) -> None:
        """Store a piece of evidence that has no lease any more."""
        ...

    def straggle(self, task: asyncio.Task[Any]) -> None:
        """Watch over a call that outlives its run."""
        ...

    def warn_once(self, about: str, advice: str) -> None:
        """Tell developers something, the first time that it is seen in this process."""
        ...


@dataclass(slots=True)
class Wait:
    """An open wait.

    reason: one of the reasons for which tasks wait. due: monotonic second at which it ends by itself, if it
    does. stored: a timer on record. unknown: of a call that is unknown, so that a settlement ends it too.
    """

    reason: str
    due: float | None
    stored: bool
    unknown: bool = False


class Run:
    """One attempt at a task in this process."""

    def __init__(self, host: Host, claimed: Claimed, loaded: Loaded, spec: AgentSpec) -> None:
        self.host = host
        self.claimed = claimed
        self.loaded = loaded
        self.spec = spec
        self.tenant, self.task, self.epoch = claimed.tenant, claimed.task, claimed.epoch
        self.session_id = host.session.id
        self._rows: dict[str, OperationRow] = {row.key: row for row in loaded.operations}
        self._remembered: dict[str, tuple[Any, ...]] = {}
        """Operations that ended in this attempt; few are asked for again, so their rows are made late."""
        self.bound: dict[str, str] = {}
        """The request that each key stands for in this attempt."""
        self.position = max((row.position for row in loaded.operations), default=0)
        self.interruption: Interruption | None = None
        self.detail = ""
        self.sealed = False
        self.ended = False
        self.leaving = False
        """Whether nothing is left but to bring the ending to disk; it holds no slot any more."""
        self.returned = False
        self.open: dict[str, asyncio.Task[None] | None] = {}
        """What works at each operation that is not over; None while its first intent is on its way."""
        self._joined: dict[str, list[asyncio.Future[Any]]] = {}
        self.critical: set[str] = set()
        self.stepping: set[str] = set()
        self.waits: dict[str, Wait] = {}
        self.facts = claimed.facts
        """How far the run has heard what was posted for its task; a suspension says so."""
        self.issued = {row.key: row for row in loaded.issued}
        """Calls that the task which it was forked from has made behind the fork."""
        self.spending = Spending(loaded.budget, loaded.depth, loaded.operations)
        self.instead: Callable[[], Awaitable[EndAttempt]] | None = None
        """What is done in place of the agent's function, such as undoing; answers how the attempt ends."""
        self.conclude: Callable[[EndAttempt], Awaitable[EndAttempt]] | None = None
        """Has the last word on how an attempt ends, once its calls have ended."""
        self.judge: Callable[[dict[str, Any], Any], Awaitable[tuple[str, str, str, str] | None]] | None = None
        """Asked for a verdict on a result, with the typed input, before a success is recorded."""
        self.cancel_heard = False
        self.undoing = False
        """Whether nothing is left but to undo: a cancel cuts that no more."""
        self.approvals: dict[tuple[str, int], ApprovalRow] = {
            (row.key, row.number): row for row in loaded.approvals
        }
        """Questions that its operations asked, by operation and number."""
        self.inbox = Inbox(claimed.facts, loaded.inbox, loaded.operations)
        """Signals and children's ends that were read and not taken."""
        self._posted: set[asyncio.Event] = set()
        self._reads = self._read = 0
        self.cuts: dict[str, Callable[[], object]] = {}
        """How to cut, at once, what is under way and changes nothing outside."""
        self.lost: set[str] = set()
        """Calls whose race was won by another branch: they are not tried again."""
        self.family: Any = None
        """Its children, once it has any; see ``children.Family``."""
        self.promises: dict[str, asyncio.Future[None]] = {}
        """What the agent has begun and an ending waits for: children on their way to be accepted."""
        self.active = 0
        self.touched = 0
        """How often anything of it has moved; a task that rests stays where it is."""
        self._loop = asyncio.get_running_loop()
        self._main: asyncio.Task[Any] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._linger: asyncio.Handle | None = None
        self._overdue: asyncio.TimerHandle | None = None
        self._cut_at: float | None = None
        self._closing: asyncio.Task[None] | None = None

    # -- the fence ------------------------------------------------------------------------------------------

    def fenced_out(self) -> None:
        """The store refused this lease: stop, and write nothing more."""
        self.interrupt("lost", "another worker holds the task")

    def unstorable(self, error: Exception) -> None:
        """What this run wrote cannot be stored: end it by name."""
        self.interrupt("unstorable", text_of(error))

    def guard(self) -> None:
        """Raise LeaseLost unless calls may be sent now; looked at immediately before every send."""
        if (
            self.interruption == "lost"
            or not self.host.session.trusted()
            or self.host.session.id != self.session_id
        ):
            raise LeaseLost(
                f"task {self.task}: the lease of epoch {self.epoch} can no longer be trusted; not sent"
            )

    def check(self, *, waits: bool = False) -> None:
        """Pass a boundary: raise CancelledError when the run is sealed, the worker drains, or this branch
        has lost its race.

        waits: of something that begins to wait; a loser's may be on record, and is recorded as lost when it
        is cut.
        """
        if self.host.draining and self.interruption is None:
            self.interrupt("drained", "the worker is stopping")
        if self.sealed or (not waits and scopes.lost()):
            raise asyncio.CancelledError
        self.touched += 1

    # -- entries --------------------------------------------------------------------------------------------

    def next_position(self) -> int:
        """Take the next place in the ledger."""
        self.position += 1
        return self.position

    def append(self, entry: Entry, *, leisurely: bool = False) -> None:
        """Record an entry without waiting for the disk. leisurely: it starts no batch of its own."""
        self.host.journal.append(self, entry, leisurely=leisurely)

    async def commit(self, entry: Entry) -> str | None:
        """Record an entry and wait until it is on disk; answer the name of its refusal, if it was refused.

        Raises LeaseLost.
        """
        return await self.host.journal.submit(self, entry)

    @property
    def rows(self) -> dict[str, OperationRow]:
        """What is on record of each operation, by key, as far as this attempt knows."""
        for key in list(self._remembered):
            self.row(key)
        return self._rows

    def row(self, key: str) -> OperationRow | None:
        """Answer what is on record under a key, as far as this attempt knows."""
        remembered = self._remembered.pop(key, None)
        if remembered is None:
            return self._rows.get(key)
        position, kind, name, state, request, result, error = remembered
        row = self._rows[key] = OperationRow(
            tenant=self.tenant,
            task=self.task,
            key=key,
            position=position,
            kind=kind,
            name=name,
            state=state,
            request=request,
            result=result,
            error=error,
        )
        return row

    def remember(
        self,
        key: str,
        position: int,
        kind: OperationKind,
        name: str,
        state: OperationState,
        request: str,
        result: str | None = None,
        error: str | None = None,
    ) -> None:
        """Keep a finished operation in memory too: the same key may be asked for again in this attempt."""
        self._remembered[key] = (position, kind, name, state, request, result, error)

    def say(self, level: str, message: str) -> None:
        """Put a line into the task's stream."""
        self.append(AppendEvents(events=(event("log", level=level, message=message),)))

    def meet(self, key: str, kind: OperationKind, name: str, row: OperationRow | None) -> None:
        """Note that the agent's code asks for an operation; for rehearsals, which go no further than the
        journal."""

    # -- what is posted from outside ------------------------------------------------------------------------

    async def hear(self, news: News) -> None:
        """Take in that something was posted: read it, then wake whoever waits. Raises StoreUnavailable."""
        if self.ended or self.interruption == "lost":
            return
        if news.cancelling:
            self.cancel_heard = True
            if not self.undoing:
                self.interrupt("cancelled", "a cancel stands")
                return
        if news.facts <= self.facts:
            return
        await self.read_inbox()
        # Questions may be those of an earlier attempt, which came with the journal.
        if self.approvals or self._reads:
            await self.read_approvals()
        # Only now: a suspension before this would not have seen what was posted.
        self.facts = max(self.facts, news.facts)
        for posted in self._posted:
            posted.set()

    async def read_inbox(self) -> None:
        """Read what was posted since the inbox was read last. Raises StoreUnavailable."""
        self.inbox.add(await self.host.store.read_inbox(self.tenant, self.task, self.inbox.seen))

    async def read_approvals(self) -> None:
        """Read again what people have said of this task's questions."""
        self._reads += 1
        number = self._reads
        rows = await self.host.insist(lambda: self.host.store.read_approvals(self.tenant, self.task))
        # An answer that comes after that of a later question may be older than it.
        if number > self._read:
            self._read = number
            self.approvals = {(row.key, row.number): row for row in rows}

    def has_asked(self, key: str) -> bool:
        """Answer whether people have been asked about an operation."""
        return any(of == key for of, _ in self.approvals)

    async def wait_for_news(
        self, key: str, wait: Wait, seconds: float | None, *, since: int | None = None
    ) -> bool:
        """Wait until something was posted for the task, or for so many seconds; answer whether it was.

        since: the run's facts before the caller looked for the last time. Left out by callers that have
        looked without an await since, so that nothing can slip in between.
        """
        if since is not None and self.facts > since:
            return True
        posted = asyncio.Event()
        self._posted.add(posted)
        self.begin_wait(key, wait)
        try:
            async with asyncio.timeout(seconds):
                await posted.wait()
            return True
        except TimeoutError:
            return False
        finally:
            self._posted.discard(posted)
            self.end_wait(key)

    # -- interruptions --------------------------------------------------------------------------------------

    def interrupt(self, kind: Interruption, detail: str = "") -> None:
        """Seal the run for a reason; the first one counts, but faults of the journal override the rest."""
        if self.ended or self.interruption == "lost":
            return
        if (self.returned or self.interruption is not None) and kind not in ("lost", "unstorable"):
            return
        self.interruption, self.detail, self.sealed = kind, detail, True
        self._stop_timers()
        if kind == "lost":
            self.host.journal.forget(self)
        elif kind != "suspended":
            self._arm_overdue()
        if kind in CUTS_AT_ONCE:
            for cut in list(self.cuts.values()):
                cut()
        self._cut_idle()
        # Once the agent has returned there is nothing left to cut, only an ending to bring to disk.
        if kind != "suspended" and self._main is not None and not self.returned:
            self._main.cancel()

    def _arm_overdue(self) -> None:
        """Give what is under way its time to end, the agent's own code included."""
        self._cut_at = clock.monotonic() + self._grace_s()
        if not self.returned:
            self._overdue = self._loop.call_later(self._grace_s(), self._leave_behind)

    def _grace_s(self) -> float:
        grace_s = self.host.settings.grace_s
        if self.host.grace_ends is not None:
            # The worker leaves, and has waited for them already.
            grace_s = min(grace_s, max(0.0, self.host.grace_ends - clock.monotonic()))
        return grace_s

    def _leave_behind(self, *, looked: bool = False) -> None:
        """End the attempt without its agent's code, which did not end when it was cancelled."""
        self._overdue = None
        if self.returned or self._closing is not None:
            return
        if not looked:
            # Where the whole process stood still, the agent's code has not had its time either.
            again = functools.partial(self._leave_behind, looked=True)
            self._overdue = self._loop.call_later(LEAST_S, again)
            return
        self.host.warn_once(
            f"agent {self.spec.name} did not end when it was cancelled; its attempts end without it",
            "let CancelledError through, and look at task.cancelled in loops that run long",
        )
        self._closing = self._loop.create_task(self._finish(None))
        self.host.straggle(self._closing)

    def _arm_deadline(self) -> None:
        if self.claimed.deadline_at is None:
            return
        left = (self.claimed.deadline_at - self.host.session.database_now()) / 1_000_000
        self._deadline = self._loop.call_later(
            max(left, 0.0), self.interrupt, "expired", "the task's deadline passed"
        )

    def _stop_timers(self) -> None:
        for handle in (self._deadline, self._linger, self._overdue):
            if handle is not None:
                handle.cancel()

    def remaining_s(self) -> float | None:
        """Seconds until the task's deadline by the best estimate, or None."""
        if self.claimed.deadline_at is None:
            return None
        return (self.claimed.deadline_at - self.host.session.database_now()) / 1_000_000

    def _awake_from(self) -> float | None:
        """Answer from when on it has to be awake, by the monotonic clock, None for a task that need not be.

        One that undoes is there when its time runs out, so that what it has done is put before people.
        """
        left = self.remaining_s() if self.spec.undoes or self.undoing else None
        return None if left is None else clock.monotonic() + left - self.host.settings.grace_s

    def _lives_to_see(self, delay: float) -> bool:
        """Answer whether another attempt after so many seconds is worth waiting for.

        What is to be undone is undone now, while there is time, where the wait would only let that run out.
        """
        awake_from = self._awake_from()
        return awake_from is None or clock.monotonic() + delay < awake_from

    # -- waits and suspension -------------------------------------------------------------------------------

    def begin_wait(self, key: str, wait: Wait) -> None:
        """Note that an operation does nothing but wait."""
        self.waits[key] = wait
        self.quiet()

    def end_wait(self, key: str) -> None:
        """Note that a wait is over."""
        self.waits.pop(key, None)
        self.touched += 1

    def quiet(self) -> None:
        """Suspend after a while if nothing but waits stays open."""
        if not self.waits or self.active or self.sealed or self._linger is not None:
            return
        self._linger = self._loop.call_later(self.host.settings.linger_s, self._consider, self.touched)

    def _consider(self, touched: int, turns: int = CALM_TURNS) -> None:
        self._linger = None
        if self.sealed or not self.waits or self.active:
            return
        if self.touched != touched or self._stirred():
            self.quiet()
            return
        if turns:
            # What has just ended may be on its way through the agent's own tasks to its next operation.
            self._linger = self._loop.call_soon(self._consider, touched, turns - 1)
            return
        if self.inbox.settle_absent():
            self.quiet()
            return
        awake_from = self._awake_from()
        if awake_from is not None and awake_from <= clock.monotonic():
            return
        # What it waits for is taken before the waiting operations are cancelled.
        ending = self._suspension()
        self.interrupt("suspended")
        self._closing = self._loop.create_task(self._suspend(ending))
        self.host.straggle(self._closing)

    def _stirred(self) -> bool:
        """Whether something was heard, and whoever waited for it has not gone on yet."""
        return bool(self.inbox.handed) or any(posted.is_set() for posted in self._posted)

    def _suspension(self) -> EndAttempt:
        reasons = {wait.reason for wait in self.waits.values()}
        if any(wait.unknown for wait in self.waits.values()):
            reasons.add("reconciliation")
        reason = next(name for name in WAITING_REASONS if name in reasons)
        due = [wait.due for wait in self.waits.values() if wait.due is not None]
        awake_from = self._awake_from()
        if awake_from is not None:
            due.append(awake_from)
        wake_in_us: int | None = None
        if awake_from is not None or any(
            wait.due is not None and not wait.stored for wait in self.waits.values()
        ):
            wake_in_us = max(0, int((min(due) - clock.monotonic()) * 1_000_000))
        return EndAttempt(
            attempt_end="suspended",
            task_state="waiting",
            reason=reason,
            facts=self.facts,
            wake_in_us=wake_in_us,
        )

    async def _suspend(self, ending: EndAttempt) -> None:
        """Give back the lease, then cancel the coroutine."""
        probes.reach("worker.before_suspend")
        await self._end(ending)
        probes.reach("worker.after_suspend")
        if self._main is not None and not self.returned:
            self._main.cancel()

    # -- running --------------------------------------------------------------------------------------------

    def own(self, key: str, work: Coroutine[Any, Any, None], context: Context | None = None) -> None:
        """Run an operation in a task of its own, which a cancelled caller does not cut.

        work: says by ``close`` how it has ended. context: its caller's, where this is another's turn.
        """
        task = self._loop.create_task(work, context=context or scopes.outside_races())
        self.open[key] = task
        if self.interruption == "lost":
            self.host.straggle(task)

    def join(self, key: str) -> asyncio.Future[Any]:
        """Answer a future of an open operation's result; to cancel it leaves the operation alone."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._joined.setdefault(key, []).append(future)
        return future

    def let_go(self, key: str) -> None:
        """Leave an open operation alone, since its race is lost: what is under way ends and is recorded, what
        is not is not begun any more."""
        if any(not future.done() for future in self._joined.get(key, ())):
            return
        self.lost.add(key)
        self.cut(key)

    def cut(self, key: str) -> None:
        """Cut an operation short, unless it is at something that has to end."""
        task = self.open.get(key)
        if task is not None and key not in self.critical:
            task.cancel()

    def _cut_idle(self) -> None:
        for key in list(self.open):
            self.cut(key)

    def close(self, key: str, result: Any, error: BaseException | None) -> None:
        """Tell whoever has joined an operation how it has ended."""
        self.open.pop(key, None)
        for future in self._joined.pop(key, ()):
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            elif isinstance(error, asyncio.CancelledError):
                future.cancel()
            else:
                future.set_exception(error)
                # Who waited for nothing but its end does not look at what it was.
                future.exception()

    async def execute(self, context: Any) -> None:
        """Run the agent's function to the end of this attempt."""
        self._main = asyncio.current_task()
        scopes.enter(scopes.Scope(path="", owner=self._main))
        ending: EndAttempt | None = None
        try:
            arguments = {}
            if self.instead is None:
                arguments = self.spec.signature.check(values.decode(self.loaded.input))
            self._arm_deadline()
            # A process that stood still since the claim may have lost the task: not one step of it begins.
            await self.host.session.trust()
            self.check()
            if self.instead is not None:
                ending = await self.instead()
            else:
                result = await self.spec.function(context, **arguments)
                ending = self._success(result)
                if ending.attempt_end == "succeeded" and self.judge is not None:
                    # The work is done: neither a cancel nor its deadline cuts the look at it.
                    self.returned = True
                    judged = await self.judge(arguments, values.decode(ending.result or "null"))
                    ending = replace(ending, judged=judged)
        except asyncio.CancelledError:
            ending = self._failed("cancelled_inside", "the agent's own code cancelled it", retryable=False)
        except OperationError as error:
            ending = self._failed(
                error.code,
                str(error),
                retryable=error.retryable,
                operation=error.operation,
                reason=error.reason,
            )
        except OutlastError as error:
            ending = self._failed(error.code, str(error), retryable=False)
        except KeyboardInterrupt:
            raise
        # Agent code may raise anything, sys.exit() included; it ends the attempt, none may end the worker.
        except BaseException as error:
            ending = self._failed("agent_error", text_of(error), retryable=True)
        self.returned = True
        await self._absorb_cancellation()
        if self.interruption is not None:
            # What the function answered or raised was made of operations that were cut; it is not its own.
            ending = None
        try:
            await self._finish(ending)
        except LeaseLost:
            self.interrupt("lost", "another worker holds the task")
        finally:
            self.sealed = True
            self._stop_timers()
        if self.interruption == "lost":
            for task in list(self.open.values()):
                if task is not None:
                    self.host.straggle(task)

    async def _absorb_cancellation(self) -> None:
        """Take a cancellation that the agent did not live to see, so that it does not cut the ending short.

        An interruption from within the agent's own step is raised there and then, and is due once more at the
        next await.
        """
        if self._main is None or not self._main.cancelling():
            return
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        while self._main.cancelling():
            self._main.uncancel()

    async def _finish(self, ending: EndAttempt | None) -> None:
        if self._closing is not None and self._closing is not asyncio.current_task():
            # The agent may be out of its waits before that is on disk, and it may yet be refused.
            await asyncio.wait({self._closing})
        if self.ended or self.interruption in ("lost", "suspended"):
            return
        if self.interruption is None and self.promises:
            await asyncio.wait(set(self.promises.values()))
        await self._drain_calls()
        if self.interruption == "lost":
            return
        if ending is None or self.interruption is not None:
            ending = await self._interrupted()
        if self.conclude is not None:
            ending = await self.conclude(ending)
        probes.reach("worker.before_end")
        if self.returned:
            self.leaving = True
            self.host.make_room()
        try:
            await self._end(ending)
        except BatchRejected as error:
            ending = self._failed("result_unstorable", text_of(error), retryable=False)
            await self._end(ending if self.conclude is None else await self.conclude(ending))
        probes.reach("worker.after_end")

    async def _interrupted(self) -> EndAttempt:
        match self.interruption:
            case "drained" | "outpaced" | "cancelled":
                # With a cancel standing the store makes cancelled of it, for the reason that is on record
                # there; or, where what was done is to be undone first, hands it out again for that.
                return EndAttempt(attempt_end="released", task_state="queued", facts=self.facts)
            case "expired":
                return self._failed(DeadlineExceeded.code, self.detail, retryable=False)
            case "mismatched":
                store, ref = self.host.store, TaskRef(tenant=self.tenant, task=self.task)
                pause_s = await self.host.insist(lambda: mismatch.pause_s(store, ref))
                return EndAttempt(
                    attempt_end="suspended",
                    task_state="waiting",
                    reason="operator",
                    facts=self.facts,
                    # Not by the timers of its operations: it would come to the same end again and again.
                    wake_in_us=int(pause_s * 1_000_000),
                    events=(mismatch.noted(self.detail),),
                )
            case _:
                return self._failed("journal_rejected", self.detail, retryable=False)

    async def _drain_calls(self) -> None:
        """Let calls under way end within the grace time, then cut them; cut calls record what they know."""
        self.sealed = True
        calls = {self.join(key): key for key in self.open if key in self.critical}
        self._cut_idle()
        if calls:
            grace_s = self._grace_s()
            if self._cut_at is not None:
                grace_s = min(grace_s, max(0.0, self._cut_at - clock.monotonic()))
            _, late = await asyncio.wait(calls, timeout=grace_s)
            for future in late:
                task = self.open[calls[future]]
                if task is None:
                    # Its intent is not answered: nothing was sent, and nothing will be.
                    self.close(calls[future], None, asyncio.CancelledError())
                else:
                    task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)

    def _success(self, result: Any) -> EndAttempt:
        try:
            text = values.encode(values.normalise(result), what="result")
        except InvalidRequest as error:
            return self._failed(error.code, f"the agent's result cannot be stored: {error}", retryable=False)
        return EndAttempt(
            attempt_end="succeeded",
            task_state="succeeded",
            result=text,
            heard=self.host.nursery.expects(self),
        )

    def _failed(self, code: str, message: str, *, retryable: bool, **more: Any) -> EndAttempt:
        error = failure(code, message, **{name: value for name, value in more.items() if value})
        if retryable and self.spec.retry is not None and self.interruption is None:
            # Only the number of attempts caps an agent: a task may rightly have waited for days in between.
            delay = retry.next_delay(self.spec.retry, self.loaded.failures, 0.0, clock.uniform())
            if isinstance(delay, float | int) and self._lives_to_see(delay):
                return EndAttempt(
                    attempt_end="failed",
                    task_state="waiting",
                    reason="timer",
                    facts=self.facts,
                    error=error,
                    wake_in_us=int(delay * 1_000_000),
                    reopen=tuple(key for key, row in self.rows.items() if self._reopens(row)),
                )
        return EndAttempt(
            attempt_end="failed", task_state="failed", error=error, heard=self.host.nursery.expects(self)
        )

    @staticmethod
    def _reopens(row: OperationRow) -> bool:
        return (
            row.state == "failed"
            and bool(row.error)
            and bool(values.decode(row.error or "{}").get("retryable"))
        )

    async def _end(self, ending: EndAttempt) -> None:
        told = self.host.nursery.teller(self, ending) if ending.heard else None
        await self.host.journal.submit(self, ending, told)
        self.ended = True
        telemetry.emit(
            telemetry.AttemptEnded(
                tenant=self.tenant,
                task=self.task,
                epoch=self.epoch,
                agent=self.spec.name,
                end="cancelled" if self.interruption == "cancelled" else ending.attempt_end,
                detail=ending.reason or "",
            )
        )
