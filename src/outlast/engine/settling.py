"""Settling: turn an unknown into succeeded or failed, by evidence, by a declared resend, or by a person.

Purpose: an unknown is never guessed away. What may follow is decided by ``core.settle.plan``; this is the
worker's hand, as ``housekeeping.settler`` is the hand of processes that hold no lease.

Identity: the operation's turn; every question to the other side takes the next one before it is asked, so
that a person and a worker cannot settle one operation at the same time. Stored evidence is read after that,
and before anybody is asked; what was put back for a person stays with a person until evidence comes.

Failure by failure: ``find`` raises, hangs or answers nonsense: that is no evidence, never absence. What
cannot be settled now is put back with the plan and the time of the next question; the task gives up its
lease, the settler asks, and the task is woken when it is settled.

Not covered: absence of an effect whose sender may still be able to send (a worker that was lost, and no
gateway between): a person.
"""

from __future__ import annotations

from typing import Any, Final

from outlast import clock, probes, telemetry
from outlast.core import ids, values
from outlast.core.operation import AFTER_UNKNOWN
from outlast.core.outcome import Failed, Succeeded
from outlast.core.settle import Plan, plan
from outlast.engine import facts, finding
from outlast.engine.operation import Operation
from outlast.engine.run import Outpaced, Run, Wait
from outlast.engine.wording import event, failure
from outlast.errors import ToolFailed
from outlast.store.entries import AdoptIssued, NewEvent, Note, RecordOperation, RecordOutcome, TakeTurn
from outlast.store.reconciling import OpenState, Postponement
from outlast.store.records import OperationRow
from outlast.store.rows import OperationFilter
from outlast.tools.call import ToolCall


class LeftToAPerson(Exception):
    """An operation is in the reconciliation queue, and only a person can settle it."""


class _Sign:
    """A named answer that carries nothing."""

    def __init__(self, name: str) -> None:
        self.name = name


SEND: Final = _Sign("send")
"""Send again under the same key; the row stays unknown until the next intent."""
WAIT: Final = _Sign("wait")
"""Wait until the settler or a person settles it; the row is unknown and in the reconciliation queue."""


async def settle(run: Run, operation: Operation, *, pause_us: int | None) -> Succeeded | Failed | _Sign:
    """Settle one open attempt by the rules of its effect class.

    pause_us: how long the retry policy wants to wait before another send, None where it allows none. Raises
    LeaseLost, Outpaced.
    """
    run.works.critical.add(operation.key)
    try:
        if AFTER_UNKNOWN[operation.tool.effect].call_again and pause_us is not None:
            if operation.state == "running":
                # An earlier worker's attempt, of which nobody knows: it is unknown before it is sent again.
                await _take_turn(run, operation)
            elif operation.business is not None:
                _wanted(operation, await _place(run, operation))
            operation.resend = f"{operation.tool.effect}: making the call again does no harm"
            return SEND
        place = await _place(run, operation)
        if place is not None and place.resend:
            operation.resend = "it was settled as to be sent again"
            _wanted(operation, place)
            return SEND
        if place is not None and place.ask_at is None:
            return WAIT
        await _take_turn(run, operation)
        known = await _known(run, operation, may_send=pause_us is not None)
        operation.sender_gone = known.facts.sender_gone
        # A resend begins after the pause, and has to end inside the window all the same.
        decided = plan(known.facts, run.host.session.database_now() + (pause_us or 0))
        found = None
        if decided.action == "ask":
            found, decided = await _ask(run, operation, known, pause_us or 0)
        return await _carry_out(run, operation, decided, known, found)
    finally:
        run.works.critical.discard(operation.key)


def _wanted(operation: Operation, place: OpenState | None) -> None:
    """Note whether a person wants a call sent again: they were told who has done it already, if anybody
    had."""
    by_person = operation.settled_by.startswith("person:")
    operation.repeat = by_person and place is not None and place.resend


async def _carry_out(
    run: Run, operation: Operation, decided: Plan, known: facts.Known, found: finding.Finding | None
) -> Succeeded | Failed | _Sign:
    if decided.action == "send_again":
        operation.resend = decided.why
        return SEND
    if decided.action == "happened":
        return await _happened(run, operation, known.result if found is None else found.result)
    if decided.action == "did_not_happen":
        # What the attempt itself has declined would be declined again; of what never arrived nobody knows.
        return await _did_not_happen(run, operation, decided.why, retryable=not known.facts.answered)
    wait = finding.shared_wait(operation.tool, found)
    held = finding.was_held(decided, found)
    await put_back(run, operation, decided, seen=known.seen, unusable=_unusable(found), wait=wait, held=held)
    return WAIT


def _unusable(found: finding.Finding | None) -> bool:
    return found is not None and found.answer == "no_evidence" and found.wait_s is None


async def _place(run: Run, operation: Operation) -> OpenState | None:
    """Read an unknown operation's place in the queue; one that is running has none yet. Raises Outpaced."""
    if operation.state == "running":
        return None
    store = run.host.store
    provider = operation.tool.provider
    place = await run.host.insist(
        lambda: store.read_open(run.tenant, run.task, operation.key, provider=provider)
    )
    if place is None:
        raise Outpaced(f"operation {operation.key} was settled by somebody else")
    return place


async def _known(run: Run, operation: Operation, *, may_send: bool) -> facts.Known:
    """Gather what decides, once the turn is taken: what comes later shows when it is put back. Raises
    Outpaced."""
    store = run.host.store
    evidence = await run.host.insist(lambda: store.read_evidence(run.tenant, run.task, operation.key))
    place = await _place(run, operation)
    return facts.gather(operation.tool, operation, place, evidence, may_send=may_send)


async def _take_turn(run: Run, operation: Operation) -> None:
    reason = "no outcome on record" if operation.state == "running" else "asking"
    events: tuple[NewEvent, ...] = ()
    if operation.state == "running":
        events = (
            event(
                "operation.unknown",
                operation=operation.key,
                kind=operation.kind,
                name=operation.tool.name,
                attempt=operation.attempt,
                reason="its worker was lost" if operation.epoch != run.epoch else reason,
            ),
        )
    refused = await run.commit(
        TakeTurn(
            key=operation.key, attempt=operation.attempt, turn=operation.turn, reason=reason, events=events
        )
    )
    if refused is not None:
        # Somebody settled it in this very moment: begin again from what is on disk.
        raise Outpaced(f"operation {operation.key} was settled by somebody else")
    operation.turn += 1
    operation.state = "unknown"


async def _ask(
    run: Run, operation: Operation, known: facts.Known, pause_us: int
) -> tuple[finding.Finding, Plan]:
    tool = operation.tool

    def query() -> ToolCall:
        probes.reach("settle.before_find")
        return ToolCall(
            idempotency_key=operation.idempotency_key,
            task=run.task,
            tenant=run.tenant,
            epoch=run.epoch,
            attempt=operation.attempt,
            deadline=clock.monotonic() + min(finding.FIND_TIMEOUT_S, tool.timeout_us / 1_000_000),
            traceparent=run.loaded.trace,
            guard=run.guard,
            client=run.host.http_client,
            query=True,
        )

    async def held_s() -> float:
        place = await _place(run, operation)
        until = None if place is None else place.held_until
        return 0.0 if until is None else (until - run.host.session.database_now()) / 1_000_000

    asked_at = run.host.session.database_now()
    found = await run.host.inquiries.ask(tool, query, operation.arguments, tenant=run.tenant, held_s=held_s)
    probes.reach("settle.after_find")
    if found.asked:
        run.append(
            Note(
                key=operation.key,
                attempt=operation.attempt,
                source="answered",
                data=finding.as_evidence(found, by="worker"),
            )
        )
    now = run.host.session.database_now()
    return found, finding.decide(known.facts, found, asked_at=asked_at, now=now, pause_us=pause_us)


async def _happened(run: Run, operation: Operation, result: Any) -> Succeeded:
    await _outcome(
        run,
        operation,
        RecordOutcome(
            key=operation.key,
            attempt=operation.attempt,
            turn=operation.turn,
            state="succeeded",
            result=values.encode(result),
            settled_by="worker",
            events=(_settled(operation, "happened"),),
        ),
    )
    told(run, operation, "happened")
    return Succeeded(result=result)


async def _did_not_happen(run: Run, operation: Operation, why: str, *, retryable: bool) -> Failed:
    outcome = Failed(kind="did_not_happen", reason=why, retryable=retryable)
    await _outcome(
        run,
        operation,
        RecordOutcome(
            key=operation.key,
            attempt=operation.attempt,
            turn=operation.turn,
            state="failed",
            error=failure(ToolFailed.code, why, reason=outcome.kind, retryable=retryable),
            settled_by="worker",
            events=(_settled(operation, "did_not_happen"),),
        ),
    )
    told(run, operation, "did_not_happen")
    return outcome


def _settled(operation: Operation, verdict: str) -> NewEvent:
    return event(
        "operation.settled",
        operation=operation.key,
        kind=operation.kind,
        name=operation.tool.name,
        verdict=verdict,
        by="worker",
    )


def told(run: Run, operation: Operation, verdict: str) -> None:
    """Tell that an operation was settled."""
    telemetry.emit(
        telemetry.OperationSettled(
            tenant=run.tenant,
            task=run.task,
            key=operation.key,
            name=operation.tool.name,
            verdict=verdict,
        )
    )


async def put_back(
    run: Run,
    operation: Operation,
    decided: Plan,
    *,
    seen: int,
    unusable: bool,
    wait: tuple[str, int] | None = None,
    held: bool = False,
) -> None:
    """Leave it to the settler or to a person, with the plan; to the settler, and at once, where there is
    evidence that is newer than what was seen.

    wait: provider and microseconds, where everybody was asked to wait. held: nobody was asked, since a wait
    stands. Raises Outpaced.
    """
    ask_in_us = None
    if decided.at is not None:
        ask_in_us = max(0, decided.at - run.host.session.database_now())
    postponement = Postponement(
        tenant=run.tenant,
        task=run.task,
        key=operation.key,
        turn=operation.turn,
        ask_in_us=ask_in_us,
        unusable=unusable,
        why=decided.why,
        seen=seen,
        wait=wait,
        held=held,
    )
    store = run.host.store
    (still_ours,) = await run.host.insist(lambda: store.postpone([postponement]))
    if not still_ours:
        raise Outpaced(f"operation {operation.key} was settled by somebody else")


async def leave_to_a_person(run: Run, operation: Operation, why: str) -> None:
    """Leave an unknown that is not sent again to a person. Raises LeaseLost, Outpaced.

    The settler may have taken it while the worker waited to send: the next turn refuses what it decides. What
    its attempt has answered meanwhile settles it, by the settler's hand.
    """
    operation.resend = None
    await _take_turn(run, operation)
    known = await _known(run, operation, may_send=False)
    heard = known.facts.late in ("happened", "did_not_happen")
    await put_back(
        run, operation, Plan(action="person", why=why), seen=0 if heard else known.seen, unusable=False
    )


def resent(operation: Operation, why: str) -> NewEvent:
    """Say that an unknown is sent again, in the entry of that very intent."""
    return event(
        "operation.retrying",
        operation=operation.key,
        kind=operation.kind,
        name=operation.tool.name,
        attempt=operation.attempt,
        reason=f"unknown; {why}",
    )


async def moved_on(run: Run, operation: Operation) -> bool:
    """Answer whether somebody has settled an operation that waits for it, or wants it sent again."""
    store = run.host.store
    place = await run.host.insist(lambda: store.read_open(run.tenant, run.task, operation.key))
    return place is None or place.resend


async def until_asked(run: Run, operation: Operation) -> None:
    """Wait until an unknown can be asked about again; the task may suspend meanwhile, and the settler asks.

    Raises LeftToAPerson where nobody but a person can settle it, Outpaced when somebody has.
    """
    place = await _place(run, operation)
    if place is None or place.resend:
        return
    if place.ask_at is None:
        raise LeftToAPerson(place.why)
    left_s = max(0.05, (place.ask_at - run.host.session.database_now()) / 1_000_000)
    run.active -= 1
    try:
        due = clock.monotonic() + left_s
        # Not by the settlement alone: what the settler leaves to a person wakes nobody.
        await run.wait_for_news(operation.key, Wait(reason="reconciliation", due=due, stored=False), left_s)
    finally:
        run.active += 1
    run.check()


async def may_have_happened(run: Run, issued: OperationRow) -> bool:
    """Answer whether a call of the task that this one was forked from may have acted.

    What has failed is known not to have, and is made under a key of this task's own, unless evidence says by
    now that it happened.
    """
    if issued.state != "failed":
        return True
    task, key = ids.split_operation_id(issued.idempotency_key or "")
    store = run.host.store
    evidence = await run.host.insist(lambda: store.read_evidence(run.tenant, task, key))
    return facts.happened(evidence, issued.attempt)


async def take_over(run: Run, operation: Operation) -> None:
    """Take a call over that the task which this one was forked from has made: unknown, under the key that was
    sent and as it was sent, until evidence says what it has done. Raises LeaseLost, Outpaced."""
    key, name, issued = operation.key, operation.tool.name, operation.issued
    assert issued is not None
    # At once: a race that is lost from here on finds a call that was made.
    operation.issued, operation.state = None, "unknown"
    said = {"operation": key, "kind": operation.kind, "name": name, "attempt": issued.attempt}
    reason = "made by the task that this one was forked from"
    await run.commit(
        AdoptIssued(
            key=key, position=operation.position, events=(event("operation.unknown", **said, reason=reason),)
        )
    )
    query = OperationFilter(tenant=run.tenant, task=run.task, key=key, limit=1)
    rows = await run.host.insist(lambda: run.host.store.list_operations(query))
    if not rows or rows[0].state != "unknown":
        raise Outpaced(f"operation {key} was settled by somebody else")
    row = rows[0]
    operation.epoch = row.epoch
    operation.attempt, operation.turn = row.attempt, row.turn
    operation.first_intent_at, operation.deadline_at = row.first_intent_at, row.deadline_at
    operation.idempotency_key = row.idempotency_key or operation.idempotency_key
    operation.carry(row.arguments)


async def never_sent(run: Run, operation: Operation, reason: str) -> None:
    """Put a call that was not made into the reconciliation queue, for a person to say what it is.

    Raises LeaseLost, Outpaced.
    """
    run.append(
        RecordOperation(
            key=operation.key,
            position=operation.position,
            kind=operation.kind,
            name=operation.tool.name,
            state="running",
            request=operation.request,
            arguments=operation.text,
        )
    )
    await _outcome(
        run,
        operation,
        RecordOutcome(
            key=operation.key,
            attempt=operation.attempt,
            turn=operation.turn,
            state="unknown",
            error=failure("unknown", reason, reason=reason, series=operation.series.kept()),
            sender_gone=operation.sender_gone,
        ),
    )


async def _outcome(run: Run, operation: Operation, record: RecordOutcome) -> None:
    refused = await run.commit(record)
    if refused is not None:
        raise Outpaced(f"operation {operation.key} was settled by somebody else")
    operation.turn += 1
    operation.state = record.state
    if record.state in ("succeeded", "failed"):
        run.known.remember(
            operation.key,
            operation.position,
            operation.kind,
            operation.tool.name,
            record.state,
            operation.request,
            record.result,
            record.error,
        )
