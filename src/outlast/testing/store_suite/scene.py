"""A scene: small situations built through the contract's own verbs, out of values that are all different.

A column that is written into another's place shows at once, because no two values that a scene makes are
equal unless a test says so. Time is virtual: every verb that takes ``now`` gets the scene's, which moves only
by ``pass_time``. The exception is ``submit``, which the contract gives no ``now``: acceptance and deadlines
are by the database's own clock, a little later than the scene's beginning.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol

import pytest

from outlast.core import ids
from outlast.core.operation import OperationState
from outlast.store.approving import ApprovalRow, Decided, Decision, Rule
from outlast.store.contract import Store
from outlast.store.entries import (
    AskApproval,
    Batch,
    CommitIntent,
    Consent,
    EndAttempt,
    Entry,
    Flushed,
    NewEvent,
    RecordOperation,
    RecordOutcome,
    TaskWrites,
)
from outlast.store.posting import Cancel, CancelReply, Heard, News, Posted, Signal
from outlast.store.records import (
    Claimed,
    ClaimReply,
    ClaimRequest,
    OperationRow,
    Parent,
    Serves,
    SessionRenewal,
    Settlement,
    Submission,
    Submitted,
    SweepRequest,
    Swept,
    TaskRef,
)
from outlast.store.rows import (
    EventCursor,
    EventRow,
    OperationFilter,
    TaskRow,
)

SECOND = 1_000_000
HOUR = 3600 * SECOND
ROUND = 1
"""The number of a task's first round."""

Dump = dict[str, list[dict[str, Any]]]


class Backdoor(Protocol):
    """Raw SQL beside the store, for what the contract must make impossible."""

    dialect: str
    """``postgres``, ``sqlite``, or the name of a third database."""

    async def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own, table names unqualified; answer its rows."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction on a connection that ``Store.submit`` takes as ``connection``.

        It is committed at the end of the block and rolled back when the block raises.
        """
        ...


Reopen = Callable[[], Awaitable[Store]]
"""Open one more store on the same database, as another process would; closed by the fixture."""


class Refused:
    """Demand that a block raises an error of whatever class, with a text; ``what`` is for the reader."""

    def __init__(self, what: str) -> None:
        self._what = what

    async def __aenter__(self) -> None:
        """Begin the block."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert error is not None, f"not refused: {self._what}"
        if not isinstance(error, Exception):
            return False
        assert str(error).strip(), f"{self._what}: refused without a word ({type(error).__name__})"
        return True


refused = Refused


def changed(before: Dump, after: Dump, *, ignoring: Sequence[str] = ("writers",)) -> dict[str, object]:
    """Answer what differs between two dumps by table: rows gone and rows come."""
    found: dict[str, object] = {}
    for table in sorted(before.keys() | after.keys()):
        if table in ignoring:
            continue
        was, now = before.get(table, []), after.get(table, [])
        if was == now:
            continue
        gone = [row for row in was if row not in now]
        come = [row for row in now if row not in was]
        if gone or come:
            found[table] = {"gone": gone, "come": come}
    return found


@dataclass
class Scene:
    """One test's world: a store, a virtual clock, and a source of values that never repeat."""

    store: Store
    now: int
    tenant: str = "tenant-green"
    writer: str = "wr_scene"
    _last: int = 7000
    _batches: dict[str, int] = field(default_factory=dict)
    _submitted: dict[tuple[str, str], Submission] = field(default_factory=dict)

    # -- values ----------------------------------------------------------------------------------------

    def number(self) -> int:
        """Answer a number that this scene has not answered before."""
        self._last += 13
        return self._last

    def text(self, label: str) -> str:
        """Answer JSON text that no other value of the scene equals."""
        return f'{{"{label}": {self.number()}}}'

    def pass_time(self, us: int) -> int:
        """Move the scene's clock and answer it."""
        self.now += us
        return self.now

    # -- tasks -----------------------------------------------------------------------------------------

    def submission(self, **changes: Any) -> Submission:
        """Make a task's record; ids rise, every other value is new. An agent of its own unless given."""
        n = self.number()
        record = Submission(
            tenant=self.tenant,
            task=ids.new_id(ids.TASK, 1_700_000_000_000 + n, n),
            key=f"key-{self.number()}",
            request_digest=f"digest-{self.number()}",
            agent=f"agent-{self.number()}",
            pool=f"pool-{self.number()}",
            priority=3,
            input=self.text("input"),
            user=f"user-{self.number()}",
            trace=f"trace-{self.number()}",
        )
        return replace(record, **changes)

    async def submit(self, **changes: Any) -> Submission:
        """Have a new task accepted."""
        record = self.submission(**changes)
        assert await self.store.submit([record]) == [Submitted(kind="accepted", task=record.task)]
        self.remember(record)
        return record

    async def accept(self, records: Sequence[Submission]) -> None:
        """Have these accepted, in this order, in one batch."""
        verdicts = await self.store.submit(records)
        assert [verdict.kind for verdict in verdicts] == ["accepted"] * len(records)
        self.remember(*records)

    def remember(self, *records: Submission) -> None:
        """Know tasks that a test has submitted by itself, so that ``claim_task`` finds them."""
        self._submitted.update({(record.tenant, record.task): record for record in records})

    def record_of(self, of: Any) -> Submission:
        """Answer what a task was submitted as."""
        return self._submitted[of.tenant, of.task]

    async def task(self, of: Any) -> TaskRow:
        """Read one task, named by anything that has a tenant and a task."""
        rows = await self.store.read_tasks([TaskRef(tenant=of.tenant, task=of.task)])
        assert len(rows) == 1
        return rows[0]

    async def events(self, of: Any, after: int = 0) -> list[EventRow]:
        """Read a task's events."""
        return await self.store.read_events([EventCursor(tenant=of.tenant, task=of.task, after=after)])

    async def kinds(self, of: Any, after: int = 0) -> list[str]:
        """Read the kinds of a task's events."""
        return [event.kind for event in await self.events(of, after)]

    async def operation(self, of: Any, key: str) -> OperationRow:
        """Read one operation."""
        rows = await self.store.list_operations(OperationFilter(tenant=of.tenant, task=of.task, key=key))
        assert len(rows) == 1
        return rows[0]

    async def rows(self, table: str, of: Any) -> list[dict[str, Any]]:
        """Read a task's rows of a table out of a dump."""
        dump = await self.store.dump()
        name = "id" if table == "tasks" else "task"
        return [row for row in dump[table] if (row["tenant"], row[name]) == (of.tenant, of.task)]

    # -- sessions, claims, sweeps ----------------------------------------------------------------------

    async def session(self, ttl_us: int = 60 * SECOND, session: str | None = None) -> str:
        """Open a session, or renew the one given."""
        n = self.number()
        session = session or ids.new_id(ids.SESSION, 1_700_000_000_000 + n, n)
        renewed = await self.store.renew(
            SessionRenewal(session=session, name=f"worker-{self.number()}", ttl_us=ttl_us), now=self.now
        )
        assert renewed.alive
        return session

    async def claim(
        self,
        session: str,
        *,
        pools: Sequence[str],
        serves: Sequence[Serves],
        limit: int = 1,
        config: str | None = None,
    ) -> ClaimReply:
        """Claim."""
        request = ClaimRequest(
            session=session,
            pools=tuple(pools),
            serves=tuple(serves),
            limit=limit,
            config=config if config is not None else f"config-{self.number()}",
        )
        return await self.store.claim(request, now=self.now)

    async def claim_task(
        self, of: Any, *, session: str | None = None, ttl_us: int = 60 * SECOND, version: str = "version-77"
    ) -> Claimed:
        """Claim this very task, the only one of its agent in its pool; under a new session unless given."""
        record = self.record_of(of)
        session = session or await self.session(ttl_us)
        reply = await self.claim(
            session,
            pools=[record.pool],
            serves=[Serves(agent=record.agent, version=record.version or version)],
        )
        assert [claimed.task for claimed in reply.claims] == [record.task]
        return reply.claims[0]

    async def running(
        self, *, session: str | None = None, ttl_us: int = 60 * SECOND, **changes: Any
    ) -> Claimed:
        """Submit a task and claim it."""
        return await self.claim_task(await self.submit(**changes), session=session, ttl_us=ttl_us)

    async def sweep(self, **changes: Any) -> Swept:
        """Sweep at the scene's time."""
        return await self.store.sweep(SweepRequest(**changes), now=self.now)

    async def lose(self, claimed: Claimed, **sweeping: Any) -> Swept:
        """Let a minute and a second pass, so that sessions of a minute are over, and sweep."""
        self.pass_time(61 * SECOND)
        return await self.sweep(**sweeping)

    async def waiting(self, reason: str, **changes: Any) -> Claimed:
        """Have a task that waits for a reason and goes on waiting; answer its last lease."""
        claimed = await self.running(**changes)
        if reason == "reconciliation":
            await self.called(claimed, "unknown")
        wake_in_us = 2 * HOUR if reason == "timer" else None
        await self.write(claimed, self.suspension(reason, wake_in_us=wake_in_us))
        assert (await self.task(claimed)).reason == reason
        return claimed

    # -- facts from outside ----------------------------------------------------------------------------

    def signal(self, of: Any, name: str | None = None, **changes: Any) -> Signal:
        """Make a signal for a task; without a key unless given."""
        record = Signal(
            tenant=of.tenant,
            task=of.task,
            name=name or f"signal-{self.number()}",
            data=self.text("said"),
            digest=f"digest-{self.number()}",
        )
        return replace(record, **changes)

    async def post(self, *signals: Signal) -> list[Posted]:
        """Post signals."""
        return await self.store.post(signals, now=self.now)

    async def cancel(self, of: Any, **changes: Any) -> CancelReply:
        """Ask that a task end as cancelled."""
        record = Cancel(
            tenant=of.tenant,
            task=of.task,
            by=f"person:eve-{self.number()}",
            reason=f"reason-{self.number()}",
        )
        [reply] = await self.store.cancel([replace(record, **changes)], now=self.now)
        return reply

    async def news(self, session: str, *heard: tuple[Any, int]) -> list[News]:
        """Say what a session has heard of its tasks, and read what it has not."""
        told = [Heard(tenant=of.tenant, task=of.task, facts=facts) for of, facts in heard]
        return await self.store.news(session, told, now=self.now)

    async def child(self, of: Claimed, key: str | None = None, **changes: Any) -> Submission:
        """Have a child of a running task accepted."""
        detached = changes.pop("detached", False)
        parent = self.parent(of, key, detached=detached)
        return await self.submit(tenant=of.tenant, parent=parent, key=None, **changes)

    def parent(self, of: Claimed, key: str | None = None, *, detached: bool = False) -> Parent:
        """Say whose child a submission is."""
        return Parent(
            task=of.task,
            epoch=of.epoch,
            key=key or f"spawn-{self.number()}",
            position=self.number(),
            request=f"request-{self.number()}",
            detached=detached,
        )

    async def deliver_all(self) -> None:
        """Deliver until nothing is left."""
        for _ in range(99):
            if not (await self.store.dump())["posts"]:
                return
            await self.store.deliver(500, now=self.now)
        raise AssertionError("what is delivered never ends")

    # -- approvals -------------------------------------------------------------------------------------

    def ask(self, key: str | None = None, **changes: Any) -> AskApproval:
        """Make the question whether a call may be made; its time is over in an hour unless given."""
        fingerprint = f"fingerprint-{self.number()}"
        record = AskApproval(
            key=key or f"asked-{self.number()}",
            position=self.number(),
            kind="tool",
            name=f"tool-{self.number()}",
            request=f"request-{self.number()}",
            arguments=self.text("arguments"),
            number=1,
            subject="call",
            fingerprint=fingerprint,
            shown=self.text("shown"),
            reason=f"reason-{self.number()}",
            policy=f"policy-{self.number()}",
            target=self.text("target"),
            expires_in_us=HOUR,
        )
        return replace(record, **changes)

    def question(self, key: str | None = None, **changes: Any) -> AskApproval:
        """Make a question to people that no call waits for."""
        return self.ask(key, **{"kind": "signal", "name": "ask", "subject": "question", **changes})

    async def asked(self, claimed: Claimed, ask: AskApproval | None = None, **changes: Any) -> ApprovalRow:
        """Put a question before people and read it."""
        ask = ask or self.ask(**changes)
        await self.write(claimed, ask)
        return await self.approval(claimed, ask.key, ask.number)

    async def approval(self, of: Any, key: str, number: int = 1) -> ApprovalRow:
        """Read an approval."""
        row = await self.store.read_approval(of.tenant, f"{of.task}:{key}~{number}")
        assert row is not None
        return row

    def decision(self, of: ApprovalRow, verdict: Any = "approve", **changes: Any) -> Decision:
        """Make one person's decision of what is asked."""
        record = Decision(
            tenant=of.tenant,
            approval=of.id,
            verdict=verdict,
            by=f"person:dan-{self.number()}",
            fingerprint=of.fingerprint,
            reason=f"reason-{self.number()}",
            via="api",
            answer=self.text("answer") if of.subject == "question" and verdict == "approve" else None,
        )
        return replace(record, **changes)

    async def decide(self, of: ApprovalRow, verdict: Any = "approve", **changes: Any) -> Decided:
        """Decide what is asked."""
        [decided] = await self.store.decide([self.decision(of, verdict, **changes)], now=self.now)
        return decided

    def agreed_intent(self, ask: AskApproval, **changes: Any) -> CommitIntent:
        """Make the first intent of a call that was asked about, under that decision."""
        consent = Consent(policy=ask.policy, approval=ask.number, fingerprint=ask.fingerprint)
        record = self.intent(
            ask.key,
            position=ask.position,
            kind=ask.kind,
            name=ask.name,
            request=ask.request,
            decision=ask.fingerprint,
            arguments=ask.arguments,
            consent=consent,
        )
        return replace(record, **changes)

    def rule(self, tool: str, verdict: Any = "allow", **changes: Any) -> Rule:
        """Make a standing rule."""
        record = Rule(
            tenant=self.tenant,
            tool=tool,
            verdict=verdict,
            by=f"person:rose-{self.number()}",
            reason=f"reason-{self.number()}",
            bounds=f'{{"amount": {{"max": {self.number()}}}}}',
        )
        return replace(record, **changes)

    # -- the journal -----------------------------------------------------------------------------------

    def batch(self, *writes: TaskWrites, writer: str | None = None) -> Batch:
        """Number the next batch of a writer."""
        writer = writer or self.writer
        number = self._batches[writer] = self._batches.get(writer, 0) + 1
        return Batch(writer=writer, number=number, writes=writes)

    @staticmethod
    def writes(claimed: Claimed, *entries: Entry) -> TaskWrites:
        """Entries of a claimed task."""
        return TaskWrites(tenant=claimed.tenant, task=claimed.task, epoch=claimed.epoch, entries=entries)

    async def flush(self, claimed: Claimed, *entries: Entry) -> Flushed:
        """Write entries of one task in one batch."""
        [verdict] = await self.store.flush(self.batch(self.writes(claimed, *entries)), now=self.now)
        return verdict

    async def write(self, claimed: Claimed, *entries: Entry) -> Flushed:
        """Write entries of one task, all of which must be accepted."""
        verdict = await self.flush(claimed, *entries)
        assert (verdict.kind, verdict.refusals) == ("accepted", ())
        return verdict

    def event(self, kind: str = "progress") -> NewEvent:
        """Make an event."""
        return NewEvent(kind=kind, data=self.text("event"))

    def step(self, key: str | None = None, **changes: Any) -> RecordOperation:
        """Make the record of a finished step."""
        record = RecordOperation(
            key=key or f"step-{self.number()}",
            position=self.number(),
            kind="step",
            name=f"name-{self.number()}",
            state="succeeded",
            request=f"request-{self.number()}",
            arguments=self.text("arguments"),
            result=self.text("result"),
        )
        return replace(record, **changes)

    def planned(self, intent: CommitIntent, **changes: Any) -> RecordOperation:
        """Make the record that puts a call on record before its intent."""
        record = RecordOperation(
            key=intent.key,
            position=intent.position,
            kind=intent.kind,
            name=intent.name,
            state="planned",
            request=intent.request,
            arguments=intent.arguments,
        )
        return replace(record, **changes)

    def timer(self, key: str | None = None, **changes: Any) -> RecordOperation:
        """Make the record of a running timer; give ``due_in_us`` or ``due_at``."""
        return self.step(
            key or f"timer-{self.number()}", kind="timer", state="running", result=None, **changes
        )

    def wait(self, kind: Any, key: str | None = None, **changes: Any) -> RecordOperation:
        """Make the record of a wait; with ``due_in_us`` or ``due_at`` it has a time limit."""
        return self.step(key or f"wait-{self.number()}", kind=kind, state="running", result=None, **changes)

    def intent(self, key: str | None = None, **changes: Any) -> CommitIntent:
        """Make a first intent of a tool call."""
        record = CommitIntent(
            key=key or f"call-{self.number()}",
            position=self.number(),
            kind="tool",
            name=f"tool-{self.number()}",
            request=f"request-{self.number()}",
            decision=f"decision-{self.number()}",
            effect="keyed",
            arguments=self.text("arguments"),
            timeout_us=10 * SECOND,
        )
        return replace(record, **changes)

    async def outcome(
        self, of: Any, key: str, state: OperationState, *, settled_by: str | None = None, **changes: Any
    ) -> RecordOutcome:
        """Make the outcome that fits the operation as it stands."""
        row = await self.operation(of, key)
        record = RecordOutcome(
            key=key,
            attempt=row.attempt,
            turn=row.turn,
            state=state,
            result=self.text("result") if state == "succeeded" else None,
            error=self.text("error") if state in ("failed", "unknown") else None,
            settled_by=settled_by,
        )
        return replace(record, **changes)

    async def called(self, claimed: Claimed, state: OperationState = "running", **changes: Any) -> str:
        """Commit an intent and, unless the state is running, its outcome; answer the operation's key."""
        intent = self.intent(**changes)
        await self.write(claimed, intent)
        if state != "running":
            await self.write(claimed, await self.outcome(claimed, intent.key, state))
        return intent.key

    # -- endings and settlements -----------------------------------------------------------------------

    def success(self, **changes: Any) -> EndAttempt:
        """End as succeeded."""
        end = EndAttempt(attempt_end="succeeded", task_state="succeeded", result=self.text("result"))
        return replace(end, **changes)

    def failure(self, **changes: Any) -> EndAttempt:
        """End as failed."""
        return replace(
            EndAttempt(attempt_end="failed", task_state="failed", error=self.text("error")), **changes
        )

    def suspension(self, reason: str, **changes: Any) -> EndAttempt:
        """Suspend for a reason."""
        return replace(EndAttempt(attempt_end="suspended", task_state="waiting", reason=reason), **changes)

    def release(self, **changes: Any) -> EndAttempt:
        """Give the task back to the queue."""
        return replace(EndAttempt(attempt_end="released", task_state="queued"), **changes)

    def settlement(self, of: Any, key: str, verdict: Any = "happened", **changes: Any) -> Settlement:
        """Make a person's settlement."""
        n = self.number()
        record = Settlement(
            tenant=of.tenant,
            task=of.task,
            key=key,
            verdict=verdict,
            by=f"person:ann-{n}",
            reason=f"reason-{self.number()}",
            result=self.text("result") if verdict == "happened" else None,
            evidence=self.text("evidence"),
        )
        return replace(record, **changes)


@pytest.fixture
async def scene(store: Store) -> Scene:
    """A scene over the ``store`` fixture, its clock at the database's."""
    health = await store.health()
    assert health.reachable
    return Scene(store=store, now=health.now)
