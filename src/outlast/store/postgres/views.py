"""The views of the store: reads without locks, on a few connections that the verbs do not share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from outlast.core import ids
from outlast.store.passing import PASSED_BOUND, Passage, PassageNote
from outlast.store.postgres import failures
from outlast.store.postgres.connections import FOLLOW, VIEW, Address, Lines
from outlast.store.postgres.scheduling import schedule_of
from outlast.store.reconciling import COUNT_BOUND, AuditRow, KeyHolder, OpenState, Pause, SettledCounts
from outlast.store.records import OperationRow, TaskRef
from outlast.store.rows import (
    AttemptRow,
    EndRow,
    EventCursor,
    EventRow,
    EvidenceRow,
    Health,
    OperationFilter,
    TaskFilter,
    TaskRow,
)
from outlast.store.scheduling import ScheduleRow

_TABLES = (
    "tasks", "inputs", "lanes", "queue", "leases", "attempts", "sessions", "writers", "operations",
    "unsettled", "evidence", "events", "timers", "results", "outbox", "provider_waits", "business_keys",
    "pauses", "held_tasks", "audit", "settled_counts", "inbox", "posts", "approvals", "votes", "rules",
    "schedules", "issued", "acceptances", "outside", "migrations",
)  # fmt: skip
_VIEW_CONNECTIONS = 3
_FOLLOW_CONNECTIONS = 2


class Views:
    """Read what the verbs wrote."""

    url: str

    def __init__(self, address: Address, sql: dict[str, str]) -> None:
        self._address = address
        self._sql = sql
        self._views = Lines(address, VIEW, _VIEW_CONNECTIONS)
        # What is asked at every hint is planned once: that costs more than to carry it out.
        self._follows = Lines(address, FOLLOW, _FOLLOW_CONNECTIONS)
        self.url = address.shown

    async def read_tasks(self, refs: Sequence[TaskRef]) -> list[TaskRow]:
        """Read tasks that exist among ``refs``."""
        rows = await self._view("read_tasks", [r.tenant for r in refs], [r.task for r in refs])
        return [_task_of(row) for row in rows]

    async def list_tasks(self, query: TaskFilter) -> list[TaskRow]:
        """List a tenant's tasks, newest first."""
        arguments = (query.tenant, query.state, query.agent, query.before, query.limit)
        if query.parent is None:
            rows = await self._view("list_tasks", *arguments)
        else:
            rows = await self._view("list_children", *arguments, query.parent)
        return [_task_of(row) for row in rows]

    async def read_events(
        self, cursors: Sequence[EventCursor], limit: int = 500, *, room: int | None = None
    ) -> list[EventRow]:
        """Read events above each cursor, ordered by task and number, at most ``limit`` in all."""
        if not cursors:
            return []
        rows = await self._follow(
            "read_events",
            [c.tenant for c in cursors],
            [c.task for c in cursors],
            [c.after for c in cursors],
            limit,
            room,
        )
        return [
            EventRow(tenant=tenant, task=task, number=number, kind=kind, epoch=epoch, data=data, at=at)
            for tenant, task, number, kind, epoch, data, at in rows
        ]

    async def read_ends(self, refs: Sequence[TaskRef]) -> list[EndRow]:
        """Read how tasks that exist among ``refs`` have ended."""
        rows = await self._follow("read_ends", [r.tenant for r in refs], [r.task for r in refs])
        return [
            EndRow(
                tenant=tenant,
                task=task,
                agent=agent,
                version=version,
                state=state,
                result=result,
                error=error,
            )
            for tenant, task, agent, version, state, result, error in rows
        ]

    async def read_attempts(self, ref: TaskRef) -> list[AttemptRow]:
        """Read a task's attempts, oldest first, the running one included."""
        return [AttemptRow(**dict(row)) for row in await self._view("read_attempts", ref.tenant, ref.task)]

    async def list_operations(self, query: OperationFilter) -> list[OperationRow]:
        """Read the ledger of a task by position, or the tenant's reconciliation queue by operation id."""
        if query.task is not None:
            after = None if query.after is None else query.after.removeprefix(f"{query.task}:")
            rows = await self._view(
                "list_task_operations",
                query.tenant, query.task, query.key, query.state, after, query.limit, query.values,
            )  # fmt: skip
        else:
            if query.state != "unknown":
                raise ValueError("without a task only unknown operations are listed")
            task, key = ids.split_operation_id(query.after) if query.after else (None, None)
            rows = await self._view(
                "list_unknown_operations", query.tenant, query.key, task, key, query.limit, query.values
            )
        return [operation_of(row) for row in rows]

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
        """Read an operation's evidence, oldest first; see ``Store.read_evidence``."""
        rows = await self._view("read_evidence", tenant, task, key, before, limit, room)
        return [EvidenceRow(**dict(row)) for row in rows]

    async def read_passage(
        self, tenant: str, task: str, key: str, *, now: int | None = None
    ) -> Passage | None:
        """Read what decides whether a request of an operation may leave, None without such an operation."""
        rows = await self._view("read_passage", tenant, task, key, now, PASSED_BOUND)
        return passage_of(rows[0]) if rows else None

    async def read_open(
        self, tenant: str, task: str, key: str, *, provider: str | None = None, now: int | None = None
    ) -> OpenState | None:
        """Read an operation's place in the reconciliation queue, None when it is not in it."""
        rows = await self._view("read_open", tenant, task, key, provider, now)
        return OpenState(**dict(rows[0])) if rows else None

    async def read_settled_counts(self, tenant: str) -> list[SettledCounts]:
        """Read how a tenant's unknowns ended, by tool; those that are open are counted up to a bound."""
        rows = await self._view("read_settled_counts", tenant, COUNT_BOUND)
        return [SettledCounts(**dict(row)) for row in rows]

    async def list_pauses(self, tenant: str) -> list[Pause]:
        """List the switches that stand for a tenant, those for everybody included."""
        return [Pause(**dict(row)) for row in await self._view("list_pauses", tenant)]

    async def read_business_key(self, tenant: str, tool: str, value: str) -> KeyHolder | None:
        """Read who holds a business key, None when nobody does (any more)."""
        rows = await self._view("read_business_key", tenant, tool, value)
        return KeyHolder(**dict(rows[0])) if rows else None

    async def read_audit(self, tenant: str, after: int = 0, limit: int = 100) -> list[AuditRow]:
        """Read a tenant's audit trail above a number, oldest first."""
        return [AuditRow(**dict(row)) for row in await self._view("read_audit", tenant, after, limit)]

    async def read_schedule(self, tenant: str, id: str) -> ScheduleRow | None:
        """Read a schedule, None when there is none of that id."""
        rows = await self._view("read_schedule", tenant, id)
        return schedule_of(rows[0]) if rows else None

    async def list_schedules(self, tenant: str, after: str = "", limit: int = 100) -> list[ScheduleRow]:
        """List a tenant's schedules by id, those above ``after``."""
        return [schedule_of(row) for row in await self._view("list_schedules", tenant, after, limit)]

    async def health(self) -> Health:
        """Say whether the store answers; never raises."""
        try:
            [row] = await self._view("read_health")
        except Exception as error:
            # Whatever it is, it is the answer.
            return Health(reachable=False, detail=failures.one_line(error))
        return Health(reachable=True, **dict(row))

    async def dump(self) -> dict[str, list[dict[str, Any]]]:
        """Read every row of every table in one snapshot; for checkers of small systems."""

        async def work(connection: asyncpg.Connection[asyncpg.Record]) -> dict[str, list[dict[str, Any]]]:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return {
                    table: [
                        dict(row)
                        for row in await connection.fetch(f"select * from outlast.{table} t order by t")
                    ]
                    for table in _TABLES
                }

        return await self._views.run(work)

    async def _view(self, name: str, *arguments: Any) -> list[asyncpg.Record]:
        sql = self._sql[name]
        return await self._views.run(lambda connection: connection.fetch(sql, *arguments))

    async def _follow(self, name: str, *arguments: Any) -> list[asyncpg.Record]:
        sql = self._sql[name]
        return await self._follows.run(lambda connection: connection.fetch(sql, *arguments))


def operation_of(row: asyncpg.Record) -> OperationRow:
    """Make an operation's record of a row that has its columns."""
    return OperationRow(
        tenant=row["tenant"],
        task=row["task"],
        key=row["key"],
        position=row["position"],
        kind=row["kind"],
        name=row["name"],
        state=row["state"],
        request=row["request"],
        decision=row["decision"],
        effect=row["effect"],
        attempt=row["attempt"],
        turn=row["turn"],
        epoch=row["epoch"],
        arguments=row["arguments"],
        result=row["result"],
        error=row["error"],
        created_at=row["created_at"],
        intent_at=row["intent_at"],
        first_intent_at=row["first_intent_at"],
        deadline_at=row["deadline_at"],
        due_at=row["due_at"],
        ended_at=row["ended_at"],
        settled_by=row["settled_by"],
        business_key=row["business_key"],
        idempotency_key=row["idempotency_key"],
        usage=row["usage"],
        visible_at=row["visible_at"],
    )


def passage_of(row: asyncpg.Record) -> Passage:
    """Make a passage's record of a row that has its columns."""
    columns = dict(row)
    columns.pop("item", None)
    notes = zip(columns.pop("attempts") or (), columns.pop("data") or (), strict=True)
    return Passage(**columns, notes=tuple(PassageNote(attempt=attempt, data=data) for attempt, data in notes))


def _task_of(row: asyncpg.Record) -> TaskRow:
    return TaskRow(**dict(row))
