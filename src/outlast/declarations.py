"""What an app declares: its agents, its tools, and how functions run as steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, TypeVar, Unpack, overload

from outlast.core import ids
from outlast.core.durations import Duration, microseconds
from outlast.core.retry import Backoff
from outlast.engine.acceptance import takes_input
from outlast.engine.alone import AGENT
from outlast.engine.declaring import ToolOptions, tool_spec
from outlast.engine.processes import check_importable
from outlast.engine.registry import AgentSpec, Registry
from outlast.engine.signature import Signature
from outlast.engine.steps import MARK, StepOptions
from outlast.errors import ConfigurationError

__all__ = ["Declarations"]

F = TypeVar("F", bound=Callable[..., Any])


class Declarations:
    """The part of an app that is there before anything runs; see ``outlast.app.Outlast``.

    What is wrong with a declaration is an error of the application's own code at its start:
    ConfigurationError.
    """

    def __init__(self) -> None:
        self.registry = Registry()

    @overload
    def agent(self, function: F) -> F: ...

    @overload
    def agent(
        self,
        *,
        name: str | None = None,
        version: str = "1",
        pool: str = "default",
        deadline: Duration | None = None,
        retry: Backoff | None = None,
        on_failure: Literal["undo"] | None = None,
        check: Callable[..., Any] | None = None,
    ) -> Callable[[F], F]: ...

    def agent(
        self,
        function: F | None = None,
        *,
        name: str | None = None,
        version: str = "1",
        pool: str = "default",
        deadline: Duration | None = None,
        retry: Backoff | None = None,
        on_failure: Literal["undo"] | None = None,
        check: Callable[..., Any] | None = None,
    ) -> Any:
        """Register an async function as an agent; its first parameter is the TaskContext, the rest its input.

        version: tasks bind to the version that first claims them. deadline: how long after acceptance a task
        must have ended. retry: run failed attempts again; only its attempts and delays count, not its total
        time. on_failure: ``"undo"`` to undo what a task has done, as far as its tools can be undone, before
        it ends as failed. check: a function, async or not, over the result, or the input and the result, of a
        task that has succeeded; answers True, or a text that says what is wrong, or ``Accept`` or ``Reject``.
        Its verdict stands beside the result; one that raises says nothing.
        """
        if on_failure not in (None, "undo"):
            raise ConfigurationError(f"on_failure= is 'undo' or left out, not {on_failure!r}")

        def register(target: F) -> F:
            label = name or target.__name__
            if label == AGENT:
                raise ConfigurationError(f"agent name {AGENT} is Outlast's own")
            if not asyncio.iscoroutinefunction(target):
                raise ConfigurationError(f"agent {label} must be an async function")
            self.registry.add_agent(
                AgentSpec(
                    name=label,
                    version=version,
                    pool=pool,
                    function=target,
                    signature=Signature.of(target, skip=1, owner=f"agent {label}"),
                    deadline_us=None if deadline is None else microseconds(deadline, what="deadline"),
                    retry=retry,
                    undoes=on_failure == "undo",
                    check=check,
                    check_takes_input=check is not None and takes_input(check, f"agent {label}"),
                )
            )
            return target

        return register if function is None else register(function)

    @overload
    def tool(self, function: F) -> F: ...

    @overload
    def tool(self, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...

    def tool(self, function: F | None = None, **options: Unpack[ToolOptions]) -> Any:
        """Register an async function as a tool; its first parameter is the ToolCall, the rest its arguments.

        options: see ``ToolOptions``. Raises ConfigurationError.
        """

        def register(target: F) -> F:
            self.registry.add_tool(tool_spec(target, options))
            return target

        return register if function is None else register(function)

    def step(
        self,
        function: F | None = None,
        *,
        executor: Literal["thread", "process"] = "thread",
        name: str | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Declare how a function runs as a step; it stays the function that it is.

        executor: where it runs if it is sync; ``process``, sync or not, is a process of its own that is
        killed when its attempt is cut, for code that computes for long. Such a function stands at the top of
        a module, its arguments can be pickled. name, timeout: where ``task.step`` says nothing else. Raises
        ConfigurationError.
        """
        if executor not in ("thread", "process"):
            raise ConfigurationError(f"executor= is 'thread' or 'process', not {executor!r}")
        options = StepOptions(
            executor=executor,
            name=None if name is None else ids.check_name(name, "step name"),
            timeout_us=None if timeout is None else microseconds(timeout, what="timeout"),
        )

        def declare(target: F) -> F:
            if executor == "process":
                check_importable(target)
            setattr(target, MARK, options)
            return target

        return declare if function is None else declare(function)
