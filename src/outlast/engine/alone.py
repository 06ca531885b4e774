"""The ledger alone: the guarantees of a tool call for code that is no agent of ours.

Purpose: code inside another engine's step, or a plain script, makes tool calls with an intent before and an
outcome after, settling, business keys, policy and approvals, pauses and cancels, as an agent does.

Identity: a *scope*, named by whoever uses it, is one task of the reserved agent ``AGENT``; its id comes from
tenant and scope, so that the same scope is the same task wherever it is entered. Its pool is its own, so that
to claim from that pool is to claim exactly this task. Operations have keys as in an agent.

State: a block that enters the scope holds the task's lease, under a session of its own; to leave it gives the
lease back, and the task waits for a signal until the scope is entered again. It ends as succeeded when it is
closed, and then its calls are only read.

What is fenced: as in any attempt; the block is an attempt whose agent code runs elsewhere.

Failure by failure: killed inside the block: the next entry waits for the lease to run out, sweeps it itself
where no worker does, and finds what was under way as an unknown. Two processes at once: one waits, and is
refused by name when its time is over. A frozen one that thaws after its lease was swept: its calls raise
LeaseLost, and it does not claim again. What only a person or time can move: the call raises a named error
instead of waiting, since a script cannot be suspended; nothing of it goes on behind its caller's back. The
block fails: calls that failed and may be tried again are opened again, for whoever enters next does so to try
again.

Not covered: what the block does besides its calls. A lane of the queue stays behind for each scope.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn

from outlast import clock
from outlast.core import canonical, ids, values
from outlast.core.record import record
from outlast.engine import effects
from outlast.engine.hearing import Hearing
from outlast.engine.host import GatewayPlace
from outlast.engine.housekeeping import sweeper
from outlast.engine.housekeeping.delivering import keep_delivering
from outlast.engine.registry import AgentSpec, Registry, ToolSpec
from outlast.engine.run import CALM_TURNS, Wait
from outlast.engine.scoped import Patience, Scoped
from outlast.engine.settings import WorkerSettings
from outlast.engine.signature import Signature
from outlast.engine.worker import CUT_S, Worker
from outlast.errors import (
    ApprovalPending,
    CallHeld,
    ConfigurationError,
    DeadlineExceeded,
    LeaseLost,
    OperationConflict,
    OperationError,
    ScopeBusy,
    StoreUnavailable,
    TaskCancelled,
    TaskEnded,
    Unserializable,
    Unsettled,
)
from outlast.store.contract import Store
from outlast.store.entries import RecordOperation
from outlast.store.posting import Signal
from outlast.store.records import Claimed, Submission, TaskRef
from outlast.store.rows import OperationFilter, TaskRow

AGENT: Final = "outlast.ledger"
"""The agent that scopes are tasks of; nobody can register it."""
VERSION: Final = "1"
ENTER: Final = "enter"
"""The signal that a scope waits for, and the operation that takes it."""
CLAIMING_S: Final = 10.0
"""How long it may take at most to claim a scope that nobody is in."""
FINAL: Final = ("succeeded", "failed")


def task_of(tenant: str, scope: str) -> str:
    """Make the id of a scope's task. It tells no time, and sorts before every task that does."""
    digest = hashlib.sha256(f"{tenant}\n{scope}".encode()).digest()
    return ids.new_id(ids.TASK, 0, int.from_bytes(digest[:10]) >> 6)


@record
class Place:
    """A scope. user: on whose behalf it calls, for policy. deadline_us: how long after its first entry it has
    to be closed."""

    tenant: str
    scope: str
    user: str | None = None
    deadline_us: int | None = None

    @property
    def task(self) -> str:
        """The id of its task."""
        return task_of(self.tenant, self.scope)

    @property
    def pool(self) -> str:
        """The pool that only its task is in."""
        return f"{AGENT}/{self.task}"

    def submission(self) -> Submission:
        """Answer what makes the task, the first time."""
        return Submission(
            tenant=self.tenant,
            task=self.task,
            key=None,
            request_digest="",
            agent=AGENT,
            version=VERSION,
            pool=self.pool,
            input=values.encode({"scope": self.scope}),
            user=self.user,
            deadline_us=self.deadline_us,
        )


class Alone(Worker):
    """A worker of one task, whose agent code is the block that entered it."""

    attempt_of = Scoped

    def __init__(
        self,
        place: Place,
        tools: dict[str, ToolSpec],
        store: Store,
        settings: WorkerSettings,
        gateway: GatewayPlace | None,
    ) -> None:
        spec = AgentSpec(
            name=AGENT,
            version=VERSION,
            pool=place.pool,
            function=self._hold,
            signature=Signature.of(_input, skip=0, owner=AGENT),
            deadline_us=None,
            retry=None,
        )
        registry = Registry(agents={(AGENT, VERSION): spec}, latest={AGENT: VERSION}, tools=tools)
        super().__init__(registry, store, replace(settings, slots=1, pools=(place.pool,)), gateway=gateway)
        self.place = place
        self._spec = spec
        self._held: Scoped | None = None
        self._past: Scoped | None = None
        """What is on record of a scope that was closed."""
        self._entered: asyncio.Event = asyncio.Event()
        self._left: asyncio.Event = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._gone = False

    # -- entering -------------------------------------------------------------------------------------------

    async def enter(self, timeout_s: float) -> None:
        """Hold the scope. timeout_s: how long to wait while somebody else does.

        Raises ScopeBusy, TaskCancelled, TaskEnded (the scope has failed), StoreUnavailable.
        """
        (submitted,) = await self.store.submit([self.place.submission()])
        if submitted.kind not in ("accepted", "replayed"):
            raise ConfigurationError(f"the task of scope {self.place.scope!r} cannot be made: {submitted}")
        row = await self._read()
        if row.state != "succeeded":
            self._serving = asyncio.get_running_loop().create_task(self.run())
            try:
                row = await self._claimed(row, timeout_s)
            except BaseException:
                await self._stopped()
                raise
        if row.state == "succeeded":
            await self._stopped()
            await self._read_past(row)

    async def _claimed(self, row: TaskRow, timeout_s: float) -> TaskRow:
        """Wait until the scope is claimed; answer its task, which may have succeeded meanwhile."""
        assert self._serving is not None
        began, swept_at = clock.monotonic(), float("-inf")
        entered = asyncio.get_running_loop().create_task(self._entered.wait())
        try:
            while True:
                if row.state == "succeeded":
                    return row
                _refuse_ended(row)
                left = began + timeout_s - clock.monotonic()
                if row.state == "waiting":
                    await self._knock()
                elif row.state == "running" and clock.monotonic() >= swept_at + self.settings.sweep_s:
                    # Where there are only scripts nobody else finds out that one has died.
                    swept_at = clock.monotonic()
                    if (await sweeper.sweep_once(self.store, self.settings)).lost:
                        row = await self._read()
                        continue
                if row.state != "running":
                    left = max(left, began + CLAIMING_S - clock.monotonic())
                pause = max(0.0, min(self.settings.poll_s, left))
                await asyncio.wait(
                    {entered, self._serving}, timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                if self._entered.is_set():
                    return row
                if self._serving.done():
                    self._serving.result()
                row = await self._read()
                if row.state == "running" and left <= 0 and not self._entered.is_set():
                    raise ScopeBusy(
                        f"somebody else is in scope {self.place.scope!r}; their lease runs out"
                        f" {self.settings.lease_s:g} s after their death at the latest",
                        retry_after=self.settings.lease_s,
                    )
                if left <= 0 and clock.monotonic() > began + max(timeout_s, CLAIMING_S):
                    raise ScopeBusy(f"scope {self.place.scope!r} could not be claimed in time")
        finally:
            entered.cancel()

    async def _read(self) -> TaskRow:
        (row,) = await self.store.read_tasks([TaskRef(tenant=self.place.tenant, task=self.place.task)])
        return row

    async def _knock(self) -> None:
        """Wake the scope's task, so that it can be claimed."""
        await self.store.post(
            [Signal(tenant=self.place.tenant, task=self.place.task, name=ENTER, data="null", digest="")]
        )

    async def _read_past(self, row: TaskRow) -> None:
        claimed = Claimed(
            tenant=row.tenant, task=row.task, epoch=row.epoch, round=row.round, agent=AGENT,
            version=VERSION, facts=0, deadline_at=None,
        )  # fmt: skip
        (loaded,) = await self.store.load([claimed])
        self._past = Scoped(self, claimed, loaded, self._spec)
        # It is over: nothing that is found out about it can interrupt it.
        self._past.returned = True

    async def _hold(self, context: Any, scope: str) -> None:
        """Be the agent's code: stand for the block until it is left for good."""
        run = self.run_of(context.tenant, context.id)
        assert isinstance(run, Scoped)
        known = run.known.rows.get(ENTER)
        run.append(
            RecordOperation(
                key=ENTER,
                position=run.known.next_position() if known is None else known.position,
                kind="signal",
                name=ENTER,
                state="running",
                request=canonical.fingerprint("signal", ENTER, {}),
                takes=tuple(row.number for row in run.loaded.inbox if row.name == ENTER),
            )
        )
        self._held = run
        self._entered.set()
        await self._left.wait()

    def duties(self) -> list[Any]:
        """Keep the lease, and hear what is posted. Of others' work only the delivery is done here: where
        there are only scripts, nobody else tells that a switch was taken back."""
        return [self.session.keep(), Hearing(self).keep(), keep_delivering(self.store, self.settings)]

    def _session_lost(self, session: str) -> None:
        super()._session_lost(session)
        if self._held is not None:
            # Whoever was frozen does not come back: the block ran under the lease that is gone.
            self.stop()

    # -- leaving --------------------------------------------------------------------------------------------

    async def leave(self, *, final: bool, again: bool) -> None:
        """Give the scope back. final: end it as succeeded. again: the block failed, and is to be tried again.

        Raises what kept a scope from ending that was to end: LeaseLost, TaskCancelled, DeadlineExceeded,
        StoreUnavailable.
        """
        run, self._gone = self._held, True
        if run is None:
            return
        attempt = self.runs.get(run)
        if final and not run.sealed:
            self._left.set()
            if attempt is not None:
                await asyncio.wait({attempt}, timeout=self.settings.grace_s + CUT_S)
        elif not run.sealed:
            run.leave(again=again)
        await self._stopped()
        if final:
            if run.interruption is not None:
                self._refuse(run)
            if not run.ended:
                raise StoreUnavailable(f"scope {self.place.scope!r} could not be ended: its store is away")

    async def _stopped(self) -> None:
        self.stop()
        if self._serving is not None:
            # It drains within its grace time, also where the caller is cancelled meanwhile.
            await asyncio.shield(self._serving)

    # -- calling --------------------------------------------------------------------------------------------

    def spec_of(self, tool: Any) -> ToolSpec:
        """Find a tool's spec. Raises ConfigurationError."""
        return self._spec_of(tool)

    async def call(
        self, key: str, tool: ToolSpec, args: Sequence[Any], named: dict[str, Any], patience_s: float
    ) -> Any:
        """Make a call, or answer it from the ledger; see ``outlast.alone.Ledger.call``."""
        if self._past is not None:
            return await self._recall(self._past, key, tool, args, named)
        run, me = self._held, asyncio.current_task()
        if run is None or self._gone:
            raise ConfigurationError(
                f"scope {self.place.scope!r} is not entered: use 'async with app.ledger(…) as ledger:'"
            )
        assert me is not None
        cancels, patience = me.cancelling(), Patience(patience_s)
        while True:
            if run.sealed:
                self._refuse(run)
            making = asyncio.get_running_loop().create_task(effects.call(run, key, tool, tuple(args), named))
            making.add_done_callback(_heard)
            try:
                await self._accompany(run, key, making, patience)
                result = await making
            except asyncio.CancelledError:
                if me.cancelling() > cancels:
                    raise
            except OperationError:
                await self.journal.settled()
                raise
            else:
                # What is told to the block may leave the process: it is on disk.
                await self.journal.settled()
                run.owed.pop(key, None)
                return result
            finally:
                making.cancel()
            if not run.sealed:
                await self._look_again(run, key)

    async def _accompany(self, run: Scoped, key: str, making: asyncio.Task[Any], patience: Patience) -> None:
        """Wait for a call's end; give up what waits for longer than it may. Raises the CallPending family."""
        while not making.done():
            wait, left = run.waits.get(key), None
            if wait is not None:
                left = patience.left(wait)
                if wait.reason == "reconciliation":
                    left = await self._until_asked(run, key, left)
                    if left is None:
                        continue
                elif left <= 0:
                    await self._give_up(run, key, wait)
            await asyncio.wait({making, run.stirring()}, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    async def _until_asked(self, run: Scoped, key: str, left: float) -> float | None:
        """Answer how long to wait for a settlement, or None when it is time to look again.

        No settler looks at a task that has a lease: this block asks, when the plan says so.
        """
        place = await self.insist(lambda: self.store.read_open(run.tenant, run.task, key))
        if place is None or place.resend:
            # Settled by somebody: the call hears of it, and begins again from what is on disk.
            await self._withdraw(run, key)
            return None
        due = None if place.ask_at is None else (place.ask_at - self.session.database_now()) / 1_000_000
        if left <= 0 or (due is not None and due > left):
            operation = ids.operation_id(run.task, key)
            plan = "person" if due is None else "wait"
            await self._withdraw(run, key)
            run.owed[key] = "reconciliation"
            raise Unsettled(
                f"operation {operation} is unknown: {place.why or 'nobody knows whether it happened'}",
                operation=operation,
                why=place.why,
                plan=plan,
                retry_after=None if due is None else max(0.0, due),
            )
        if due is not None and due <= 0:
            await self._withdraw(run, key)
            return None
        return left if due is None else min(left, due)

    async def _give_up(self, run: Scoped, key: str, wait: Wait) -> NoReturn:
        operation = ids.operation_id(run.task, key)
        await self._withdraw(run, key)
        run.owed[key] = wait.reason
        asked = [row for (of, _), row in run.approvals.items() if of == key]
        if wait.reason == "approval" and asked:
            latest = max(asked, key=lambda row: row.number)
            raise ApprovalPending(
                f"operation {operation} waits for the decision on {latest.id}",
                operation=operation,
                approval=latest.id,
            )
        left = None if wait.due is None else max(0.0, wait.due - clock.monotonic())
        raise CallHeld(
            f"operation {operation} is held back: {_HELD[wait.reason]}",
            operation=operation,
            reason=wait.reason,
            retry_after=left,
        )

    async def _withdraw(self, run: Scoped, key: str) -> None:
        """Take back a call that does nothing but wait, so that nothing is sent behind its caller's back."""
        if key in run.works.open and key not in run.works.critical:
            over = run.works.join(key)
            run.works.cut(key)
            await asyncio.wait({over})
            for _ in range(CALM_TURNS):
                # Whoever joined it is told a turn later.
                await asyncio.sleep(0)

    async def _look_again(self, run: Scoped, key: str) -> None:
        """Read what is on disk of one operation, and what people have said of it."""
        known = run.known.rows.get(key)
        if known is None or known.state not in FINAL:
            query = OperationFilter(tenant=run.tenant, task=run.task, key=key, limit=1)
            for row in await self.insist(lambda: self.store.list_operations(query)):
                run.known.rows[key] = row
        await run.read_approvals()

    async def _recall(
        self, past: Scoped, key: str, tool: ToolSpec, args: Sequence[Any], named: dict[str, Any]
    ) -> Any:
        """Answer a call of a scope that was closed."""
        row, operation = past.known.rows.get(key), ids.operation_id(past.task, key)
        if row is not None and row.state == "unknown":
            why = "its scope was closed, and it is not settled yet"
            raise Unsettled(f"operation {operation}: {why}", operation=operation, why=why, plan="person")
        if row is None or row.state not in FINAL:
            raise TaskEnded(
                f"scope {self.place.scope!r} was closed; operation {key} is not in it", state="succeeded"
            )
        try:
            return await effects.call(past, key, tool, tuple(args), named)
        except asyncio.CancelledError:
            if past.known.bound.get(key) is not None:
                raise
            raise OperationConflict(
                f"operation {operation} is on record as {row.name} with other arguments"
            ) from None

    def _refuse(self, run: Scoped) -> NoReturn:
        """Raise what a sealed run means to the block."""
        scope = f"scope {self.place.scope!r}"
        match run.interruption:
            case "lost":
                raise LeaseLost(f"{scope} is lost: {run.detail}")
            case "cancelled":
                raise TaskCancelled(f"{scope} was cancelled")
            case "expired":
                raise DeadlineExceeded(f"the time of {scope} is over")
            case "mismatched":
                raise OperationConflict(f"{scope}: {run.detail}")
            case "unstorable":
                raise Unserializable(f"{scope}: {run.detail}")
            case _:
                if self._serving is not None and self._serving.done():
                    self._serving.result()
                raise ConfigurationError(f"{scope} was left")


def _heard(making: asyncio.Task[Any]) -> None:
    if not making.cancelled():
        making.exception()


_HELD: Final = {
    "operator": "it is paused, or its policy cannot be asked",
    "limit": "its provider asked everybody to wait, or another call is doing the same",
    "timer": "it is tried again later",
    "approval": "what was decided about it does not stand any more",
}


def _input(scope: str) -> None:
    """What a scope's task is given."""


def _refuse_ended(row: TaskRow) -> None:
    """Raise for a scope that nobody can enter any more."""
    error = values.decode(row.error) if row.error else {}
    if row.state == "cancelled":
        raise TaskCancelled(f"the scope was cancelled: {error.get('message', '')}")
    if row.state in FINAL:
        raise TaskEnded(
            f"the scope has {row.state}: {error.get('message', '')}".rstrip(": "), state=row.state
        )
