"""Side effects: intent on disk, the call, outcome on disk. The only caller of tool bodies.

Purpose: what an agent does to the outside is done once, known, and provable: one intent, at most one
unsettled attempt, then evidence.

Identity: (task, key). The idempotency key sent is ``<task>:<key>``, the same on every attempt.

State: planned, running, then succeeded, failed or unknown; see ``core.transitions``. Each send, query and
settlement takes the operation's next turn by compare-and-set on (attempt, turn).

What is fenced: the intent is a gate under the task's epoch; the outcome compares attempt and turn.
Immediately before each send the session's trust is looked at.

Failure by failure: killed before the intent: nothing is on record, planned afresh. Killed after it: the
successor finds the operation running under an old epoch and settles it as an unknown. The answer is lost:
unknown, settled by the rules of the effect class; it stays unknown, and in the queue, until the very batch
that holds the intent of a resend. A wait before another send may give up the slot: how often was sent, and
when the next may be, is on record with each attempt. Fenced out while waiting for the answer: it is kept as
evidence and changes nothing. The agent is cancelled in mid-call: the call goes on in a task of its own and
its outcome is recorded.

Not covered: a process frozen between the last look and the send still sends when it thaws; the remote's key,
or a person, is what is left then.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from typing import Any

from outlast import clock, probes, telemetry
from outlast.core import canonical, retry, values
from outlast.core.operation import changes_something
from outlast.core.outcome import Failed, Outcome, Succeeded, Unknown
from outlast.engine import settling
from outlast.engine.registry import ToolSpec
from outlast.engine.run import Outpaced, Run, Wait
from outlast.engine.steps import known, recorded
from outlast.engine.wording import event, failure
from outlast.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LeaseLost,
    ResultUnstorable,
    ToolFailed,
    ToolRejected,
)
from outlast.store.contract import BatchRejected
from outlast.store.records import CommitIntent, Evidence, OperationRow, RecordOutcome
from outlast.tools.call import ToolCall
from outlast.tools.classify import of_resend, outcome_of_exception

DECLINED = frozenset({"rejected", "invalid", "forbidden", "conflict"})
"""Kinds of failure in which the other side, or the tool, said no."""


@dataclass(slots=True)
class Series:
    """Where an operation stands in its retry policy; it outlives the run, with the record of each attempt.

    tries: sends so far. began_at: the first of them. again_at: when the next may be made, None when there may
    be none. Instants are the database's, in microseconds.
    """

    tries: int = 0
    began_at: int = 0
    again_at: int | None = 0

    @classmethod
    def of(cls, row: OperationRow | None) -> Series:
        """Read what the last attempt left on record; a new series where it left nothing."""
        if row is None or row.error is None or row.state not in ("planned", "unknown"):
            return cls()
        kept = values.decode(row.error).get("series")
        return cls() if kept is None else cls(tries=kept[0], began_at=kept[1], again_at=kept[2])

    def kept(self) -> list[int | None]:
        """Answer it as it is stored."""
        return [self.tries, self.began_at, self.again_at]


@dataclass(slots=True)
class Operation:
    """One call as this run sees it; attempt and turn mirror the row on disk."""

    key: str
    position: int
    tool: ToolSpec
    arguments: dict[str, Any]
    text: str
    request: str
    decision: str
    attempt: int
    turn: int
    state: str
    epoch: int
    first_intent_at: int | None
    series: Series
    earlier_open: bool = False
    """Whether an earlier attempt ended as unknown and nothing has said since whether it acted."""
    resend: str | None = None
    """Why an unknown may be sent again; put on record together with the next intent, never before it."""


async def call(run: Run, key: str, tool: ToolSpec, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Make a tool call, or answer it from the journal; the same key in flight is joined, not repeated."""
    run.check()
    arguments = tool.signature.bind(args, named)
    plain = tool.signature.plain(arguments)
    request = canonical.fingerprint("tool", tool.name, plain)
    row = known(run, key, "tool", tool.name, request)
    if row is not None and row.state in ("succeeded", "failed"):
        return tool.signature.restore(recorded(run, row))
    under_way = run.open.get(key)
    if under_way is None:
        operation = Operation(
            key=key,
            position=row.position if row is not None else run.next_position(),
            tool=tool,
            arguments=arguments,
            text=values.encode(plain, what=f"the arguments of tool {tool.name}"),
            request=request,
            decision=canonical.decision_digest(request, tool.version, None),
            attempt=row.attempt if row is not None else 0,
            turn=row.turn if row is not None else 0,
            state=row.state if row is not None else "planned",
            epoch=row.epoch if row is not None else run.epoch,
            first_intent_at=row.first_intent_at if row is not None else None,
            series=Series.of(row),
            earlier_open=row is not None and _left_open(row),
        )
        run.active += 1
        under_way = run.own(key, _perform(run, operation))
    result = await asyncio.shield(under_way)
    return tool.signature.restore(result)


def _left_open(row: OperationRow) -> bool:
    """Answer whether a planned operation was put back by a resend after an unknown."""
    return (
        row.state == "planned"
        and row.error is not None
        and values.decode(row.error).get("code") == settling.RESENT
    )


async def _perform(run: Run, operation: Operation) -> Any:
    """Bring one operation to its end: attempts, settlements, waits; answer its plain result."""
    try:
        return await _attempts(run, operation)
    except LeaseLost:
        run.interrupt("lost", "another worker holds the task")
        raise asyncio.CancelledError from None
    except Outpaced as error:
        run.interrupt("outpaced", str(error))
        raise asyncio.CancelledError from None
    except BatchRejected as error:
        run.unstorable(error)
        raise asyncio.CancelledError from None
    finally:
        run.active -= 1
        run.touched = clock.monotonic()
        run.quiet()


async def _attempts(run: Run, operation: Operation) -> Any:
    while True:
        if operation.state in ("running", "unknown"):
            # An intent without an outcome: an earlier attempt's, or one that just ended as unknown.
            settled = await settling.settle(run, operation, pause_us=_pause_us(run, operation))
            if isinstance(settled, Succeeded):
                return settled.result
            if settled is settling.PERSON:
                await _wait_for_person(run, operation)
        await _back_off(run, operation)
        run.check()
        outcome = await _attempt(run, operation)
        if isinstance(outcome, Succeeded):
            return outcome.result
        if run.sealed:
            raise asyncio.CancelledError
        if operation.state == "failed":
            # From the record, so that the agent sees the very same on every replay.
            return recorded(run, run.rows[operation.key])


async def _attempt(run: Run, operation: Operation) -> Outcome:
    """Commit the intent, call, record the outcome; between the first and the last nothing cuts it short."""
    tool, series = operation.tool, operation.series
    run.critical.add(operation.key)
    try:
        probes.reach("effects.before_intent")
        await _intend(run, operation)
        probes.reach("effects.after_intent")
        if run.sealed:
            outcome: Outcome = Failed(
                kind="not_sent", reason="the attempt ended before the call", retryable=True
            )
            # It was not tried, so it does not count.
            series.tries, series.again_at = series.tries - 1, 0
        else:
            outcome = await _body(run, operation)
            if isinstance(outcome, Unknown) and not changes_something(tool.effect):
                outcome = Failed(kind="not_sent", reason=outcome.reason, retryable=True)
            series.again_at = _again_at(run, operation, outcome)
        if operation.earlier_open:
            # This send did nothing, or was declined; the earlier one, of which nobody knows, may have acted.
            outcome = of_resend(outcome)
        probes.reach("effects.before_outcome")
        return await _record(run, operation, outcome)
    finally:
        run.critical.discard(operation.key)


async def _intend(run: Run, operation: Operation) -> None:
    """Commit the intent of the next attempt. Raises LeaseLost, Outpaced, DeadlineExceeded."""
    tool, series = operation.tool, operation.series
    resent = operation.resend is not None
    if operation.resend is not None:
        # In one batch with the intent, so that nothing can come between them: until then it stays unknown.
        run.append(settling.resent(run, operation, operation.resend))
        operation.turn += 1
        operation.earlier_open = changes_something(tool.effect)
    refused = await run.commit(
        CommitIntent(
            key=operation.key,
            position=operation.position,
            kind="tool",
            name=tool.name,
            request=operation.request,
            decision=operation.decision,
            effect=tool.effect,
            arguments=operation.text,
            timeout_us=tool.timeout_us,
            attempt=operation.attempt,
            turn=operation.turn,
            events=(
                event(
                    "operation.started",
                    operation=operation.key,
                    kind="tool",
                    name=tool.name,
                    effect=tool.effect,
                    attempt=operation.attempt + 1,
                    idempotency_key=f"{run.task}:{operation.key}",
                ),
            ),
        )
    )
    if refused == "deadline":
        if resent:
            await settling.still_unknown(run, operation)
        raise DeadlineExceeded(
            f"operation {operation.key} of task {run.task} was not started: its time is over"
        )
    if refused is not None:
        raise Outpaced(f"operation {operation.key}: the intent was refused ({refused})")
    now = run.host.session.database_now()
    operation.attempt += 1
    operation.turn += 1
    operation.state, operation.epoch, operation.resend = "running", run.epoch, None
    if operation.first_intent_at is None:
        operation.first_intent_at = now
    if not series.tries:
        series.began_at = now
    series.tries += 1


async def _body(run: Run, operation: Operation) -> Outcome:
    """Call the tool's body under its timeout and say how the call ended."""
    tool = operation.tool
    timeout_s = tool.timeout_us / 1_000_000
    left = run.remaining_s()
    if left is not None:
        timeout_s = min(timeout_s, max(left, 0.0))
    changes = changes_something(tool.effect)
    tool_call = ToolCall(
        idempotency_key=f"{run.task}:{operation.key}",
        task=run.task,
        tenant=run.tenant,
        epoch=run.epoch,
        attempt=operation.attempt,
        deadline=clock.monotonic() + timeout_s,
        traceparent=run.loaded.trace,
        guard=run.guard,
        client=run.host.http_client,
    )
    limit = asyncio.timeout(timeout_s)
    try:
        # Not every tool asks before it sends, so it is asked here as well.
        run.guard()
        async with limit:
            result = await tool.function(tool_call, **operation.arguments)
    except asyncio.CancelledError as error:
        # Only a run that is over cuts a call, and only after its grace time.
        return outcome_of_exception(error, began=tool_call.began, changes=changes)
    except KeyboardInterrupt:
        raise
    # A tool body may raise anything; what it means is the classification's to say.
    except BaseException as error:
        if isinstance(error, TimeoutError) and limit.expired() and tool_call.began and changes:
            return Unknown(reason="timeout", clue=f"no answer within {timeout_s:g} s")
        return _classified(error, tool_call, changes=changes)
    return Succeeded(result=result)


def _classified(error: BaseException, tool_call: ToolCall, *, changes: bool) -> Outcome:
    try:
        return outcome_of_exception(error, began=tool_call.began, changes=changes)
    # An exception's own text may raise; that must not hide what is known of the call.
    except Exception:
        name = type(error).__name__
        if tool_call.began and changes:
            return Unknown(reason=f"the tool raised {name} after its call had begun")
        return Failed(kind="error", reason=f"the tool raised {name}", retryable=False)


def plain_result(what: str, result: Any) -> tuple[Any, str | None, str | None]:
    """Answer (plain result, its text, recorded error): a result that cannot be stored is done all the
    same."""
    try:
        plain = values.normalise(result)
        return plain, values.encode(plain, what=what), None
    except InvalidRequest as error:
        return (
            None,
            None,
            failure(ResultUnstorable.code, f"{what} cannot be stored: {error}", reason=error.code),
        )


async def _record(run: Run, operation: Operation, outcome: Outcome) -> Outcome:
    """Put an outcome on record; a failure that is to be tried again goes back to planned.

    After the lease is lost it becomes evidence instead. Raises LeaseLost.
    """
    tool = operation.tool
    state: Any
    text = error = None
    match outcome:
        case Succeeded():
            plain, text, error = plain_result(f"the result of tool {tool.name}", outcome.result)
            outcome, state = Succeeded(result=plain, remote_id=outcome.remote_id), "succeeded"
        case Failed():
            state = "failed" if operation.series.again_at is None else "planned"
            error = _error_text(outcome, None if state == "failed" else operation.series)
        case Unknown():
            state = "unknown"
            error = failure(
                "unknown",
                outcome.clue or outcome.reason,
                reason=outcome.reason,
                series=operation.series.kept(),
            )
    word = "retrying" if state == "planned" else state
    record = RecordOutcome(
        key=operation.key,
        attempt=operation.attempt,
        turn=operation.turn,
        state=state,
        result=text,
        error=error,
        events=(
            event(
                f"operation.{word}",
                operation=operation.key,
                kind="tool",
                name=tool.name,
                attempt=operation.attempt,
                **({} if isinstance(outcome, Succeeded) else {"reason": outcome.reason}),
            ),
        ),
    )
    recording = run.host.journal.submit(run, record)
    recording.add_done_callback(functools.partial(_recorded, run, operation, record))
    # A success may still be on its way to disk while the agent goes on: whatever leaves the process next
    # waits for it. What may lead to another send does not go on.
    if text is None and await recording is not None:
        raise Outpaced(f"operation {operation.key}: its outcome came after its turn had passed")
    operation.turn += 1
    operation.state = state
    if state in ("succeeded", "failed"):
        run.remember(
            operation.key, operation.position, "tool", tool.name, state, operation.request, text, error
        )
    telemetry.emit(
        telemetry.OperationEnded(
            tenant=run.tenant,
            task=run.task,
            key=operation.key,
            name=tool.name,
            effect=tool.effect,
            state=word,
            reason="" if isinstance(outcome, Succeeded) else outcome.reason,
        )
    )
    if state == "succeeded" and error is not None:
        recorded(run, run.rows[operation.key])
    return outcome


def _recorded(
    run: Run, operation: Operation, record: RecordOutcome, recording: asyncio.Future[str | None]
) -> None:
    """Note that an outcome is on disk, or keep it as evidence where it is not taken any more."""
    if recording.cancelled():
        return
    if recording.exception() is None and recording.result() is None:
        probes.reach("effects.after_outcome")
        return
    _late(run, operation, record)
    if recording.exception() is None:
        run.interrupt("outpaced", f"operation {operation.key}: its outcome came after its turn had passed")


def _late(run: Run, operation: Operation, record: RecordOutcome) -> None:
    """Keep an answer that came after its lease or turn had passed."""
    run.host.keep_evidence(
        Evidence(
            tenant=run.tenant,
            task=run.task,
            key=operation.key,
            attempt=operation.attempt,
            source="late",
            data=values.encode(
                {"epoch": run.epoch, "state": record.state, "result": record.result, "error": record.error},
                limit=4 * values.MAX_VALUE_BYTES,
            ),
        )
    )


def _error_text(outcome: Failed, series: Series | None) -> str:
    code = ToolRejected.code if outcome.kind in DECLINED else ToolFailed.code
    more: dict[str, Any] = {} if outcome.status is None else {"status": outcome.status}
    if series is not None:
        more["series"] = series.kept()
    return failure(code, outcome.reason, reason=outcome.kind, retryable=outcome.retryable, **more)


def _again_at(run: Run, operation: Operation, outcome: Outcome) -> int | None:
    """Answer when another attempt may be made, None when there may be none."""
    if isinstance(outcome, Succeeded) or (isinstance(outcome, Failed) and not outcome.retryable):
        return None
    series, now = operation.series, run.host.session.database_now()
    asked = outcome.retry_after_s if isinstance(outcome, Failed) else None
    elapsed_s = max(0.0, (now - series.began_at) / 1_000_000)
    delay = retry.next_delay(operation.tool.retry, series.tries - 1, elapsed_s, clock.uniform(), asked)
    return None if isinstance(delay, retry.Stop) else now + int(delay * 1_000_000)


def _pause_us(run: Run, operation: Operation) -> int | None:
    """Answer the microseconds to wait before another attempt, None when there may be none."""
    if operation.series.again_at is None:
        return None
    return max(0, operation.series.again_at - run.host.session.database_now())


async def _back_off(run: Run, operation: Operation) -> None:
    """Wait until the next attempt may be made; a long wait gives up the slot."""
    pause_us = _pause_us(run, operation)
    if not pause_us:
        return
    delay_s = pause_us / 1_000_000
    run.active -= 1
    run.begin_wait(operation.key, Wait(reason="timer", due=clock.monotonic() + delay_s, stored=False))
    try:
        await asyncio.sleep(delay_s)
    finally:
        run.end_wait(operation.key)
        run.active += 1


async def _wait_for_person(run: Run, operation: Operation) -> None:
    """Wait until somebody settles the operation; the task gives up its lease meanwhile."""
    run.active -= 1
    run.begin_wait(operation.key, Wait(reason="reconciliation", due=None, stored=True))
    try:
        await asyncio.Event().wait()
    finally:
        run.end_wait(operation.key)
        run.active += 1
