"""Operations that stay inside: steps, recorded readings and events. None of them needs an intent.

Purpose: what was computed once is not computed again; a finished operation answers from the journal.

Failure by failure: a crash before the record is on disk runs the step again. A step that raises is recorded
as failed and raises the same on replay. Its result does not wait for the disk: whatever leaves the process
later waits for it.

Not covered: what a step does to the outside is not seen; use a tool for that.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any, Literal, NoReturn, get_type_hints

from pydantic import TypeAdapter

from outlast.core import canonical, ids, values
from outlast.core.budget import Passed
from outlast.core.operation import OperationKind
from outlast.core.record import record
from outlast.engine import mismatch, scopes
from outlast.engine.processes import StepRaised
from outlast.engine.run import Run
from outlast.engine.wording import event, failure, text_of
from outlast.errors import (
    AmbiguousOperation,
    BudgetExceeded,
    DeadlineExceeded,
    InvalidRequest,
    OperationConflict,
    OperationError,
    ResultUnstorable,
    SessionTaken,
    StepFailed,
    ToolFailed,
)
from outlast.store.entries import NewEvent, RecordOperation
from outlast.store.records import OperationRow

MARK = "__outlast_step__"
"""Attribute of a function that declares how it runs as a step."""


@record
class StepOptions:
    """How a function runs as a step. name, timeout_us: where the call says nothing else."""

    executor: Literal["thread", "process"] = "thread"
    name: str | None = None
    timeout_us: int | None = None


PLAIN = StepOptions()
"""How one runs that says nothing."""
_NO_ARGUMENTS: dict[str, str] = {}
_returns: dict[CodeType, TypeAdapter[Any] | None] = {}


def request_of(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> str:
    """Answer the request digest of a step. Raises Unserializable for arguments that have no JSON form."""
    if not args and not named:
        known = _NO_ARGUMENTS.get(name)
        if known is None:
            known = _NO_ARGUMENTS[name] = canonical.fingerprint("step", name, {})
        return known
    return canonical.fingerprint("step", name, values.normalise({"args": list(args), "named": named}))


def _adapter(function: Callable[..., Any]) -> TypeAdapter[Any] | None:
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    if code not in _returns:
        try:
            hint = get_type_hints(function, include_extras=True).get("return", Any)
            plain = (Any, None, type(None), dict, list, str, int, float, bool)
            _returns[code] = None if hint in plain else TypeAdapter(hint)
        except Exception:
            _returns[code] = None
    return _returns[code]


def _restore(function: Callable[..., Any], result: Any) -> Any:
    adapter = _adapter(function)
    return result if adapter is None or result is None else adapter.validate_python(result)


def known(
    run: Run,
    key: str,
    kind: OperationKind,
    name: str,
    request: str,
    asked: Any = None,
    *,
    replans: bool = False,
) -> OperationRow | None:
    """Answer what is on record under a key, and bind the key to this request for this attempt.

    asked: the plain arguments of the request, where at hand, to say what differs. replans: whether a call
    that was planned, and never sent, may be another one by now.

    Raises OperationConflict when this attempt used the key for another request before: then the agent's code
    is wrong in itself, and every replay says so. When it is the journal that holds another request, the task
    stops for an operator.
    """
    row = run.known.row(key)
    bound = run.known.bound.get(key)
    if bound is not None and bound != request:
        raise OperationConflict(
            f"operation key {key!r} of task {run.task} was used for another request before; give each request"
            " a key of its own"
        )
    planned = replans and row is not None and row.kind == kind and _never_sent(row)
    if row is None or planned or (row.request == request and row.kind == kind and row.name == name):
        run.known.bound[key] = request
        run.meet(key, kind, name, row)
        return row
    run.interrupt("mismatched", mismatch.difference(row, kind, name, asked))
    raise asyncio.CancelledError


def _never_sent(row: OperationRow) -> bool:
    return row.state in ("planned", "approved") and (row.attempt, row.turn) == (0, 0)


def recorded(run: Run, row: OperationRow) -> Any:
    """Answer a finished operation's plain result, or raise its recorded error."""
    if row.error is None:
        return None if row.result is None else values.decode(row.result)
    error = values.decode(row.error)
    code, message = error.get("code", ""), error.get("message", "")
    kinds = {kind.code: kind for kind in OperationError.__subclasses__()}
    if code == DeadlineExceeded.code:
        raise DeadlineExceeded(message)
    if code == SessionTaken.code:
        raise SessionTaken(message)
    # A person's word that it did not happen has a code of its own; to the agent the call failed.
    kind = kinds.get(code, ToolFailed if row.kind in ("tool", "compensation") else OperationError)
    raise kind(
        message,
        operation=ids.operation_id(run.task, row.key),
        reason=error.get("reason") or code,
        retryable=bool(error.get("retryable")),
    )


def in_process(function: Callable[..., Any]) -> bool:
    """Answer whether a step's function declares that it runs in a process of its own."""
    options = getattr(function, MARK, None)
    return isinstance(options, StepOptions) and options.executor == "process"


async def _in_process(
    run: Run, key: str, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> str:
    """Run a step in a process, which is killed as soon as its attempt is cut."""
    work = asyncio.get_running_loop().create_task(run.host.in_process(function, args, named))
    run.works.cuts[key] = work.cancel
    try:
        return await work
    finally:
        run.works.cuts.pop(key, None)
        work.cancel()


async def _work(
    run: Run,
    key: str,
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    named: dict[str, Any],
) -> tuple[Any, str]:
    """Run a step's function; answer its plain result, and the same as text."""
    if in_process(function):
        text = await _in_process(run, key, function, args, named)
        return values.decode(text), text
    if _is_async(function):
        result = await function(*args, **named)
    else:
        context = contextvars.copy_context()
        result = await run.host.in_thread(lambda: context.run(function, *args, **named))
        if inspect.isawaitable(result):
            result = await result
    plain = values.normalise(result)
    return plain, values.encode(plain, what=f"the result of step {name}")


def _is_async(function: Callable[..., Any]) -> bool:
    """Answer whether a function makes coroutines; what the compiler knows of it costs least to ask."""
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType) and code.co_flags & inspect.CO_COROUTINE:
        return True
    return inspect.iscoroutinefunction(function)


async def step(
    run: Run,
    key: str,
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    named: dict[str, Any],
    timeout_s: float | None,
    *,
    free: bool = False,
) -> Any:
    """Run a step, or answer it from the journal. free: whatever the task's budget says."""
    run.check()
    request = request_of(name, args, named)
    row = known(run, key, "step", name, request)
    if row is not None and row.state in ("succeeded", "failed"):
        return _restore(function, recorded(run, row))
    if key in run.works.stepping:
        raise under_way(key)
    position = row.position if row is not None else run.known.next_position()
    held = None if free else run.spending.begin(key)
    if held is not None:
        over_budget(run, key, position, "step", name, request, held)
    run.works.stepping.add(key)
    run.active += 1
    limit = None if timeout_s is None else run.host.limits.within(timeout_s)
    try:
        if run.host.journal.full:
            await run.host.journal.room()
        with scopes.Inside(scopes.Scope(path=f"{key}/", owner=asyncio.current_task())):
            if limit is None:
                plain, text = await _work(run, key, name, function, args, named)
            else:
                with limit:
                    plain, text = await _work(run, key, name, function, args, named)
    except InvalidRequest as error:
        _fail(run, key, position, name, request, ResultUnstorable.code, str(error), error, retryable=False)
    except (asyncio.CancelledError, KeyboardInterrupt):
        if row is None:
            run.spending.forget(key)
        raise
    except StepRaised as error:
        text = f"{error.name}: {error}" if str(error) else error.name
        _fail(run, key, position, name, request, StepFailed.code, text, error, retryable=True)
    # A step may raise anything; each kind is a recorded failure of the step, and the agent decides.
    except BaseException as error:
        text = text_of(error)
        if isinstance(error, TimeoutError) and limit is not None and limit.expired:
            text = f"step {name} took longer than {timeout_s} s"
        _fail(run, key, position, name, request, StepFailed.code, text, error, retryable=True)
    finally:
        run.works.stepping.discard(key)
        run.active -= 1
        run.touched += 1
        run.quiet()
    if run.sealed:
        raise asyncio.CancelledError
    run.append(
        RecordOperation(
            key=key,
            position=position,
            kind="step",
            name=name,
            state="succeeded",
            request=request,
            result=text,
            events=(event("operation.succeeded", operation=key, kind="step", name=name),),
        )
    )
    run.known.remember(key, position, "step", name, "succeeded", request, text)
    return _restore(function, plain)


def under_way(key: str) -> AmbiguousOperation:
    """Say that an operation is made a second time while it goes on."""
    return AmbiguousOperation(f"operation key {key!r} is under way already; give each call a key of its own")


def _fail(
    run: Run,
    key: str,
    position: int,
    name: str,
    request: str,
    code: str,
    message: str,
    error: BaseException,
    *,
    retryable: bool,
) -> NoReturn:
    """Record a failed step and raise what the agent sees, now as on every replay."""
    if run.sealed:
        raise asyncio.CancelledError
    reason = error.name if isinstance(error, StepRaised) else type(error).__name__
    record = RecordOperation(
        key=key,
        position=position,
        kind="step",
        name=name,
        state="failed",
        request=request,
        error=failure(code, message, reason=reason, retryable=retryable),
        events=(event("operation.failed", operation=key, kind="step", name=name, reason=reason),),
    )
    run.append(record)
    # The agent's retry policy opens failed operations again, those of this very attempt included.
    run.known.remember(key, position, "step", name, "failed", request, None, record.error)
    recorded(run, run.known.rows[key])
    raise AssertionError("unreachable")


def over_budget(
    run: Run, key: str, position: int, kind: OperationKind, name: str, request: str, held: Passed
) -> NoReturn:
    """Record that the task's budget holds an operation back, and raise BudgetExceeded, now as on every
    replay."""
    refuse_for_budget(run, key, position, kind, name, request, held)
    recorded(run, run.known.rows[key])
    raise AssertionError("unreachable")


def refuse_for_budget(
    run: Run, key: str, position: int, kind: OperationKind, name: str, request: str, held: Passed
) -> None:
    """Record that the task's budget holds an operation back; nothing of it was begun."""
    error = failure(BudgetExceeded.code, held.message, reason=held.bound, retryable=False)
    run.spending.forget(key)
    run.append(
        RecordOperation(
            key=key,
            position=position,
            kind=kind,
            name=name,
            state="failed",
            request=request,
            error=error,
            events=(event("operation.failed", operation=key, kind=kind, name=name, reason=held.bound),),
        )
    )
    run.known.remember(key, position, kind, name, "failed", request, None, error)


def reading(run: Run, key: str, name: str, make: Callable[[], Any]) -> Any:
    """Record a reading of the clock, of chance, or a new id; answer the same on replay."""
    run.check()
    request = request_of(name, (), {})
    row = known(run, key, "value", name, request)
    if row is not None:
        return recorded(run, row)
    value = make()
    run.append(
        RecordOperation(
            key=key,
            position=run.known.next_position(),
            kind="value",
            name=name,
            state="succeeded",
            request=request,
            result=values.encode(value),
        )
    )
    return value


async def emit(run: Run, key: str, kind: str, data: Any) -> None:
    """Append an event once, however often the agent's function runs."""
    run.check()
    # What it says may be another thing on a replay, such as a time; what was said stands.
    request = request_of("emit", (), {})
    if known(run, key, "value", "emit", request) is not None:
        return
    text = values.encode(values.normalise(data), what=f"the data of event {kind}")
    position = run.known.next_position()
    run.known.remember(key, position, "value", "emit", "succeeded", request)
    run.append(
        RecordOperation(
            key=key,
            position=position,
            kind="value",
            name="emit",
            state="succeeded",
            request=request,
            events=(NewEvent(kind=kind, data=text),),
        )
    )
    await run.host.journal.room()
