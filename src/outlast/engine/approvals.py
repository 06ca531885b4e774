"""Policy and approvals: whether a call may be made now, and under whose decision.

Purpose: no call that policy covers is made without its consent, and a decision is for exactly what was shown.

Identity: a question about a call is ``<task>:<key>~<number>``. It is bound to the call's fingerprint: kind,
tool, arguments as they will be sent, tool version and target.

State: asked anew at every attempt: policy first, then the tool's standing rules, then what people decided;
see ``core.approval``. A decision is consumed by the store in the transaction of the intent.

What is fenced: the question and the record of a refusal are written under the task's epoch; the gate of the
intent looks again at rules, fingerprint, policy version and expiry, by the database's clock.

Failure by failure: policy, rules or target cannot be had: nothing runs, the task waits for an operator and
tries again. Killed before the question is on disk: it is asked afresh under the same id. Killed while people
think: the question stands; after the restart the same call finds it by its number. Arguments, tool version,
target or policy changed meanwhile: the old question is withdrawn, its decision stays unused, and a new one is
asked. Nobody decides in time: expired, which is not a no, and final as a no is. A person wants an unknown
call sent again: what was said of it before is over, and people are asked anew. A decision comes between the
question and its wait: whoever waits names the facts that it had heard before it looked.

Not covered: what a policy function itself does to the outside.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from outlast import probes
from outlast.core import values
from outlast.core.approval import (
    MAX_SHOWN_BYTES,
    Answer,
    Ask,
    StandingRule,
    check_bounds,
    judge,
    read_answer,
)
from outlast.engine import guards
from outlast.engine.operation import HeldBack, Operation
from outlast.engine.registry import PolicyCall
from outlast.engine.run import Outpaced, Run
from outlast.engine.signature import Signature
from outlast.engine.wording import event, text_of
from outlast.errors import ApprovalDenied, ApprovalExpired, InvalidRequest
from outlast.store.approving import ApprovalRow, Rules
from outlast.store.entries import AskApproval, Consent, ExpireApproval, RecordOperation

UNASKED_S = (1.0, 2.0, 5.0, 15.0, 60.0)
"""How often policy that could not be asked is asked again."""


class NoPolicy(Exception):
    """Policy could not be asked, so that nothing may run."""


async def consent(run: Run, operation: Operation) -> Consent | HeldBack | None:
    """Ask whether this attempt may be made: the consent that its intent carries, None where nothing governs
    the tool, or what holds the call back.

    Sets the operation's effective arguments, target and decision digest. Raises LeaseLost, Outpaced.
    """
    tool = operation.tool
    if tool.policy is None and tool.target is None and not operation.ruled:
        return None
    # Before anything is looked at: what is decided meanwhile may be heard before there is a wait for it.
    heard = run.facts
    try:
        await _read_target(operation)
        rules = await run.host.insist(lambda: run.host.store.read_rules(run.tenant, tool.name))
        latest = _latest(run, operation.key)
        _apply_edit(operation, latest)
        answer = await _ask_policy(run, operation)
        bounds = _rules(rules)
    except NoPolicy as error:
        return _unasked(run, operation, str(error))
    operation.unasked = 0
    decided = _decided(operation, latest, run.host.session.database_now())
    judged = judge(answer, bounds, operation.plain, decided)
    under = Consent(policy=tool.policy_version, rules=rules.version)
    if judged.verdict == "deny":
        who = "a person" if judged.by == "person" else judged.by
        said = latest.decision_reason if judged.by == "person" and latest is not None else judged.reason
        return await guards.refuse(
            run,
            operation,
            judged.by.partition(" ")[0],
            f"{who} said no" + (f": {said}" if said else ""),
            code=ApprovalDenied.code,
        )
    if judged.verdict == "allow" and judged.by != "person":
        _close(run, operation, latest)
        return under
    if judged.verdict == "allow" and latest is not None:
        return Consent(
            policy=under.policy, rules=under.rules, approval=latest.number, fingerprint=operation.decision
        )
    assert judged.ask is not None
    return await _question(run, operation, judged.ask, latest, heard)


def _close(run: Run, operation: Operation, latest: ApprovalRow | None) -> None:
    """Take a question back that nobody needs to decide any more."""
    if latest is not None and latest.state in ("pending", "approved"):
        run.append(
            RecordOperation(
                key=operation.key,
                position=operation.position,
                kind=operation.kind,
                name=operation.tool.name,
                state="planned",
                request=operation.request,
                arguments=operation.text,
                closes=True,
            )
        )


# -- what is known -----------------------------------------------------------------------------------------


def _latest(run: Run, key: str) -> ApprovalRow | None:
    rows = [row for (of, _), row in run.approvals.items() if of == key]
    return max(rows, key=lambda row: row.number, default=None)


def _decided(operation: Operation, row: ApprovalRow | None, now: int) -> Any:
    """Answer what a person said of exactly this call, None where nobody did or it does not stand any more."""
    if row is None or not _about_this(operation, row):
        return None
    if row.state == "rejected":
        return "rejected"
    if row.expires_at is not None and row.expires_at <= now:
        return None
    if row.state == "approved" or (row.state == "used" and operation.attempt > 0):
        return "approved"
    return None


def _about_this(operation: Operation, row: ApprovalRow) -> bool:
    """Whether a question is about exactly this call, and no person has settled the call since."""
    same = row.fingerprint == operation.decision and row.policy == operation.tool.policy_version
    return same and not row.spent


def _apply_edit(operation: Operation, row: ApprovalRow | None) -> None:
    """Take over the arguments that an approver changed, and say what exactly is to be decided on."""
    # What was sent once goes as it went.
    if row is not None and row.edited and not operation.replanned and operation.attempt == 0:
        operation.carry(row.arguments)
    operation.fix()


def _rules(rules: Rules) -> tuple[StandingRule, ...]:
    try:
        return tuple(
            StandingRule(
                number=rule.number, verdict=rule.verdict, bounds=check_bounds(values.decode(rule.bounds))
            )
            for rule in rules.rules
        )
    except InvalidRequest as error:
        raise NoPolicy(f"a standing rule cannot be read: {error}") from error


# -- asking policy -----------------------------------------------------------------------------------------


async def _read_target(operation: Operation) -> None:
    """Read the object that the call is about, and its version."""
    tool = operation.tool
    if tool.target is None or tool.target_signature is None:
        return
    try:
        target = values.normalise(await _call(tool.target, tool.target_signature, operation))
        values.encode(target, what=f"the target of tool {tool.name}")
    # The user's code; a target that cannot be read is not decided on.
    except Exception as error:
        raise NoPolicy(f"its target could not be read: {text_of(error)}") from error
    operation.target = target


async def _ask_policy(run: Run, operation: Operation) -> Answer:
    tool = operation.tool
    if tool.policy is None or tool.policy_signature is None:
        return read_answer(True)
    before: tuple[Any, ...] = ()
    if tool.policy_takes_call:
        before = (
            PolicyCall(
                tenant=run.tenant,
                user=run.loaded.user,
                task=run.task,
                agent=run.spec.name,
                operation=operation.key,
                tool=tool.name,
                attempt=operation.attempt + 1,
                target=operation.target,
            ),
        )
    try:
        return read_answer(await _call(tool.policy, tool.policy_signature, operation, *before))
    # The user's code; whatever it raises is no consent.
    except Exception as error:
        raise NoPolicy(f"its policy could not be asked: {text_of(error)}") from error


async def _call(
    function: Callable[..., Any], signature: Signature, operation: Operation, *before: Any
) -> Any:
    given = {name: value for name, value in operation.arguments.items() if name in signature.names}
    answer = function(*before, **given)
    return await answer if inspect.isawaitable(answer) else answer


def _unasked(run: Run, operation: Operation, why: str) -> HeldBack:
    if not operation.unasked:
        run.say("error", f"operation {operation.key} is held: {why}; nothing runs without policy")
    pause = UNASKED_S[min(operation.unasked, len(UNASKED_S) - 1)]
    operation.unasked += 1
    return HeldBack(why=why, wait_s=pause, reason="operator")


# -- asking people -----------------------------------------------------------------------------------------


async def _question(
    run: Run, operation: Operation, ask: Ask, latest: ApprovalRow | None, heard: int
) -> HeldBack:
    """Put a question to people, or go on waiting for its decision. heard: the run's facts before."""
    if latest is not None and _about_this(operation, latest):
        now = run.host.session.database_now()
        over = latest.expires_at is not None and latest.expires_at <= now
        if latest.state == "expired" and not latest.spent:
            return await _expired(run, operation)
        if latest.state in ("pending", "approved"):
            if not over:
                return _waiting(latest, now, heard)
            refused = await run.commit(_expiry(operation, latest))
            if refused is None:
                return await _expired(run, operation)
            # By the database's clock it is not over yet, or somebody has just decided.
            await run.read_approvals()
            return HeldBack(why="its decision is about to expire", wait_s=0.05, reason="approval")
    return await _put(run, operation, ask, 1 if latest is None else latest.number + 1, heard)


async def _put(run: Run, operation: Operation, ask: Ask, number: int, heard: int) -> HeldBack:
    tool = operation.tool
    shown = values.encode(
        {
            "tool": tool.name,
            "version": tool.version,
            "effect": tool.effect,
            "arguments": operation.plain,
            "target": operation.target,
            "business_key": None if operation.business is None else operation.business.value,
            # That it undoes something is a part of what is decided on.
            **({"kind": operation.kind} if operation.undoes else {}),
        }
    )
    if len(shown.encode()) > MAX_SHOWN_BYTES:
        return await guards.refuse(
            run,
            operation,
            "too_large_to_show",
            f"its arguments are more than the {MAX_SHOWN_BYTES} bytes that people can be shown, so nobody can"
            " decide on them",
            code=ApprovalDenied.code,
        )
    probes.reach("approvals.before_ask")
    await run.commit(
        AskApproval(
            key=operation.key,
            position=operation.position,
            kind=operation.kind,
            name=tool.name,
            request=operation.request,
            arguments=operation.text,
            number=number,
            subject="call",
            fingerprint=operation.decision,
            shown=shown,
            reason=ask.reason,
            policy=tool.policy_version,
            target=None if operation.target is None else values.encode(operation.target),
            roles=ask.roles,
            quorum=ask.quorum,
            four_eyes=ask.four_eyes,
            requester=None if run.loaded.user is None else f"person:{run.loaded.user}",
            expires_in_us=ask.expires_us,
        )
    )
    operation.replanned = False
    probes.reach("approvals.after_ask")
    await run.read_approvals()
    row = run.approvals.get((operation.key, number))
    if row is None:
        raise Outpaced(f"operation {operation.key}: its question is not on record")
    return _waiting(row, run.host.session.database_now(), heard)


def _waiting(row: ApprovalRow, now: int, heard: int) -> HeldBack:
    left_s = None if row.expires_at is None else max(0.0, (row.expires_at - now) / 1_000_000)
    return HeldBack(why=f"waits for the decision on {row.id}", wait_s=left_s, reason="approval", since=heard)


def _expiry(operation: Operation, row: ApprovalRow) -> ExpireApproval:
    return ExpireApproval(
        key=operation.key,
        number=row.number,
        events=(event("log", level="warning", message=f"nobody decided {row.id} in time"),),
    )


async def _expired(run: Run, operation: Operation) -> HeldBack:
    return await guards.refuse(
        run,
        operation,
        "expired",
        "nobody decided in time; nothing was sent",
        code=ApprovalExpired.code,
    )
