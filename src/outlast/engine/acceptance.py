"""The check of an agent's work: finished is not accepted.

Purpose: what an agent answers is looked at by code of the app's own, and the verdict stands beside the result
from the moment that there is one.

Identity: a step named after the check, key ``check!``; it runs once a task, before the ending.

State: none of its own; the verdict is recorded with the ending, as the first one on the work of this round.

Failure by failure: killed before the ending is on disk: the recorded answer is used. The check raises, takes
too long, or answers nothing that can be read: there is no verdict, and the task's stream says why; the task
succeeds all the same. A cancel or a deadline while it looks does not cut it: the work is done.

Not covered: a check that goes on outside, or costs; it is a step, and is not counted by budgets.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from outlast.core import values
from outlast.core.acceptance import CHECK_KEY, Verdict, read_verdict
from outlast.engine.run import Run
from outlast.engine.steps import step
from outlast.engine.wording import text_of
from outlast.errors import ConfigurationError, OutlastError

NAME: Final = "check"
TIME_S: Final = 30.0
"""How long a check may take."""


def takes_input(check: Callable[..., Any], owner: str) -> bool:
    """Answer whether a check takes the task's input before the result. Raises ConfigurationError."""
    try:
        parameters = list(inspect.signature(check).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"check of {owner}: {error}") from None
    places = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    needed = [parameter for parameter in places if parameter.default is parameter.empty]
    others = [
        parameter
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]
    if len(needed) not in (1, 2) or others:
        raise ConfigurationError(f"check of {owner} takes the result, or the task's input and the result")
    return len(needed) == 2


def prepare(run: Run) -> None:
    """Let a run's result be checked, where its agent says how."""
    if run.spec.check is not None:
        run.judge = functools.partial(_judge, run, run.spec.check)


async def _judge(
    run: Run, check: Callable[..., Any], given: dict[str, Any], result: Any
) -> tuple[str, str, str, str] | None:
    """Ask the check; answer (verdict, by, reason, evidence), None where it has said nothing."""
    arguments = (given, result) if run.spec.check_takes_input else (result,)
    try:
        said = await step(run, CHECK_KEY, NAME, _wrapped(check, arguments), (), {}, TIME_S, free=True)
        evidence = values.encode({} if said["evidence"] is None else said["evidence"])
    # Whatever becomes of the check, the task has succeeded.
    except OutlastError as error:
        run.say("warning", f"the result was not checked: {text_of(error)}")
        return None
    name = getattr(check, "__name__", type(check).__name__)
    return said["verdict"], f"checker:{name}"[:255], said["reason"], evidence


def _wrapped(check: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    """Make a step of a check, whose answer can be stored."""
    if inspect.iscoroutinefunction(check):

        async def ask() -> dict[str, Any]:
            return _plain(read_verdict(await check(*arguments)))

        return ask

    def look() -> Any:
        answer = check(*arguments)
        if not inspect.isawaitable(answer):
            return _plain(read_verdict(answer))

        async def awaited() -> dict[str, Any]:
            return _plain(read_verdict(await answer))

        return awaited()

    return look


def _plain(verdict: Verdict) -> dict[str, Any]:
    return {"verdict": verdict.verdict, "reason": verdict.reason, "evidence": verdict.evidence}
