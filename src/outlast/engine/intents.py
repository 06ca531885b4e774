"""The intent of an attempt at a call: what is on disk before anything is sent.

Purpose: one way to make it, and to take note of the verdict on it, whoever hands it in.

What is fenced: the intent is a gate under the task's epoch; it compares attempt, turn and state.
"""

from __future__ import annotations

import asyncio

from outlast.core.operation import changes_something
from outlast.engine import settling
from outlast.engine.operation import Operation
from outlast.engine.run import Outpaced, Run
from outlast.engine.wording import event
from outlast.errors import DeadlineExceeded
from outlast.store.entries import CommitIntent, Consent


def make(operation: Operation, consent: Consent | None, resend: str | None) -> CommitIntent:
    """Make the intent of an operation's next attempt. resend: why an unknown is sent again."""
    tool = operation.tool
    started = event(
        "operation.started",
        operation=operation.key,
        kind=operation.kind,
        name=tool.name,
        effect=tool.effect,
        attempt=operation.attempt + 1,
        idempotency_key=operation.idempotency_key,
    )
    return CommitIntent(
        key=operation.key,
        position=operation.position,
        kind=operation.kind,
        name=tool.name,
        request=operation.request,
        decision=operation.decision,
        effect=tool.effect,
        arguments=operation.text,
        timeout_us=tool.timeout_us,
        visible_us=tool.visible_within_us or 0,
        attempt=operation.attempt,
        turn=operation.turn,
        provider=tool.provider,
        business=operation.business,
        repeat=operation.repeat,
        resend=resend is not None,
        consent=consent,
        heard=operation.heard,
        events=(started,) if resend is None else (settling.resent(operation, resend), started),
    )


def check_refusal(run: Run, operation: Operation, refused: str) -> None:
    """Let the refusals of an intent pass that only hold the call back.

    Raises Outpaced, DeadlineExceeded, and CancelledError where a cancel stands.
    """
    if refused == "not_planned":
        raise Outpaced(f"operation {operation.key}: the ledger has moved on")
    if refused == "news":
        raise Outpaced(f"operation {operation.key}: there is news, so that another may be the next to undo")
    if refused == "cancelled":
        run.interrupt("cancelled", "a cancel stands")
        raise asyncio.CancelledError
    if refused == "deadline":
        raise DeadlineExceeded(
            f"operation {operation.key} of task {run.task} was not started: its time is over"
        )


def admitted(run: Run, operation: Operation, resend: str | None) -> None:
    """Take note that the intent is on disk: the attempt has begun."""
    if resend is not None:
        settling.told(run, operation, "send_again")
        operation.earlier_open = operation.attempt > 0 and changes_something(operation.tool.effect)
    now, series = run.host.session.database_now(), operation.series
    operation.attempt += 1
    operation.turn += 1
    operation.state, operation.epoch = "running", run.epoch
    operation.deadline_at = now + operation.tool.timeout_us
    if operation.first_intent_at is None:
        operation.first_intent_at = now
    if not series.tries:
        series.began_at = now
    series.tries += 1
