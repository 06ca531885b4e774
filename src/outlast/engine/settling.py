"""Settling: turn an unknown into succeeded or failed, by evidence, by a declared resend, or by a person.

Purpose: an unknown is never guessed away.

Identity: the operation's turn; every question to the other side takes the next one before it is asked, so
that a person and a worker cannot settle one operation at the same time.

Failure by failure: ``find`` raises, hangs or answers nonsense: that is no evidence, never absence. It finds
the effect: the operation succeeded, settled by the worker. It finds nothing: a keyed tool is sent again with
the same key inside its key window, since there the other side deduplicates; everything else waits for a
person.

Not covered here: ``queryable`` tools (absence needs a declared time of visibility) wait for a person.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from outlast import clock, probes, telemetry
from outlast.core import values
from outlast.core.operation import AFTER_UNKNOWN
from outlast.core.outcome import Succeeded
from outlast.engine.run import Outpaced, Run
from outlast.engine.wording import MAX_ERROR_TEXT, event, failure
from outlast.errors import InvalidRequest
from outlast.store.records import NewEvent, Note, RecordOperation, RecordOutcome, TakeTurn
from outlast.tools.call import ToolCall

if TYPE_CHECKING:
    from outlast.engine.effects import Operation

FIND_TIMEOUT_S: Final = 30.0
RESENT: Final = "resent"
"""Code on the record of a planned operation whose earlier attempt is still unknown."""


class _Sign:
    """A named answer that carries nothing."""

    def __init__(self, name: str) -> None:
        self.name = name


SEND: Final = _Sign("send")
"""Send again under the same key; the row stays unknown until the next intent."""
PERSON: Final = _Sign("person")
"""Nothing more can be done without a person; the row is unknown and in the reconciliation queue."""


@dataclass(frozen=True, slots=True)
class Found:
    """The other side holds the effect."""

    result: Any


@dataclass(frozen=True, slots=True)
class Absent:
    """The other side answered that it holds no such effect."""


@dataclass(frozen=True, slots=True)
class NoEvidence:
    """Nothing was learnt."""

    reason: str


async def settle(run: Run, operation: Operation, *, pause_us: int | None) -> Succeeded | _Sign:
    """Settle one open attempt by the rules of its effect class.

    pause_us: how long the retry policy wants to wait before another send, None where it allows none. Raises
    LeaseLost, Outpaced.
    """
    tool = operation.tool
    rule = AFTER_UNKNOWN[tool.effect]
    run.critical.add(operation.key)
    try:
        if rule.call_again and pause_us is not None:
            operation.resend = f"{tool.effect}: may be called again"
            return SEND
        await _take_turn(run, operation)
        if rule.may_ask and tool.find is not None:
            probes.reach("settle.before_find")
            answer = await _ask(run, operation)
            probes.reach("settle.after_find")
            _note(run, operation, answer)
            if isinstance(answer, Found):
                return await _happened(run, operation, answer.result)
        if pause_us is not None and rule.resend_with_key and _window_open(run, operation, pause_us):
            operation.resend = "the other side deduplicates by this key"
            return SEND
        return PERSON
    finally:
        run.critical.discard(operation.key)


async def _take_turn(run: Run, operation: Operation) -> None:
    reason = "no outcome on record" if operation.state == "running" else "asking"
    events: tuple[NewEvent, ...] = ()
    if operation.state == "running":
        events = (
            event(
                "operation.unknown",
                operation=operation.key,
                kind="tool",
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


async def _ask(run: Run, operation: Operation) -> Found | Absent | NoEvidence:
    tool = operation.tool
    assert tool.find is not None
    assert tool.find_signature is not None
    known = set(tool.find_signature.names)
    arguments = {name: value for name, value in operation.arguments.items() if name in known}
    query = ToolCall(
        idempotency_key=f"{run.task}:{operation.key}",
        task=run.task,
        tenant=run.tenant,
        epoch=run.epoch,
        attempt=operation.attempt,
        deadline=clock.monotonic() + FIND_TIMEOUT_S,
        traceparent=run.loaded.trace,
        guard=run.guard,
        client=run.host.http_client,
        query=True,
    )
    try:
        async with asyncio.timeout(FIND_TIMEOUT_S):
            result = await tool.find(query, **arguments)
        plain = values.normalise(result)
        values.encode(plain, what="evidence")
    except InvalidRequest as error:
        return NoEvidence(f"the answer cannot be stored: {error}"[:MAX_ERROR_TEXT])
    # ``find`` is the user's code; whatever it raises is no evidence.
    except Exception as error:
        return NoEvidence(type(error).__name__)
    return Absent() if plain is None else Found(plain)


def _note(run: Run, operation: Operation, answer: Found | Absent | NoEvidence) -> None:
    seen: dict[str, Any]
    match answer:
        case Found():
            seen = {"answer": "found", "result": answer.result}
        case Absent():
            seen = {"answer": "absent"}
        case NoEvidence():
            seen = {"answer": "no evidence", "reason": answer.reason}
    run.append(
        Note(
            key=operation.key,
            attempt=operation.attempt,
            source="answered",
            data=values.encode({"asked": "find by key", **seen}, limit=2 * values.MAX_VALUE_BYTES),
        )
    )


async def _happened(run: Run, operation: Operation, result: Any) -> Succeeded:
    text = values.encode(result)
    await _outcome(
        run,
        operation,
        RecordOutcome(
            key=operation.key,
            attempt=operation.attempt,
            turn=operation.turn,
            state="succeeded",
            result=text,
            settled_by="worker",
            events=(
                event(
                    "operation.settled",
                    operation=operation.key,
                    kind="tool",
                    name=operation.tool.name,
                    verdict="happened",
                    by="worker",
                ),
            ),
        ),
    )
    telemetry.emit(
        telemetry.OperationSettled(tenant=run.tenant, task=run.task, key=operation.key, verdict="happened")
    )
    return Succeeded(result=result)


def resent(run: Run, operation: Operation, why: str) -> RecordOutcome:
    """Make the record that puts an unknown back to planned, for the intent after it in the same batch."""
    telemetry.emit(
        telemetry.OperationSettled(tenant=run.tenant, task=run.task, key=operation.key, verdict="send_again")
    )
    return RecordOutcome(
        key=operation.key,
        attempt=operation.attempt,
        turn=operation.turn,
        state="planned",
        error=failure(RESENT, why),
        events=(
            event(
                "operation.retrying",
                operation=operation.key,
                kind="tool",
                name=operation.tool.name,
                attempt=operation.attempt,
                reason=f"unknown; {why}",
            ),
        ),
    )


async def still_unknown(run: Run, operation: Operation) -> None:
    """Put an operation whose resend was refused back to unknown: its earlier attempt is as open as before.

    Raises LeaseLost, Outpaced.
    """
    reason = "not sent again: its time is over"
    run.append(
        RecordOperation(
            key=operation.key,
            position=operation.position,
            kind="tool",
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
            error=failure("unknown", reason, reason=reason),
        ),
    )


async def _outcome(run: Run, operation: Operation, record: RecordOutcome) -> None:
    refused = await run.commit(record)
    if refused is not None:
        raise Outpaced(f"operation {operation.key} was settled by somebody else")
    operation.turn += 1
    operation.state = record.state
    if record.state == "succeeded":
        run.remember(
            operation.key,
            operation.position,
            "tool",
            operation.tool.name,
            "succeeded",
            operation.request,
            record.result,
        )


def _window_open(run: Run, operation: Operation, pause_us: int) -> bool:
    """Whether a resend after a pause ends inside the time in which the other side knows the key."""
    window = operation.tool.key_window_us
    if window is None or operation.first_intent_at is None:
        return False
    ends = run.host.session.database_now() + pause_us + operation.tool.timeout_us
    return ends <= operation.first_intent_at + window


__all__ = ["PERSON", "SEND", "Absent", "Found", "NoEvidence", "resent", "settle"]
