"""Views: what people and checkers see, read from what is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from outlast.store.sqlite.claim import operation_row
from outlast.store.sqlite.migrate import schema_version
from outlast.store.sqlite.transaction import Transaction

TABLES = (
    "tasks",
    "inputs",
    "lanes",
    "queue",
    "leases",
    "attempts",
    "sessions",
    "writers",
    "operations",
    "unsettled",
    "provider_waits",
    "business_keys",
    "pauses",
    "held_tasks",
    "audit",
    "settled_counts",
    "evidence",
    "events",
    "timers",
    "results",
    "outbox",
    "inbox",
    "posts",
    "approvals",
    "votes",
    "rules",
    "schedules",
    "issued",
    "acceptances",
    "outside",
    "migrations",
)
"""Every table that both stores have."""
_FILLED = " union all ".join(f"select '{table}' where exists (select 1 from {table})" for table in TABLES)
QUEUE_BOUND = 10_000
_NO_END = 2**62
"""Above every number of evidence."""
_LAST = "\U0010ffff"
"""Sorts after every id."""


def read_tasks(tx: Transaction, refs: Sequence[TaskRef]) -> list[TaskRow]:
    """Read tasks that exist; see ``Store.read_tasks``."""
    return _read_tasks(tx, refs, whole=True)


def _read_tasks(tx: Transaction, refs: Sequence[TaskRef], *, whole: bool) -> list[TaskRow]:
    rows = (tx.row("read_task", {"tenant": ref.tenant, "task": ref.task, "whole": whole}) for ref in refs)
    return [_task_row(*row) for row in rows if row is not None]


def _task_row(
    tenant: str,
    task: str,
    agent: str,
    version: str,
    pool: str,
    priority: int,
    state: Any,
    reason: str | None,
    epoch: int,
    round_: int,
    last_event: int,
    key: str | None,
    user: str | None,
    input_: str,
    result: str | None,
    error: str | None,
    attempts: int,
    effects_open: int,
    submitted_at: int,
    ended_at: int | None,
    deadline_at: int | None,
    cancelling: int,
    parent: str | None,
    children: int,
    asks: int,
    forked_from: str | None,
    accepted: str | None,
    budget: str | None,
) -> TaskRow:
    return TaskRow(
        tenant=tenant,
        task=task,
        agent=agent,
        version=version,
        pool=pool,
        priority=priority,
        state=state,
        reason=reason,
        epoch=epoch,
        round=round_,
        last_event=last_event,
        key=key,
        user=user,
        input=input_,
        result=result,
        error=error,
        attempts=attempts,
        effects_open=effects_open,
        submitted_at=submitted_at,
        ended_at=ended_at,
        deadline_at=deadline_at,
        cancelling=bool(cancelling),
        parent=parent,
        children=children,
        asks=asks,
        forked_from=forked_from,
        accepted=accepted,
        budget=budget,
    )


def list_tasks(tx: Transaction, query: TaskFilter) -> list[TaskRow]:
    """List a tenant's tasks; see ``Store.list_tasks``."""
    found = tx.rows(
        "list_tasks" if query.parent is None else "list_children",
        {
            "tenant": query.tenant,
            "before": _LAST if query.before is None else query.before,
            "state": query.state,
            "agent": query.agent,
            "parent": query.parent,
            "limit": query.limit,
        },
    )
    return _read_tasks(tx, [TaskRef(tenant=query.tenant, task=task) for (task,) in found], whole=False)


def read_events(
    tx: Transaction, cursors: Sequence[EventCursor], limit: int, room: int | None
) -> list[EventRow]:
    """Read events above cursors; see ``Store.read_events``."""
    events: list[EventRow] = []
    size = 0
    for cursor in sorted(cursors, key=lambda cursor: (cursor.tenant, cursor.task)):
        left = limit - len(events)
        if left <= 0:
            break
        for tenant, task, number, kind, epoch, data, at in tx.each(
            "read_events", (cursor.tenant, cursor.task, cursor.after, left)
        ):
            events.append(
                EventRow(tenant=tenant, task=task, number=number, kind=kind, epoch=epoch, data=data, at=at)
            )
            size += len(data) if data.isascii() else len(data.encode())
            if room is not None and size >= room:
                return events
    return events


def read_ends(tx: Transaction, refs: Sequence[TaskRef]) -> list[EndRow]:
    """Read how tasks have ended; see ``Store.read_ends``."""
    rows = (tx.row("read_end", (ref.tenant, ref.task)) for ref in refs)
    return [
        EndRow(
            tenant=row[0],
            task=row[1],
            agent=row[2],
            version=row[3],
            state=row[4],
            result=row[5],
            error=row[6],
        )
        for row in rows
        if row is not None
    ]


def read_attempts(tx: Transaction, ref: TaskRef) -> list[AttemptRow]:
    """Read a task's attempts; see ``Store.read_attempts``."""
    return [
        AttemptRow(
            epoch=epoch,
            round=round_,
            session=session,
            worker=worker,
            version=version,
            config=config,
            started_at=started_at,
            ended_at=ended_at,
            end=end,
        )
        for epoch, round_, session, worker, version, config, started_at, ended_at, end in tx.rows(
            "read_attempts", (ref.tenant, ref.task)
        )
    ]


def list_operations(tx: Transaction, query: OperationFilter) -> list[OperationRow]:
    """Read a ledger or the reconciliation queue; see ``Store.list_operations``.

    ``after`` is an operation id (``<task>:<key>``); for the ledger of one task its key alone will do too.
    """
    if query.task is not None:
        after = query.after
        if after is not None:
            after = after.removeprefix(f"{query.task}:")
        rows = tx.rows(
            "list_ledger",
            {
                "tenant": query.tenant,
                "task": query.task,
                "key": query.key,
                "state": query.state,
                "after": after,
                "limit": query.limit,
                "values": query.values,
            },
        )
    elif query.state in (None, "unknown"):
        task_after, _, key_after = (query.after or "").partition(":")
        rows = tx.rows(
            "list_unsettled",
            {
                "tenant": query.tenant,
                "key": query.key,
                "task_after": task_after,
                "key_after": key_after,
                "limit": query.limit,
                "values": query.values,
            },
        )
    else:
        raise ValueError(f"operations in state {query.state!r} are listed by task only")
    return [operation_row(row) for row in rows]


def read_evidence(
    tx: Transaction,
    tenant: str,
    task: str,
    key: str,
    *,
    before: int | None,
    limit: int | None,
    room: int | None,
) -> list[EvidenceRow]:
    """Read an operation's evidence; see ``Store.read_evidence``."""
    newest: list[EvidenceRow] = []
    size = 0
    asked = (tenant, task, key, _NO_END if before is None else before, -1 if limit is None else limit)
    for number, attempt, source, data, at, says in tx.each("read_evidence", asked):
        newest.append(EvidenceRow(number=number, attempt=attempt, source=source, data=data, at=at, says=says))
        size += len(data) if data.isascii() else len(data.encode())
        if room is not None and size >= room:
            break
    return newest[::-1]


def health(tx: Transaction) -> Health:
    """Say how the store is; see ``Store.health``."""
    version = schema_version(tx)
    queued = tx.row("count_queue", (QUEUE_BOUND,)) if version else None
    return Health(
        reachable=True,
        now=tx.now(),
        schema_version=version,
        queued=0 if queued is None else int(queued[0]),
    )


def dump(tx: Transaction) -> dict[str, list[dict[str, Any]]]:
    """Read every row of every table; see ``Store.dump``."""
    # Most tables of most stores hold nothing: to ask all of them at once costs less than to read each.
    filled = {table for (table,) in tx.execute(_FILLED)}
    return {
        table: tx.named_rows(f"select * from {table} order by 1, 2, 3") if table in filled else []
        for table in TABLES
    }
