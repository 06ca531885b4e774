"""How the end of one attempt at a call is put on record: succeeded, failed, planned again, or unknown.

Purpose: an outcome belongs to its attempt; what comes too late is evidence, and changes no state by itself.

What is fenced: the record compares attempt and turn under the task's epoch.

Failure by failure: the lease is gone, the turn has passed, or evidence has it that an earlier attempt
happened and this one failed: the outcome is kept as evidence, with what it says of the operation. A result
that cannot be stored: the call is done all the same, and says so by name.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Literal

from outlast import probes, telemetry
from outlast.core import values
from outlast.core.outcome import Failed, Outcome, Succeeded, Unknown
from outlast.engine.journal import Told, Verdict
from outlast.engine.operation import Operation
from outlast.engine.run import Outpaced, Run
from outlast.engine.series import Series
from outlast.engine.steps import recorded
from outlast.engine.wording import event, failure
from outlast.errors import InvalidRequest, ResultUnstorable, ToolFailed, ToolRejected
from outlast.store.entries import RecordOutcome
from outlast.store.records import Evidence

DECLINED = frozenset({"rejected", "invalid", "forbidden", "conflict"})
"""Kinds of failure in which the other side, or the tool, said no."""


def _plain(what: str, result: Any) -> tuple[Any, str | None, str | None]:
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


async def record(run: Run, operation: Operation, outcome: Outcome, wait: tuple[str, int] | None) -> Outcome:
    """Put an outcome on record; a failure that is to be tried again goes back to planned.

    After the lease is lost it becomes evidence instead. Raises LeaseLost.
    """
    tool = operation.tool
    state: Any
    text = error = None
    match outcome:
        case Succeeded():
            plain, text, error = _plain(f"the result of tool {tool.name}", outcome.result)
            if plain is not outcome.result:
                outcome = Succeeded(result=plain, remote_id=outcome.remote_id)
            state = "succeeded"
        case Failed():
            state = "failed" if operation.series.again_at is None else "planned"
            error = _error_text(outcome, None if state == "failed" else operation.series)
            if state == "failed" and operation.undoes:
                # What it was to undo still stands: that is for a person, and not over.
                state = "unknown"
                error = failure(
                    "unknown", outcome.reason, reason=outcome.kind, series=operation.series.kept()
                )
        case Unknown():
            state = "unknown"
            error = failure(
                "unknown",
                outcome.clue or outcome.reason,
                reason=outcome.reason,
                series=operation.series.kept(),
            )
    word = "retrying" if state == "planned" else state
    entry = RecordOutcome(
        key=operation.key,
        attempt=operation.attempt,
        turn=operation.turn,
        state=state,
        result=text,
        error=error,
        # The body has returned, whatever came of it; a thread that it waited for may not have.
        sender_gone=not operation.may_run_on,
        wait=wait,
        usage=values.encode(operation.usage.stored()) if operation.usage else None,
        events=(
            event(
                f"operation.{word}",
                operation=operation.key,
                kind=operation.kind,
                name=tool.name,
                attempt=operation.attempt,
                **({} if isinstance(outcome, Succeeded) else {"reason": outcome.reason}),
            ),
        ),
    )
    told = functools.partial(_recorded, run, operation, entry)
    # A success may still be on its way to disk while the agent goes on: whatever leaves the process next
    # waits for it. What may lead to another send does not go on.
    if text is not None:
        run.host.journal.append(run, entry, told)
    else:
        recording = run.host.journal.submit(run, entry)
        recording.add_done_callback(functools.partial(_ended, told))
        if await recording is not None:
            raise Outpaced(f"operation {operation.key}: its outcome came after its turn had passed")
    operation.turn += 1
    operation.state = state
    if state in ("succeeded", "failed"):
        run.known.remember(
            operation.key,
            operation.position,
            operation.kind,
            tool.name,
            state,
            operation.request,
            text,
            error,
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
        recorded(run, run.known.rows[operation.key])
    return outcome


def _ended(told: Told, recording: asyncio.Future[Verdict]) -> None:
    if recording.cancelled():
        return
    error = recording.exception()
    if error is None:
        told(recording.result(), None)
    elif isinstance(error, Exception):
        told(None, error)


def _recorded(
    run: Run, operation: Operation, entry: RecordOutcome, refused: Verdict, error: Exception | None
) -> None:
    """Note that an outcome is on disk, or keep it as evidence where it is not taken any more."""
    if error is None and refused is None:
        probes.reach("effects.after_outcome")
        return
    _late(run, operation, entry)
    if error is None:
        run.interrupt("outpaced", f"operation {operation.key}: its outcome came after its turn had passed")


def _late(run: Run, operation: Operation, entry: RecordOutcome) -> None:
    """Keep an answer that came after its lease or turn had passed."""
    run.host.keep_evidence(
        Evidence(
            tenant=run.tenant,
            task=run.task,
            key=operation.key,
            attempt=operation.attempt,
            source="late",
            data=values.encode(
                {"epoch": run.epoch, "state": entry.state, "result": entry.result, "error": entry.error},
                limit=4 * values.MAX_VALUE_BYTES,
            ),
            says=_says(entry),
        )
    )


def _says(entry: RecordOutcome) -> Literal["happened", "did_not_happen", "over"] | None:
    """What an outcome that came late says of its attempt; if no more, that it sends nothing any more."""
    if entry.state == "succeeded":
        return "happened"
    declined = entry.state == "failed" and values.decode(entry.error or "{}").get("code") == ToolRejected.code
    if declined:
        return "did_not_happen"
    return "over" if entry.sender_gone else None


def _error_text(outcome: Failed, series: Series | None) -> str:
    code = ToolRejected.code if outcome.kind in DECLINED else ToolFailed.code
    more: dict[str, Any] = {} if outcome.status is None else {"status": outcome.status}
    if series is not None:
        more["series"] = series.kept()
    return failure(code, outcome.reason, reason=outcome.kind, retryable=outcome.retryable, **more)
