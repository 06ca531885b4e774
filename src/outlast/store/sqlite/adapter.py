"""The store in one SQLite file: the contract's verbs, handed to the executor."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import apsw

from outlast import clock
from outlast.errors import ConfigurationError, SchemaOutdated, StoreUnavailable
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
from outlast.store.sqlite import (
    approving,
    cancelling,
    changing,
    counts,
    forking,
    keys,
    outbox,
    outside,
    passing,
    posting,
    reconciling,
    rules,
    scheduling,
    switches,
    views,
)
from outlast.store.sqlite import claim as claiming
from outlast.store.sqlite import connection as connections
from outlast.store.sqlite import flush as flushing
from outlast.store.sqlite import migrate as migrating
from outlast.store.sqlite import settle as settling
from outlast.store.sqlite import submit as submitting
from outlast.store.sqlite import sweep as sweeping
from outlast.store.sqlite.executor import Executor, Inline, Threaded
from outlast.store.sqlite.transaction import Transaction
from outlast.store.sqlite.wake import TOPICS, Hub, SqliteWakes, hub_of

T = TypeVar("T")


def path_of(url: str) -> str:
    """Answer the path that a URL names: absolute, or ``:memory:``. Raises ConfigurationError."""
    scheme, mark, rest = url.partition("://")
    if scheme != "sqlite" or not mark:
        raise ConfigurationError(f"not an SQLite URL: {url!r}; write sqlite:///relative/path.db")
    if rest == connections.MEMORY:
        return connections.MEMORY
    if not rest.startswith("/") or rest.endswith("/") or len(rest) < 2:
        raise ConfigurationError(
            f"no path in {url!r}; write sqlite:///relative/path.db, sqlite:////absolute/path.db or sqlite://:memory:"
        )
    if "?" in rest or "#" in rest or "\0" in rest:
        raise ConfigurationError(f"options are not given in the URL of an SQLite store: {url!r}")
    return os.path.realpath(urllib.parse.unquote(rest[1:]))


class SqliteStore:
    """Keep Outlast's promises in one SQLite file; see ``Store``.

    url: ``sqlite:///relative/path.db``, ``sqlite:////absolute/path.db`` or ``sqlite://:memory:``. executor:
    ``threaded`` (a writing and a reading thread; the default) or ``inline`` (everything in place, on one
    connection; the default in a simulation). connect: makes that one connection, so that a simulation can
    lend one that is warm. Raises ConfigurationError for anything else.
    """

    # Its threads share this process's interpreter.
    apart = False

    def __init__(
        self,
        url: str,
        *,
        executor: Literal["threaded", "inline"] | None = None,
        connect: Callable[[str], apsw.Connection] = connections.connect,
    ) -> None:
        if executor not in (None, "threaded", "inline"):
            raise ConfigurationError(f"no executor {executor!r}; there are threaded and inline")
        self._path = path_of(url)
        self.url = url
        self._simulated = clock.seams().inline
        self._inline = executor == "inline" or (executor is None and self._simulated)
        self._connect = connect
        self._executor: Executor | None = None
        self._open = False
        self._hub = Hub() if self._path == connections.MEMORY else hub_of(self._path)
        self.wakes = SqliteWakes(self._hub, self._look_out)
        self._queued = False
        """Whether anything was queued through this store since its last claim."""

    # -- life ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect; see ``Store.open``."""
        if self._open:
            return
        if connections.is_missing(self._path):
            raise SchemaOutdated(f"there is no database at {self._path}; run `outlast migrate`")
        executor = self._start()
        try:
            await executor.read(migrating.check_schema)
        except BaseException:
            if self._path != connections.MEMORY:
                await self._stop()
            raise
        self._open = True

    async def close(self) -> None:
        """Finish what is pending and release everything; idempotent. A memory store is gone then."""
        self._open = False
        self.wakes.close()
        await self._stop()

    async def migrate(self) -> list[str]:
        """Bring the schema up; see ``Store.migrate``."""
        executor = self._start()
        try:
            return await executor.write(migrating.migrate)
        finally:
            if not self._open and self._path != connections.MEMORY:
                await self._stop()

    def _start(self) -> Executor:
        if self._executor is None:
            if self._inline:
                # A simulation owns time: its clock stands for the database's.
                source = clock.unix_us if self._simulated else None
                self._executor = Inline(self._path, hint=self._hint, clock=source, connect=self._connect)
            else:
                self._executor = Threaded(
                    self._path,
                    hint=self._hint,
                    watched=self.wakes.watched,
                    changed=lambda: self._hub.hint(TOPICS),
                )
        return self._executor

    def _hint(self, topics: frozenset[str]) -> None:
        # From any thread, after the commit.
        self._queued = self._queued or "queue" in topics
        self._hub.hint(topics)

    async def _stop(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            await executor.close()

    def _look_out(self) -> None:
        if self._executor is not None:
            self._executor.look_out()

    def _desk(self) -> Executor:
        if self._executor is None or not self._open:
            raise StoreUnavailable("the store is not open")
        return self._executor

    # -- verbs -----------------------------------------------------------------------------------------------

    async def submit(self, batch: Sequence[Submission], *, connection: Any = None) -> list[Submitted]:
        """Accept tasks; see ``Store.submit``.

        connection: an apsw.Connection to the same file, in a transaction of the caller's; the statements run
        on it in place. Raises ConfigurationError for any other connection.
        """
        if connection is not None:
            return self._submit_within(connection, batch)
        if not batch:
            return []
        return await self._desk().write(lambda tx: submitting.submit(tx, batch))

    async def submit_and_claim(
        self, batch: Sequence[Submission], request: ClaimRequest, *, now: int | None = None
    ) -> tuple[list[Submitted], ClaimReply] | None:
        """Accept tasks and claim, in one transaction; see ``Store.submit_and_claim``."""
        if any(one.parent is not None for one in batch):
            return None
        return await self._desk().write(lambda tx: claiming.submit_and_claim(tx, batch, request, now))

    def _submit_within(self, connection: Any, batch: Sequence[Submission]) -> list[Submitted]:
        if not isinstance(connection, apsw.Connection):
            raise ConfigurationError(
                f"connection is {type(connection).__name__}; an SQLite store takes an apsw.Connection, "
                "since a second SQLite library in one process breaks the file's locks"
            )
        if not connection.in_transaction:
            raise ConfigurationError(
                "the connection is not in a transaction; begin one (begin immediate) first"
            )
        if os.path.realpath(connection.filename) != self._path:
            raise ConfigurationError("the connection is to another database than the store's")
        if not batch:
            return []
        connection.execute("savepoint outlast_submit")
        try:
            verdicts = submitting.submit(Transaction(connection), batch)
        except apsw.BusyError:
            # Another writer holds the file: nothing of this was written, and the caller's transaction stands.
            self._undo(connection)
            return [Submitted(kind="busy", task=one.task) for one in batch]
        except Exception as error:
            self._undo(connection)
            raise connections.translate(error, self._path) from error
        connection.execute("release outlast_submit")
        return verdicts

    @staticmethod
    def _undo(connection: apsw.Connection) -> None:
        if connection.in_transaction:
            connection.execute("rollback to outlast_submit")
            connection.execute("release outlast_submit")

    async def renew(self, renewal: SessionRenewal, *, now: int | None = None) -> Renewed:
        """Open or renew a session; see ``Store.renew``."""
        return await self._desk().write(lambda tx: claiming.renew(tx, renewal, now))

    async def retire(self, session: str) -> None:
        """End a session; see ``Store.retire``."""
        await self._desk().write(lambda tx: claiming.retire(tx, session))

    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> ClaimReply:
        """Take queued tasks; see ``Store.claim``."""
        # Where something was just queued here, a look would only find that.
        peeks, self._queued = not self._queued, False
        return await self._desk().write(
            lambda tx: claiming.claim(tx, request, now),
            peek=(lambda tx: claiming.peek(tx, request, now)) if peeks else None,
        )

    async def reconcile(
        self, session: str, held: Sequence[Held], fence: int, *, now: int | None = None
    ) -> list[TaskRef]:
        """Give back leases that a lost answer claimed; see ``Store.reconcile``."""
        return await self._desk().write(lambda tx: claiming.reconcile(tx, session, held, fence, now))

    async def load(self, tasks: Sequence[Claimed]) -> list[Loaded]:
        """Read inputs and journals; see ``Store.load``."""
        return await self._desk().read(lambda tx: claiming.load(tx, tasks))

    async def flush(self, batch: Batch, *, now: int | None = None) -> list[Flushed]:
        """Write a batch; see ``Store.flush``."""
        return await self._desk().write(lambda tx: flushing.flush(tx, batch, now))

    async def settle(self, settlements: Sequence[Settlement], *, now: int | None = None) -> list[Settled]:
        """Settle unknown operations; see ``Store.settle``."""
        return await self._desk().write(lambda tx: settling.settle(tx, settlements, now))

    async def note(self, evidence: Sequence[Evidence], *, now: int | None = None) -> None:
        """Append evidence; see ``Store.note``."""
        await self._desk().write(lambda tx: settling.note(tx, evidence, now))

    async def admit(self, notes: Sequence[Evidence], *, now: int | None = None) -> list[Passage | None]:
        """Note requests that are about to leave; see ``Store.admit``."""
        return await self._desk().write(lambda tx: passing.admit(tx, notes, now))

    async def claim_open(self, request: OpenRequest, *, now: int | None = None) -> list[OpenItem]:
        """Take unknown operations that are due; see ``Store.claim_open``."""
        return await self._desk().write(
            lambda tx: reconciling.claim_open(tx, request, now),
            peek=lambda tx: reconciling.peek(tx, request, now),
        )

    async def postpone(self, postponements: Sequence[Postponement], *, now: int | None = None) -> list[bool]:
        """Put taken operations back; see ``Store.postpone``."""
        return await self._desk().write(lambda tx: reconciling.postpone(tx, postponements, now))

    async def post(self, signals: Sequence[Signal], *, now: int | None = None) -> list[Posted]:
        """Put signals into their tasks' inboxes; see ``Store.post``."""
        return await self._desk().write(lambda tx: posting.post(tx, signals, now))

    async def cancel(self, requests: Sequence[Cancel], *, now: int | None = None) -> list[CancelReply]:
        """Cancel tasks; see ``Store.cancel``."""
        return await self._desk().write(lambda tx: cancelling.cancel(tx, requests, now))

    async def news(self, session: str, heard: Sequence[Heard], *, now: int | None = None) -> list[News]:
        """Note what a worker has heard and answer what there is more; see ``Store.news``."""
        if not heard:
            return await self._desk().read(lambda tx: posting.hear(tx, session))
        return await self._desk().write(lambda tx: posting.news(tx, session, heard))

    async def deliver(self, limit: int, *, now: int | None = None) -> Delivered:
        """Deliver what ends of tasks and of switches have left; see ``Store.deliver``."""
        return await self._desk().write(
            lambda tx: posting.deliver(tx, limit, now), peek=posting.nothing_to_deliver
        )

    async def decide(self, decisions: Sequence[Decision], *, now: int | None = None) -> list[Decided]:
        """Decide approvals; see ``Store.decide``."""
        return await self._desk().write(lambda tx: approving.decide(tx, decisions, now))

    async def retry(self, requests: Sequence[Retry], *, now: int | None = None) -> list[Retried]:
        """Open the next round of tasks; see ``Store.retry``."""
        return await self._desk().write(lambda tx: changing.retry(tx, requests, now))

    async def fork(self, requests: Sequence[Fork], *, now: int | None = None) -> list[Forked]:
        """Make tasks from prefixes of journals; see ``Store.fork``."""
        return await self._desk().write(lambda tx: forking.fork(tx, requests, now))

    async def adopt(self, requests: Sequence[Adopt], *, now: int | None = None) -> list[Adopted]:
        """Bind tasks to another version; see ``Store.adopt``."""
        return await self._desk().write(lambda tx: changing.adopt(tx, requests, now))

    async def wake(self, ref: TaskRef, by: str, reason: str, *, now: int | None = None) -> bool:
        """Let a task that waits for an operator try again; see ``Store.wake``."""
        return await self._desk().write(lambda tx: changing.wake(tx, ref, by, reason, now))

    async def accept(self, verdicts: Sequence[Acceptance], *, now: int | None = None) -> list[Accepted]:
        """Record verdicts on finished work; see ``Store.accept``."""
        return await self._desk().write(lambda tx: changing.accept(tx, verdicts, now))

    async def post_outside(
        self, events: Sequence[OutsideEvent], *, now: int | None = None
    ) -> list[OutsidePosted]:
        """Bring events of outside sessions to their tasks; see ``Store.post_outside``."""
        return await self._desk().write(lambda tx: outside.post_outside(tx, events, now))

    async def put_rule(self, rule: Rule, *, now: int | None = None) -> int:
        """Let a standing rule stand; see ``Store.put_rule``."""
        return await self._desk().write(lambda tx: rules.put_rule(tx, rule, now))

    async def withdraw_rule(
        self, tenant: str, number: int, by: str, reason: str, *, now: int | None = None
    ) -> bool:
        """Take a standing rule back; see ``Store.withdraw_rule``."""
        return await self._desk().write(lambda tx: rules.withdraw_rule(tx, tenant, number, by, reason, now))

    async def pause(self, switch: Pause, *, now: int | None = None) -> None:
        """Stop new intents of a scope; see ``Store.pause``."""
        await self._desk().write(lambda tx: switches.pause(tx, switch, now))

    async def resume(self, switch: Pause, *, now: int | None = None) -> bool:
        """Take a switch back; see ``Store.resume``."""
        return await self._desk().write(lambda tx: switches.resume(tx, switch, now))

    async def sweep(self, request: SweepRequest, *, now: int | None = None) -> Swept:
        """Sweep once; see ``Store.sweep``."""
        return await self._desk().write(
            lambda tx: sweeping.sweep(tx, request, now), peek=lambda tx: sweeping.peek(tx, request, now)
        )

    async def take_messages(self, limit: int, *, now: int | None = None) -> list[Message]:
        """Read pending outbox rows; see ``Store.take_messages``."""
        return await self._desk().read(lambda tx: outbox.take_messages(tx, limit))

    async def confirm_messages(self, publications: Sequence[Publication]) -> None:
        """Delete or park messages; see ``Store.confirm_messages``."""
        await self._desk().write(lambda tx: outbox.confirm_messages(tx, publications))

    async def put_schedule(self, asked: PutSchedule, *, now: int | None = None) -> SchedulePut:
        """Make or replace a schedule; see ``Store.put_schedule``."""
        return await self._desk().write(lambda tx: scheduling.put(tx, asked, now))

    async def set_schedule(self, asked: SetSchedule, *, now: int | None = None) -> ScheduleSet:
        """Pause, resume or delete a schedule; see ``Store.set_schedule``."""
        return await self._desk().write(lambda tx: scheduling.change(tx, asked, now))

    async def due_schedules(self, request: DueRequest, *, now: int | None = None) -> DueSchedules:
        """Take schedules that are due; see ``Store.due_schedules``."""
        return await self._desk().write(
            lambda tx: scheduling.due(tx, request, now), peek=lambda tx: scheduling.peek(tx, request, now)
        )

    async def fire_schedules(self, firings: Sequence[Firing], *, now: int | None = None) -> list[Fired]:
        """Submit tasks for instants of schedules; see ``Store.fire_schedules``."""
        return await self._desk().write(lambda tx: scheduling.fire(tx, firings, now))

    # -- views -----------------------------------------------------------------------------------------------

    async def read_tasks(self, refs: Sequence[TaskRef]) -> list[TaskRow]:
        """Read tasks; see ``Store.read_tasks``."""
        return await self._desk().read(lambda tx: views.read_tasks(tx, refs))

    async def list_tasks(self, query: TaskFilter) -> list[TaskRow]:
        """List tasks; see ``Store.list_tasks``."""
        return await self._desk().read(lambda tx: views.list_tasks(tx, query))

    async def read_events(
        self, cursors: Sequence[EventCursor], limit: int = 500, *, room: int | None = None
    ) -> list[EventRow]:
        """Read events; see ``Store.read_events``."""
        return await self._desk().read(lambda tx: views.read_events(tx, cursors, limit, room))

    async def read_ends(self, refs: Sequence[TaskRef]) -> list[EndRow]:
        """Read how tasks have ended; see ``Store.read_ends``."""
        return await self._desk().read(lambda tx: views.read_ends(tx, refs))

    async def read_attempts(self, ref: TaskRef) -> list[AttemptRow]:
        """Read attempts; see ``Store.read_attempts``."""
        return await self._desk().read(lambda tx: views.read_attempts(tx, ref))

    async def list_operations(self, query: OperationFilter) -> list[OperationRow]:
        """Read operations; see ``Store.list_operations``."""
        return await self._desk().read(lambda tx: views.list_operations(tx, query))

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
        """Read evidence; see ``Store.read_evidence``."""
        return await self._desk().read(
            lambda tx: views.read_evidence(tx, tenant, task, key, before=before, limit=limit, room=room)
        )

    async def read_passage(
        self, tenant: str, task: str, key: str, *, now: int | None = None
    ) -> Passage | None:
        """Read what decides whether a request may leave; see ``Store.read_passage``."""
        return await self._desk().read(lambda tx: passing.read_passage(tx, tenant, task, key, now))

    async def read_open(
        self, tenant: str, task: str, key: str, *, provider: str | None = None, now: int | None = None
    ) -> OpenState | None:
        """Read a place in the reconciliation queue; see ``Store.read_open``."""
        return await self._desk().read(
            lambda tx: reconciling.read_open(tx, tenant, task, key, provider=provider, now=now)
        )

    async def read_settled_counts(self, tenant: str) -> list[SettledCounts]:
        """Read how unknowns were settled; see ``Store.read_settled_counts``."""
        return await self._desk().read(lambda tx: counts.read(tx, tenant))

    async def list_pauses(self, tenant: str) -> list[Pause]:
        """List the switches that stand; see ``Store.list_pauses``."""
        return await self._desk().read(lambda tx: switches.list_pauses(tx, tenant))

    async def read_business_key(self, tenant: str, tool: str, value: str) -> KeyHolder | None:
        """Read who holds a business key; see ``Store.read_business_key``."""
        return await self._desk().read(lambda tx: keys.read(tx, tenant, tool, value))

    async def read_audit(self, tenant: str, after: int = 0, limit: int = 100) -> list[AuditRow]:
        """Read a tenant's audit trail; see ``Store.read_audit``."""
        return await self._desk().read(lambda tx: switches.read_audit(tx, tenant, after, limit))

    async def list_versions(self, tenant: str | None = None) -> list[VersionRow]:
        """Count live tasks by version; see ``Store.list_versions``."""
        return await self._desk().read(lambda tx: changing.list_versions(tx, tenant))

    async def list_sessions(self) -> list[SessionRow]:
        """List the sessions that live; see ``Store.list_sessions``."""
        return await self._desk().read(changing.list_sessions)

    async def count_unknown(self) -> list[UnknownCount]:
        """Count unknown calls by tool; see ``Store.count_unknown``."""
        return await self._desk().read(counts.count_unknown)

    async def read_acceptances(self, tenant: str, task: str) -> list[AcceptanceRow]:
        """Read the verdicts on a task's work; see ``Store.read_acceptances``."""
        return await self._desk().read(lambda tx: changing.read_acceptances(tx, tenant, task))

    async def read_outside(self, tenant: str, task: str) -> list[OutsideRow]:
        """Read the outside sessions that a task holds; see ``Store.read_outside``."""
        return await self._desk().read(lambda tx: outside.read_outside(tx, tenant, task))

    async def read_inbox(self, tenant: str, task: str, after: int = 0) -> list[InboxRow]:
        """Read what lies before a task; see ``Store.read_inbox``."""
        return await self._desk().read(lambda tx: posting.read_inbox(tx, tenant, task, after))

    async def read_approvals(self, tenant: str, task: str) -> list[ApprovalRow]:
        """Read a task's approvals; see ``Store.read_approvals``."""
        return await self._desk().read(lambda tx: approving.read_approvals(tx, tenant, task))

    async def read_approval(self, tenant: str, approval: str) -> ApprovalRow | None:
        """Read an approval; see ``Store.read_approval``."""
        return await self._desk().read(lambda tx: approving.read_approval(tx, tenant, approval))

    async def list_approvals(self, query: ApprovalFilter) -> list[ApprovalRow]:
        """List approvals; see ``Store.list_approvals``."""
        return await self._desk().read(lambda tx: approving.list_approvals(tx, query))

    async def read_votes(self, tenant: str, approval: str) -> list[VoteRow]:
        """Read who said what about an approval; see ``Store.read_votes``."""
        return await self._desk().read(lambda tx: approving.read_votes(tx, tenant, approval))

    async def read_rules(self, tenant: str, tool: str) -> Rules:
        """Read a tool's standing rules; see ``Store.read_rules``."""
        return await self._desk().read(lambda tx: rules.read_rules(tx, tenant, tool))

    async def list_rules(self, tenant: str) -> list[Rule]:
        """List a tenant's standing rules; see ``Store.list_rules``."""
        return await self._desk().read(lambda tx: rules.list_rules(tx, tenant))

    async def read_schedule(self, tenant: str, id: str) -> ScheduleRow | None:
        """Read a schedule; see ``Store.read_schedule``."""
        return await self._desk().read(lambda tx: scheduling.read(tx, tenant, id))

    async def list_schedules(self, tenant: str, after: str = "", limit: int = 100) -> list[ScheduleRow]:
        """List a tenant's schedules; see ``Store.list_schedules``."""
        return await self._desk().read(lambda tx: scheduling.list_schedules(tx, tenant, after, limit))

    async def health(self) -> Health:
        """Say whether the store answers; never raises."""
        try:
            return await self._desk().read(views.health)
        except Exception as error:  # a view of the store's health says what is wrong with it
            return Health(reachable=False, detail=str(error))

    async def dump(self) -> dict[str, list[dict[str, Any]]]:
        """Read every row; see ``Store.dump``."""
        return await self._desk().read(views.dump)
