"""What a gateway notes of the requests that it lets through, and what that says of an operation. Pure.

Each request leaves two notes, as evidence with the source ``gateway``: one before it is sent (``passed``),
and one of its end (``ended``). A request that was refused in between leaves ``refused``. Notes name a
method, a host, a path, sizes, a status and a digest; never a query, a header or a body.

Keys. A remote deduplicates by the key, so one key stands for one request, and the same request has the same
key at every attempt. The first request of an attempt that may change something has the operation's own key;
others have that key and a digest of theirs. Which is first is read off the order of the notes, which the
store makes, so that several gateways agree. A call that a fork took over has the notes of the task that it
was taken from as well, since it goes on under that task's key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from outlast.core.record import record

__all__ = ["SAFE_METHODS", "SOURCE", "Noted", "Seen", "keys_of", "of_attempt", "part_of", "seen"]

SOURCE: Final = "gateway"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_DIGITS: Final = 16

Seen = Literal["acted", "nothing"]
"""What the notes of an attempt say: a request of it was answered as done; all that may act did nothing."""


@record
class Noted:
    """A note: of which attempt, and its data."""

    attempt: int
    data: Any

    def get(self, name: str) -> Any:
        """Read a field of the data, None where there is none."""
        return self.data.get(name) if isinstance(self.data, dict) else None


def of_attempt(notes: Iterable[Noted], attempt: int) -> list[Noted]:
    """Answer the notes of one attempt."""
    return [note for note in notes if note.attempt == attempt]


def seen(notes: Sequence[Noted]) -> Seen | None:
    """Say what the notes of one attempt tell of it; None for nothing sure.

    ``nothing`` is only of what went through the gateway.
    """
    acting = {note.get("request") for note in notes if note.get("phase") == "passed" and note.get("acts")}
    ends = {
        note.get("request"): note.get("says") for note in notes if note.get("phase") in ("ended", "refused")
    }
    if any(ends.get(request) == "happened" for request in acting):
        return "acted"
    if acting and all(ends.get(request) == "did_not_happen" for request in acting):
        return "nothing"
    return None


def part_of(operation: str, key: str) -> bool:
    """Answer whether a key is an operation's or a part of it. operation: the key that it is sent under."""
    return key == operation or key.startswith(f"{operation}.")


def keys_of(operation: str, notes: Sequence[Noted]) -> dict[str, str]:
    """Answer the key of every request that passed, by its fingerprint. notes: all of the operation, in order.

    operation: the key that it is sent under. A request that named a key of the operation's itself keeps it.
    """
    keys: dict[str, str] = {}
    plain: set[int] = set()
    for note in notes:
        fingerprint = note.get("fingerprint")
        if note.get("phase") != "passed" or not note.get("acts") or not isinstance(fingerprint, str):
            continue
        if isinstance(named := note.get("key"), str) and part_of(operation, named):
            keys[fingerprint] = named
        elif fingerprint not in keys:
            keys[fingerprint] = f"{operation}.{fingerprint[:_DIGITS]}" if note.attempt in plain else operation
        if keys[fingerprint] == operation:
            plain.add(note.attempt)
    return keys
