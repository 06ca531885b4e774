"""How events, failures and foreign exceptions are put into words that can be stored."""

from __future__ import annotations

from typing import Any, Final

import orjson
import pydantic

from outlast.core import values
from outlast.core.masking import mask_passwords
from outlast.engine.signature import pointer
from outlast.store.entries import NewEvent

MAX_ERROR_TEXT: Final = 4_000
"""Characters that are kept of a text that is not ours."""


def event(kind: str, /, **data: Any) -> NewEvent:
    """Make an event with plain data. Texts in it are bounded: some are those of foreign exceptions."""
    try:
        text = orjson.dumps(data)
    except TypeError:
        # Foreign text that is no Unicode, or a number that is too long: below it is written with care.
        text = b""
    if 0 < len(text) <= MAX_ERROR_TEXT:
        return NewEvent(kind=kind, data=text.decode())
    short = {
        name: value[:MAX_ERROR_TEXT] if isinstance(value, str) else value for name, value in data.items()
    }
    return NewEvent(kind=kind, data=values.encode(short, what="event"))


def failure(code: str, message: str, **more: Any) -> str:
    """Write a failure as it is stored: a stable code, a text for people, and what else is known."""
    return values.encode({"code": code, "message": message[:MAX_ERROR_TEXT], **more}, what="error")


def text_of(error: BaseException) -> str:
    """Describe an exception in one bounded text, as ``words_of`` does, with the name of its class."""
    name, text = type(error).__name__, words_of(error)
    return f"{name}: {text}"[:MAX_ERROR_TEXT] if text else name


def words_of(error: BaseException) -> str:
    """Answer what an exception says, bounded, without what it must not tell: passwords of addresses, and the
    values that did not fit a type."""
    try:
        if isinstance(error, pydantic.ValidationError):
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            text = "; ".join(f"{pointer(one['loc']) or '/'}: {one['msg']}" for one in problems)
            text = f"{error.title} does not take this: {text}"
        else:
            text = str(error)
    # Its class is foreign code too, and what is said of an error must not raise another.
    except Exception:
        text = ""
    return mask_passwords(text)[:MAX_ERROR_TEXT]
