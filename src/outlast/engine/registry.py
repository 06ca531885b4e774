"""What an app can run: agents by name and version, and the tools that they call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final

from outlast.core import canonical, ids
from outlast.core.operation import EFFECTS, Effect
from outlast.core.record import record
from outlast.core.retry import Backoff
from outlast.engine.signature import Signature
from outlast.errors import AgentNotFound, ConfigurationError
from outlast.store.records import Serves

_CAREFUL = Backoff(base_s=1.0, max_s=8.0, jitter_s=0.5, mode="plain", attempts=6, total_s=30.0)
_HARMLESS = Backoff(base_s=0.5, max_s=8.0, mode="full", attempts=8, total_s=60.0)
DEFAULT_BACKOFF: dict[str, Backoff] = {
    "read": _HARMLESS,
    "idempotent": _HARMLESS,
    "keyed": _CAREFUL,
    "queryable": _CAREFUL,
    "manual": _CAREFUL,
}
"""Retry policies by effect class, where a tool declares none: calls that do no harm when made twice are tried
for longer, and spread over the whole wait; the others one to eight seconds apart, six attempts, thirty
seconds in all."""


@record
class AgentSpec:
    """A registered agent. deadline_us bounds a task from its acceptance on; retry re-runs failed attempts.

    undoes: a task that fails undoes what it has done first. check: says of a result whether it is what was
    wanted; check_takes_input: it is given the task's input as well.
    """

    name: str
    version: str
    pool: str
    function: Callable[..., Any]
    signature: Signature
    deadline_us: int | None
    retry: Backoff | None
    undoes: bool = False
    check: Callable[..., Any] | None = None
    check_takes_input: bool = False


@record
class BusinessRule:
    """How a tool's business key is made, and what a second operation under it does.

    template: text with the tool's parameters in braces. once_us: how long a success stands; None is mode
    ``lock``. waits: a second operation waits for the first (else it is refused). first: after a success a
    second one answers the first result (else a person is asked).
    """

    template: str
    once_us: int | None
    waits: bool
    first: bool

    def value(self, plain: dict[str, Any]) -> str:
        """Make the key of a call. Raises InvalidKey for one that breaks the rules of keys."""
        return ids.check_key(
            self.template.format_map({name: str(part) for name, part in plain.items()}), "business key"
        )


@record
class PolicyCall:
    """What a policy function is told beside the call's arguments.

    user: who submitted the task. attempt: which attempt at the call this would be, from 1. target: what the
    tool's ``target`` function answered, if it has one.
    """

    tenant: str
    user: str | None
    task: str
    agent: str
    operation: str
    tool: str
    attempt: int
    target: Any


@record
class ToolSpec:
    """A registered tool.

    timeout_us bounds one call. key_window_us is how long the other side remembers a key, visible_within_us
    how long an effect may take to be found. provider names whose shared waits it honours. policy says whether
    a call may be made, under a version that decisions are bound to; target reads what a call is about. undo:
    the tool that undoes it, as a function or a name; it may be registered later. gateway: all that it
    sends goes through a gateway.
    """

    name: str
    version: str
    effect: Effect
    function: Callable[..., Any]
    signature: Signature
    find: Callable[..., Any] | None
    find_signature: Signature | None
    key_window_us: int | None
    timeout_us: int
    retry: Backoff
    visible_within_us: int | None = None
    list_effects: Callable[..., Any] | None = None
    business: BusinessRule | None = None
    requires: Callable[..., Any] | None = None
    requires_signature: Signature | None = None
    provider: str = ""
    policy: Callable[..., Any] | None = None
    policy_signature: Signature | None = None
    policy_takes_call: bool = False
    policy_version: str = ""
    target: Callable[..., Any] | None = None
    target_signature: Signature | None = None
    undo: Callable[..., Any] | str | None = None
    gateway: bool = False


RESULT: Final = "result"
"""The parameter by which an undo gets the result of what it undoes."""


@dataclass(slots=True)
class Registry:
    """Agents and tools of one app, by name."""

    agents: dict[tuple[str, str], AgentSpec] = field(default_factory=dict)
    latest: dict[str, str] = field(default_factory=dict)
    tools: dict[str, ToolSpec] = field(default_factory=dict)
    _checked: int = 0
    _digest: tuple[int, int, str] = (0, 0, "")

    def add_agent(self, spec: AgentSpec) -> None:
        """Register an agent version; the last one registered of a name is what new tasks bind to.

        Raises ConfigurationError when that name and version are taken.
        """
        ids.check_name(spec.name, "agent name")
        ids.check_name(spec.version, "agent version")
        ids.check_name(spec.pool, "pool name")
        if (spec.name, spec.version) in self.agents:
            raise ConfigurationError(f"agent {spec.name} version {spec.version} is registered twice")
        self.agents[spec.name, spec.version] = spec
        self.latest[spec.name] = spec.version

    def add_tool(self, spec: ToolSpec) -> None:
        """Register a tool. Raises ConfigurationError for a taken name or an effect class that does not
        exist."""
        ids.check_name(spec.name, "tool name")
        if spec.name in self.tools:
            raise ConfigurationError(f"tool {spec.name} is registered twice")
        if spec.effect not in EFFECTS:
            raise ConfigurationError(
                f"tool {spec.name}: effect {spec.effect!r} is none of {', '.join(EFFECTS)}"
            )
        if not inspect.iscoroutinefunction(spec.function):
            raise ConfigurationError(
                f"tool {spec.name} must be an async function; wrap sync code in asyncio.to_thread"
            )
        if spec.find is not None and not inspect.iscoroutinefunction(spec.find):
            raise ConfigurationError(f"tool {spec.name}: find must be an async function")
        self.tools[spec.name] = spec

    def tool(self, tool: Any) -> ToolSpec | None:
        """Answer the spec of what app code holds: the decorated function, or its name."""
        if isinstance(tool, str):
            return self.tools.get(tool)
        return next((spec for spec in self.tools.values() if spec.function is tool), None)

    def undo_of(self, name: str) -> ToolSpec | None:
        """Answer the tool that undoes a tool, None where nothing does."""
        spec = self.tools.get(name)
        return None if spec is None or spec.undo is None else self.tool(spec.undo)

    def check(self) -> None:
        """Check what can be checked only once everything is registered: that each undo is a tool that can be
        called with what is known of what it undoes. Raises ConfigurationError."""
        if self._checked == len(self.tools):
            return
        for spec in self.tools.values():
            if spec.undo is not None:
                _check_undo(spec, self.tool(spec.undo))
        self._checked = len(self.tools)

    def agent(self, name: str, version: str | None = None) -> AgentSpec:
        """Answer an agent's spec, the latest version by default. Raises AgentNotFound with what is
        registered."""
        wanted = version or self.latest.get(name, "")
        spec = self.agents.get((name, wanted))
        if spec is None:
            known = ", ".join(sorted(f"{n} {v}" for n, v in self.agents)) or "none"
            shown = f"{name} version {version}" if version else name
            raise AgentNotFound(f"no agent {shown!r} is registered; registered are: {known}")
        return spec

    def name_of(self, function: Callable[..., Any]) -> str:
        """Answer the name of a decorated function. Raises ConfigurationError when it is no agent's."""
        for spec in self.agents.values():
            if spec.function is function:
                return spec.name
        raise ConfigurationError(f"{function!r} is not an agent of this app; register it with @app.agent")

    def serves(self) -> tuple[Serves, ...]:
        """Answer the agent versions that a worker can run, whatever pool their tasks stand in.

        An agent's pool is only where its tasks stand unless the caller says otherwise.
        """
        return tuple(
            Serves(agent=name, version=version, default=self.latest[name] == version)
            for name, version in sorted(self.agents)
        )

    def configuration(self) -> str:
        """Answer the digest of what attempts run under: all that agents and tools are declared with, the
        version of a policy included; functions by their names."""
        agents, tools, digest = self._digest
        # What is registered stays as it is; a process may start many workers.
        if not digest or (agents, tools) != (len(self.agents), len(self.tools)):
            digest = canonical.digest(
                {
                    "agents": [_declared(self.agents[name]) for name in sorted(self.agents)],
                    "tools": [_declared(self.tools[name]) for name in sorted(self.tools)],
                }
            )
            self._digest = (len(self.agents), len(self.tools), digest)
        return digest


def _declared(spec: Any) -> dict[str, Any]:
    """Write what a registration says, for a digest."""
    said: dict[str, Any] = {}
    for name in (each.name for each in fields(spec)):
        value = getattr(spec, name)
        if isinstance(value, Signature):
            said[name] = list(value.names)
        elif callable(value):
            # What its code does is the affair of the version it stands in.
            said[name] = getattr(value, "__qualname__", type(value).__name__)
        else:
            said[name] = _declared(value) if is_dataclass(value) else value
    return said


def _check_undo(spec: ToolSpec, undo: ToolSpec | None) -> None:
    what = spec.undo if isinstance(spec.undo, str) else getattr(spec.undo, "__name__", repr(spec.undo))
    if undo is None:
        raise ConfigurationError(
            f"tool {spec.name}: its undo {what!r} is not a tool of this app; register it with"
            " @app.tool(effect=…)"
        )
    if undo is spec:
        raise ConfigurationError(f"tool {spec.name} cannot undo itself")
    known = {*spec.signature.names, RESULT}
    strangers = [name for name in undo.signature.names if name not in known]
    if strangers:
        raise ConfigurationError(
            f"tool {spec.name}: its undo {undo.name} has the parameter {strangers[0]!r}; it can take the"
            f" parameters of {spec.name} and {RESULT!r} only"
        )
