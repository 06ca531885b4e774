"""Canonical JSON (RFC 8785, JCS) and the digests that are made of it.

Two requests are the same when their canonical bytes are: numbers as ECMAScript writes them, names in the
order of their UTF-16 code units, the shortest escapes, no white space. What the standard cannot write
without loss (integers beyond 2^53 - 1, NaN, lone surrogates) is refused by name: a digest that ignored a
difference would let one decision stand for two requests.
"""

from __future__ import annotations

import hashlib
import re
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Final

import orjson

from outlast.core import jsontext
from outlast.core.jsontext import refuse

__all__ = ["canonical", "decision_digest", "digest", "fingerprint"]

_MAX_INTEGER: Final = (1 << 53) - 1
_FAST: Final = jsontext.FAST_OPTIONS | orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER
# Where orjson's text may differ from RFC 8785, or hide something: a float, a null that was a NaN, and a
# character beyond 16 bits, from where on the order of code points is not that of UTF-16 code units.
_IN_DOUBT: Final = re.compile(rb"(?:^|[:\[,])(?:-?[0-9]+[.eE]|null)|[\xf0-\xf4]")


def canonical(value: object) -> bytes:
    """Write a JSON value in its canonical form (RFC 8785), as UTF-8.

    Tuples count as arrays, enums as their values, UUIDs as their text. Equal values give equal bytes, in any
    process; 1 and 1.0 are equal. Raises ``Unserializable`` with the pointer to the part that has no canonical
    form: integers beyond +-(2^53 - 1), NaN and infinities, decimals, bytes, lone surrogates, names that are
    not text, cycles, more than 200 levels.
    """
    try:
        text = orjson.dumps(value, option=_FAST)
    except TypeError:
        return _carefully(value)
    if _IN_DOUBT.search(text) or jsontext.may_be_too_deep(text):
        return _carefully(value)
    return text


def digest(value: object) -> str:
    """Digest a JSON value: ``sha256:`` and 64 hexadecimal digits over its canonical form.

    Raises ``Unserializable`` as ``canonical`` does.
    """
    return _digest(canonical(value))


def fingerprint(kind: str, name: str, arguments: object) -> str:
    """Make the request digest of an operation: over its kind, its name and its arguments.

    It is compared on replay. Raises ``Unserializable``, the pointer being into the arguments.
    """
    # The arguments by themselves, so that pointer and depth are theirs; the names are in canonical order.
    return _digest(b'{"arguments":%b,"kind":%b,"name":%b}' % (canonical(arguments), _word(kind), _word(name)))


def decision_digest(request_digest: str, tool_version: str, target: object) -> str:
    """Make the digest that an approval and an intent are bound to.

    ``request_digest`` is a ``fingerprint``; ``target`` is what will be acted on, as JSON (``None`` for no
    target). A new version of the tool or of the target gives another digest. Raises ``Unserializable``, the
    pointer being into the target.
    """
    acted_on = b"null" if target is None else canonical(target)
    return _digest(
        b'{"request":"%b","target":%b,"tool_version":%b}'
        % (request_digest.encode("ascii"), acted_on, _word(tool_version))
    )


@lru_cache(maxsize=1024)
def _word(text: str) -> bytes:
    """Write a name; the few that there are come again and again."""
    return canonical(text)


def _digest(text: bytes) -> str:
    return "sha256:" + hashlib.sha256(text).hexdigest()


def _carefully(value: object) -> bytes:
    return jsontext.write(value, _DIALECT, "value").encode()


def _string(text: str) -> str:
    # For strings, orjson's escapes are those of RFC 8785 section 3.2.2.2.
    try:
        return orjson.dumps(text).decode()
    except TypeError:
        raise refuse("it has a lone surrogate, which is no Unicode text; remove or encode it") from None


def _integer(number: int) -> str:
    if not -_MAX_INTEGER <= number <= _MAX_INTEGER:
        raise refuse("it is an integer beyond 2^53 - 1, which RFC 8785 would round; send it as text")
    return str(number)


def _real(number: float) -> str:
    """Write a double as ECMAScript's Number::toString does (ECMA-262, section 6.1.6.1.20)."""
    if not isfinite(number):
        raise refuse("it is NaN or infinite, which JSON does not have; send null or text")
    if number == 0:
        return "0"
    # repr gives the same digits, the shortest that read back; only their layout differs.
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole) + len(fraction) - len(digits))
    digits = digits.rstrip("0")
    sign = "-" if number < 0 else ""
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = "." + digits[1:] if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"


def _convert(node: object) -> object:
    if isinstance(node, Decimal):
        raise refuse("it is a Decimal, which JSON numbers would round; send it as text")
    return jsontext.plain_of(node)


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


_DIALECT: Final = jsontext.Dialect(
    string=_string, integer=_integer, real=_real, convert=_convert, sort_key=_utf16
)
