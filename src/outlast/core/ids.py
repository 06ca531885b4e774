"""Identifiers: the ones we make, and the rules for the ones callers give us.

Ours are TypeIDs: ``<prefix>_<26 characters>``, the characters being a UUIDv7 (RFC 9562 section 5.7) in
lower-case Crockford base 32. They sort by time as plain strings. Time and randomness are arguments, so a
simulation owns them.

Every rule for a caller's key is checked here and once more by a database constraint, so that no entrance
can let through a row that could not be addressed later.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from outlast.core.record import record
from outlast.errors import InvalidKey

__all__ = [
    "MAX_KEY_CHARS",
    "MAX_NAME_CHARS",
    "MAX_OPERATION_KEY_CHARS",
    "MESSAGE",
    "SESSION",
    "TASK",
    "WRITER",
    "ParsedId",
    "check_approval_id",
    "check_key",
    "check_name",
    "check_operation_key",
    "new_id",
    "operation_id",
    "parse_id",
    "person",
    "sent_key",
    "split_operation_id",
    "unix_ms_of",
]

TASK: Final = "task"
SESSION: Final = "ses"
WRITER: Final = "wr"
MESSAGE: Final = "msg"

MAX_KEY_CHARS: Final = 255
# A task id, a colon and the longest operation key stay under 255: idempotency keys travel in a header,
# and 255 is what the services that accept them commonly allow.
MAX_OPERATION_KEY_CHARS: Final = 200
MAX_NAME_CHARS: Final = 120

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUE_OF: Final = {char: value for value, char in enumerate(_ALPHABET)}
_PAIRS: Final = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
"""The characters of ten bits."""
_RANDOM_BITS: Final = 74
_PREFIX: Final = re.compile(r"[a-z](?:[a-z_]{0,61}[a-z])?")
# 26 characters hold 130 bits; a first character over 7 would not fit a UUID.
_ID: Final = re.compile(rf"({_PREFIX.pattern})_([0-7][{_ALPHABET}]{{25}})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Unicode's property White_Space, but for controls; spelled out, since both stores have the very same list.
_VISIBLE: Final = re.compile("[^ \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_NOT_PRINTABLE_ASCII: Final = re.compile(r"[^\x20-\x7e]")
_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9_\-.:/]")


@record
class ParsedId:
    """What an id of ours says. ``unix_ms`` is in milliseconds since 1970."""

    prefix: str
    unix_ms: int
    random_74_bits: int


def new_id(prefix: str, unix_ms: int, random_74_bits: int) -> str:
    """Make an id from a prefix, a time and randomness.

    ``unix_ms`` is in milliseconds since 1970 (0 to 2^48 - 1), ``random_74_bits`` an integer of 74 bits.
    Returns ``<prefix>_<26 characters>``; of two ids with one prefix, the one with the later millisecond
    sorts later as a string. Raises ``ValueError`` when an argument is out of range.
    """
    if not 0 <= random_74_bits < 1 << _RANDOM_BITS:
        raise ValueError("random_74_bits must be an integer of 74 bits")
    # RFC 9562: 48 bits of time, version 7, 12 random bits, variant 0b10, 62 random bits. What is behind the
    # time are sixteen characters, in two halves of forty bits.
    left = 0x7 << 36 | random_74_bits >> 62 << 24 | 0b10 << 22 | random_74_bits >> 40 & 0x3FFFFF
    right = random_74_bits & 0xFF_FFFF_FFFF
    return (
        f"{_begin(prefix, unix_ms)}{_PAIRS[left >> 30]}{_PAIRS[left >> 20 & 1023]}{_PAIRS[left >> 10 & 1023]}"
        f"{_PAIRS[left & 1023]}{_PAIRS[right >> 30]}{_PAIRS[right >> 20 & 1023]}{_PAIRS[right >> 10 & 1023]}"
        f"{_PAIRS[right & 1023]}"
    )


@lru_cache(maxsize=8)
def _begin(prefix: str, unix_ms: int) -> str:
    """Write what all ids of one kind that are made in one millisecond begin with: ten characters of time."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"an id prefix is lower-case letters, with underscores only inside: {prefix!r}")
    if not 0 <= unix_ms < 1 << 48:
        raise ValueError(f"unix_ms must be from 0 to 2^48 - 1, not {unix_ms}")
    return prefix + "_" + "".join([_PAIRS[unix_ms >> shift & 1023] for shift in range(40, -1, -10)])


def parse_id(value: str, *, prefix: str | None = None) -> ParsedId:
    """Read an id of ours, the exact inverse of ``new_id``.

    With ``prefix``, an id of another kind is refused. Raises ``InvalidKey`` for anything that ``new_id``
    cannot have made.
    """
    match = _ID.fullmatch(value)
    if match is None:
        raise InvalidKey("not an id: expected <prefix>_ and 26 characters of lower-case base 32")
    found, digits = match.groups()
    if prefix is not None and found != prefix:
        raise InvalidKey(f"expected an id that begins with {prefix}_, not {found}_")
    number = 0
    for char in digits:
        number = number << 5 | _VALUE_OF[char]
    if number >> 76 & 0xF != 7 or number >> 62 & 0b11 != 0b10:
        raise InvalidKey("not an id: the 26 characters are no UUID of version 7 (RFC 9562)")
    random_bits = (number >> 64 & 0xFFF) << 62 | number & ((1 << 62) - 1)
    return ParsedId(prefix=found, unix_ms=number >> 80, random_74_bits=random_bits)


def unix_ms_of(value: str) -> int:
    """Tell when an id of ours was made, in milliseconds since 1970. Raises ``InvalidKey``."""
    return parse_id(value).unix_ms


def check_key(value: object, what: str) -> str:
    """Accept a caller's idempotency key or id, or say which rule it breaks.

    1 to 255 characters (Unicode code points), no control characters (C0, DEL, C1), not only white space
    (Unicode's property White_Space), no lone surrogates. ``what`` names the key in the message. Returns the
    key unchanged: it is never trimmed or folded, so two keys are equal when their characters are. Raises
    ``InvalidKey``.
    """
    text = _text_within(value, what, MAX_KEY_CHARS)
    if bad := _CONTROL.search(text):
        raise InvalidKey(f"{what} has a control character ({_where(bad)}); use only printable characters")
    if bad := _SURROGATE.search(text):
        raise InvalidKey(f"{what} has a lone surrogate ({_where(bad)}); send valid Unicode text")
    if _VISIBLE.search(text) is None:
        raise InvalidKey(f"{what} is only white space; send a key with at least one visible character")
    return text


def check_operation_key(value: object) -> str:
    """Accept the key of an operation, or say which rule it breaks.

    Printable ASCII, 1 to 200 characters, no space at either end, since it is part of a key that is sent in
    an HTTP header. Returns it unchanged. Raises ``InvalidKey``.
    """
    text = _text_within(value, "operation key", MAX_OPERATION_KEY_CHARS)
    if bad := _NOT_PRINTABLE_ASCII.search(text):
        raise InvalidKey(
            f"operation key has a character outside printable ASCII ({_where(bad)}); "
            "it is sent in an HTTP header, so encode or hash it first"
        )
    if text[0] == " " or text[-1] == " ":
        raise InvalidKey("operation key begins or ends with a space; strip it first")
    return text


def check_name(value: object, what: str = "name") -> str:
    """Accept the name of an agent, tool, pool or tenant, or say which rule it breaks.

    1 to 120 ASCII letters, digits and ``_ - . : /``. Returns it unchanged. Raises ``InvalidKey``.
    """
    text = _text_within(value, what, MAX_NAME_CHARS)
    if bad := _NOT_IN_NAME.search(text):
        raise InvalidKey(
            f"{what} has a character that is not allowed ({_where(bad)}); "
            "use letters, digits and _ - . : / only"
        )
    return text


def operation_id(task_id: str, key: str) -> str:
    """Join a task's id and an operation's key (checked by ``check_operation_key``) to an operation id.

    Raises ``InvalidKey`` when the task's id is empty or holds a colon: the first colon is what separates.
    """
    if not task_id or ":" in task_id:
        raise InvalidKey(
            "a task id is not empty and holds no colon, since the colon ends it in operation ids"
        )
    return f"{task_id}:{key}"


def sent_key(task_id: str, key: str, taken_over: str | None) -> str:
    """Answer the idempotency key that an operation is sent under: its id, unless it goes on under another.

    taken_over: what is on record of it, the key that was sent before a fork took the operation over; None for
    an operation of the task's own.
    """
    return taken_over or operation_id(task_id, key)


def split_operation_id(value: str) -> tuple[str, str]:
    """Split an operation id into task id and key, the exact inverse of ``operation_id``.

    Raises ``InvalidKey`` when there is no colon, or nothing on one side of it.
    """
    task_id, _, key = value.partition(":")
    if not task_id or not key:
        raise InvalidKey("not an operation id: expected <task id>:<key>")
    return task_id, key


def check_approval_id(value: str) -> str:
    """Accept an approval's id, ``<task>:<key>~<number>``. Returns it unchanged. Raises ``InvalidKey``."""
    operation, _, number = value.rpartition("~")
    task, key = split_operation_id(operation)
    parse_id(task, prefix=TASK)
    check_operation_key(key)
    if not (number.isascii() and number.isdigit() and number[0] != "0" and len(number) < 10):
        raise InvalidKey("not an approval id: expected <task id>:<key>~<number>")
    return value


def person(by: object) -> str:
    """Name a person, or whoever acts for one, as decisions and the audit trail keep it: ``person:<who>``.

    Raises ``InvalidKey``.
    """
    return f"person:{check_key(by, 'by')}"


def _text_within(value: object, what: str, most: int) -> str:
    if not isinstance(value, str):
        raise InvalidKey(f"{what} must be text, not {type(value).__name__}")
    if not value:
        raise InvalidKey(
            f"{what} is empty; send 1 to {most} characters, or leave it out where it is optional"
        )
    if len(value) > most:
        raise InvalidKey(
            f"{what} has {len(value)} characters, at most {most} are allowed; send a digest instead"
        )
    return value


def _where(match: re.Match[str]) -> str:
    # The character by number, never itself: error texts go to logs and terminals.
    return f"U+{ord(match.group()):04X} at position {match.start()}"
