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
from typing import Any, Literal, TypeVar

from outlast import clock, probes, telemetry
from outlast.core import values
from outlast.core.operation import OperationKind
from outlast.engine import endings, scopes
from outlast.engine.host import Host
from outlast.engine.inbox import Inbox
from outlast.engine.known import Known
from outlast.engine.registry import AgentSpec
from outlast.engine.spending import Spending
from outlast.engine.wording import event, text_of
from outlast.engine.works import Works
from outlast.errors import (
    LeaseLost,
    OperationError,
    OutlastError,
)
from outlast.store.approving import ApprovalRow
from outlast.store.contract import BatchRejected
from outlast.store.entries import AppendEvents, EndAttempt, Entry
from outlast.store.posting import News
from outlast.store.records import Claimed, Loaded, OperationRow

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
        self.known = Known(self.tenant, self.task, loaded)
        self.interruption: Interruption | None = None
        self.detail = ""
        self.sealed = False
        self.ended = False
        self.leaving = False
        """Whether nothing is left but to bring the ending to disk; it holds no slot any more."""
        self.returned = False
        self.works = Works()
        self.waits: dict[str, Wait] = {}
        self.facts = claimed.facts
        """How far the run has heard what was posted for its task; a suspension says so."""
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
        self.family: Any = None
        """Its children, once it has any; see ``children.Family``."""
        self.promises: dict[str, asyncio.Future[None]] = {}
        """What the agent has begun and an ending waits for: children on their way to be accepted."""
        self.active = 0
        """How much of it is at something other than a wait: steps, calls, records on their way."""
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

    def append(self, entry: Entry, *, leisurely: bool = False) -> None:
        """Record an entry without waiting for the disk. leisurely: it starts no batch of its own."""
        self.host.journal.append(self, entry, leisurely=leisurely)

    async def commit(self, entry: Entry) -> str | None:
        """Record an entry and wait until it is on disk; answer the name of its refusal, if it was refused.

        Raises LeaseLost.
        """
        return await self.host.journal.submit(self, entry)

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
            self.works.cut_harmless()
        self.works.cut_idle()
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
        left = self.remaining_s()
        if left is None:
            return
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

    def awake_from(self) -> float | None:
        """Answer from when on it has to be awake, by the monotonic clock, None for a task that need not be.

        One that undoes is there when its time runs out, so that what it has done is put before people.
        """
        left = self.remaining_s() if self.spec.undoes or self.undoing else None
        return None if left is None else clock.monotonic() + left - self.host.settings.grace_s

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
        awake_from = self.awake_from()
        if awake_from is not None and awake_from <= clock.monotonic():
            return
        # What it waits for is taken before the waiting operations are cancelled.
        ending = endings.suspended(self)
        self.interrupt("suspended")
        self._closing = self._loop.create_task(self._suspend(ending))
        self.host.straggle(self._closing)

    def _stirred(self) -> bool:
        """Whether something was heard, and whoever waited for it has not gone on yet."""
        return bool(self.inbox.handed) or any(posted.is_set() for posted in self._posted)

    async def _suspend(self, ending: EndAttempt) -> None:
        """Give back the lease, then cancel the coroutine."""
        probes.reach("worker.before_suspend")
        await self._end(ending)
        probes.reach("worker.after_suspend")
        if self._main is not None and not self.returned:
            self._main.cancel()

    # -- running --------------------------------------------------------------------------------------------

    def own(self, key: str, work: Coroutine[Any, Any, None], context: Context | None = None) -> None:
        """Work at an operation in a task of its own; see ``works.Works.own``."""
        task = self.works.own(key, work, context)
        if self.interruption == "lost":
            self.host.straggle(task)

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
            # It may have been interrupted before its first turn, when there was nothing to cancel yet.
            self.check()
            # A process that stood still since the claim may have lost the task: not one step of it begins.
            await self.host.session.trust()
            self.check()
            if self.instead is not None:
                ending = await self.instead()
            else:
                result = await self.spec.function(context, **arguments)
                ending = endings.succeeded(self, result)
                if ending.attempt_end == "succeeded" and self.judge is not None:
                    # The work is done: neither a cancel nor its deadline cuts the look at it.
                    self.returned = True
                    judged = await self.judge(arguments, values.decode(ending.result or "null"))
                    ending = replace(ending, judged=judged)
        except asyncio.CancelledError:
            ending = endings.failed(
                self, "cancelled_inside", "the agent's own code cancelled it", retryable=False
            )
        except OperationError as error:
            ending = endings.failed(
                self,
                error.code,
                str(error),
                retryable=error.retryable,
                operation=error.operation,
                reason=error.reason,
            )
        except OutlastError as error:
            ending = endings.failed(self, error.code, str(error), retryable=False)
        except KeyboardInterrupt:
            raise
        # Agent code may raise anything, sys.exit() included; it ends the attempt, none may end the worker.
        except BaseException as error:
            ending = endings.failed(self, "agent_error", text_of(error), retryable=True)
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
            for task in list(self.works.open.values()):
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
            ending = await self.after_interruption()
        if self.conclude is not None:
            ending = await self.conclude(ending)
        probes.reach("worker.before_end")
        if self.returned:
            self.leaving = True
            self.host.make_room()
        try:
            await self._end(ending)
        except BatchRejected as error:
            ending = endings.failed(self, "result_unstorable", text_of(error), retryable=False)
            await self._end(ending if self.conclude is None else await self.conclude(ending))
        probes.reach("worker.after_end")

    async def after_interruption(self) -> EndAttempt:
        """Answer how an attempt ends that was interrupted."""
        return await endings.interrupted(self)

    async def _drain_calls(self) -> None:
        """Let calls under way end within the grace time, then cut them; cut calls record what they know."""
        self.sealed = True
        grace_s = self._grace_s()
        if self._cut_at is not None:
            grace_s = min(grace_s, max(0.0, self._cut_at - clock.monotonic()))
        await self.works.drain(grace_s)

    async def _end(self, ending: EndAttempt) -> None:
        await self.host.journal.submit(self, ending, self.host.teller(self, ending))
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
