"""How an attempt ends: the entry that says so, for each way in which an agent's function may come to its end.

Nothing here writes: a run hands what it is given to its journal. See ``run`` for when each is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast import clock
from outlast.core import retry, values
from outlast.core.masking import mask_passwords
from outlast.core.transitions import WAITING_REASONS
from outlast.engine import mismatch
from outlast.engine.wording import failure
from outlast.errors import DeadlineExceeded, InvalidRequest
from outlast.store.entries import EndAttempt
from outlast.store.records import OperationRow, TaskRef

if TYPE_CHECKING:
    from outlast.engine.run import Run

__all__ = ["failed", "interrupted", "succeeded", "suspended", "to_be_reopened"]


def succeeded(run: Run, result: Any) -> EndAttempt:
    """Answer the end of an agent that has returned a result; a failure where that cannot be stored."""
    try:
        text = values.encode(values.normalise(result), what="result")
    except InvalidRequest as error:
        return failed(run, error.code, f"the agent's result cannot be stored: {error}", retryable=False)
    heard = run.host.nursery.expects(run)
    return EndAttempt(attempt_end="succeeded", task_state="succeeded", result=text, heard=heard)


def failed(run: Run, code: str, message: str, *, retryable: bool, **more: Any) -> EndAttempt:
    """Answer the end of an attempt that has failed: for good, or until its agent's retry policy has it tried
    again. more: what else the error tells; what is empty is left out."""
    # What an agent raises of ours may have words of others in it.
    error = failure(code, mask_passwords(message), **{name: value for name, value in more.items() if value})
    if retryable and run.spec.retry is not None and run.interruption is None:
        # Only the number of attempts caps an agent: a task may rightly have waited for days in between.
        delay = retry.next_delay(run.spec.retry, run.loaded.failures, 0.0, clock.uniform())
        if isinstance(delay, float | int) and _lives_to_see(run, delay):
            return EndAttempt(
                attempt_end="failed",
                task_state="waiting",
                reason="timer",
                facts=run.facts,
                error=error,
                wake_in_us=int(delay * 1_000_000),
                reopen=to_be_reopened(run),
            )
    heard = run.host.nursery.expects(run)
    return EndAttempt(attempt_end="failed", task_state="failed", error=error, heard=heard)


def _lives_to_see(run: Run, delay: float) -> bool:
    """Answer whether another attempt after so many seconds is worth waiting for.

    What is to be undone is undone now, while there is time, where the wait would only let that run out.
    """
    awake_from = run.awake_from()
    return awake_from is None or clock.monotonic() + delay < awake_from


def to_be_reopened(run: Run) -> tuple[str, ...]:
    """Answer the keys of the operations that have failed and that another attempt tries again."""
    return tuple(key for key, row in run.known.rows.items() if _may_be_retried(row))


def _may_be_retried(row: OperationRow) -> bool:
    return row.state == "failed" and bool(row.error and values.decode(row.error).get("retryable"))


def suspended(run: Run) -> EndAttempt:
    """Answer the end of an attempt of which nothing but waits is left."""
    waits = run.waits.values()
    reasons = {wait.reason for wait in waits}
    if any(wait.unknown for wait in waits):
        reasons.add("reconciliation")
    due = [wait.due for wait in waits if wait.due is not None]
    awake_from = run.awake_from()
    if awake_from is not None:
        due.append(awake_from)
    wake_in_us: int | None = None
    if awake_from is not None or any(wait.due is not None and not wait.stored for wait in waits):
        wake_in_us = max(0, int((min(due) - clock.monotonic()) * 1_000_000))
    return EndAttempt(
        attempt_end="suspended",
        task_state="waiting",
        reason=next(name for name in WAITING_REASONS if name in reasons),
        facts=run.facts,
        wake_in_us=wake_in_us,
        # This may be long on its way: what is on record is waited for by its own time.
        at_latest=True,
    )


async def interrupted(run: Run) -> EndAttempt:
    """Answer the end of an attempt that was interrupted, by what interrupted it."""
    match run.interruption:
        case "drained" | "outpaced" | "cancelled":
            # With a cancel standing the store makes cancelled of it, for the reason that is on record there;
            # or, where what was done is to be undone first, hands it out again for that.
            return EndAttempt(attempt_end="released", task_state="queued", facts=run.facts)
        case "expired":
            return failed(run, DeadlineExceeded.code, run.detail, retryable=False)
        case "mismatched":
            store, ref = run.host.store, TaskRef(tenant=run.tenant, task=run.task)
            pause_s = await run.host.insist(lambda: mismatch.pause_s(store, ref))
            return EndAttempt(
                attempt_end="suspended",
                task_state="waiting",
                reason="operator",
                facts=run.facts,
                # Not by the timers of its operations: it would come to the same end again and again.
                wake_in_us=int(pause_s * 1_000_000),
                events=(mismatch.noted(run.detail),),
            )
        case _:
            return failed(run, "journal_rejected", run.detail, retryable=False)
