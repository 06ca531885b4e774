"""Questions to people: asked once, answered once, remembered.

Purpose: an agent that needs to know something from a person waits for as long as it takes and holds nothing
meanwhile.

Identity: the operation's key; the question is ``<task>:<key>~1``. A question that reads otherwise on a replay
is another request, and stops the task as any other mismatch does.

State: running (kind ``signal``) while it is open; then succeeded with the answer, or failed.

What is fenced: question and record are written under the task's epoch; the answer is a compare-and-set of its
own, by the rules of approvals (who may answer, how many, until when).

Failure by failure: killed while people think: the question stands and is found again. Nobody answers in time:
``ApprovalExpired``; somebody refuses to answer: ``ApprovalDenied``. The answer comes in the moment of
suspending: it raises the task's facts, and the suspension becomes a wake-up.

Not covered: whether the answer is wise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pydantic
from pydantic import TypeAdapter

from outlast import clock, probes
from outlast.core import canonical, values
from outlast.core.approval import MAX_QUORUM, MAX_SHOWN_BYTES
from outlast.core.operation import OperationState
from outlast.core.record import record
from outlast.engine import racing, scopes
from outlast.engine.run import Outpaced, Run, Wait
from outlast.engine.steps import known, recorded
from outlast.engine.wording import event, failure
from outlast.errors import ApprovalDenied, ApprovalExpired, InvalidRequest, ValueTooLarge
from outlast.store.approving import ApprovalRow
from outlast.store.entries import AskApproval, ExpireApproval, RecordOperation

NAME = "ask"


@record
class Question:
    """What people are asked. shown: JSON text of all of it. adapter: gives an answer its type."""

    text: str
    shown: str
    fingerprint: str
    roles: tuple[str, ...]
    quorum: int
    timeout_us: int | None
    adapter: TypeAdapter[Any] | None


def question(
    text: str,
    *,
    choices: Sequence[Any] | None,
    form: Any,
    roles: tuple[str, ...],
    quorum: int,
    timeout_us: int | None,
) -> Question:
    """Check a question at the edge. Raises InvalidRequest."""
    if not text.strip():
        raise InvalidRequest("a question needs a text")
    if choices is not None and form is not None:
        raise InvalidRequest("a question has choices= or a form=, not both")
    if choices is not None and not choices:
        raise InvalidRequest("choices= must not be empty")
    if not 1 <= quorum <= MAX_QUORUM:
        raise InvalidRequest(f"quorum= is 1 to {MAX_QUORUM}, not {quorum}")
    adapter = None
    asked: dict[str, Any] = {"question": text}
    if choices is not None:
        asked["choices"] = values.normalise(list(choices))
    if form is not None:
        try:
            adapter = TypeAdapter(form)
            asked["form"] = values.normalise(adapter.json_schema())
        except (pydantic.PydanticUserError, pydantic.PydanticSchemaGenerationError) as error:
            raise InvalidRequest(f"form= {form!r} cannot be shown as a form: {error}") from None
    shown = values.encode(asked)
    if len(shown.encode()) > MAX_SHOWN_BYTES:
        raise ValueTooLarge(f"a question of more than {MAX_SHOWN_BYTES} bytes cannot be shown to anybody")
    fingerprint = canonical.fingerprint("signal", NAME, {**asked, "roles": list(roles), "quorum": quorum})
    return Question(
        text=text,
        shown=shown,
        fingerprint=fingerprint,
        roles=roles,
        quorum=quorum,
        timeout_us=timeout_us,
        adapter=adapter,
    )


async def ask(run: Run, key: str, asked: Question) -> Any:
    """Put a question to people and wait for the answer, or answer it from the journal."""
    run.check(waits=True)
    row = known(run, key, "signal", NAME, asked.fingerprint)
    if row is not None and row.state in ("succeeded", "failed"):
        return _restore(asked, recorded(run, row))
    position = row.position if row is not None else run.known.next_position()
    approval = run.approvals.get((key, 1))
    try:
        if approval is None:
            run.check()
            approval = await _put(run, key, position, asked)
        while approval.state == "pending":
            now = run.host.session.database_now()
            left_s = None if approval.expires_at is None else (approval.expires_at - now) / 1_000_000
            if left_s is not None and left_s <= 0:
                await run.commit(ExpireApproval(key=key, number=1))
                await run.read_approvals()
            else:
                due = None if left_s is None else clock.monotonic() + left_s
                await run.wait_for_news(key, Wait(reason="approval", due=due, stored=True), left_s)
                run.check()
            approval = _current(run, key)
    except asyncio.CancelledError:
        if scopes.lost() and not run.sealed:
            error = failure(racing.LOST, "another branch was first", retryable=False)
            _put_on_record(run, key, position, asked, None, error, lost=True)
        raise
    return _restore(asked, _record(run, key, position, asked, approval))


async def _put(run: Run, key: str, position: int, asked: Question) -> ApprovalRow:
    run.active += 1
    try:
        probes.reach("approvals.before_ask")
        await run.commit(
            AskApproval(
                key=key,
                position=position,
                kind="signal",
                name=NAME,
                request=asked.fingerprint,
                arguments=asked.shown,
                number=1,
                subject="question",
                fingerprint=asked.fingerprint,
                shown=asked.shown,
                reason=asked.text,
                policy="",
                roles=asked.roles,
                quorum=asked.quorum,
                requester=None if run.loaded.user is None else f"person:{run.loaded.user}",
                expires_in_us=asked.timeout_us,
            )
        )
        probes.reach("approvals.after_ask")
        await run.read_approvals()
    finally:
        run.active -= 1
        run.quiet()
    return _current(run, key)


def _current(run: Run, key: str) -> ApprovalRow:
    row = run.approvals.get((key, 1))
    if row is None:
        raise Outpaced(f"operation {key}: its question is not on record")
    return row


def _record(run: Run, key: str, position: int, asked: Question, approval: ApprovalRow) -> Any:
    """Put the answer on record, or that there is none; answer it, or raise as every replay will."""
    if approval.state in ("approved", "used"):
        result = approval.answer
        error = None
    else:
        result = None
        error = _refusal(approval)
    _put_on_record(run, key, position, asked, result, error)
    return recorded(run, run.known.rows[key])


def _put_on_record(
    run: Run,
    key: str,
    position: int,
    asked: Question,
    result: str | None,
    error: str | None,
    *,
    lost: bool = False,
) -> None:
    state: OperationState = "succeeded" if error is None else "failed"
    run.append(
        RecordOperation(
            key=key,
            position=position,
            kind="signal",
            name=NAME,
            state=state,
            request=asked.fingerprint,
            arguments=asked.shown,
            result=result,
            error=error,
            closes=run.has_asked(key),
            lost=lost,
            events=(event(f"operation.{state}", operation=key, kind="signal", name=NAME),),
        )
    )
    run.known.remember(key, position, "signal", NAME, state, asked.fingerprint, result, error)


def _refusal(approval: ApprovalRow) -> str:
    if approval.state == "rejected":
        said = f": {approval.decision_reason}" if approval.decision_reason else ""
        return failure(ApprovalDenied.code, f"a person refused to answer{said}", reason="person")
    if approval.state == "expired":
        return failure(ApprovalExpired.code, "nobody answered in time", reason="expired")
    return failure(ApprovalDenied.code, "the question was withdrawn", reason="withdrawn")


def _restore(asked: Question, answer: Any) -> Any:
    return answer if asked.adapter is None else asked.adapter.validate_python(answer)
