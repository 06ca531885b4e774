"""How a value is stored: JSON text that both databases hold unchanged.

What plain JSON text cannot carry through a database is escaped (NUL, lone surrogates) or written in full
(integers of any practical size); the rest is refused by name, with a pointer, before anything is stored.

    bounds      1 MB of text (UTF-8), 200 levels, 4,000 digits an integer
    refused     NaN and infinities, bytes, names that are not text, cycles, iterators
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import deque
from collections.abc import Iterator
from enum import Enum
from math import isfinite
from typing import Any, Final

import orjson
from pydantic_core import to_jsonable_python

from outlast.core import jsontext
from outlast.core.jsontext import refuse
from outlast.errors import ValueTooLarge

__all__ = ["MAX_INTEGER_DIGITS", "MAX_VALUE_BYTES", "decode", "encode", "normalise"]

MAX_VALUE_BYTES: Final = 1_048_576
MAX_INTEGER_DIGITS: Final = 4_000

_TOO_LONG: Final = 10**MAX_INTEGER_DIGITS
# CPython bounds conversions between int and text; the bound may be set as low as 640 digits.
_CHUNK_DIGITS: Final = 600
_CHUNK: Final = 10**_CHUNK_DIGITS
_SCALARS: Final = frozenset({str, int, bool, type(None)})
_READ: Final = json.JSONDecoder().raw_decode
_SPLIT_PAIR: Final = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")


def encode(value: object, *, limit: int = MAX_VALUE_BYTES, what: str = "value") -> str:
    """Write a value as the JSON text that is stored for it.

    ``limit`` is in bytes of that text as UTF-8; ``what`` names the value in messages. Takes whatever
    ``normalise`` takes: ``decode(encode(value)) == normalise(value)``. The text holds neither NUL nor lone
    surrogates. Raises ``Unserializable`` with the pointer to the part that JSON cannot hold, and
    ``ValueTooLarge`` over the limit. Never raises ``RecursionError``.
    """
    try:
        data = orjson.dumps(value, option=jsontext.FAST_OPTIONS)
    except TypeError:
        data = _carefully(value, what).encode()
    else:
        # orjson writes NaN as null without a word, and counts levels to another bound than ours.
        if (b"null" in data or jsontext.may_be_too_deep(data)) and not jsontext.is_plain(value):
            data = _carefully(value, what).encode()
    if len(data) > limit:
        raise ValueTooLarge(
            f"{what} is {len(data)} bytes as JSON, over the limit of {limit}; "
            "store it as an artifact, or pass a reference to it"
        )
    return data.decode()


def decode(text: str) -> Any:
    """Read stored JSON text, the exact inverse of ``encode`` for JSON values.

    Integers come back whole, whatever the process allows for conversions between integers and text. Raises
    ``ValueError`` for text that is no JSON, which ``encode`` never makes.
    """
    try:
        value, end = _READ(text)
        if end == len(text):
            return value
    except ValueError:
        # No JSON, or what is seldom: white space around it, an integer that Python reads only in parts.
        pass
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        # An integer longer than sys.get_int_max_str_digits().
        return json.loads(text, parse_int=_read_integer)


def normalise(value: object) -> Any:
    """Turn a value into JSON's types: dict with text names, list, str, int, float, bool, None.

    Plain JSON is returned as it is, the same object. Pydantic models, datetimes, UUIDs, decimals, enums and
    the like become what Pydantic writes for them; dataclasses become objects, tuples and sets arrays. Sets
    are ordered by their JSON text, so that a replay in another process makes the same value. Raises
    ``Unserializable`` with the pointer to the part that has no JSON form.
    """
    if type(value) in _SCALARS or jsontext.is_plain(value):
        return value
    return decode(_carefully(value, "value"))


def _carefully(value: object, what: str) -> str:
    return jsontext.write(value, _DIALECT, what)


def _string(text: str) -> str:
    try:
        return orjson.dumps(text).decode()
    except TypeError:
        # Two halves of one character as two: reading would join them, and the value would not come back.
        if _SPLIT_PAIR.search(text):
            raise refuse("it has a surrogate pair as two characters; join them (UTF-16) first") from None
        return json.dumps(text)


def _integer(number: int) -> str:
    if not -_TOO_LONG < number < _TOO_LONG:
        raise refuse(f"it is an integer of more than {MAX_INTEGER_DIGITS} digits; send it as text")
    if -_CHUNK < number < _CHUNK:
        return str(number)
    rest, chunks = abs(number), []
    while rest:
        rest, chunk = divmod(rest, _CHUNK)
        chunks.append(f"{chunk:0{_CHUNK_DIGITS}d}")
    return ("-" if number < 0 else "") + "".join(reversed(chunks)).lstrip("0")


def _read_integer(text: str) -> int:
    digits = text.removeprefix("-")
    first = len(digits) % _CHUNK_DIGITS
    number = int(digits[:first] or "0")
    for start in range(first, len(digits), _CHUNK_DIGITS):
        number = number * _CHUNK + int(digits[start : start + _CHUNK_DIGITS])
    return -number if text.startswith("-") else number


def _real(number: float) -> str:
    if not isfinite(number):
        raise refuse("it is NaN or infinite, which JSON does not have; use None or text")
    return repr(number)


def _convert(node: object) -> object:
    kind = type(node)
    if isinstance(node, Enum):
        return jsontext.plain_of(node)
    if isinstance(node, (set, frozenset)):
        return _ordered(list(node))
    if isinstance(node, deque):
        return list(node)
    if isinstance(node, type):
        raise refuse("it is a class; pass an instance, or a name")
    if isinstance(node, Iterator):
        raise refuse(f"it is an iterator ({kind.__qualname__}), which can be read once only; make it a list")
    serializer = getattr(kind, "__pydantic_serializer__", None)
    if serializer is None:
        if dataclasses.is_dataclass(node):
            return {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
        if isinstance(node, (str, int, float, dict, list, tuple, bytes, bytearray, memoryview)):
            return jsontext.plain_of(node)
    try:
        written = to_jsonable_python(node, by_alias=True, inf_nan_mode="constants")
        if serializer is not None:
            raw = serializer.to_python(node, mode="python", by_alias=True, warnings="none")
            written = _with_ordered_sets(written, raw)
    # Serializers are code of the application and may raise anything: whatever it is, there is no JSON form.
    except Exception as error:
        raise refuse(f"its type {kind.__qualname__} has no JSON form; convert it first") from error
    return written


def _ordered(items: list[Any]) -> list[Any]:
    # The order of a set differs between processes, and with it every digest over the value. The items are
    # read back rather than returned as they were: sets in sets would be written anew at every level.
    try:
        return [decode(text) for text in sorted(_carefully(item, "item of a set") for item in items)]
    except RecursionError:
        raise refuse("sets are nested too deeply in it; flatten it") from None


def _with_ordered_sets(written: Any, raw: Any) -> Any:
    # Pydantic writes a set in the set's own order; only the unwritten value tells which array was a set.
    if isinstance(written, list):
        if isinstance(raw, (set, frozenset)):
            return _ordered(written)
        if isinstance(raw, (list, tuple)) and len(raw) == len(written):
            return [_with_ordered_sets(*pair) for pair in zip(written, raw, strict=True)]
    if isinstance(written, dict) and isinstance(raw, dict) and len(raw) == len(written):
        pairs = zip(written, written.values(), raw.values(), strict=True)
        return {name: _with_ordered_sets(child, unwritten) for name, child, unwritten in pairs}
    return written


_DIALECT: Final = jsontext.Dialect(string=_string, integer=_integer, real=_real, convert=_convert)
