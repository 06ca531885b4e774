"""The settler: settles unknown operations that no worker holds, by the same rules as a worker would.

Purpose: an unknown does not wait for its task to be claimed again; one of an ended task is settled too.

Identity: an item is taken for a while under the process's session; taking it takes the operation's turn.

Clock: the database's decides when an item is due; the session's estimate of it decides nothing that is
stored.

What is fenced: settling and postponing compare the turn. A worker that claims the task, or a person, takes
the next turn, and the settler's answer is refused.

Failure by failure: the settler dies: what it took can be taken again when its time is over. ``find`` fails:
asked again with growing pauses, then a person. The other side asks for a pause: that is stored for everybody,
and each of its items is put off once, to the time when it is over, those of the oldest calls first. A tool's
signature no longer fits what is stored: a person.

Not covered: tools that this process does not know are left to others.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from outlast import clock, telemetry
from outlast.core import ids, values
from outlast.core.settle import Plan, plan
from outlast.engine import facts, finding
from outlast.engine.registry import Registry, ToolSpec
from outlast.engine.series import Series
from outlast.engine.session import Session
from outlast.engine.settings import WorkerSettings
from outlast.errors import InvalidRequest, StoreUnavailable
from outlast.store.contract import Store
from outlast.store.reconciling import OpenItem, OpenRequest, OpenState, Postponement
from outlast.store.records import Evidence, OperationRow, Settlement
from outlast.tools.call import ToolCall

BATCH: Final = 64
SWEEPS: Final = 2
"""It looks every second time that the sweeper does: a task that waits for it has waited for an answer
already."""
LEASE_US: Final = 60_000_000


class Host(Protocol):
    """What the settler needs of the worker that runs it."""

    settings: WorkerSettings
    registry: Registry
    session: Session
    store: Store
    inquiries: finding.Inquiries

    def http_client(self) -> Any:
        """The process's shared HTTP client."""
        ...


def may_send(operation: OperationRow, *, task_ended: bool) -> bool:
    """Answer whether an operation could be sent again: nobody sends for a task that has ended."""
    return not task_ended and Series.of(operation).again_at is not None


class _Settled(Exception):
    """Somebody else has settled it since it was taken: nobody has to be asked any more."""


class Settler:
    """Settle what is due, again and again."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def keep(self) -> None:
        """Settle for ever; end by cancelling."""
        while True:
            try:
                busy = await self.once()
            except StoreUnavailable as error:
                telemetry.emit(telemetry.StoreAway(duty="settle", detail=str(error)))
                busy = False
            await asyncio.sleep(0.0 if busy else SWEEPS * self._host.settings.sweep_s)

    async def once(self) -> bool:
        """Take what is due and settle it; answer whether there may be more at once. Raises
        StoreUnavailable."""
        tools = tuple(self._host.registry.tools)
        if not tools:
            return False
        request = OpenRequest(session=self._host.session.id, tools=tools, limit=BATCH, lease_us=LEASE_US)
        items = await self._host.store.claim_open(request)
        results = await asyncio.gather(*(self._one(item) for item in items), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return len(items) >= BATCH

    async def _one(self, item: OpenItem) -> None:
        try:
            await self._consider(item)
        except _Settled:
            return

    async def _consider(self, item: OpenItem) -> None:
        operation = item.operation
        tool = self._host.registry.tools[operation.name]
        store = self._host.store
        evidence = await store.read_evidence(operation.tenant, operation.task, operation.key)
        place = await self._place(item, tool)
        known = facts.gather(
            tool, operation, place, evidence, may_send=may_send(operation, task_ended=item.task_ended)
        )
        decided = plan(known.facts, self._now())
        if decided.action != "ask":
            await self._carry_out(item, decided, known, None)
            return
        try:
            arguments = tool.signature.check(values.decode(operation.arguments or "{}"))
        except InvalidRequest as error:
            misfit = Plan(
                action="person", why=f"its arguments do not fit the tool as it is now: {error}"[:500]
            )
            await self._postpone(item, misfit, known, unusable=True)
            return

        async def held_s() -> float:
            until = (await self._place(item, tool)).held_until
            return 0.0 if until is None else (until - self._now()) / 1_000_000

        asked_at = self._now()
        found = await self._host.inquiries.ask(
            tool, lambda: self._query(tool, item), arguments, tenant=operation.tenant, held_s=held_s
        )
        if found.asked:
            await store.note([_answered(item, found)])
        decided = finding.decide(known.facts, found, asked_at=asked_at, now=self._now())
        await self._carry_out(item, decided, known, found)

    async def _place(self, item: OpenItem, tool: ToolSpec) -> OpenState:
        operation = item.operation
        place = await self._host.store.read_open(
            operation.tenant, operation.task, operation.key, provider=tool.provider
        )
        if place is None:
            raise _Settled
        return place

    async def _carry_out(
        self, item: OpenItem, decided: Plan, known: facts.Known, found: finding.Finding | None
    ) -> None:
        if decided.action in ("wait", "person"):
            unusable = found is not None and found.answer == "no_evidence" and found.wait_s is None
            wait = finding.shared_wait(self._host.registry.tools[item.operation.name], found)
            held = finding.was_held(decided, found)
            await self._postpone(item, decided, known, unusable=unusable, wait=wait, held=held)
        else:
            result = known.result if found is None else found.result
            await self._settle(item, decided, known, result)

    async def _settle(self, item: OpenItem, decided: Plan, known: facts.Known, result: Any) -> None:
        operation = item.operation
        verdict: Any = decided.action
        (settled,) = await self._host.store.settle(
            [
                Settlement(
                    tenant=operation.tenant,
                    task=operation.task,
                    key=operation.key,
                    verdict=verdict,
                    by="settler",
                    reason=decided.why,
                    turn=operation.turn,
                    result=values.encode(result) if verdict == "happened" else None,
                    # An attempt that has answered is not under way any more, whatever its deadline.
                    forced=known.facts.answered,
                    # What the attempt itself has declined would be declined again.
                    retryable=not known.facts.answered,
                )
            ]
        )
        if settled.kind == "too_early":
            later = Plan(
                action="wait", why="its last attempt may still be under way", at=self._now() + settled.wait_us
            )
            await self._postpone(item, later, known, unusable=False)
        elif settled.kind == "settled":
            telemetry.emit(
                telemetry.OperationSettled(
                    tenant=operation.tenant,
                    task=operation.task,
                    key=operation.key,
                    name=operation.name,
                    verdict=verdict,
                )
            )

    async def _postpone(
        self,
        item: OpenItem,
        decided: Plan,
        known: facts.Known,
        *,
        unusable: bool,
        wait: tuple[str, int] | None = None,
        held: bool = False,
    ) -> None:
        operation = item.operation
        ask_in_us = None if decided.at is None else max(0, decided.at - self._now())
        await self._host.store.postpone(
            [
                Postponement(
                    tenant=operation.tenant,
                    task=operation.task,
                    key=operation.key,
                    turn=operation.turn,
                    ask_in_us=ask_in_us,
                    unusable=unusable,
                    why=decided.why,
                    seen=known.seen,
                    wait=wait,
                    held=held,
                )
            ]
        )

    def _query(self, tool: ToolSpec, item: OpenItem) -> ToolCall:
        operation = item.operation
        return ToolCall(
            idempotency_key=ids.sent_key(operation.task, operation.key, operation.idempotency_key),
            task=operation.task,
            tenant=operation.tenant,
            epoch=operation.epoch,
            attempt=operation.attempt,
            deadline=clock.monotonic() + min(finding.FIND_TIMEOUT_S, tool.timeout_us / 1_000_000),
            traceparent=item.trace,
            client=self._host.http_client,
            query=True,
        )

    def _now(self) -> int:
        return self._host.session.database_now()


def _answered(item: OpenItem, found: finding.Finding) -> Evidence:
    operation = item.operation
    return Evidence(
        tenant=operation.tenant,
        task=operation.task,
        key=operation.key,
        attempt=operation.attempt,
        source="answered",
        data=finding.as_evidence(found, by="settler"),
    )
