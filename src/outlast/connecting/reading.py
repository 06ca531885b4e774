"""Bodies of the API as the views that apps answer in process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, TypeVar

V = TypeVar("V")


def view(kind: type[V], body: Mapping[str, Any], **known: Any) -> V:
    """Make a view of a body: its fields by name, instants and tuples as such; what else the body says is left
    out. known: fields that the body does not have."""
    read = {field.name: _value(str(field.type), body[field.name]) for field in _said(kind, body)}
    return kind(**{**read, **known})


def _said(kind: Any, body: Mapping[str, Any]) -> list[Any]:
    return [field for field in fields(kind) if field.name in body]


def _value(annotation: str, value: Any) -> Any:
    if value is None:
        return None
    if annotation.startswith("datetime"):
        return instant(value)
    return tuple(value) if annotation.startswith("tuple") else value


def instant(text: str) -> datetime:
    """Read an instant as the API writes it."""
    return datetime.fromisoformat(text)
