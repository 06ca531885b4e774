"""The store on PostgreSQL.

Purpose: the contract's verbs as calls of functions that live in the database, each one round trip and one
transaction.

Identity, state, clock: see ``outlast.store``. "Lock, then look" happens inside the functions: each of their
statements sees what was committed before it began, so that a row is read after its lock was waited for.

What is fenced: see the head of each file under ``migrations``.

Failure by failure. A connection is lost: ``StoreUnavailable``; the next call opens another. The answer of a
flush is lost: the same numbered batch is sent again over a new connection, where it waits for the old
backend and finds its verdicts, or is applied now. The server is read-only, shutting down or out of
connections: as a lost connection. A caller is cancelled: its call goes on to its end. The schema is not
ours: named errors that say what to run.

Not covered: a server that loses acknowledged commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import asyncpg

from outlast import clock
from outlast.core.transitions import TASK
from outlast.errors import StoreUnavailable
from outlast.store import statements
from outlast.store.approving import ApprovalRow
from outlast.store.contract import FEW_TASKS, SHORT_BYTES, BatchRejected
from outlast.store.entries import Batch, Flushed
from outlast.store.passing import PASSED_BOUND, Passage
from outlast.store.postgres import batches, connections, schema
from outlast.store.postgres.changing import Changing
from outlast.store.postgres.connections import Address, Line, Lines
from outlast.store.postgres.failures import NoSuchLane
from outlast.store.postgres.people import approval_of
from outlast.store.postgres.scheduling import Scheduling
from outlast.store.postgres.submitting import Submitting, verdicts_of
from outlast.store.postgres.views import operation_of, passage_of
from outlast.store.reconciling import OpenItem, OpenRequest, Pause, Postponement
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
from outlast.store.rows import Message, Publication
from outlast.store.scheduling import (
    DueRequest,
    DueSchedules,
    Fired,
    Firing,
    PutSchedule,
    SchedulePut,
    ScheduleSet,
    SetSchedule,
)

DOUBT_SECONDS = 10.0
"""How long a flush whose answer was lost is sent again before it is given back as ``StoreUnavailable``."""
TIDY_SECONDS = 600.0
"""How often a sweep also removes rows that nobody will ask for again."""
_ASKING = frozenset({"tool", "model", "compensation", "signal"})
_INBOX = tuple(field.name for field in fields(InboxRow))
WORN = 256
"""Entries that this process takes from a lane before the lane's mark is moved."""


class PostgresStore(Changing):
    """Keep tasks in a PostgreSQL database (15 or newer), in a schema of its own named ``outlast``.

    url: ``postgresql://user:password@host:port/database``, with the options that asyncpg takes.
    """

    apart = True

    def __init__(self, url: str) -> None:
        address = Address(url)
        super().__init__(address, statements.load("outlast.store.postgres.sql"))
        sql = self._sql
        sql["flush"] = batches.statement()
        self._claim_line = Line(address, connections.CLAIM)
        self._flush_line = Line(address, connections.FLUSH)
        self._load_line = Line(address, connections.LOAD)
        self._sweep_line = Line(address, connections.SWEEP)
        self._submit_line = Line(address, connections.SUBMIT)
        self._submitting = Submitting(self._submit_line, sql)
        self._scheduling = Scheduling(
            self._control_line, self._sweep_line, self._submit_line, self._submitting, sql
        )
        # What this process took from each lane since the lane's mark was last moved, and whose turn was last.
        self._taken: dict[int, int] = {}
        self._last_tenant = ""
        self._tidy_at = 0.0

    async def open(self) -> None:
        """Connect and compare the schema.

        Raises StoreUnavailable, SchemaOutdated, SchemaTooNew, SchemaMismatch.
        """
        for line in self._lines():
            line.open()
        await self._control_line.run(lambda connection: schema.check(connection, self.url))
        self._listener.start()

    async def close(self) -> None:
        """Close every connection once its call has ended; idempotent."""
        await self._listener.close()
        await self._submitting.close()
        await asyncio.gather(*(line.close() for line in self._lines()))

    def _lines(self) -> tuple[Line | Lines, ...]:
        return (
            self._claim_line,
            self._flush_line,
            self._load_line,
            self._control_line,
            self._people_line,
            self._deliver_line,
            self._sweep_line,
            self._submit_line,
            self._views,
            self._follows,
        )

    async def migrate(self) -> list[str]:
        """Apply missing migrations in one transaction under a lock; answer their names.

        Idempotent, checksummed. Raises StoreUnavailable, SchemaTooNew, SchemaMismatch.
        """
        line = Line(self._address, connections.MIGRATE)
        try:
            return await line.run(lambda connection: schema.migrate(connection, self.url))
        finally:
            await line.close()

    async def submit(self, batch: Sequence[Submission], *, connection: Any = None) -> list[Submitted]:
        """Accept tasks; see ``Store.submit``. Atomic; idempotent by task id and by key."""
        if not batch:
            return []
        if connection is not None:
            return await self._submitting.submit_within(batch, connection)
        answer = await self._submitting.submit(batch)
        self._hint("queue", "events")
        return answer

    async def renew(self, renewal: SessionRenewal, *, now: int | None = None) -> Renewed:
        """Open or renew a session that was not swept. Idempotent."""
        arguments = (renewal.session, renewal.name, renewal.serves, renewal.ttl_us, now)
        alive, at, expires_at = await self._row(self._control_line, "renew", *arguments)
        return Renewed(alive=alive, now=at, expires_at=expires_at)

    async def retire(self, session: str) -> None:
        """End a session that holds no lease; idempotent."""
        await self._rows(self._control_line, "retire", session)

    async def reconcile(
        self, session: str, held: Sequence[Held], fence: int, *, now: int | None = None
    ) -> list[TaskRef]:
        """Give back leases that a lost answer claimed; see ``Store.reconcile``."""
        names = [one.tenant for one in held], [one.task for one in held], [one.epoch for one in held]
        rows = await self._rows(self._control_line, "reconcile", session, *names, fence, now)
        if rows:
            self._hint("queue", "events", "ends", "posts")
        return [TaskRef(tenant=tenant, task=task) for tenant, task in rows]

    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> ClaimReply:
        """Take queued tasks under the session; one call, one transaction. Fenced by the heads' locks."""
        worn = self._worn()
        rows = await self._rows(self._claim_line, "claim", *self._claiming(request, worn, now))
        return self._claimed(rows, worn)

    async def submit_and_claim(
        self, batch: Sequence[Submission], request: ClaimRequest, *, now: int | None = None
    ) -> tuple[list[Submitted], ClaimReply] | None:
        """Accept tasks and claim, in one call and one transaction; see ``Store.submit_and_claim``."""
        submission = self._submitting.known(batch)
        if submission is None:
            return None
        worn = self._worn()
        sql, arguments = self._sql["submit_and_claim"], (*submission, *self._claiming(request, worn, now))

        async def work(connection: asyncpg.Connection[asyncpg.Record]) -> list[asyncpg.Record] | None:
            try:
                return await connection.fetch(sql, *arguments)
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                # A twin of one of them is open elsewhere.
                return None

        try:
            rows = await self._submit_line.run(work)
        except (BatchRejected, NoSuchLane):
            rows = None
        if rows is None:
            # Whose fault it is, and whether it can be helped, the submit finds out by itself.
            return None
        if rows[0]["kind"] == "lane":
            return None
        own = [(row["item"], row["kind"], row["task"]) for row in rows if row["item"] is not None]
        verdicts = verdicts_of(batch, own)
        reply = self._claimed(rows[len(own) :], worn)
        taken = {claimed.task for claimed in reply.claims}
        if any(one.kind == "accepted" and one.task not in taken for one in verdicts):
            self._hint("queue")
        self._hint("events")
        return verdicts, reply

    def _worn(self) -> dict[int, int]:
        """Answer the lanes whose marks are to be moved, and what was taken from each."""
        return {lane: count for lane, count in self._taken.items() if count >= WORN}

    def _claiming(self, request: ClaimRequest, worn: dict[int, int], now: int | None) -> tuple[Any, ...]:
        return (
            request.session,
            request.pools,
            [s.agent for s in request.serves],
            [s.version for s in request.serves],
            [s.default for s in request.serves],
            request.limit,
            request.config,
            request.fence,
            now,
            self._last_tenant,
            list(worn),
            list(worn.values()),
            FEW_TASKS,
            SHORT_BYTES,
        )

    def _claimed(self, rows: Sequence[asyncpg.Record], worn: dict[int, int]) -> ClaimReply:
        """Read what a claim has answered, and count what it took."""
        at = rows[0]["now"]
        if rows[0]["refused"] is None:
            # Another claimer was at work: nothing was looked at, and no mark moved.
            return ClaimReply(now=at, claims=())
        for lane in worn:
            self._taken.pop(lane, None)
        if rows[0]["task"] is None:
            return ClaimReply(now=at, claims=(), refused=rows[0]["refused"])
        claims = []
        loaded: dict[tuple[str, str], Loaded] = {}
        for row in rows:
            tenant, task, epoch, round_, agent, version, facts, deadline_at, cancelling, lane = row[:10]
            if epoch is None:
                loaded[tenant, task] = _loaded_of(tenant, task, row)
                continue
            self._taken[lane] = self._taken.get(lane, 0) + 1
            claims.append(
                Claimed(
                    tenant=tenant, task=task, epoch=epoch, round=round_, agent=agent, version=version,
                    facts=facts, deadline_at=deadline_at, cancelling=cancelling,
                )
            )  # fmt: skip
        self._last_tenant = claims[-1].tenant
        self._hint("events")
        return ClaimReply(now=at, claims=tuple(claims), loaded=tuple(loaded.values()))

    async def load(self, tasks: Sequence[Claimed]) -> list[Loaded]:
        """Read inputs and journals, without locks, in the order asked."""
        if not tasks:
            return []
        tenants, ids = [t.tenant for t in tasks], [t.task for t in tasks]

        async def work(connection: asyncpg.Connection[asyncpg.Record]) -> list[list[asyncpg.Record]]:
            read = connection.fetch
            inputs = await read(self._sql["load_inputs"], tenants, ids, [t.round for t in tasks])
            # A task that begins has done nothing yet.
            operations: list[asyncpg.Record] = []
            if any(row["begun"] for row in inputs):
                operations = await read(self._sql["load_operations"], tenants, ids)
            # Only calls and waits have questions.
            inboxes: list[asyncpg.Record] = []
            approvals: list[asyncpg.Record] = []
            if any(row["heard"] for row in inputs):
                inboxes = await read(self._sql["load_inboxes"], tenants, ids)
            if any(row["kind"] in _ASKING for row in operations):
                approvals = await read(self._sql["load_approvals"], tenants, ids)
            issued: list[asyncpg.Record] = []
            if any(row["forked"] for row in inputs):
                issued = await read(self._sql["load_issued"], tenants, ids)
            return [inputs, operations, inboxes, approvals, issued]

        inputs, operations, inboxes, approvals, issued = await self._load_line.run(work)
        journals: dict[int, list[OperationRow]] = {}
        for row in operations:
            journals.setdefault(row["item"], []).append(operation_of(row))
        lying: dict[int, list[InboxRow]] = {}
        for item, *columns in inboxes:
            lying.setdefault(item, []).append(InboxRow(**dict(zip(_INBOX, columns, strict=True))))
        asked: dict[int, list[ApprovalRow]] = {}
        for row in approvals:
            asked.setdefault(row["item"], []).append(approval_of(row))
        behind: dict[int, list[OperationRow]] = {}
        for row in issued:
            behind.setdefault(row["item"], []).append(operation_of(row))
        return [
            _loaded_of(
                tenants[row["item"] - 1],
                ids[row["item"] - 1],
                row,
                operations=journals.get(row["item"], ()),
                inbox=lying.get(row["item"], ()),
                approvals=asked.get(row["item"], ()),
                issued=behind.get(row["item"], ()),
            )
            for row in inputs
        ]

    async def flush(self, batch: Batch, *, now: int | None = None) -> list[Flushed]:
        """Write a numbered batch; see ``Store.flush``. Atomic, fenced by epoch, idempotent by (writer,
        number)."""
        arguments = batches.encode(batch, now)
        until = clock.monotonic() + DOUBT_SECONDS
        pause = 0.02
        verdicts: str | None = None
        while verdicts is None:
            try:
                verdicts = (await self._row(self._flush_line, "flush", *arguments))[0]
            except StoreUnavailable:
                # In doubt, or not sent at all: the very same batch over a new connection settles either.
                if clock.monotonic() + pause >= until:
                    raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)
        answer = batches.decode(verdicts)
        self._hint("events")
        states = {verdict.state for verdict in answer}
        if "queued" in states:
            self._hint("queue")
        if not states.isdisjoint(TASK.final):
            self._hint("ends")
        if batches.leaves_posts(verdicts):
            self._hint("posts")
        return answer

    async def settle(self, settlements: Sequence[Settlement], *, now: int | None = None) -> list[Settled]:
        """Settle unknown operations by compare-and-set under the heads' locks; atomic."""
        if not settlements:
            return []
        rows = await self._rows(
            self._control_line,
            "settle",
            *zip(
                *(
                    (
                        s.tenant,
                        s.task,
                        s.key,
                        s.verdict,
                        s.by,
                        s.reason,
                        s.turn,
                        s.result,
                        s.evidence,
                        s.forced,
                        s.retryable,
                    )
                    for s in settlements
                ),
                strict=True,
            ),
            now,
        )
        self._hint("queue", "events", "facts")
        return [Settled(kind=kind, state=state, wait_us=wait_us) for kind, state, wait_us in rows]

    async def note(self, evidence: Sequence[Evidence], *, now: int | None = None) -> None:
        """Append evidence; reopens a settlement that it contradicts, under the head's lock."""
        if evidence:
            columns = zip(
                *((e.tenant, e.task, e.key, e.attempt, e.source, e.data, e.says) for e in evidence),
                strict=True,
            )
            [(told,)] = await self._rows(self._control_line, "note", *columns, now)
            if told:
                self._hint("events")

    async def admit(self, notes: Sequence[Evidence], *, now: int | None = None) -> list[Passage | None]:
        """Note requests that are about to leave, and read what decides on each under its head's lock."""
        if not notes:
            return []
        columns = zip(*((n.tenant, n.task, n.key, n.attempt, n.source, n.data) for n in notes), strict=True)
        rows = await self._rows(self._control_line, "admit", *columns, now, PASSED_BOUND)
        found = {row["item"]: passage_of(row) for row in rows}
        return [found.get(item) for item in range(1, len(notes) + 1)]

    async def claim_open(self, request: OpenRequest, *, now: int | None = None) -> list[OpenItem]:
        """Take unknown operations that are due and that nobody works on; fenced by the heads' locks."""
        rows = await self._rows(
            self._control_line,
            "claim_open",
            request.session,
            request.tools,
            request.limit,
            request.lease_us,
            now,
        )
        return [
            OpenItem(
                operation=operation_of(row),
                trace=row["trace"],
                task_ended=row["task_ended"],
            )
            for row in rows
        ]

    async def postpone(self, postponements: Sequence[Postponement], *, now: int | None = None) -> list[bool]:
        """Put taken operations back by compare-and-set on their turn; atomic, idempotent."""
        if not postponements:
            return []
        columns = zip(
            *(
                (
                    *(p.tenant, p.task, p.key, p.turn, p.ask_in_us, p.unusable, p.why, p.seen, p.held),
                    *(p.wait or (None, None)),
                )
                for p in postponements
            ),
            strict=True,
        )
        rows = await self._rows(self._control_line, "postpone", *columns, now)
        return [row["theirs"] for row in rows]

    async def pause(self, switch: Pause, *, now: int | None = None) -> None:
        """Stop new intents of a scope, with an audit row; idempotent."""
        arguments = (switch.tenant, switch.scope, switch.reason, switch.by, now)
        await self._rows(self._people_line, "pause", *arguments)

    async def resume(self, switch: Pause, *, now: int | None = None) -> bool:
        """Take a switch back, with an audit row; answers whether it stood. Idempotent."""
        arguments = (switch.tenant, switch.scope, switch.reason, switch.by, now)
        stood = bool((await self._row(self._people_line, "resume", *arguments))[0])
        if stood:
            self._hint("posts")
        return stood

    async def sweep(self, request: SweepRequest, *, now: int | None = None) -> Swept:
        """End sessions that ran out, wake what is due, fail what is past its deadline; one sweeper at a
        time."""
        tidy = clock.monotonic() >= self._tidy_at
        if tidy:
            self._tidy_at = clock.monotonic() + TIDY_SECONDS
        rows = await self._rows(
            self._sweep_line, "sweep", request.limit, request.max_deaths, request.grace_us, now, tidy
        )
        found: dict[str, list[TaskRef]] = {"lost": [], "parked": [], "woken": [], "expired": []}
        sessions: list[str] = []
        more, next_due_us = False, None
        for kind, tenant, task, number in rows:
            if kind == "session":
                sessions.append(task)
            elif kind == "more":
                more = True
            elif kind == "next":
                next_due_us = number
            else:
                found[kind].append(TaskRef(tenant=tenant, task=task))
        if any(found.values()):
            self._hint("queue", "events", "ends")
        if found["lost"] or found["parked"] or found["expired"]:
            self._hint("posts")
        return Swept(
            sessions=tuple(sessions),
            lost=tuple(found["lost"]),
            parked=tuple(found["parked"]),
            woken=tuple(found["woken"]),
            expired=tuple(found["expired"]),
            more=more,
            next_due_us=next_due_us,
        )

    async def take_messages(self, limit: int, *, now: int | None = None) -> list[Message]:
        """Read pending outbox rows, oldest first, a task's in order."""
        rows = await self._rows(self._control_line, "take_messages", limit)
        return [
            Message(tenant=tenant, task=task, number=number, topic=topic, data=data, created_at=created_at)
            for tenant, task, number, topic, data, created_at in rows
        ]

    async def confirm_messages(self, publications: Sequence[Publication]) -> None:
        """Delete published rows, park the others; idempotent."""
        if publications:
            columns = zip(*((p.tenant, p.task, p.number, p.parked) for p in publications), strict=True)
            await self._rows(self._control_line, "confirm_messages", *columns)

    async def put_schedule(self, asked: PutSchedule, *, now: int | None = None) -> SchedulePut:
        """Make or replace a schedule by compare-and-set, with an audit row; idempotent."""
        return await self._scheduling.put(asked, now)

    async def set_schedule(self, asked: SetSchedule, *, now: int | None = None) -> ScheduleSet:
        """Pause, resume or delete a schedule by compare-and-set, with an audit row; idempotent."""
        return await self._scheduling.set(asked, now)

    async def due_schedules(self, request: DueRequest, *, now: int | None = None) -> DueSchedules:
        """Take schedules that are due; skips what others have locked."""
        return await self._scheduling.due(request, now)

    async def fire_schedules(self, firings: Sequence[Firing], *, now: int | None = None) -> list[Fired]:
        """Submit tasks for instants of schedules, each in a savepoint; fenced by (revision, next instant)."""
        if not firings:
            return []
        answer = await self._scheduling.fire(firings, now)
        if any(fired.kind == "fired" for fired in answer):
            self._hint("queue", "events")
        return answer


def _loaded_of(
    tenant: str,
    task: str,
    row: asyncpg.Record,
    operations: Sequence[OperationRow] = (),
    inbox: Sequence[InboxRow] = (),
    approvals: Sequence[ApprovalRow] = (),
    issued: Sequence[OperationRow] = (),
) -> Loaded:
    """Make what a task is loaded with from the row of its input and what else there is."""
    return Loaded(
        tenant=tenant,
        task=task,
        input=row["input"],
        user=row["user_name"],
        trace=row["trace"],
        submitted_at=row["submitted_at"],
        failures=row["failures"],
        attempts=row["attempts"],
        operations=tuple(operations),
        inbox=tuple(inbox),
        approvals=tuple(approvals),
        budget=row["budget"],
        depth=row["depth"],
        issued=tuple(issued),
    )
