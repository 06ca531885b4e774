"""What comes in through Python: every argument of every public method is looked at before anything is done.

Purpose: what a method cannot take is refused by name, with an error of the tree and a stable code, alike on
both stores, and nothing is stored. No method checks for itself what is checked here: kinds, text that a
database cannot hold, numbers out of range.

Identity: an argument is judged by its annotation, and by its name where that says more: ``task``, ``tenant``
and the like are ids. One word means one thing everywhere, so that a method that is added is covered too.

Not covered: what only the method knows, such as whether an input fits its agent, and values of any kind
(``Any``), which are looked at where they are written as JSON.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from functools import wraps
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from outlast.core.durations import microseconds
from outlast.errors import InvalidInput, InvalidKey, InvalidRequest, InvalidToken, OutlastError

__all__ = ["MAX_LIMIT", "guarded"]

MAX_LIMIT: Final = 10_000
"""The most that is listed at once."""
IDS: Final = frozenset(
    {
        "after", "agent", "approval", "before", "by", "event_id", "id", "key", "message", "name", "operation",
        "operations", "parent", "pool", "provider", "roles", "run", "scope", "session", "task", "tenant",
        "to", "tool", "user", "version",
    }
)  # fmt: skip
"""Parameters that name something. What a name may hold besides is for the method to say."""
INT_32: Final = 2**31 - 1
RANGES: Final = {"limit": (1, MAX_LIMIT), "after": (0, 2**63 - 1)}
"""Numbers that have a range of their own; all others fit 32 bits."""
REQUESTS: Final = frozenset({"request", "requests"})
"""Parameters that are records of arguments: what holds for an argument holds for the field of its name."""
_NO_TEXT: Final = re.compile(r"[\x00\ud800-\udfff]")
"""What a string of Python can hold and a database's text cannot."""

Check = Callable[[Any], object]
Owner = TypeVar("Owner", bound=type)


def guarded(*, refusal: type[InvalidRequest] = InvalidRequest) -> Callable[[Owner], Owner]:
    """Look at the arguments of every public method of a class before it runs, but for those that it inherits.

    refusal: what is raised for what is no id: those raise InvalidKey.
    """

    def guard(owner: Owner) -> Owner:
        for name, method in list(vars(owner).items()):
            if not name.startswith("_") and inspect.isfunction(method):
                setattr(owner, name, _guarded(method, refusal))
        return owner

    return guard


def _guarded(method: Callable[..., Any], refusal: type[InvalidRequest]) -> Callable[..., Any]:
    parameters = list(inspect.signature(method).parameters.values())[1:]
    # Without what it answers, which may be declared further down in its module.
    declared = SimpleNamespace(__annotations__={each.name: each.annotation for each in parameters})
    hints = get_type_hints(declared, method.__globals__)
    checks = {
        each.name: (each.default, _check_of(each.name, hints[each.name], refusal)) for each in parameters
    }
    placed = [checks[each.name] for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]

    def look(args: tuple[Any, ...], named: dict[str, Any]) -> None:
        # Too many, or too few, are Python's own to refuse.
        for (default, check), value in zip(placed, args, strict=False):
            if value is not default:
                _unless_default(default, check, value)
        for name, value in named.items():
            if name in checks and value is not checks[name][0]:
                _unless_default(*checks[name], value)

    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def asked(self: Any, *args: Any, **named: Any) -> Any:
            look(args, named)
            return await method(self, *args, **named)

        return asked

    @wraps(method)
    def called(self: Any, *args: Any, **named: Any) -> Any:
        look(args, named)
        return method(self, *args, **named)

    return called


def _unless_default(default: Any, check: Check, value: Any) -> None:
    if type(value) is not type(default) or value != default:
        check(value)


def _check_of(name: str, hint: Any, refusal: type[InvalidRequest]) -> Check:
    """Make the check of a parameter, or of a field of a record, from what it is declared as."""
    if hint is Any:
        return lambda value: None
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    # What may be a fraction is a length of time, which has its own bounds.
    checks = tuple(
        _check_of_kind(name, kind, refusal)
        for kind in kinds
        if kind is not NoneType and not (kind is int and float in kinds)
    )
    optional, lasts = NoneType in kinds, float in kinds

    def check(value: Any) -> None:
        if value is None and optional:
            return
        for fits, look in checks:
            if fits(value):
                look(value)
                if lasts:
                    _check_length(name, value, refusal)
                return
        raise _error(name, f"{name} must be {_said(hint)}, not {type(value).__name__}", refusal)

    return check


def _error(name: str, message: str, refusal: type[InvalidRequest]) -> OutlastError:
    """Make the error of a parameter: what its own code is for, where there is one."""
    if name == "token":
        return InvalidToken(message)
    if name == "input":
        return InvalidInput(message)
    error = InvalidKey if name in IDS else refusal
    return error(message, pointer=f"/{name}")


def _check_length(name: str, value: Any, refusal: type[InvalidRequest]) -> None:
    try:
        microseconds(value, what=name, zero=True)
    except InvalidRequest as error:
        raise refusal(str(error), pointer=f"/{name}") from None


def _check_of_kind(
    name: str, kind: Any, refusal: type[InvalidRequest]
) -> tuple[Callable[[Any], bool], Check]:
    """Answer whether a value is of a kind, and what is looked at if it is."""
    origin = get_origin(kind)
    if kind is str:
        return _is(str), _text_of(name, refusal)
    if kind is bool:
        return _is(bool), _nothing
    if kind in (int, float):
        return _is_number(kind), _number_of(name, refusal) if kind is int else _nothing
    if origin is Literal:
        return _is(str), _one_of(name, get_args(kind), refusal)
    if origin is not None and issubclass(origin, Mapping):
        return _is(Mapping), _nothing
    if origin is not None and origin is not Callable and issubclass(origin, Sequence):
        each = _check_of(name, get_args(kind)[0], refusal)
        return _is_list, lambda value: [each(one) for one in value]
    if origin is Callable:
        return callable, _nothing
    if name in REQUESTS:
        return _is(kind), _fields_of(kind, refusal)
    return _is(kind), _nothing


def _is(kind: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _is_number(kind: type) -> Callable[[Any], bool]:
    kinds = (int, float) if kind is float else int
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _nothing(value: Any) -> None:
    """Look at nothing more."""


def _text_of(name: str, refusal: type[InvalidRequest]) -> Check:
    def check(value: str) -> None:
        if (bad := _NO_TEXT.search(value)) is not None:
            where = f"U+{ord(bad[0]):04X} at position {bad.start()}"
            raise _error(name, f"{name} has a character that is no text ({where}); leave it out", refusal)

    return check


def _number_of(name: str, refusal: type[InvalidRequest]) -> Check:
    least, most = RANGES.get(name, (-INT_32 - 1, INT_32))

    def check(value: int) -> None:
        if not least <= value <= most:
            raise _error(name, f"{name} is a number from {least} to {most}", refusal)

    return check


def _one_of(name: str, choices: tuple[Any, ...], refusal: type[InvalidRequest]) -> Check:
    def check(value: str) -> None:
        if value not in choices:
            said = ", ".join(choices)
            raise _error(name, f"{name} is one of {said}, not {value[:40]!r}", refusal)

    return check


def _fields_of(kind: Any, refusal: type[InvalidRequest]) -> Check:
    hints = get_type_hints(kind)
    checks = [
        (each.name, each.default, _check_of(each.name, hints[each.name], refusal)) for each in fields(kind)
    ]

    def check(value: Any) -> None:
        for name, default, look in checks:
            _unless_default(default, look, getattr(value, name))

    return check


_KINDS: Final[dict[Any, str]] = {
    str: "text", int: "a whole number", bool: "true or false", float: "a number", datetime: "an instant",
    timedelta: "a timedelta", NoneType: "nothing",
}  # fmt: skip


def _said(hint: Any) -> str:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return " or ".join(dict.fromkeys(_said_of(kind) for kind in kinds))


def _said_of(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if origin is Callable:
        return "a function"
    if origin is not None:
        return "an object" if issubclass(origin, Mapping) else "a list"
    return _KINDS.get(kind, getattr(kind, "__name__", str(kind)))
