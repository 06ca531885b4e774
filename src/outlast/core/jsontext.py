"""Write JSON text piece by piece, and refuse by name what JSON cannot hold.

The careful path behind ``canonical`` and ``values``. It keeps its own stack, so depth never ends in a
``RecursionError``, and it knows where it is, so each refusal carries an RFC 6901 pointer. Both callers take
orjson's fast path first and come here when the fast path cannot tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from typing import Any, Final
from uuid import UUID

import orjson

from outlast.core.record import record
from outlast.errors import Unserializable

__all__ = [
    "FAST_OPTIONS",
    "MAX_DEPTH",
    "Dialect",
    "is_plain",
    "may_be_too_deep",
    "plain_of",
    "refuse",
    "write",
]

MAX_DEPTH: Final = 200
"""Objects and arrays inside one another; ``[]`` is one deep, a number none."""

# What orjson would serialise on its own without telling us. Enums and UUIDs it always does: see plain_of.
FAST_OPTIONS: Final = (
    orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
)

_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_CONTAINERS: Final = frozenset({dict, list})
_PLAIN: Final = _LEAVES | _CONTAINERS
_KEYS: Final = frozenset({str})
# A list that holds itself twice doubles at each level: stop looking, the careful path names the cycle.
_WIDEST_LEVEL: Final = 1_000_000
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


@record
class Dialect:
    """How one kind of JSON text writes its parts. Each part may raise through ``refuse``.

    ``convert`` gets whatever is not exactly ``str``, ``int``, ``float``, ``bool``, ``None``, ``dict``,
    ``list`` or ``tuple``, and returns something nearer to these. ``sort_key``, where set, orders the names
    of an object.
    """

    string: Callable[[str], str]
    integer: Callable[[int], str]
    real: Callable[[float], str]
    convert: Callable[[object], object]
    sort_key: Callable[[str], Any] | None = None


def refuse(reason: str) -> Unserializable:
    """Make the error for a part that JSON cannot hold; ``write`` adds where it was."""
    return Unserializable(reason)


@dataclass(slots=True)
class _Open:
    container: object
    closer: str
    entries: Iterator[tuple[str | int, object]]
    at: str | int | None = None
    begun: bool = False


def write(value: object, dialect: Dialect, what: str) -> str:
    """Write a value as JSON text without white space.

    ``what`` names the value in messages. Raises ``Unserializable`` with the pointer to the part that cannot
    be written: what the dialect refuses, names that are not text, cycles, more than 200 levels.
    """
    out: list[str] = []
    path: list[_Open] = []
    on_path: set[int] = set()
    node = value
    try:
        while True:
            if type(node) is str:
                out.append(dialect.string(node))
            elif node is None:
                out.append("null")
            elif node is True:
                out.append("true")
            elif node is False:
                out.append("false")
            elif type(node) is int:
                out.append(dialect.integer(node))
            elif type(node) is float:
                out.append(dialect.real(node))
            elif type(node) is dict or type(node) is list or type(node) is tuple:
                if id(node) in on_path:
                    raise refuse("it contains itself; JSON holds trees only")
                if len(path) == MAX_DEPTH:
                    raise refuse(f"it is nested deeper than {MAX_DEPTH} levels; flatten it")
                on_path.add(id(node))
                if type(node) is dict:
                    out.append("{")
                    path.append(_Open(node, "}", _entries(node, dialect)))
                else:
                    out.append("[")
                    path.append(_Open(node, "]", iter(enumerate(node))))
            else:
                node = dialect.convert(node)
                continue
            while path:
                top = path[-1]
                top.at = None
                entry = next(top.entries, None)
                if entry is None:
                    out.append(top.closer)
                    on_path.discard(id(top.container))
                    path.pop()
                    continue
                if top.begun:
                    out.append(",")
                top.begun = True
                top.at, node = entry
                if type(top.at) is str:
                    out.append(dialect.string(top.at))
                    out.append(":")
                break
            else:
                return "".join(out)
    except Unserializable as error:
        pointer = _pointer(path)
        where = pointer if len(pointer) <= 200 else pointer[:200] + "..."
        place = f"{what} at {where!a}" if pointer else what
        raise Unserializable(
            f"{place} cannot be written as JSON: {error}", pointer=pointer
        ) from error.__cause__


def plain_of(node: object) -> object:
    """Reduce what orjson also writes by itself, and subclasses of JSON's types, to JSON's types.

    Enums become their value, UUIDs their text. Raises ``Unserializable`` for everything else.
    """
    if isinstance(node, Enum):
        value: object = node.value
        return value
    if isinstance(node, UUID):
        return str(node)
    if isinstance(node, str):
        return str.__str__(node)
    if isinstance(node, int):
        return int.__int__(node)
    if isinstance(node, float):
        return float.__float__(node)
    if isinstance(node, dict):
        return dict(node)
    if isinstance(node, (list, tuple)):
        return list(node)
    if isinstance(node, (bytes, bytearray, memoryview)):
        raise refuse("it is bytes; send text (base64) or a reference to an artifact")
    raise refuse(f"its type {type(node).__qualname__} has no JSON form; convert it first")


def is_plain(value: object) -> bool:
    """Tell cheaply whether a value is JSON as it stands: exact types, finite numbers, at most 200 levels.

    ``False`` only means that the careful path must look.
    """
    kind = type(value)
    if kind not in _CONTAINERS:
        return kind in _LEAVES and (kind is not float or isfinite(value))  # type: ignore[arg-type]
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            children = container
            if type(container) is dict:
                if not _KEYS.issuperset(map(type, container)):
                    return False
                children = container.values()
            kinds = set(map(type, children))
            if not kinds <= _PLAIN:
                return False
            if float in kinds and not all(isfinite(child) for child in children if type(child) is float):
                return False
            if not kinds <= _LEAVES:
                below.extend(child for child in children if type(child) in _CONTAINERS)
                if len(below) > _WIDEST_LEVEL:
                    return False
        if not below:
            return True
        level = below
    return False


def may_be_too_deep(text: bytes) -> bool:
    """Tell from JSON text whether its depth has to be looked at: ``False`` means at most 200 levels."""
    return len(text) > MAX_DEPTH and text.count(b"[") + text.count(b"{") > MAX_DEPTH


def _entries(node: dict[Any, Any], dialect: Dialect) -> Iterator[tuple[str, object]]:
    for name in node:
        if not isinstance(name, str):
            raise refuse(
                f"a name in it is of the type {type(name).__qualname__}, and would come back as text; "
                "use text as names, or a list of pairs"
            )
    if dialect.sort_key is None:
        for name, child in node.items():
            yield str.__str__(name), child
        return
    for name in sorted(map(str.__str__, node), key=dialect.sort_key):
        yield name, node[name]


def _pointer(path: list[_Open]) -> str:
    parts = [str(top.at).replace("~", "~0").replace("/", "~1") for top in path if top.at is not None]
    pointer = "".join("/" + part for part in parts)
    # A pointer goes into responses and logs, which a lone surrogate would break in turn.
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", pointer)
