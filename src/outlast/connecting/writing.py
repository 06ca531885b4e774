"""What a client writes into paths, headers and bodies."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from outlast import clock
from outlast.core import ids, values
from outlast.core.durations import Duration, microseconds
from outlast.errors import InvalidKey


def part(text: str) -> str:
    """Write a name as one part of a path, whatever is in it."""
    return quote(text, safe=":~")


def task_path(task: str) -> str:
    """Where a task is."""
    return f"/v1/tasks/{part(task)}"


def key_header(key: str | None) -> dict[str, str]:
    """Write an idempotency key (RFC 9651), or one of the client's own where none is given. Raises
    InvalidKey."""
    if key is None:
        key = f"client:{clock.random_bits(128):032x}"
    elif not ids.check_key(key, "idempotency key").isascii():
        raise InvalidKey("a key that goes over HTTP has no character outside ASCII; encode or hash it first")
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return {"Idempotency-Key": f'"{escaped}"'}


def revision_header(revision: int | None) -> dict[str, str]:
    """Write the revision that was seen (RFC 9110), 0 for what must be new."""
    if revision is None:
        return {}
    return {"If-None-Match": "*"} if revision == 0 else {"If-Match": f'"{revision}"'}


def seconds(length: Duration | None, what: str) -> float | None:
    """Write a length of time. Raises InvalidRequest."""
    return None if length is None else microseconds(length, what=what) / 1_000_000


def content(data: Any, what: str) -> bytes:
    """Write any value as a body. Raises Unserializable, ValueTooLarge."""
    return values.encode(values.normalise(data), what=what).encode()
