"""The ledger as people use it: operations, the reconciliation queue, plans, switches and the audit trail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from outlast import clock, telemetry
from outlast.backing import Backing
from outlast.core import ids, values
from outlast.core.record import record
from outlast.core.settle import Plan, plan
from outlast.engine import facts
from outlast.engine.housekeeping.settler import may_send
from outlast.entrances import guarded
from outlast.errors import (
    ConfigurationError,
    InvalidKey,
    InvalidRequest,
    OperationNotFound,
    SettlementConflict,
)
from outlast.store.reconciling import EVERY_TENANT, OpenState, Pause, SettledCounts
from outlast.store.records import OperationRow, Settlement, TaskRef
from outlast.store.rows import EVENTS_ROOM, EVIDENCE_ROOM, EventCursor, OperationFilter, may_be_more
from outlast.submitting import DEFAULT_TENANT
from outlast.tools.call import ToolCall
from outlast.tools.http import make_client
from outlast.views import (
    AuditView,
    EventView,
    EvidencePage,
    EvidenceView,
    OperationView,
    PauseView,
    QueueView,
    instant,
)

PAGE = 500
"""Events that are read at a time."""
EVIDENCE_PAGE = 200
"""Pieces of evidence that are shown at a time."""
ENOUGH = 10
HIGH = 0.5
"""A share of unknowns that did not happen says something of a tool from so many ends on, and above this."""
MISCLASSIFIED = (
    "most of what was unknown had not happened: its outcomes are probably classified wrongly, failures taken"
    " for unknowns; see 'Say how it ended' in docs/howto/write-a-tool.md"
)


@guarded()
class Operations:
    """The ledger and the reconciliation queue."""

    def __init__(self, app: Backing) -> None:
        self._app = app

    async def list(
        self,
        *,
        task: str | None = None,
        state: str | None = None,
        tenant: str = DEFAULT_TENANT,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[OperationView]:
        """List a task's operations in order, or, without a task, the tenant's unknown ones.

        Without their arguments and results, which ``show`` has. state: of a task's only those; without a task
        no other than ``unknown``. after: the id of the one to go on behind; of a task's its key will do. What
        is recorded or settled meanwhile shifts no page. Raises InvalidRequest.
        """
        if task is None:
            state = state or "unknown"
            if state != "unknown":
                raise InvalidRequest(
                    f"operations that are {state} are listed by task; without one only what is unknown",
                    pointer="/state",
                )
        query = OperationFilter(tenant=tenant, task=task, state=state, after=after, limit=limit, values=False)
        return [OperationView.of(row) for row in await self._app.store.list_operations(query)]

    async def show(
        self, operation: str, *, tenant: str = DEFAULT_TENANT, evidence_before: int | None = None
    ) -> tuple[OperationView, EvidencePage]:
        """Read one operation by its id with its evidence: the newest 200 pieces, or fewer that are some
        megabytes together.

        evidence_before: the ``earlier`` of what was read last, for what came before that. Raises
        OperationNotFound.
        """
        task, key = ids.split_operation_id(operation)
        rows = await self._app.store.list_operations(
            OperationFilter(tenant=tenant, task=task, key=key, limit=1)
        )
        if not rows:
            raise OperationNotFound(f"no operation {operation} in tenant {tenant}")
        evidence = await self._app.store.read_evidence(
            tenant, task, key, before=evidence_before, limit=EVIDENCE_PAGE, room=EVIDENCE_ROOM
        )
        return OperationView.of(rows[0]), EvidencePage(EvidenceView.of(row) for row in evidence)

    async def places(
        self, operations: Sequence[str], *, tenant: str = DEFAULT_TENANT
    ) -> Sequence[QueueView | None]:
        """Read the places of operations in the reconciliation queue, in their order; None for one that is
        not in it."""
        found: list[QueueView | None] = []
        for operation in operations:
            row = await self._app.store.read_open(tenant, *ids.split_operation_id(operation))
            found.append(None if row is None else QueueView.of(row))
        return found

    async def timeline(self, operation: str, *, tenant: str = DEFAULT_TENANT) -> Sequence[EventView]:
        """Read the events of one operation, oldest first."""
        task, key = ids.split_operation_id(operation)
        found: list[EventView] = []
        after, more = 0, True
        while more:
            cursor = EventCursor(tenant=tenant, task=task, after=after)
            rows = await self._app.store.read_events([cursor], PAGE, room=EVENTS_ROOM)
            views = [EventView.of(row) for row in rows if row.kind.startswith("operation.")]
            found += [view for view in views if view.data.get("operation") == key]
            more = may_be_more(rows, PAGE)
            after = rows[-1].number if rows else after
        return found

    async def settle(
        self,
        operation: str,
        verdict: Literal["happened", "did_not_happen", "send_again"],
        *,
        reason: str,
        by: str,
        result: Any = None,
        turn: int | None = None,
        forced: bool = False,
        tenant: str = DEFAULT_TENANT,
    ) -> OperationView:
        """Settle an unknown operation; its task resumes.

        verdict: ``happened`` (with the result that the agent is to see), ``did_not_happen``, or
        ``send_again`` (under the same key). reason and by (a person's name) are kept. turn: the turn that was
        seen, so that two people cannot overwrite each other. forced: although the
        call may still be under way, or its effect may not show yet: unless forced, ``did_not_happen`` and
        ``send_again`` are refused until the call's deadline, and behind it the tool's ``visible_within=`` as
        it was at the call, are over.

        Raises OperationNotFound, SettlementConflict (with what is recorded), InvalidRequest. Atomic; fenced
        by the operation's turn.
        """
        task, key = ids.split_operation_id(operation)
        ids.check_key(reason, "reason")
        ids.check_key(by, "by")
        if verdict == "happened":
            await self._check_result(tenant, task, key, result)
        elif verdict == "send_again":
            await self._check_sender(tenant, task, operation)
        settlement = Settlement(
            tenant=tenant,
            task=task,
            key=key,
            verdict=verdict,
            by=f"person:{by}",
            reason=reason,
            turn=turn,
            result=values.encode(values.normalise(result), what="result") if verdict == "happened" else None,
            forced=forced,
        )
        (settled,) = await self._app.store.settle([settlement])
        if settled.kind == "not_found":
            raise OperationNotFound(f"no operation {operation} in tenant {tenant}")
        if settled.kind == "too_early":
            raise SettlementConflict(
                f"operation {operation} may still be under way, or its effect may not show yet, for"
                f" {settled.wait_us / 1_000_000:.1f} s; wait, or force it",
                state="too_early",
            )
        if settled.kind == "conflict":
            raise SettlementConflict(
                f"operation {operation} is {settled.state}, not open to this settlement", state=settled.state
            )
        view, _ = await self.show(operation, tenant=tenant)
        telemetry.emit(
            telemetry.OperationSettled(tenant=tenant, task=task, key=key, name=view.name, verdict=verdict)
        )
        return view

    async def _check_sender(self, tenant: str, task: str, operation: str) -> None:
        """Refuse to have a call sent again for a task that has ended: nobody would send it."""
        rows = await self._app.store.read_tasks([TaskRef(tenant=tenant, task=task)])
        if rows and rows[0].ended_at is not None:
            raise SettlementConflict(
                f"task {task} has ended as {rows[0].state}: nobody would send operation {operation} again;"
                " settle it as happened or as did_not_happen",
                state="task_ended",
            )

    async def _check_result(self, tenant: str, task: str, key: str, result: Any) -> None:
        """Refuse a result that the agent could not use, where this process knows the tool."""
        query = OperationFilter(tenant=tenant, task=task, key=key, limit=1)
        rows = await self._app.store.list_operations(query)
        tool = self._app.registry.tools.get(rows[0].name) if rows else None
        if tool is not None:
            try:
                tool.signature.restore(values.normalise(result))
            except ValueError as error:
                raise InvalidRequest(
                    f"the result does not fit what tool {tool.name} returns: {error}", pointer="/result"
                ) from None

    async def plan(self, operation: str, *, tenant: str = DEFAULT_TENANT) -> PlanView:
        """Say what would happen next to an operation, and why; changes nothing.

        Where this process does not know the tool, the plan that was last recorded is answered. Raises
        OperationNotFound.
        """
        task, key = ids.split_operation_id(operation)
        store = self._app.store
        rows = await store.list_operations(OperationFilter(tenant=tenant, task=task, key=key, limit=1))
        if not rows:
            raise OperationNotFound(f"no operation {operation} in tenant {tenant}")
        row = rows[0]
        tool = self._app.registry.tools.get(row.name)
        state = await store.read_open(tenant, task, key, provider=None if tool is None else tool.provider)
        if state is None:
            return PlanView(
                operation=operation,
                state=row.state,
                action="nothing",
                why=f"it is {row.state}",
                at=None,
                asked=0,
                refused_until=None,
            )
        now = (await store.health()).now
        decided = await self._decide(row, state, now)
        return PlanView(
            operation=operation,
            state=row.state,
            action=decided.action,
            why=decided.why,
            at=instant(decided.at if decided.at is not None else state.ask_at),
            asked=state.asked,
            refused_until=instant(row.visible_at) if (row.visible_at or 0) > now else None,
        )

    async def _decide(self, row: OperationRow, state: OpenState, now: int) -> Plan:
        if state.resend:
            return Plan(action="send_again", why="it was settled as to be sent again")
        tool = self._app.registry.tools.get(row.name)
        if tool is None or (state.ask_at is None and state.why):
            action: Literal["person", "wait"] = "person" if state.ask_at is None else "wait"
            return Plan(
                action=action, why=state.why or "its tool is not known to this process", at=state.ask_at
            )
        store = self._app.store
        evidence = await store.read_evidence(row.tenant, row.task, row.key)
        (task,) = await store.read_tasks([TaskRef(tenant=row.tenant, task=row.task)])
        known = facts.gather(
            tool, row, state, evidence, may_send=may_send(row, task_ended=task.ended_at is not None)
        )
        return plan(known.facts, now)

    async def stats(self, *, tenant: str = DEFAULT_TENANT) -> Sequence[ToolStats]:
        """Say how a tenant's unknowns ended, tool by tool, and which tools look wrongly classified.

        Of the whole ledger, whoever settled them; counted as they are settled, so that it costs no look
        through the history.
        """
        return [ToolStats.of(row) for row in await self._app.store.read_settled_counts(tenant)]

    async def sweep_other_side(
        self, tool: str, *, since: datetime, tenant: str = DEFAULT_TENANT
    ) -> OtherSide:
        """Ask a tool's other side for the effects that it holds, and find those that the ledger never
        admitted.

        tool: one registered with ``list_effects``. A listing that fails, or takes longer than the tool's
        timeout, is answered as ``unknown``, never as clean.
        """
        spec = self._app.registry.tools.get(tool)
        if spec is None or spec.list_effects is None:
            raise ConfigurationError(f"tool {tool!r} is not registered with list_effects=")
        client = make_client()
        query = ToolCall(
            idempotency_key="",
            task="",
            tenant=tenant,
            epoch=0,
            attempt=0,
            deadline=clock.monotonic() + spec.timeout_us / 1_000_000,
            client=lambda: client,
            query=True,
        )
        try:
            async with asyncio.timeout(spec.timeout_us / 1_000_000):
                keys = list(await spec.list_effects(query, since=since))
        # The listing is the user's code and the other side's answer; a failure of it proves nothing.
        except Exception as error:
            return OtherSide(tool=tool, verdict="unknown", seen=0, unadmitted=(), detail=type(error).__name__)
        finally:
            await client.aclose()
        strangers = [str(key) for key in keys if not await self._admitted(tenant, key)]
        verdict: Literal["clean", "unadmitted"] = "unadmitted" if strangers else "clean"
        return OtherSide(tool=tool, verdict=verdict, seen=len(keys), unadmitted=tuple(strangers), detail="")

    async def _admitted(self, tenant: str, key: Any) -> bool:
        """Whether a key of the other side's is of an operation that had an intent, or a part of such a key.

        What a fork took over it sends under the key of the task that made the call first, not under its own.
        """
        try:
            task, own = ids.split_operation_id(ids.check_key(key, "key"))
        except InvalidKey:
            # Not one of ours.
            return False
        parts = own.split(".")
        for count in range(len(parts), 0, -1):
            try:
                of = ids.check_operation_key(".".join(parts[:count]))
            except InvalidKey:
                continue
            rows = await self._app.store.list_operations(
                OperationFilter(tenant=tenant, task=task, key=of, limit=1)
            )
            if rows and rows[0].attempt > 0 and rows[0].idempotency_key in (None, f"{task}:{of}"):
                return True
        return False


@guarded()
class Pauses:
    """Switches that stop new intents, from the next one on."""

    def __init__(self, app: Backing) -> None:
        self._app = app

    async def set(self, scope: str, *, reason: str, by: str, tenant: str = DEFAULT_TENANT) -> None:
        """Stop new intents of a scope: ``all`` of the tenant, or ``tool:<name>``; EVERY_TENANT for everybody.

        Kept in the audit trail. Idempotent.
        """
        await self._app.store.pause(_switch(tenant, scope, reason, by))

    async def clear(self, scope: str, *, reason: str, by: str, tenant: str = DEFAULT_TENANT) -> bool:
        """Take a switch back; answers whether it stood. Kept in the audit trail."""
        return await self._app.store.resume(_switch(tenant, scope, reason, by))

    async def list(self, *, tenant: str = DEFAULT_TENANT) -> Sequence[PauseView]:
        """List the switches that stand for a tenant, those for everybody included."""
        return [PauseView.of(row) for row in await self._app.store.list_pauses(tenant)]

    async def audit(
        self, *, tenant: str = DEFAULT_TENANT, after: int = 0, limit: int = 100
    ) -> Sequence[AuditView]:
        """Read who decided what, and why, oldest first. after: the number to go on above."""
        return [AuditView.of(row) for row in await self._app.store.read_audit(tenant, after, limit)]


@record
class PlanView:
    """What comes next for an operation.

    action: ``nothing`` where it is not unknown. at: when, if not at once. refused_until: until when a
    person's ``did_not_happen`` and ``send_again`` are refused unless forced, since the call may still be
    under way or its effect may not show yet; None where they are not refused.
    """

    operation: str
    state: str
    action: str
    why: str
    at: datetime | None
    asked: int
    refused_until: datetime | None


@record
class ToolStats:
    """How the unknowns of a tool ended.

    unknown: open now. happened, did_not_happen, sent_again: settlements so far; one that was sent again may
    be unknown, and settled, once more. share: of did_not_happen among those that ended (happened,
    did_not_happen), None where none has. hint: what to do about a share that is telling.
    """

    tool: str
    unknown: int
    happened: int
    did_not_happen: int
    sent_again: int
    share: float | None
    hint: str | None

    @classmethod
    def of(cls, row: SettledCounts) -> ToolStats:
        """Read stored counts."""
        ended = row.happened + row.did_not_happen
        share = row.did_not_happen / ended if ended else None
        telling = share is not None and ended >= ENOUGH and share > HIGH
        return cls(
            tool=row.tool,
            unknown=row.unknown,
            happened=row.happened,
            did_not_happen=row.did_not_happen,
            sent_again=row.sent_again,
            share=share,
            hint=MISCLASSIFIED if telling else None,
        )


@record
class OtherSide:
    """What a sweep of the other side found. unadmitted: keys of effects without an intent in the ledger."""

    tool: str
    verdict: Literal["clean", "unadmitted", "unknown"]
    seen: int
    unadmitted: tuple[str, ...]
    detail: str


def _switch(tenant: str, scope: str, reason: str, by: str) -> Pause:
    if scope != "all":
        kind, _, name = scope.partition(":")
        if kind != "tool":
            raise InvalidRequest(f"scope {scope!r} is neither 'all' nor 'tool:<name>'", pointer="/scope")
        ids.check_name(name, "tool name")
    if tenant != EVERY_TENANT:
        ids.check_name(tenant, "tenant")
    ids.check_key(reason, "reason")
    return Pause(tenant=tenant, scope=scope, reason=reason, by=ids.check_key(by, "by"))
