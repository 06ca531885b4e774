"""What a tool declares about itself, checked once when it is registered."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable
from typing import Any, Literal, TypedDict, cast

from outlast.core import canonical, ids
from outlast.core.durations import Duration, microseconds
from outlast.core.operation import Effect
from outlast.core.retry import Backoff
from outlast.engine.registry import DEFAULT_BACKOFF, BusinessRule, PolicyCall, ToolSpec
from outlast.engine.signature import Signature
from outlast.errors import ConfigurationError


class ToolOptions(TypedDict, total=False):
    """Options of a tool.

    effect: what it does to the outside: ``read``, ``idempotent``, ``keyed``, ``queryable`` or ``manual`` (the
    default). name: of the tool, by default the function's. version: a new one makes old approvals void.
    key_window: for keyed tools, how long the other side remembers a key.
    find: an async function that looks the effect up; takes a ToolCall and any of the tool's parameters;
    answers None (absent), the result, a list of candidates, or ``Found``.
    visible_within: how long after its deadline an effect may take to be found; without it absence proves
    nothing. list_effects: an async function that lists the keys of effects made since an instant, for the
    sweep of the other side. business_key: what a call is about, as a template over its parameters, such as
    ``"{employee}/{invoice}"``. lock: what a second operation does while the first holds the key: ``wait`` or
    ``refuse``. once: how long a success stands for the key as well. on_repeat: ``first`` (a second operation
    answers the first result) or ``ask`` (a person).
    requires: an async function over any of the parameters, asked just before the intent; answers True, or a
    text that says what is missing.
    approval: a function over any of the parameters, and first a ``PolicyCall`` if it wants one, that says at
    every attempt whether the call may be made: ``Allow()``, ``Deny(reason)``, ``Ask(reason, …)``, or True,
    False, or the text of a question. If it raises, nothing runs. policy_version: what decisions are bound to;
    by default it changes with the function's source. target: an async function over any of the parameters
    that reads what the call is about and its version, such as ``{"object": …, "version": …}``; a decision is
    for that version.
    undo: the tool that undoes it, as the decorated function or its name; it is given those parameters of this
    one that it has, and this one's ``result`` if it has a parameter of that name.
    provider: a name, the tool's own by default; when one tool of it is told to wait (429), all of them do.
    gateway: whether all that it sends goes through a gateway (``call.http`` then does so by itself), so that
    after the loss of a worker nobody can send for it any more once the call's time is over. Raise the version
    when you turn it on, and let calls under way end first.
    timeout: how long one call may take. retry: delays and caps of attempts.
    """

    effect: Effect
    name: str
    version: str
    key_window: Duration
    find: Callable[..., Any]
    visible_within: Duration
    list_effects: Callable[..., Any]
    business_key: str
    lock: Literal["wait", "refuse"]
    once: Duration
    on_repeat: Literal["first", "ask"]
    requires: Callable[..., Any]
    approval: Callable[..., Any]
    policy_version: str
    target: Callable[..., Any]
    undo: Callable[..., Any] | str
    provider: str
    gateway: bool
    timeout: Duration
    retry: Backoff


def tool_spec(function: Callable[..., Any], options: ToolOptions) -> ToolSpec:
    """Make a tool's spec. Raises ConfigurationError for options that contradict each other or cannot be
    kept."""
    # None is as good as not said, for callers that decide option by option.
    options = cast(ToolOptions, {option: value for option, value in options.items() if value is not None})
    name = ids.check_name(options.get("name") or function.__name__, "tool name")
    what = f"tool {name}"
    effect = options.get("effect", "manual")
    unknown = set(options) - set(ToolOptions.__annotations__)
    if unknown:
        raise ConfigurationError(f"{what} has no option {', '.join(sorted(unknown))}")
    if effect == "keyed" and "key_window" not in options:
        raise ConfigurationError(
            f"{what} is keyed: say with key_window= how long the other side remembers a key"
        )
    if effect != "keyed" and "key_window" in options:
        raise ConfigurationError(f"{what} is {effect}: key_window= is for keyed tools only")
    if effect == "queryable" and "find" not in options:
        raise ConfigurationError(f"{what} is queryable: say with find= how an effect is looked up")
    signature = Signature.of(function, skip=1, owner=what)
    find, requires = options.get("find"), options.get("requires")
    for option in ("find", "requires", "list_effects", "target"):
        given = options.get(option)
        if given is not None and not inspect.iscoroutinefunction(given):
            raise ConfigurationError(f"{what}: {option} must be an async function")
    policy, target = options.get("approval"), options.get("target")
    takes_call = policy is not None and _takes_call(policy)
    if effect == "read" and "undo" in options:
        raise ConfigurationError(f"{what} changes nothing, so that there is nothing to undo")
    if policy is None and "policy_version" in options:
        raise ConfigurationError(f"{what}: policy_version= needs an approval=")
    return ToolSpec(
        name=name,
        version=options.get("version", "1"),
        effect=effect,
        function=function,
        signature=signature,
        find=find,
        find_signature=None if find is None else _beside(signature, find, skip=1, owner=f"find of {what}"),
        key_window_us=_duration(options.get("key_window"), "key_window"),
        visible_within_us=_duration(options.get("visible_within"), "visible_within", zero=True),
        list_effects=options.get("list_effects"),
        business=_business(what, signature, options),
        requires=requires,
        requires_signature=None
        if requires is None
        else _beside(signature, requires, skip=0, owner=f"requires of {what}"),
        provider=ids.check_name(options.get("provider", name), f"provider of {what}"),
        policy=policy,
        policy_signature=None
        if policy is None
        else _beside(signature, policy, skip=int(takes_call), owner=f"approval of {what}"),
        policy_takes_call=takes_call,
        policy_version=options.get("policy_version") or ("" if policy is None else _source_digest(policy)),
        target=target,
        target_signature=None
        if target is None
        else _beside(signature, target, skip=0, owner=f"target of {what}"),
        undo=options.get("undo"),
        gateway=options.get("gateway", False),
        timeout_us=microseconds(options.get("timeout", "30s"), what="timeout"),
        retry=options.get("retry", DEFAULT_BACKOFF.get(effect, DEFAULT_BACKOFF["manual"])),
    )


def _beside(tool: Signature, function: Callable[..., Any], *, skip: int, owner: str) -> Signature:
    """Read the signature of a function that is given some of a tool's arguments by name."""
    signature = Signature.of(function, skip=skip, owner=owner)
    for name, field in signature.model.model_fields.items():
        if field.is_required() and name not in tool.names and tool.model.model_config["extra"] != "allow":
            raise ConfigurationError(f"{owner}: {name!r} is no parameter of the tool")
    return signature


def _takes_call(policy: Callable[..., Any]) -> bool:
    """Answer whether a policy function wants a PolicyCall: its first parameter is annotated so."""
    first = next(iter(inspect.signature(policy).parameters.values()), None)
    return first is not None and first.annotation in (PolicyCall, "PolicyCall")


def _source_digest(function: Callable[..., Any]) -> str:
    """Answer the digest of a function's source, or of its name where the source is not at hand."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"
    return canonical.digest(source)


def _duration(value: Duration | None, what: str, *, zero: bool = False) -> int | None:
    return None if value is None else microseconds(value, what=what, zero=zero)


def _business(what: str, signature: Signature, options: ToolOptions) -> BusinessRule | None:
    template = options.get("business_key")
    if template is None:
        alone = [name for name in ("lock", "once", "on_repeat") if name in options]
        if alone:
            raise ConfigurationError(f"{what}: {alone[0]}= needs a business_key=")
        return None
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise ConfigurationError(f"{what}: business_key {template!r}: {error}") from None
    strangers = [field for field in fields if field not in signature.names]
    if not fields or strangers:
        raise ConfigurationError(
            f"{what}: business_key {template!r} must name parameters of the tool in braces"
            + (f", and {strangers[0]!r} is none" if strangers else "")
        )
    if "on_repeat" in options and "once" not in options:
        raise ConfigurationError(f"{what}: on_repeat= needs once=")
    _one_of(what, "lock", options.get("lock"), "wait", "refuse")
    _one_of(what, "on_repeat", options.get("on_repeat"), "first", "ask")
    return BusinessRule(
        template=template,
        once_us=_duration(options.get("once"), "once"),
        waits=options.get("lock", "wait") == "wait",
        first=options.get("on_repeat", "first") == "first",
    )


def _one_of(what: str, option: str, value: str | None, *allowed: str) -> None:
    if value is not None and value not in allowed:
        raise ConfigurationError(f"{what}: {option}= is {' or '.join(map(repr, allowed))}, not {value!r}")
