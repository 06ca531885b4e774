"""Side effects: intent on disk, the call, outcome on disk. The only caller of tool bodies.

Purpose: what an agent does to the outside is done once, known, and provable: one intent, at most one
unsettled attempt, then evidence.

Identity: (task, key). The idempotency key sent is ``<task>:<key>``, the same on every attempt; a fork that
makes a call of the task it was made from goes on under the key that was sent there.

State: planned, running, then succeeded, failed or unknown; see ``core.transitions``. Each send, query and
settlement takes the operation's next turn by compare-and-set on (attempt, turn).

What is fenced: the intent is a gate under the task's epoch; the outcome compares attempt and turn.
Immediately before each send the session's trust is looked at, and the call's own time, which counts from
before its intent: nothing is sent after the deadline that the ledger holds.

Failure by failure: killed before the intent: nothing is on record, planned afresh. Killed after it: the
successor finds the operation running under an old epoch and settles it as an unknown. The answer is lost:
unknown, settled by the rules of the effect class; it stays unknown, and in the queue, until the very
intent of a resend. A wait before another send may give up the slot: how often was sent, and
when the next may be, is on record with each attempt. Fenced out while waiting for the answer: the answer is
kept as evidence and changes nothing. The agent is cancelled in mid-call: the call goes on in a task of its
own and its outcome is recorded.

Not covered: a process frozen between the last look and the send still sends when it thaws; the remote's key,
or a person, is what is left then.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from outlast import clock, probes
from outlast.core import canonical, ids, retry, values
from outlast.core.budget import Passed
from outlast.core.operation import OperationKind, changes_something
from outlast.core.outcome import Failed, Outcome, Succeeded, Unknown
from outlast.engine import approvals, guards, intents, outcomes, scopes, settling
from outlast.engine.operation import HeldBack, Operation, business_key
from outlast.engine.registry import ToolSpec
from outlast.engine.run import Outpaced, Run, Wait
from outlast.engine.series import Series
from outlast.engine.spending import usage_of
from outlast.engine.steps import known, recorded
from outlast.errors import (
    BudgetExceeded,
    LeaseLost,
)
from outlast.store.contract import BatchRejected
from outlast.store.entries import Consent
from outlast.store.records import OperationRow
from outlast.tools.call import ToolCall
from outlast.tools.classify import of_resend, outcome_of_exception
from outlast.tools.passing import Pass, WayOut


async def call(run: Run, key: str, tool: ToolSpec, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Make a tool call, or answer it from the journal; the same key in flight is joined, not repeated."""
    run.check()
    arguments = tool.signature.bind(args, named)
    return tool.signature.restore(await _made(run, "tool", key, tool, arguments))


async def compensate(run: Run, key: str, tool: ToolSpec, arguments: dict[str, Any], *, heard: int) -> None:
    """Undo what another operation has done, by the same rules as any call.

    heard: the run's facts before it was decided that this is the next one. Raises LeftToAPerson where only a
    person can say what became of it, Outpaced where there is more to be heard first.
    """
    run.check()
    await _made(run, "compensation", key, tool, arguments, heard=heard)


async def _made(
    run: Run,
    kind: OperationKind,
    key: str,
    tool: ToolSpec,
    arguments: dict[str, Any],
    *,
    heard: int | None = None,
) -> Any:
    """Make a call and answer its plain result."""
    plain = tool.signature.plain(arguments)
    request = canonical.fingerprint(kind, tool.name, plain)
    # People were asked about it at most; a changed call is not theirs, and they are asked again.
    row = known(run, key, kind, tool.name, request, plain, replans=True)
    if row is not None and row.state in ("succeeded", "failed"):
        return recorded(run, row)
    if key not in run.works.open:
        operation = _prepared(run, kind, key, tool, arguments, row, plain, request)
        operation.heard = heard
        if row is None and _asks_nobody(operation) and _passed(run, operation) is None:
            _hand_in(run, operation)
        else:
            begin(run, operation, functools.partial(_attempts, run, operation))
    try:
        return await run.works.join(key)
    except asyncio.CancelledError:
        if scopes.lost():
            run.works.let_go(key)
        raise


def prepared(
    run: Run,
    kind: OperationKind,
    key: str,
    tool: ToolSpec,
    arguments: dict[str, Any],
    row: OperationRow | None,
) -> Operation:
    """Make an operation as this run sees it. arguments: typed. row: what is on record of it."""
    plain = tool.signature.plain(arguments)
    request = canonical.fingerprint(kind, tool.name, plain)
    return _prepared(run, kind, key, tool, arguments, row, plain, request)


def _prepared(
    run: Run,
    kind: OperationKind,
    key: str,
    tool: ToolSpec,
    arguments: dict[str, Any],
    row: OperationRow | None,
    plain: Any,
    request: str,
) -> Operation:
    issued = run.known.issued.get(key) if row is None else None
    if issued is not None and (issued.kind, issued.name, issued.request) != (kind, tool.name, request):
        issued = None
    operation = Operation(
        key=key,
        position=row.position if row is not None else run.known.next_position(),
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
        deadline_at=row.deadline_at if row is not None else None,
        series=Series.of(row),
        business=business_key(tool, plain),
        settled_by=(row.settled_by or "") if row is not None else "",
        plain=plain,
        replanned=row is not None and (row.request, row.name) != (request, tool.name),
        kind=kind,
        idempotency_key=ids.sent_key(run.task, key, None if row is None else row.idempotency_key),
        issued=issued,
        usage=usage_of(row),
    )
    if row is not None and row.attempt > 0:
        operation.carry(row.arguments)
    return operation


def begin(run: Run, operation: Operation, work: Callable[[], Awaitable[Any]]) -> None:
    """Let an operation be worked at in a task of its own; ``run.works.join`` waits for what comes of it."""
    run.active += 1
    # Cut before its first step it would tell nobody that it is over.
    run.works.critical.add(operation.key)
    run.own(operation.key, _perform(run, operation, work))


def _asks_nobody(operation: Operation) -> bool:
    """Whether nothing but the store's gate may hold a new call back."""
    tool = operation.tool
    return operation.issued is None and tool.policy is None and tool.target is None and tool.requires is None


def _hand_in(run: Run, operation: Operation) -> None:
    """Hand in the first intent of a call that asks nobody, in its caller's own turn of the loop.

    What makes the call begins with the verdict, in the context of this moment.
    """
    run.active += 1
    run.works.critical.add(operation.key)
    run.works.open[operation.key] = None
    probes.reach("effects.before_intent")
    context = scopes.outside_races() or contextvars.copy_context()
    heard, since = run.facts, clock.monotonic()

    def told(refused: str | None, error: Exception | None) -> None:
        # Unless its attempt has ended without it.
        if operation.key in run.works.open:
            first = functools.partial(_first_attempt, run, operation, heard, since, refused, error)
            work = functools.partial(_attempts, run, operation, first)
            run.own(operation.key, _perform(run, operation, work), context)

    run.host.journal.append(run, intents.make(operation, None, None), told)


async def _perform(run: Run, operation: Operation, work: Callable[[], Awaitable[Any]]) -> None:
    """Bring one operation to its end: attempts, settlements, waits; whoever has joined it is told."""
    result = error = None
    try:
        result = await work()
    except KeyboardInterrupt:
        raise
    # Whatever it is, those who have joined are told.
    except BaseException as raised:
        error = _end_of(run, operation, raised)
    finally:
        run.active -= 1
        run.touched += 1
        run.works.close(operation.key, result, error)
        run.quiet()


def _end_of(run: Run, operation: Operation, error: BaseException) -> BaseException:
    """Answer what those who have joined an operation are told of an error; one that ends the run ends it."""
    match error:
        case LeaseLost():
            run.interrupt("lost", "another worker holds the task")
        case Outpaced():
            run.interrupt("outpaced", str(error))
        case BatchRejected():
            run.unstorable(error)
        case asyncio.CancelledError():
            if operation.key in run.works.lost and operation.state == "planned" and not run.sealed:
                guards.lose_race(run, operation)
        case _:
            return error
    return asyncio.CancelledError()


async def _attempts(
    run: Run, operation: Operation, attempt: Callable[[], Awaitable[Outcome | HeldBack]] | None = None
) -> Any:
    """Make attempts until the operation is over. attempt: the first one, if that has begun."""
    if attempt is None:
        run.works.critical.discard(operation.key)
        if run.sealed:
            raise asyncio.CancelledError
    if (
        operation.issued is not None
        and operation.key not in run.works.lost
        and await settling.may_have_happened(run, operation.issued)
    ):
        if await _over_budget(run, operation) is not None:
            return recorded(run, run.known.rows[operation.key])
        await settling.take_over(run, operation)
    while True:
        if attempt is None:
            if operation.key in run.works.lost:
                # What was under way when its race was lost has ended; there is no next attempt.
                raise asyncio.CancelledError
            if operation.state in ("running", "unknown"):
                # An intent without an outcome: an earlier attempt's, or one that just ended as unknown.
                settled = await settling.settle(run, operation, pause_us=_pause_us(run, operation))
                if isinstance(settled, Succeeded):
                    return settled.result
                if isinstance(settled, Failed):
                    return recorded(run, run.known.rows[operation.key])
                if settled is settling.WAIT:
                    await _wait_for_settlement(run, operation)
                    continue
            await _back_off(run, operation)
            run.check()
            attempt = functools.partial(_attempt, run, operation)
        answer, attempt = await attempt(), None
        if isinstance(answer, Succeeded):
            return answer.result
        if run.sealed:
            raise asyncio.CancelledError
        if operation.state in ("succeeded", "failed"):
            # From the record, so that the agent sees the very same on every replay.
            return recorded(run, run.known.rows[operation.key])
        if isinstance(answer, HeldBack):
            await _wait(run, operation, answer)


def _passed(run: Run, operation: Operation) -> Passed | None:
    """Count a call, or answer which bound of the task's budget holds it back; what undoes is not bound."""
    return None if operation.undoes else run.spending.begin(operation.key)


async def _over_budget(run: Run, operation: Operation) -> HeldBack | None:
    """Count a call, or end it as refused where the task's budget holds it back."""
    over = _passed(run, operation)
    if over is None:
        return None
    return await guards.refuse(run, operation, over.bound, over.message, code=BudgetExceeded.code)


async def _attempt(run: Run, operation: Operation) -> Outcome | HeldBack:
    """Ask whether the call may be made, commit its intent, and make it; from the intent on nothing cuts it
    short.

    Answers how it ended, or that the call was held back before it.
    """
    over_budget = await _over_budget(run, operation)
    if over_budget is not None:
        return over_budget
    consent = await approvals.consent(run, operation)
    if isinstance(consent, HeldBack):
        return consent
    run.works.critical.add(operation.key)
    try:
        missing = None if operation.tool.requires is None else await guards.unmet(operation)
        if missing is not None:
            return await guards.refuse(run, operation, "precondition", f"not started: {missing}")
        probes.reach("effects.before_intent")
        # An unknown stays in the reconciliation queue until the very intent of its resend.
        resend, operation.resend = operation.resend, None
        heard, since = run.facts, clock.monotonic()
        refused = await run.commit(intents.make(operation, consent, resend))
        return await _after_intent(run, operation, consent, resend, heard, since, refused)
    finally:
        run.works.critical.discard(operation.key)


async def _first_attempt(
    run: Run, operation: Operation, heard: int, since: float, refused: str | None, error: Exception | None
) -> Outcome | HeldBack:
    """Go on with an attempt whose intent was handed in, and is answered; see ``_attempt``."""
    try:
        if error is not None:
            raise error
        return await _after_intent(run, operation, None, None, heard, since, refused)
    finally:
        run.works.critical.discard(operation.key)


async def _after_intent(
    run: Run,
    operation: Operation,
    consent: Consent | None,
    resend: str | None,
    heard: int,
    since: float,
    refused: str | None,
) -> Outcome | HeldBack:
    """Make the call whose intent is on disk, and record the outcome; or say what held it back.

    heard, since: the run's facts, and the monotonic clock, before the intent was handed in. refused: the name
    of its refusal. Raises LeaseLost, Outpaced, DeadlineExceeded.
    """
    tool, series = operation.tool, operation.series
    if refused is not None:
        intents.check_refusal(run, operation, refused)
        return await guards.held_back(run, operation, refused, heard)
    intents.admitted(run, operation, resend)
    probes.reach("effects.after_intent")
    if run.sealed:
        outcome: Outcome = Failed(kind="not_sent", reason="the attempt ended before the call", retryable=True)
        # It was not tried, so it does not count.
        series.tries, series.again_at = series.tries - 1, 0
    else:
        outcome = await _body(run, operation, None if consent is None else consent.approval, since)
        if isinstance(outcome, Unknown) and not changes_something(tool.effect):
            outcome = Failed(kind="not_sent", reason=outcome.reason, retryable=True)
        series.again_at = _again_at(run, operation, outcome)
    wait = _shared_wait(tool, outcome)
    if operation.earlier_open:
        # This send did nothing, or was declined; the earlier one, of which nobody knows, may have acted.
        outcome = of_resend(outcome)
    probes.reach("effects.before_outcome")
    outcome = await outcomes.record(run, operation, outcome, wait)
    if operation.undoes and isinstance(outcome, Failed) and operation.state == "unknown":
        why = f"the undo failed for good: {outcome.reason}"
        await settling.leave_to_a_person(run, operation, why)
        return HeldBack(why=why, wait_s=None, reason="reconciliation")
    return outcome


async def _body(run: Run, operation: Operation, approval: int | None, since: float) -> Outcome:
    """Call the tool's body under its timeout and say how the call ended.

    approval: what its intent consumed. since: when its time began, by the monotonic clock: before its intent,
    so that a process that stood still, or waited long, between the two does not send after the deadline on
    record.
    """
    tool = operation.tool
    own = since + tool.timeout_us / 1_000_000
    left = run.remaining_s()
    deadline = own if left is None else min(own, clock.monotonic() + left)
    changes = changes_something(tool.effect)
    tool_call = ToolCall(
        idempotency_key=operation.idempotency_key,
        task=run.task,
        tenant=run.tenant,
        epoch=run.epoch,
        attempt=operation.attempt,
        deadline=deadline,
        traceparent=run.loaded.trace,
        guard=run.guard,
        client=run.host.http_client,
        way_out=functools.partial(_way_out, run, operation, approval),
    )
    limit = run.host.limits.within(tool_call.remaining())
    if not changes and (task := asyncio.current_task()) is not None:
        run.works.cuts[operation.key] = task.cancel
    try:
        # Not every tool asks before it sends, so it is asked here as well.
        tool_call.check()
        with limit:
            result = await tool.function(tool_call, **operation.arguments)
    except asyncio.CancelledError as error:
        # Only a run that is over cuts a call, and one that changes something only after its grace time.
        return outcome_of_exception(error, began=tool_call.began, changes=changes)
    except KeyboardInterrupt:
        raise
    # A tool body may raise anything; what it means is the classification's to say.
    except BaseException as error:
        sent = tool_call.began and changes
        if isinstance(error, TimeoutError) and limit.expired and sent:
            return Unknown(reason="timeout", clue=f"no answer within {max(deadline - since, 0.0):g} s")
        return _classified(error, tool_call, changes=changes)
    finally:
        run.works.cuts.pop(operation.key, None)
        operation.may_run_on = tool_call.may_run_on
        if tool_call.usage:
            operation.usage += tool_call.usage
            run.spending.spend(tool_call.usage)
    return Succeeded(result=result)


def _way_out(run: Run, operation: Operation, approval: int | None) -> WayOut | None:
    """Answer the gateway as this attempt sees it, None where nobody can sign for it."""
    gateway = run.host.gateway
    if gateway is None:
        return None

    def sign(hosts: tuple[str, ...]) -> str:
        return gateway.sign(
            Pass(
                tenant=run.tenant,
                task=run.task,
                epoch=run.epoch,
                key=operation.key,
                attempt=operation.attempt,
                decision=operation.decision,
                approval=approval,
                hosts=hosts,
                expires_at=operation.deadline_at or 0,
            )
        )

    return WayOut(url=gateway.url, sign=sign, through=operation.tool.gateway)


def _classified(error: BaseException, tool_call: ToolCall, *, changes: bool) -> Outcome:
    try:
        return outcome_of_exception(error, began=tool_call.began, changes=changes)
    # An exception's own text may raise; that must not hide what is known of the call.
    except Exception:
        name = type(error).__name__
        if tool_call.began and changes:
            return Unknown(reason=f"the tool raised {name} after its call had begun")
        return Failed(kind="error", reason=f"the tool raised {name}", retryable=False)


def _again_at(run: Run, operation: Operation, outcome: Outcome) -> int | None:
    """Answer when another attempt may be made, None when there may be none."""
    if isinstance(outcome, Succeeded) or (isinstance(outcome, Failed) and not outcome.retryable):
        return None
    series, now = operation.series, run.host.session.database_now()
    policy = operation.tool.retry
    asked = outcome.retry_after_s if isinstance(outcome, Failed) else None
    if isinstance(outcome, Failed) and outcome.kind == "throttled" and asked:
        # To be told to wait is no failure, and does not use up the attempts; all who were told come back
        # apart.
        series.tries -= 1
        return now + int((asked + clock.uniform() * policy.jitter_s) * 1_000_000)
    elapsed_s = max(0.0, (now - series.began_at) / 1_000_000)
    delay = retry.next_delay(policy, series.tries - 1, elapsed_s, clock.uniform(), asked)
    return None if isinstance(delay, retry.Stop) else now + int(delay * 1_000_000)


def _shared_wait(tool: ToolSpec, outcome: Outcome) -> tuple[str, int] | None:
    """Answer the wait that a provider asked of everybody."""
    if isinstance(outcome, Failed) and outcome.kind == "throttled" and outcome.retry_after_s:
        return tool.provider, int(outcome.retry_after_s * 1_000_000)
    return None


def _pause_us(run: Run, operation: Operation) -> int | None:
    """Answer the microseconds to wait before another attempt, None when there may be none."""
    if not operation.series.again_at:
        return operation.series.again_at
    return max(0, operation.series.again_at - run.host.session.database_now())


async def _back_off(run: Run, operation: Operation) -> None:
    """Wait until the next attempt may be made; a long wait gives up the slot."""
    pause_us = _pause_us(run, operation)
    if pause_us:
        await _wait(run, operation, HeldBack(why="retry", wait_s=pause_us / 1_000_000))


async def _wait(run: Run, operation: Operation, held: HeldBack) -> None:
    """Wait for a time, for news, or for whichever comes first; without the slot where it takes long."""
    if held.reason == "reconciliation":
        await _wait_for_settlement(run, operation)
        return
    if held.wait_s is not None and held.wait_s <= 0:
        return
    if operation.key in run.works.lost:
        # Its race was lost while its gate was asked, which nothing cuts: there is nothing left to wait for.
        return
    run.active -= 1
    due = None if held.wait_s is None else clock.monotonic() + held.wait_s
    try:
        wait = Wait(reason=held.reason, due=due, stored=due is None, unknown=operation.state == "unknown")
        await run.wait_for_news(operation.key, wait, held.wait_s, since=held.since)
    finally:
        run.active += 1


async def _wait_for_settlement(run: Run, operation: Operation) -> None:
    """Wait until the settler or a person settles the operation; the task gives up its lease meanwhile.

    Raises Outpaced when somebody has. An undo waits for evidence only: LeftToAPerson where there is none.
    """
    if operation.undoes:
        await settling.until_asked(run, operation)
        return
    run.active -= 1
    try:
        while True:
            seen = run.facts
            if await settling.moved_on(run, operation):
                raise Outpaced(f"operation {operation.key} was settled")
            wait = Wait(reason="reconciliation", due=None, stored=True)
            await run.wait_for_news(operation.key, wait, None, since=seen)
    finally:
        run.active += 1
