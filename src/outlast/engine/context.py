"""What agent code touches: every durable thing that a task does goes through its ``TaskContext``.

The methods are plain functions that take an operation's identity at once and return a real coroutine, so that
``gather``, ``create_task`` and ``TaskGroup`` accept them in any order of awaiting.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from outlast import clock
from outlast.core import ids
from outlast.core.durations import Duration, microseconds
from outlast.engine import asking, children, effects, outside, racing, scopes, steps, waits
from outlast.engine.registry import AgentSpec, ToolSpec
from outlast.engine.run import Run
from outlast.engine.watching import watched
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

    @property
    def cancelled(self) -> bool:
        """Whether a cancel stands: for code that runs long between two operations, such as a sync step."""
        return self._run.interruption == "cancelled"

    # -- operations -----------------------------------------------------------------------------------------

    def _operation(self, name: str, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return watched(self._run, name, work) if self._run.host.settings.dev else work

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

        Sync functions run in threads, or in a process of their own where ``@app.step`` says so. key: the
        step's identity where counting by name does not do. name: its name where the function's own does not
        do. timeout: how long one run may take. Arguments and result must have a JSON form; a declared return
        type comes back as that type. Raises StepFailed when the function raised, now and on replay.

        Guarantee: after the record is on disk the function is not run again; until then a crash runs it
        again.
        """
        declared = getattr(function, steps.MARK, None)
        options = declared if isinstance(declared, steps.StepOptions) else steps.PLAIN
        label = str(name or options.name or getattr(function, "__name__", ""))
        if label not in _names and not _is_name(label):
            raise InvalidRequest(f"a step needs a plain name, and {label!r} is none: give it name=")
        limit_us = options.timeout_us if timeout is None else microseconds(timeout, what="timeout")
        limit = None if limit_us is None else limit_us / 1_000_000
        key = scopes.take(label, key)
        return self._operation(label, steps.step(self._run, key, label, function, args, named, limit))

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
        key = scopes.take(spec.name, key)
        return self._operation(spec.name, effects.call(self._run, key, spec, args, named))

    def sleep(self, duration: Duration, *, key: str | None = None) -> Coroutine[Any, Any, None]:
        """Wait; a long wait holds no worker and survives every restart. duration: seconds, timedelta, or
        ``"3d"``."""
        us = microseconds(duration, what="sleep", zero=True)
        return self._operation("sleep", waits.sleep(self._run, scopes.take("sleep", key), us, None))

    def sleep_until(self, instant: datetime, *, key: str | None = None) -> Coroutine[Any, Any, None]:
        """Wait until an instant (with a time zone) of the database's clock."""
        if instant.tzinfo is None:
            raise InvalidRequest("sleep_until needs an instant with a time zone")
        at = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        return self._operation("sleep", waits.sleep(self._run, scopes.take("sleep", key), None, at))

    def wait(
        self, signal: str, *, timeout: Duration | None = None, key: str | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Wait for a signal of that name and answer its data; a long wait holds no worker.

        Signals are taken in the order in which they were accepted, each by one wait; one that came before
        the wait is found. timeout: how long, by the database's clock, from the first time that the wait was
        recorded; zero looks once. Raises WaitTimeout, now as on every replay.
        """
        ids.check_name(signal, "signal name")
        us = None if timeout is None else microseconds(timeout, what="timeout", zero=True)
        return self._operation(signal, waits.wait(self._run, scopes.take(signal, key), signal, us))

    def attach(
        self, provider: str, session: str, run: str | None = None, *, key: str | None = None
    ) -> Coroutine[Any, Any, None]:
        """Hold a conversation, or one run in it, at a provider: its events come to this task from now on.

        Held until the task ends. Raises SessionTaken, now as on every replay, while another task holds it.
        """
        provider, session, part = outside.checked(provider, session, run)
        key = scopes.take(outside.NAME, key)
        return self._operation(outside.NAME, outside.attach(self._run, key, provider, session, part))

    def events_of(
        self, provider: str, *, timeout: Duration | None = None, key: str | None = None
    ) -> Coroutine[Any, Any, outside.SessionEvent]:
        """Wait for the next event of the sessions that this task holds at a provider, in the order in which
        they were accepted; as ``wait`` waits for signals. Raises WaitTimeout."""
        name = outside.OUTSIDE + ids.check_name(provider, "provider")
        us = None if timeout is None else microseconds(timeout, what="timeout", zero=True)
        return self._operation(name, outside.next_event(self._run, scopes.take(name, key), provider, us))

    def callback(
        self,
        name: str,
        *,
        timeout: Duration | None = None,
        key: str | None = None,
        signed: bool = False,
    ) -> waits.Callback:
        """Open a place that somebody outside can answer to, once: give its ``url`` or ``token`` away, then
        await it.

        timeout: how long the answer may take, counted from now. signed: the answer has to be signed with the
        callback's ``secret`` (Standard Webhooks 1.0), so that its URL alone is good for nothing. Raises
        ConfigurationError where the app has no secret to sign with.
        """
        ids.check_name(name, "callback name")
        us = None if timeout is None else microseconds(timeout, what="timeout")
        return waits.Callback(self._run, scopes.take(name, key), name, us, signed=signed)

    def ask(
        self,
        question: str,
        *,
        choices: Sequence[Any] | None = None,
        form: Any = None,
        to: Sequence[str] = (),
        quorum: int = 1,
        timeout: Duration | None = None,
        key: str | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Ask a person and answer what they said; a long wait holds no worker.

        choices: what may be answered. form: a Pydantic model, or any type, that the answer must fit; it comes
        back as that type. to: roles of those who may answer, everybody who may decide by default. quorum: how
        many have to agree. timeout: how long the answer may take. Raises ApprovalDenied when a person refuses
        to answer, ApprovalExpired when nobody does in time, now as on every replay.
        """
        asked = asking.question(
            question,
            choices=choices,
            form=form,
            roles=tuple(to),
            quorum=quorum,
            timeout_us=None if timeout is None else microseconds(timeout, what="timeout"),
        )
        return self._operation("ask", asking.ask(self._run, scopes.take("ask", key), asked))

    def spawn(
        self,
        agent: Callable[..., Any] | str,
        input: Any = None,
        *,
        key: str | None = None,
        detached: bool = False,
        pool: str | None = None,
        priority: int = 0,
        deadline: Duration | None = None,
        version: str | None = None,
    ) -> children.Child:
        """Start a child task; answers its handle at once. ``await child.result()`` waits for its end.

        agent: the decorated function or its name. input: its parameters by name. detached: it goes on when
        this task ends; otherwise it is cancelled then. deadline: how long after acceptance it must have
        ended, never later than this task unless detached. Raises InvalidInput, AgentNotFound.

        Guarantee: one child however often this task runs again; it is stored before this task ends well.
        """
        spec = self._agent_spec(agent, version)
        if not -1000 <= priority <= 1000:
            raise InvalidRequest("priority must be from -1000 to 1000")
        options = children.PLAIN
        if detached or pool is not None or priority or deadline is not None or version is not None:
            options = children.Options(
                detached=detached,
                pool=None if pool is None else ids.check_name(pool, "pool"),
                priority=priority,
                deadline_us=None if deadline is None else microseconds(deadline, what="deadline"),
                version=version,
            )
        return children.spawn(self._run, scopes.take(spec.name, key), spec, input, options)

    def _agent_spec(self, agent: Callable[..., Any] | str, version: str | None) -> AgentSpec:
        registry = self._run.host.registry
        if isinstance(agent, str):
            return registry.agent(agent, version)
        for spec in registry.agents.values():
            if spec.function is agent:
                return spec if version is None else registry.agent(spec.name, version)
        raise ConfigurationError(f"{agent!r} is not an agent of this app; register it with @app.agent")

    def first(self, *branches: Awaitable[Any]) -> Coroutine[Any, Any, tuple[int, Any]]:
        """Wait for the branch that ends first; answer its index and its value, the same on every replay.

        The others are cut: their waits are over, their calls that are under way go on and are recorded, and
        what they had not begun is not done. Raises what the first one raised.
        """
        return racing.first(self._run, scopes.take("first", None), branches)

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


MANY_NAMES = 10_000
_names: set[str] = set()
"""Names of steps that were looked at; a program has few, and one that makes them up has no more kept."""


def _is_name(label: str) -> bool:
    try:
        ids.check_name(label, "step name")
    except InvalidRequest:
        return False
    if len(_names) < MANY_NAMES:
        _names.add(label)
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
