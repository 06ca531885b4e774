"""The shelf: which keys a service has seen, what it answered, which events it has consumed.

Purpose: the contract behind ``outlast.otherside``. Its tables are the service's own: a schema of their
own in PostgreSQL, a prefix of their own in an SQLite file, with or without Outlast's other tables beside
them.

Identity: a key is (scope, key); an epoch belongs to (scope, subject); an inbox row is (consumer, event).
Instants are whole microseconds since the epoch, UTC, read from the database's clock.

What is fenced: a key is claimed by one insert under its primary key. Whoever claims it names a holder
that is never used again. Renewing, answering and giving up compare the holder; a takeover compares it
too, and replaces it. So of two that believe to hold a key, one changes nothing.

Lock order: epoch row, key row. The inbox is in the caller's own transaction and locks nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from outlast.core.record import record

__all__ = ["Inbox", "KeyAnswer", "KeyHold", "KeyRequest", "KeyVerdict", "Shelf"]


@record
class KeyHold:
    """A right to work under a key: the key, and who holds it."""

    scope: str
    key: str
    holder: str


@record
class KeyRequest:
    """A request that wants a key.

    fingerprint: digest of everything that makes it this request. lease_us: how long the holder is believed
    without a renewal. keep_us: how long the key is known, counted from its claim. subject and epoch: whose
    fencing number it carries, and the number; None for none. keep_epoch_us: how long a number is known after
    it was last seen.
    """

    hold: KeyHold
    fingerprint: bytes
    lease_us: int
    keep_us: int
    subject: str | None = None
    epoch: int | None = None
    keep_epoch_us: int = 0


@record
class KeyAnswer:
    """What a service answered. headers: JSON text, an array of pairs. body: None when it is not kept."""

    status: int
    headers: str
    body: bytes | None


@record
class KeyVerdict:
    """What came of a claim.

    kind: ``claimed``: the caller is to work, for the ``takeovers``-th time after others that never answered.
    ``answered``: with ``answer``. ``not_kept``: answered, with a status alone. ``in_flight``: somebody works,
    and is believed for ``wait_us``. ``other_content``: the key stands for another request. ``stale_epoch``:
    ``epoch``, a higher one, has been seen.
    """

    kind: Literal["claimed", "answered", "not_kept", "in_flight", "other_content", "stale_epoch"]
    takeovers: int = 0
    answer: KeyAnswer | None = None
    wait_us: int = 0
    epoch: int = 0


class Shelf(Protocol):
    """Keys, answers and epochs of one service. Every verb raises StoreUnavailable, SchemaOutdated."""

    async def prepare(self) -> None:
        """Make the tables where they are missing; idempotent, and safe beside others that do the same."""
        ...

    async def claim(self, request: KeyRequest) -> KeyVerdict:
        """Note the epoch and claim the key, or say why not; see ``KeyVerdict``.

        Atomic. Idempotent by holder: asked again after its answer was lost it says ``claimed`` again.
        """
        ...

    async def look(self, hold: KeyHold) -> KeyVerdict | None:
        """Read how the key stands, whoever holds it: ``answered``, ``not_kept``, ``in_flight`` or None."""
        ...

    async def renew(self, holds: Sequence[KeyHold], lease_us: int) -> list[bool]:
        """Renew the leases of what is still held; says for each whether it is. Fenced by the holder."""
        ...

    async def answer(self, hold: KeyHold, answer: KeyAnswer) -> bool:
        """Keep the answer; False, and nothing changed, when the key is no longer this holder's.

        Idempotent by holder.
        """
        ...

    async def give_up(self, hold: KeyHold) -> bool:
        """Let the next request have the key, since this one was not processed. Fenced by the holder.

        The key is forgotten; one that was taken over keeps its count, since an earlier holder may have acted.
        """
        ...

    async def sweep(self) -> int:
        """Forget what has been kept for its time; answer how many rows that were. A key being worked on
        stays."""
        ...

    async def confirm(self, connection: Any, hold: KeyHold) -> None:
        """Make sure, in the caller's own transaction, that the key is still this holder's until it commits.

        Raises LeaseLost when it is not, ConfigurationError for a connection of another kind or one without a
        transaction.
        """
        ...

    async def close(self) -> None:
        """Release every connection; idempotent."""
        ...


class Inbox(Protocol):
    """What consumers have seen, in their own transactions."""

    async def prepare(self, connection: Any) -> None:
        """Make the tables where they are missing; idempotent."""
        ...

    async def once(self, connection: Any, consumer: str, event: str) -> bool:
        """Note an event; False when it is noted already."""
        ...

    async def sweep(self, connection: Any, keep_us: int) -> int:
        """Forget events noted longer ago than that; answer how many."""
        ...
