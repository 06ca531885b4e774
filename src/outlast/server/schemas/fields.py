"""Kinds of fields that several bodies share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)

from outlast.core import ids
from outlast.core.durations import microseconds
from outlast.errors import InvalidRequest
from outlast.posting import MAX_REASON

OperationStateName = Literal["planned", "approved", "running", "succeeded", "failed", "unknown"]
TaskStateName = Literal["queued", "running", "waiting", "succeeded", "failed", "cancelled"]
NAME_SCHEMA = {
    "type": "string",
    "minLength": 1,
    "maxLength": ids.MAX_NAME_CHARS,
    "pattern": "^[A-Za-z0-9_.:/-]+$",
}
BY = "Who says so; believed on this machine without keys, else it is whose key it is."
"""What a name in a body counts for."""
TEXT_SCHEMA = {"type": "string", "minLength": 1, "maxLength": ids.MAX_KEY_CHARS}


def checked(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a validator of a check that raises InvalidRequest."""

    def validate(value: Any) -> Any:
        try:
            check(value)
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        return value

    return validate


def _duration(value: Any) -> None:
    if not isinstance(value, int | float | str):
        raise InvalidRequest("a length of time is seconds, or text such as '10m' or '1h30m'")
    try:
        microseconds(value, what="the length")
    except OverflowError:
        raise InvalidRequest("it is longer than a hundred years") from None


def _text_only(value: Any) -> Any:
    # Pydantic would read a number as seconds since 1970, which nobody means here.
    if not isinstance(value, str):
        raise ValueError(  # noqa: TRY004 - Pydantic takes a ValueError as a refusal
            "an instant is text in RFC 3339, with a time zone"
        )
    return value


Name = Annotated[
    Any, AfterValidator(checked(lambda value: ids.check_name(value, "it"))), WithJsonSchema(NAME_SCHEMA)
]
"""The name of an agent, pool or version."""
Reason = Annotated[str, Field(strict=True, max_length=MAX_REASON)]
"""Why somebody does something; may be empty."""
ShortText = Annotated[
    Any, AfterValidator(checked(lambda value: ids.check_key(value, "it"))), WithJsonSchema(TEXT_SCHEMA)
]
"""1 to 255 characters without control characters."""
Length = Annotated[
    Any,
    AfterValidator(checked(_duration)),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": 3_153_600_000},
                {"type": "string", "pattern": r"^(\d+(\.\d+)?(us|ms|s|m|h|d))+$"},
            ],
            "description": "Seconds, or text such as `10m` or `1h30m`.",
        }
    ),
]
"""A length of time as a caller writes it."""
Instant = Annotated[
    AwareDatetime, BeforeValidator(_text_only), WithJsonSchema({"type": "string", "format": "date-time"})
]
"""An instant with a time zone, as text."""


class Body(BaseModel):
    """A request body; a name that it does not have is refused, so that a slip of the pen is seen."""

    model_config = ConfigDict(extra="forbid")


def written(at: datetime | None) -> str | None:
    """Write an instant as RFC 3339 in UTC."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
