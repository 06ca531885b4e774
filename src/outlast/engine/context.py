"""What agent code touches: every durable thing that a task does goes through its ``TaskContext``.

The methods are plain functions that take an operation's identity at once and return a real coroutine, so that
``gather``, ``create_task`` and ``TaskGroup`` accept them in any order of awaiting.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from outlast import clock
from outlast.core import ids
from outlast.core.durations import Duration, microseconds
from outlast.engine import effects, scopes, steps
from outlast.engine.registry import ToolSpec
from outlast.engine.run import Run
from outlast.errors import ConfigurationError, InvalidRequest

T = TypeVar("T")
_EVENT_KINDS = ("progress", "log", "artifact", "model.delta")


class TaskContext:
    """The task that an agent works on."""

    def __init__(self, run: Run, spec_of: Callable[[Any], ToolSpec]) -> None:
        self._run = run
        self._spec_of = spec_of

    # -- what is known --------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The task's id."""
        return self._run.task

    @property
    def tenant(self) -> str:
        """The tenant that owns the task."""
        return self._run.tenant

    @property
    def principal(self) -> str | None:
        """Who submitted the task, where that is known."""
        return self._run.loaded.user

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._run.loaded.attempts + 1

    @property
    def epoch(self) -> int:
        """The fencing number of this attempt's lease."""
        return self._run.epoch

    @property
    def deadline(self) -> datetime | None:
        """When the task must have ended, by the database's clock."""
        at = self._run.claimed.deadline_at
        return None if at is None else datetime.fromtimestamp(at / 1_000_000, UTC)

    # -- operations -----------------------------------------------------------------------------------------

    def step(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        name: str | None = None,
        timeout: Duration | None = None,
        **named: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Run a local, repeatable function once and remember its result.

        Sync functions run in threads. key: the step's identity where counting by name does not do. name: its
        name where the function's own does not do. timeout: how long one run may take. Arguments and result
        must have a JSON form; a declared return type comes back as that type. Raises StepFailed when the
        function raised, now and on replay.

        Guarantee: after the record is on disk the function is not run again; until then a crash runs it
        again.
        """
        label = str(name or getattr(function, "__name__", ""))
        if not _is_name(label):
            raise InvalidRequest(f"a step needs a plain name, and {label!r} is none: give it name=")
        limit = None if timeout is None else microseconds(timeout, what="timeout") / 1_000_000
        return steps.step(self._run, scopes.take(label, key), label, function, args, named, limit)

    def call(
        self, tool: Any, /, *args: Any, key: str | None = None, **named: Any
    ) -> Coroutine[Any, Any, Any]:
        """Call a registered tool: intent on disk, the call, outcome on disk.

        tool: the decorated function. key: the call's identity, such as a model's tool call id; by default
        counted by the tool's name. Raises InvalidInput (arguments), ToolRejected, ToolFailed,
        ResultUnstorable, DeadlineExceeded.

        Guarantee: one intent, at most one unsettled attempt; an unknown outcome is settled by evidence, by a
        declared resend under the same key, or by a person, and the call returns only then.
        """
        spec = self._spec_of(tool)
        return effects.call(self._run, scopes.take(spec.name, key), spec, args, named)

    def sleep(self, duration: Duration, *, key: str | None = None) -> Coroutine[Any, Any, None]:
        """Wait; a long wait holds no worker and survives every restart. duration: seconds, timedelta, or
        ``"3d"``."""
        us = microseconds(duration, what="sleep", zero=True)
        return steps.sleep(self._run, scopes.take("sleep", key), us, None)

    def sleep_until(self, instant: datetime, *, key: str | None = None) -> Coroutine[Any, Any, None]:
        """Wait until an instant (with a time zone) of the database's clock."""
        if instant.tzinfo is None:
            raise InvalidRequest("sleep_until needs an instant with a time zone")
        at = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        return steps.sleep(self._run, scopes.take("sleep", key), None, at)

    def emit(self, kind: str, data: Any = None, *, key: str | None = None) -> Coroutine[Any, Any, None]:
        """Append an event to the task's stream, once however often the function runs. kind: ``progress``,
        ``log``, …"""
        if kind not in _EVENT_KINDS:
            raise InvalidRequest(f"event kind {kind!r} is none of {', '.join(_EVENT_KINDS)}")
        return steps.emit(self._run, scopes.take("emit", key), kind, data)

    def gather(self, *branches: Awaitable[Any]) -> Coroutine[Any, Any, list[Any]]:
        """Run branches side by side, each with a scope of its own, so that their counted names never mix.

        Waits for all; raises the first error by position once all have ended.
        """
        return self._gather(scopes.take("gather", None), branches)

    async def _gather(self, key: str, branches: tuple[Awaitable[Any], ...]) -> list[Any]:
        async def branch(number: int, work: Awaitable[Any]) -> Any:
            scopes.enter(scopes.Scope(path=f"{key}/{number}/", owner=asyncio.current_task()))
            return await work

        try:
            self._run.check()
            results = await asyncio.gather(
                *(branch(number, work) for number, work in enumerate(branches)), return_exceptions=True
            )
        finally:
            for work in branches:
                # Cut before it began: nobody forgot it, so nobody is to be warned of it.
                if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                    work.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return list(results)

    # -- recorded readings ----------------------------------------------------------------------------------

    def now(self) -> datetime:
        """The time, the same on replay."""
        text = steps.reading(self._run, scopes.take("now", None), "now", _now)
        return datetime.fromisoformat(text)

    def random(self) -> float:
        """A random number in [0, 1), the same on replay."""
        return float(steps.reading(self._run, scopes.take("random", None), "random", clock.uniform))

    def generator(self) -> clock.Random:
        """A random generator with a recorded seed, for more than one number."""
        seed = steps.reading(self._run, scopes.take("seed", None), "seed", lambda: clock.random_bits(53))
        return clock.seeded_random(int(seed))

    def uuid(self) -> UUID:
        """A new UUID (version 4), the same on replay."""
        text = steps.reading(self._run, scopes.take("uuid", None), "uuid", _uuid)
        return UUID(text)


def _is_name(label: str) -> bool:
    try:
        ids.check_name(label, "step name")
    except InvalidRequest:
        return False
    return True


def _now() -> str:
    return datetime.fromtimestamp(clock.unix_us() / 1_000_000, UTC).isoformat()


def _uuid() -> str:
    return str(UUID(int=clock.random_bits(128), version=4))


def tool_spec_of(tools: dict[str, ToolSpec]) -> Callable[[Any], ToolSpec]:
    """Answer the function that finds a tool's spec from what agent code holds: the decorated function, or its
    name."""
    by_function = {id(spec.function): spec for spec in tools.values()}

    def spec_of(tool: Any) -> ToolSpec:
        spec = tools.get(tool) if isinstance(tool, str) else by_function.get(id(tool))
        if spec is None:
            name = tool if isinstance(tool, str) else getattr(tool, "__name__", repr(tool))
            raise ConfigurationError(
                f"{name!r} is not a tool of this app; register it with @app.tool(effect=…)"
            )
        return spec

    return spec_of
