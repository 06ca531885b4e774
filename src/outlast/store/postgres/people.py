"""What reaches tasks from outside and what people decide: signals, cancels, deliveries, approvals, rules.

Each verb is one call of one function; "lock, then look" happens inside it. They have connections of their
own, since they wait for heads, and the renewal of a session must not wait behind them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import asyncpg

from outlast.store.approving import ApprovalFilter, ApprovalRow, Decided, Decision, Rule, Rules, VoteRow
from outlast.store.contract import Wakes
from outlast.store.postgres.connections import CONTROL, DELIVER, PEOPLE, Address, Line
from outlast.store.postgres.listen import Listener
from outlast.store.postgres.views import Views
from outlast.store.posting import (
    MAX_INBOX,
    Cancel,
    CancelReply,
    Delivered,
    Heard,
    News,
    Posted,
    Signal,
)
from outlast.store.records import InboxRow, TaskRef


class People(Views):
    """Post facts, decide, and read what was posted and decided."""

    wakes: Wakes

    def __init__(self, address: Address, sql: dict[str, str]) -> None:
        super().__init__(address, sql)
        self._control_line = Line(address, CONTROL)
        self._people_line = Line(address, PEOPLE)
        self._deliver_line = Line(address, DELIVER)
        self._listener = Listener(address, sql["notify"])
        self.wakes = self._listener

    async def post(self, signals: Sequence[Signal], *, now: int | None = None) -> list[Posted]:
        """Put signals into inboxes under the heads' locks; atomic, idempotent by (task, name, key)."""
        if not signals:
            return []
        columns = zip(
            *((s.tenant, s.task, s.name, s.data, s.digest, s.key, s.operation) for s in signals), strict=True
        )
        rows = await self._rows(self._people_line, "post", *columns, MAX_INBOX, now)
        self._hint_posted(woken=rows[0]["woken"], told=rows[0]["told"])
        return [Posted(kind=row["kind"], number=row["number"], state=row["state"]) for row in rows]

    async def cancel(self, requests: Sequence[Cancel], *, now: int | None = None) -> list[CancelReply]:
        """Cancel tasks, or mark those that run, under the heads' locks; atomic, idempotent."""
        if not requests:
            return []
        columns = zip(*((r.tenant, r.task, r.by, r.reason, r.undo) for r in requests), strict=True)
        rows = await self._rows(self._people_line, "cancel", *columns, now)
        self._hint("queue", "events", "ends", "facts", "posts")
        return [CancelReply(kind=kind, state=state) for kind, state in rows]

    async def news(self, session: str, heard: Sequence[Heard], *, now: int | None = None) -> list[News]:
        """Note what a worker has heard, by compare-and-set, and answer what there is more. Idempotent."""
        columns = [h.tenant for h in heard], [h.task for h in heard], [h.facts for h in heard]
        rows = await self._rows(self._control_line, "news", session, *columns)
        return [News(**dict(row)) for row in rows]

    async def deliver(self, limit: int, *, now: int | None = None) -> Delivered:
        """Deliver what ends of tasks and of switches have left, and delete it in the same transaction;
        idempotent."""
        found: dict[str, list[TaskRef]] = {"told": [], "cancelled": [], "more": []}
        for kind, tenant, task in await self._rows(self._deliver_line, "deliver", limit, now):
            found[kind].append(TaskRef(tenant=tenant, task=task))
        if found["told"]:
            self._hint("queue", "events", "facts")
        if found["cancelled"]:
            self._hint("events", "ends", "facts")
        return Delivered(
            told=tuple(found["told"]), cancelled=tuple(found["cancelled"]), more=bool(found["more"])
        )

    async def decide(self, decisions: Sequence[Decision], *, now: int | None = None) -> list[Decided]:
        """Decide approvals by compare-and-set under the heads' locks; atomic, idempotent."""
        if not decisions:
            return []
        columns = zip(
            *(
                (
                    d.tenant, d.approval, d.verdict, d.by, d.fingerprint, d.reason, json.dumps(d.roles),
                    d.via, d.arguments, d.shown, d.new_fingerprint, d.answer,
                )
                for d in decisions
            ),
            strict=True,
        )  # fmt: skip
        rows = await self._rows(self._people_line, "decide", *columns, now)
        self._hint_posted(woken=any(row["woken"] for row in rows), told=any(row["told"] for row in rows))
        return [
            Decided(
                kind=row["verdict"],
                approval=None if row["id"] is None else approval_of(row),
                detail=row["detail"],
            )
            for row in rows
        ]

    async def put_rule(self, rule: Rule, *, now: int | None = None) -> int:
        """Let a standing rule stand, with an audit row; answers its number."""
        arguments = (rule.tenant, rule.tool, rule.verdict, rule.bounds, rule.by, rule.reason, now)
        return int((await self._row(self._people_line, "put_rule", *arguments))[0])

    async def withdraw_rule(
        self, tenant: str, number: int, by: str, reason: str, *, now: int | None = None
    ) -> bool:
        """Take a rule back, with an audit row; answers whether it stood. Idempotent."""
        return bool((await self._row(self._people_line, "withdraw_rule", tenant, number, by, reason, now))[0])

    # Views: read committed, no locks.

    async def read_inbox(self, tenant: str, task: str, after: int = 0) -> list[InboxRow]:
        """Read what lies before a task above a number and was not taken, oldest first."""
        return [
            InboxRow(tenant=tenant, task=task, number=number, kind=kind, name=name, data=data, at=at)
            for _, _, number, kind, name, data, at in await self._view("read_inbox", tenant, task, after)
        ]

    async def read_approvals(self, tenant: str, task: str) -> list[ApprovalRow]:
        """Read all approvals of a task, by operation and number."""
        return [approval_of(row) for row in await self._view("load_approvals", [tenant], [task])]

    async def read_approval(self, tenant: str, approval: str) -> ApprovalRow | None:
        """Read an approval by its id."""
        rows = await self._view("read_approval", tenant, approval)
        return approval_of(rows[0]) if rows else None

    async def list_approvals(self, query: ApprovalFilter) -> list[ApprovalRow]:
        """List a tenant's approvals by age."""
        arguments = (query.tenant, *(query.after or (-1, "")), query.limit)
        if query.task is not None:
            rows = await self._view("list_task_approvals", *arguments, query.state, query.task)
        elif query.state == "pending":
            rows = await self._view("list_pending_approvals", *arguments)
        else:
            rows = await self._view("list_approvals", *arguments, query.state)
        return [approval_of(row) for row in rows]

    async def read_votes(self, tenant: str, approval: str) -> list[VoteRow]:
        """Read who said what about an approval, oldest first."""
        return [VoteRow(**dict(row)) for row in await self._view("read_votes", tenant, approval)]

    async def read_rules(self, tenant: str, tool: str) -> Rules:
        """Read the rules that stand for a tool, and the version of that list."""
        rows = await self._view("read_rules", tenant, tool)
        return Rules(
            version=rows[0]["version"],
            rules=tuple(_rule_of(row) for row in rows if row["number"] is not None),
        )

    async def list_rules(self, tenant: str) -> list[Rule]:
        """List a tenant's standing rules, by tool and number."""
        return [_rule_of(row) for row in await self._view("list_rules", tenant)]

    def _hint_posted(self, *, woken: bool, told: bool) -> None:
        self._hint("events")
        if woken:
            self._hint("queue")
        if told:
            self._hint("facts")

    def _hint(self, *topics: str) -> None:
        for topic in topics:
            self._listener.hint(topic)

    async def _rows(self, line: Line, name: str, *arguments: Any) -> list[asyncpg.Record]:
        sql = self._sql[name]
        return await line.run(lambda connection: connection.fetch(sql, *arguments))

    async def _row(self, line: Line, name: str, *arguments: Any) -> asyncpg.Record:
        [row] = await self._rows(line, name, *arguments)
        return row


def approval_of(row: asyncpg.Record) -> ApprovalRow:
    """Make an approval's record of a row that has its columns."""
    return ApprovalRow(**{name: row[name] for name in _APPROVAL}, roles=tuple(row["roles"]))


_APPROVAL = tuple(field.name for field in fields(ApprovalRow) if field.name != "roles")


def _rule_of(row: asyncpg.Record) -> Rule:
    return Rule(
        tenant=row["tenant"],
        tool=row["tool"],
        verdict=row["verdict"],
        by=row["by"],
        reason=row["reason"],
        bounds=row["bounds"],
        number=row["number"],
        at=row["at"],
    )
