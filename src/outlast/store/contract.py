"""The contract that both stores keep: about a dozen verbs, a batch in, a verdict per item out.

Every verb is one transaction (atomic), safe to repeat where its line says so (idempotent), and fenced where
its line says so. Every verb raises ``StoreUnavailable`` when the database cannot be reached; what was in
doubt then is said per verb. ``now`` is None in production, where the database's clock decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from outlast.store.approving import (
    ApprovalFilter,
    ApprovalRow,
    Decided,
    Decision,
    Rule,
    Rules,
    VoteRow,
)
from outlast.store.changing import (
    Acceptance,
    AcceptanceRow,
    Accepted,
    Adopt,
    Adopted,
    Fork,
    Forked,
    OutsideEvent,
    OutsidePosted,
    OutsideRow,
    Retried,
    Retry,
    VersionRow,
)
from outlast.store.entries import Batch, Flushed
from outlast.store.passing import Passage
from outlast.store.posting import (
    Cancel,
    CancelReply,
    Delivered,
    Heard,
    News,
    Posted,
    Signal,
)
from outlast.store.reconciling import (
    AuditRow,
    KeyHolder,
    OpenItem,
    OpenRequest,
    OpenState,
    Pause,
    Postponement,
    SettledCounts,
    UnknownCount,
)
from outlast.store.records import (
    Claimed,
    ClaimReply,
    ClaimRequest,
    Evidence,
    Held,
    InboxRow,
    Loaded,
    OperationRow,
    Renewed,
    SessionRenewal,
    Settled,
    Settlement,
    Submission,
    Submitted,
    SweepRequest,
    Swept,
    TaskRef,
)
from outlast.store.rows import (
    AttemptRow,
    EndRow,
    EventCursor,
    EventRow,
    EvidenceRow,
    Health,
    Message,
    OperationFilter,
    Publication,
    SessionRow,
    TaskFilter,
    TaskRow,
)
from outlast.store.scheduling import (
    DueRequest,
    DueSchedules,
    Fired,
    Firing,
    PutSchedule,
    SchedulePut,
    ScheduleRow,
    ScheduleSet,
    SetSchedule,
)

SCHEMA_VERSION = 1
"""The newest migration that this code knows; both stores number theirs alike."""
FEW_TASKS = 8
"""A claim of more tasks brings nothing along that ``load`` would answer."""
SHORT_BYTES = 4096
"""A claim brings along no input that has, with what else was said of the task, more bytes of text."""


class BatchRejected(ValueError):
    """The batch cannot be stored; nothing of it was written.

    The text says what the database objects to and holds no values of the batch. Sending the same batch again
    would end the same way; sending it in parts finds the part at fault.
    """


class Wakes(Protocol):
    """Hints that something may have changed; losing one costs time, never correctness.

    Topics: ``queue`` (something may be claimable), ``events`` (a task's stream grew), ``ends`` (a task may
    have ended), ``facts`` (something was posted for a task that runs), ``posts`` (there is something to
    deliver).
    """

    async def wait(self, topic: str, timeout: float) -> bool:
        """Wait until the topic was hinted since the last wait, or ``timeout`` seconds; answer whether it
        was. Each asyncio task that waits again and again has waits of its own: no other takes its hints."""
        ...

    def hint(self, topic: str) -> None:
        """Tell every process that uses this store; coalesced, never inside a transaction. Also called by the
        store itself after its own verbs (submit, flush, settle, sweep)."""
        ...


class Store(Protocol):
    """A database that keeps Outlast's promises."""

    url: str
    """Where it is, with any password masked."""
    apart: bool
    """Whether it works in a process of its own, so that this one can go on meanwhile."""

    @property
    def wakes(self) -> Wakes:
        """Hints of this store."""
        ...

    async def open(self) -> None:
        """Connect; a store that was closed can be opened again, in another event loop too.

        Raises StoreUnavailable, SchemaOutdated, SchemaTooNew. Idempotent.
        """
        ...

    async def close(self) -> None:
        """Release every connection and thread; idempotent."""
        ...

    async def migrate(self) -> list[str]:
        """Bring the schema up to SCHEMA_VERSION under a lock; answer the names applied. Idempotent,
        checksummed.

        May be called without ``open``. Raises SchemaTooNew, SchemaMismatch (a checksum differs).
        """
        ...

    async def submit(self, batch: Sequence[Submission], *, connection: Any = None) -> list[Submitted]:
        """Accept tasks: head, input, queue entry or timer, first event and outbox row, together or not at
        all.

        Atomic, idempotent by task id and by (tenant, key). With ``connection`` (asyncpg.Connection or
        apsw.Connection in an open transaction of the caller) the rows are written in the caller's transaction
        and live or die with it. Keys are claimed by one insert under a unique constraint; the loser reads the
        winner in a new statement; waiting for a twin is bounded (verdict ``busy``).
        """
        ...

    async def renew(self, renewal: SessionRenewal, *, now: int | None = None) -> Renewed:
        """Open or renew a session; a session that was swept is not revived. Idempotent."""
        ...

    async def retire(self, session: str) -> None:
        """End a session that holds no lease any more, and its writer rows; idempotent."""
        ...

    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> ClaimReply:
        """Take up to ``limit`` queued tasks: epoch + 1, a lease, a new attempt, event ``attempt.started``.

        Only lanes (pool, agent, version or any) that the request serves are looked into; tenants take turns,
        priority (higher first) orders a tenant's own, age the rest. Refused for a session that is not alive.
        One claimer at a time in the database; returns ids and small columns only. An unbound task is bound to
        the default version.

        A claim of a few tasks (FEW_TASKS) brings along what ``load`` answers for those that begin: never
        claimed before, nothing on record, nothing before them, no fork, short (SHORT_BYTES). It was read in
        the same transaction, when their heads were locked and taken. The others are asked for with ``load``.
        """
        ...

    async def submit_and_claim(
        self, batch: Sequence[Submission], request: ClaimRequest, *, now: int | None = None
    ) -> tuple[list[Submitted], ClaimReply] | None:
        """Accept tasks and claim, both in one transaction; see ``submit`` and ``claim``.

        Atomic; each is what it would be if the claim came right behind the submit: it takes these tasks or
        others, and is fenced. A quick way and no duty: None, and nothing was done, where it is not open (to
        children it never is); no claims where another claimer is at work. After StoreUnavailable both are in
        doubt, and of the two only the submit is repeated.
        """
        ...

    async def reconcile(
        self, session: str, held: Sequence[Held], fence: int, *, now: int | None = None
    ) -> list[TaskRef]:
        """Give back every lease of a session that its worker does not know of; answer those tasks.

        After a claim whose answer was lost. Waits for a claim of the session that is still about to commit,
        then raises the epochs of the leases that are not in ``held`` and queues their tasks (attempt
        ``released``). fence: higher than that of every call before. Claims that ask with a lower one are
        refused from then on, so that a claim which comes even later takes nothing; and a call whose fence is
        not above the session's changes nothing and answers none, since leases were claimed behind that one of
        which it does not know.
        """
        ...

    async def load(self, tasks: Sequence[Claimed]) -> list[Loaded]:
        """Read inputs and journals of claimed tasks, without locks, in the order asked."""
        ...

    async def flush(self, batch: Batch, *, now: int | None = None) -> list[Flushed]:
        """Write the entries of many tasks under one fencing check; a verdict per TaskWrites, in order.

        Atomic per batch; fenced entry by entry; idempotent by (writer, number): a batch that was applied
        answers its recorded verdicts again. A commit whose answer was lost is settled by sending the same
        batch again, which the store does itself over a new connection, up to a bound; after that
        StoreUnavailable, and the caller repeats the very same batch. Raises BatchRejected for a batch that
        cannot be stored; nothing of it was written.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement], *, now: int | None = None) -> list[Settled]:
        """Settle unknown operations by compare-and-set, keep who and why as evidence, append
        ``operation.settled``, raise the head's facts and wake a task that waits for it."""
        ...

    async def note(self, evidence: Sequence[Evidence], *, now: int | None = None) -> None:
        """Append evidence; needs no lease. Changes no state, but of what it contradicts: that is unknown
        again, for a person. What it says of the last attempt shows in the reconciliation queue; see
        ``Evidence``."""
        ...

    async def admit(self, notes: Sequence[Evidence], *, now: int | None = None) -> list[Passage | None]:
        """Append evidence of requests that are about to leave, and answer what decides on each, in order.

        Lock, then look: the evidence is there before the look, and what is answered stands under the head's
        lock, so that whoever takes an operation's next turn sees either the request in its evidence, or the
        request sees the turn. None, and nothing written, where there is no such operation. What a note says
        of its operation is for ``note``.
        """
        ...

    async def claim_open(self, request: OpenRequest, *, now: int | None = None) -> list[OpenItem]:
        """Take unknown operations that are due to be looked at and that nobody works on, and their next turn.

        Only tasks without a lease; only tools that are named; the one that waits longest first. What was
        taken and is neither settled nor postponed within ``lease_us`` can be taken by others. Lock, then
        look.
        """
        ...

    async def postpone(self, postponements: Sequence[Postponement], *, now: int | None = None) -> list[bool]:
        """Put taken operations back; answers which were still theirs (compare-and-set on the turn).

        Evidence that came while they were looked at makes them due at once. Waits that providers asked for
        hold for everybody from then on, for intents as for questions. Idempotent. Lock, then look.
        """
        ...

    async def post(self, signals: Sequence[Signal], *, now: int | None = None) -> list[Posted]:
        """Put signals into their tasks' inboxes, in order; a verdict per signal.

        Lock, then look. An accepted one raises the head's facts, appends ``signal.received`` and wakes a task
        that waits, whatever it waits for, but not one that has not begun since its ``run_at`` lies ahead; a
        running task's worker is told (``news``). One that answers a single wait is refused as ``over`` once
        that wait has ended or its due time has passed; posted at that very instant it counts. Idempotent by
        (task, name, key).
        """
        ...

    async def cancel(self, requests: Sequence[Cancel], *, now: int | None = None) -> list[CancelReply]:
        """Cancel tasks; what is answered is decided under the head's lock and agrees with the end.

        Queued or waiting: ends as cancelled now, with everything that an ending does. Running: the mark is
        set (event ``task.cancel_requested``), and from this commit on no intent is admitted and every ending
        becomes cancelled, also one by release, by the loss of the worker or by the deadline. Kept in the
        audit trail. Idempotent.
        """
        ...

    async def news(self, session: str, heard: Sequence[Heard], *, now: int | None = None) -> list[News]:
        """Note what a session's worker has heard, and answer which of its running tasks have more.

        Answers every task of the session for which something was posted since; what is not told as heard is
        answered again. Costs nothing that grows with the tasks that run.
        """
        ...

    async def deliver(self, limit: int, *, now: int | None = None) -> Delivered:
        """Deliver what ends of tasks and of switches have left for other tasks, at most ``limit``.

        The end of a child goes into its parent's inbox, raises its facts and wakes it, also where the parent
        has failed or was cancelled, since it may be tried again; children of a task that has ended are
        cancelled; tasks that a switch has held back which stands no more have their facts raised and are
        woken. Each is written in the transaction that caused it and deleted in the one
        that delivers it; several may deliver at once. Idempotent.
        """
        ...

    async def decide(self, decisions: Sequence[Decision], *, now: int | None = None) -> list[Decided]:
        """Decide approvals by compare-and-set under the task's head; a verdict per decision.

        The first that decides wins. Looks, in this order, at: existence, an earlier word of the same person
        (``repeated``, if it is the same verdict about the same fingerprint), the state (``conflict``,
        ``expired``), who may decide (``forbidden``), the fingerprint. An edit sets the new arguments and
        fingerprint first; votes for the old one, and for another answer to a question, do not count.
        Approved: the operation becomes ``approved``. Appends ``approval.voted`` (quorum not reached yet),
        ``approval.approved`` or ``approval.rejected``, keeps the vote and an audit row, raises the head's
        facts, wakes the task or tells its worker.
        """
        ...

    async def retry(self, requests: Sequence[Retry], *, now: int | None = None) -> list[Retried]:
        """Open the next round of failed or cancelled tasks: queued, round + 1, marks and old deadline gone,
        the named failed operations planned again (attempt and turn stand), event ``task.retried``, an audit
        row.

        The stream goes on with higher numbers. Lock, then look. Repeated, it answers ``not_ended``.
        """
        ...

    async def fork(self, requests: Sequence[Fork], *, now: int | None = None) -> list[Forked]:
        """Make new tasks from prefixes of journals; a task is copied whole or not at all.

        Copied: input, user, pool, priority, budget, and the operations placed before ``before`` with results,
        keys and times; each of them has to have ended. What was recorded as ``lost`` in a race is not, unless
        all is copied: the fork may race again. What lies behind and ever had an intent, and was not undone,
        is kept as ``issued`` with the key that was sent, so that the fork does not act twice. Event
        ``task.submitted`` with ``forked_from``; audit rows for both. Idempotent by the new id, and by the
        key, which is claimed and answered as that of a submission.
        """
        ...

    async def adopt(self, requests: Sequence[Adopt], *, now: int | None = None) -> list[Adopted]:
        """Bind queued or waiting tasks to another version, by compare-and-set; they are queued in its lane
        (event ``task.adopted``, audit row), and so a task that waits for an operator goes on."""
        ...

    async def wake(self, ref: TaskRef, by: str, reason: str, *, now: int | None = None) -> bool:
        """Let a task that waits for an operator try again; answers whether it did wait so. Audited."""
        ...

    async def accept(self, verdicts: Sequence[Acceptance], *, now: int | None = None) -> list[Accepted]:
        """Record verdicts on the work of tasks that succeeded, by compare-and-set on how many there are.
        Event ``task.accepted`` or ``task.rejected``; audited."""
        ...

    async def post_outside(
        self, events: Sequence[OutsideEvent], *, now: int | None = None
    ) -> list[OutsidePosted]:
        """Bring events of outside sessions to the tasks that hold them, as signals ``outside:<provider>``
        under the key ``<session>/<run>/<event>``. Idempotent by that key."""
        ...

    async def put_rule(self, rule: Rule, *, now: int | None = None) -> int:
        """Let a standing rule stand from the next intent on; answers its number; kept in the audit trail."""
        ...

    async def withdraw_rule(
        self, tenant: str, number: int, by: str, reason: str, *, now: int | None = None
    ) -> bool:
        """Take a rule back, for every call not yet begun; answers whether it stood; kept in the audit
        trail."""
        ...

    async def pause(self, switch: Pause, *, now: int | None = None) -> None:
        """Stop new intents of a scope: once it has answered, none is admitted. Kept in the audit trail.
        Idempotent."""
        ...

    async def resume(self, switch: Pause, *, now: int | None = None) -> bool:
        """Take a switch back; answers whether it stood; kept in the audit trail. Idempotent.

        An intent that a switch refuses leaves its task on record under that switch; ``deliver`` tells those
        whose switch stands no more. Intents under way are waited for, so that none of them is missed, and
        none is told before it is refused.
        """
        ...

    async def sweep(self, request: SweepRequest, *, now: int | None = None) -> Swept:
        """End sessions that ran out and raise the epochs of their tasks (queued again, or parked as
        ``crash_loop``); wake tasks whose timer is due; fail tasks whose deadline passed. One sweeper at a
        time; lock, then look."""
        ...

    async def take_messages(self, limit: int, *, now: int | None = None) -> list[Message]:
        """Read pending outbox rows, oldest first, each task's in their order; found by being there.

        One that is parked holds back those behind it of its own task.
        """
        ...

    async def confirm_messages(self, publications: Sequence[Publication]) -> None:
        """Delete published rows, park the others with their reason; idempotent."""
        ...

    # Views: read committed, no locks, every query names its tenant.

    async def read_tasks(self, refs: Sequence[TaskRef]) -> list[TaskRow]:
        """Read tasks that exist among ``refs``."""
        ...

    async def list_tasks(self, query: TaskFilter) -> list[TaskRow]:
        """List a tenant's tasks, newest first, without their inputs (NO_VALUE) and results (None)."""
        ...

    async def read_events(
        self, cursors: Sequence[EventCursor], limit: int = 500, *, room: int | None = None
    ) -> list[EventRow]:
        """Read events above each cursor, ordered by task and number, at most ``limit`` in all.

        room: bytes of their data (in UTF-8) with which it is enough; the event that fills them is the last
        one. None for no such bound.
        """
        ...

    async def read_ends(self, refs: Sequence[TaskRef]) -> list[EndRow]:
        """Read how tasks among ``refs`` that exist have ended, and no more of them; in any order."""
        ...

    async def read_attempts(self, ref: TaskRef) -> list[AttemptRow]:
        """Read a task's attempts, oldest first, the running one included."""
        ...

    async def list_operations(self, query: OperationFilter) -> list[OperationRow]:
        """Read the ledger of a task by position, or the tenant's reconciliation queue by operation id.

        Without ``values`` a row costs what its names and its error do, however large they are.
        """
        ...

    async def read_evidence(
        self,
        tenant: str,
        task: str,
        key: str,
        *,
        before: int | None = None,
        limit: int | None = None,
        room: int | None = None,
    ) -> list[EvidenceRow]:
        """Read an operation's evidence, oldest first.

        before: only what has a lower number. limit: the newest so many of that. room: of those, beginning
        with the newest, no more once there are so many bytes; one at least. Numbers begin with 1 and have no
        gaps, so that the first one says whether there is more.
        """
        ...

    async def read_passage(
        self, tenant: str, task: str, key: str, *, now: int | None = None
    ) -> Passage | None:
        """Read, in one statement, what decides whether a request of an operation may leave; None where there
        is no such operation. ``now`` stands for the clock's reading in the answer."""
        ...

    async def read_open(
        self, tenant: str, task: str, key: str, *, provider: str | None = None, now: int | None = None
    ) -> OpenState | None:
        """Read an operation's place in the reconciliation queue, None when it is not in it.

        provider: whose shared wait is looked at in the same statement, None for nobody's.
        """
        ...

    async def read_settled_counts(self, tenant: str) -> list[SettledCounts]:
        """Read how a tenant's unknowns were settled, by tool in the order of names.

        Costs what the tools and the reconciliation queue hold, up to a bound; never what the ledger does.
        """
        ...

    async def list_pauses(self, tenant: str) -> list[Pause]:
        """List the switches that stand for a tenant, those for everybody included."""
        ...

    async def read_business_key(self, tenant: str, tool: str, value: str) -> KeyHolder | None:
        """Read who holds a business key, None when nobody does (any more)."""
        ...

    async def read_audit(self, tenant: str, after: int = 0, limit: int = 100) -> list[AuditRow]:
        """Read a tenant's audit trail above a number, oldest first."""
        ...

    async def list_versions(self, tenant: str | None = None) -> list[VersionRow]:
        """Count live tasks by the version that they need; of all tenants without one. The cost follows the
        tasks that live, not those that ended."""
        ...

    async def list_sessions(self) -> list[SessionRow]:
        """List the sessions that live, the oldest first, with what each says that it serves."""
        ...

    async def count_unknown(self) -> list[UnknownCount]:
        """Count the unknown calls of all tenants by tool, in the order of names; COUNT_BOUND in all."""
        ...

    async def read_acceptances(self, tenant: str, task: str) -> list[AcceptanceRow]:
        """Read the verdicts on a task's work, oldest first."""
        ...

    async def read_outside(self, tenant: str, task: str) -> list[OutsideRow]:
        """Read the outside sessions that a task holds."""
        ...

    async def read_inbox(self, tenant: str, task: str, after: int = 0) -> list[InboxRow]:
        """Read what lies before a task above a number and was not taken, oldest first."""
        ...

    async def read_approvals(self, tenant: str, task: str) -> list[ApprovalRow]:
        """Read all approvals of a task, by operation and number."""
        ...

    async def read_approval(self, tenant: str, approval: str) -> ApprovalRow | None:
        """Read an approval by its id."""
        ...

    async def list_approvals(self, query: ApprovalFilter) -> list[ApprovalRow]:
        """List a tenant's approvals by age. The cost does not grow with those that are decided."""
        ...

    async def read_votes(self, tenant: str, approval: str) -> list[VoteRow]:
        """Read who said what about an approval, oldest first."""
        ...

    async def read_rules(self, tenant: str, tool: str) -> Rules:
        """Read the rules that stand for a tool."""
        ...

    async def list_rules(self, tenant: str) -> list[Rule]:
        """List a tenant's standing rules, by tool and number."""
        ...

    async def health(self) -> Health:
        """Say whether the store answers; never raises."""
        ...

    async def dump(self) -> dict[str, list[dict[str, Any]]]:
        """Read every row of every table by name in one snapshot: for checkers of small systems only."""
        ...

    # Schedules: what submits tasks by the clock.

    async def put_schedule(self, asked: PutSchedule, *, now: int | None = None) -> SchedulePut:
        """Make a schedule, or put another in its place; kept in the audit trail.

        Compare-and-set on its revision. What is next stands while the timing does, so that the same request
        again fires nothing twice. Atomic, idempotent. Lock, then look.
        """
        ...

    async def set_schedule(self, asked: SetSchedule, *, now: int | None = None) -> ScheduleSet:
        """Pause a schedule, let it go on, or delete it; kept in the audit trail.

        Compare-and-set on its revision. From this commit on no firing under an earlier revision is accepted.
        Atomic, idempotent. Lock, then look.
        """
        ...

    async def due_schedules(self, request: DueRequest, *, now: int | None = None) -> DueSchedules:
        """Take schedules that are due by the database's clock, the one due longest first.

        What was taken is left alone by others for ``lease_us``, or until it is fired; that saves work and
        guards nothing. Costs nothing that grows with the schedules that are not due. Waits for nobody.
        """
        ...

    async def fire_schedules(self, firings: Sequence[Firing], *, now: int | None = None) -> list[Fired]:
        """Submit tasks for instants of schedules, and move the schedules on; a verdict per firing, in order.

        Each is atomic: task, key and next instant together or not at all. Fenced by (revision, next instant),
        compared under the schedule's lock: of any number that fire for one instant one does, and none does
        for a schedule that was changed, paused or deleted meanwhile. Idempotent.
        """
        ...

    async def read_schedule(self, tenant: str, id: str) -> ScheduleRow | None:
        """Read a schedule, None when there is none of that id."""
        ...

    async def list_schedules(self, tenant: str, after: str = "", limit: int = 100) -> list[ScheduleRow]:
        """List a tenant's schedules by id, those above ``after``."""
        ...
