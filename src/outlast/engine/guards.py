"""What may hold a call back before its intent: preconditions, switches, shared waits, business keys.

Purpose: a call that may not be made is refused, waits, or is answered by an earlier one; it is never sent
first and asked about afterwards.

State: the store's gate decides in the transaction of the intent; this turns its refusal into what the agent
sees.

Failure by failure: a precondition that raises is not met. The holder of a business key ends between the
refusal and the look at it: the call is tried again at once.
"""

from __future__ import annotations

from typing import Any

from outlast.core import ids, values
from outlast.core.outcome import Succeeded
from outlast.engine import racing, settling
from outlast.engine.operation import HeldBack, Operation
from outlast.engine.run import Run
from outlast.engine.wording import event, failure, text_of
from outlast.errors import BudgetExceeded, ToolRejected
from outlast.store.entries import RecordOperation
from outlast.store.reconciling import KeyHolder
from outlast.store.rows import OperationFilter

KEY_HELD_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
"""How often a call looks whether another one has given up its business key."""


async def unmet(operation: Operation) -> str | None:
    """Ask a tool's preconditions; answer what is missing, None when nothing is."""
    tool = operation.tool
    if tool.requires is None or tool.requires_signature is None:
        return None
    names = tool.requires_signature.names
    given = {name: value for name, value in operation.arguments.items() if name in names}
    try:
        answer = await tool.requires(**given)
    # The precondition is the user's code; one that cannot be asked is not met.
    except Exception as error:
        return f"its precondition could not be checked: {text_of(error)}"
    if answer is True:
        return None
    return answer if isinstance(answer, str) and answer else "its precondition is not met"


async def held_back(run: Run, operation: Operation, refused: str, heard: int) -> HeldBack | Succeeded:
    """Turn a gate's refusal into a wait, an answer or a failure. heard: the run's facts before it asked."""
    name, _, detail = refused.partition(" ")
    operation.held += 1
    if name == "paused":
        left_s = _decision_left_s(run, operation)
        return HeldBack(why="paused by an operator", wait_s=left_s, reason="operator", since=heard)
    if name == "held":
        wait_s = int(detail) / 1_000_000
        return HeldBack(why="its provider asked everybody to wait", wait_s=wait_s, reason="limit")
    if name == "rules_changed":
        operation.ruled = True
        return HeldBack(why="its standing rules have changed", wait_s=0.0)
    if name == "no_approval":
        await run.read_approvals()
        return HeldBack(why="its decision does not stand any more", wait_s=0.05, reason="approval")
    rule, business = operation.tool.business, operation.business
    if rule is None or business is None:
        raise ValueError(f"refusal {refused!r} of operation {operation.key} is not known")
    store = run.host.store
    holder = await run.host.insist(lambda: store.read_business_key(run.tenant, business.tool, business.value))
    if holder is None:
        return HeldBack(why="the business key is free again", wait_s=0.0)
    # In doubt itself, it comes before whoever has done it.
    mine = (holder.task, holder.key) == (run.task, operation.key)
    if holder.state == "held" and (name == "key_held" or not mine):
        if rule.waits:
            pause = KEY_HELD_S[min(operation.held, len(KEY_HELD_S)) - 1]
            return HeldBack(why="another operation holds its business key", wait_s=pause, reason="limit")
        owner = ids.operation_id(holder.task, holder.key)
        return await refuse(
            run, operation, "business_key", f"operation {owner} is doing this ({business.value})"
        )
    if rule.first and operation.state != "unknown":
        return await _answer_first(run, operation, holder)
    owner = "another operation" if mine else f"operation {ids.operation_id(holder.task, holder.key)}"
    return await _ask_person(run, operation, owner)


def _decision_left_s(run: Run, operation: Operation) -> float | None:
    """Answer for how long the decision on a call still stands, None where that has no end: its time passes
    whatever holds the call back, and its task is told then."""
    rows = [row for (key, _), row in run.approvals.items() if key == operation.key]
    latest = max(rows, key=lambda row: row.number, default=None)
    if latest is None or latest.state != "approved" or latest.expires_at is None:
        return None
    return max(0.05, (latest.expires_at - run.host.session.database_now()) / 1_000_000)


async def refuse(
    run: Run, operation: Operation, reason: str, message: str, *, code: str = ToolRejected.code
) -> HeldBack:
    """End a call that was not made as refused; one whose earlier attempt is open, or that undoes something,
    is left to a person instead."""
    if operation.undoes and operation.state != "unknown":
        await settling.never_sent(run, operation, message)
    if operation.state == "unknown":
        await settling.leave_to_a_person(run, operation, message)
        return HeldBack(why=message, wait_s=None, reason="reconciliation")
    if code == BudgetExceeded.code:
        run.spending.forget(operation.key)
    error = failure(code, message, reason=reason, retryable=False)
    _record(run, operation, "failed", None, error, "operation.failed", reason=reason)
    return HeldBack(why=message, wait_s=0.0)


def lose_race(run: Run, operation: Operation) -> None:
    """End a call that was not made since another branch of its race was first."""
    error = failure(racing.LOST, "another branch was first; it was not made", retryable=False)
    _record(run, operation, "failed", None, error, "operation.failed", lost=True, reason=racing.LOST)


async def _answer_first(run: Run, operation: Operation, holder: KeyHolder) -> HeldBack | Succeeded:
    store = run.host.store
    query = OperationFilter(tenant=run.tenant, task=holder.task, key=holder.key, limit=1)
    rows = await run.host.insist(lambda: store.list_operations(query))
    if not rows or rows[0].state != "succeeded":
        return HeldBack(why="the business key is free again", wait_s=0.0)
    first = rows[0]
    _record(
        run,
        operation,
        "succeeded",
        first.result,
        first.error,
        "operation.settled",
        verdict="answered by an earlier operation",
        by=ids.operation_id(holder.task, holder.key),
    )
    return Succeeded(result=None if first.result is None else values.decode(first.result))


async def _ask_person(run: Run, operation: Operation, owner: str) -> HeldBack:
    why = f"{owner} has done this already; is it to be done again?"
    if operation.state != "unknown":
        await settling.never_sent(run, operation, why)
    await settling.leave_to_a_person(run, operation, why)
    return HeldBack(why=why, wait_s=None, reason="reconciliation")


def _record(
    run: Run,
    operation: Operation,
    state: Any,
    result: str | None,
    error: str | None,
    kind: str,
    *,
    lost: bool = False,
    **said: Any,
) -> None:
    """Put the end of a call that was not made on record."""
    run.append(
        RecordOperation(
            key=operation.key,
            position=operation.position,
            kind=operation.kind,
            name=operation.tool.name,
            state=state,
            request=operation.request,
            arguments=operation.text,
            result=result,
            error=error,
            closes=run.has_asked(operation.key),
            lost=lost,
            events=(
                event(kind, operation=operation.key, kind=operation.kind, name=operation.tool.name, **said),
            ),
        )
    )
    operation.state = state
    run.known.remember(
        operation.key,
        operation.position,
        operation.kind,
        operation.tool.name,
        state,
        operation.request,
        result,
        error,
    )
