"""What a process holds: the keys that its handlers work under, and the renewal of their leases."""

from __future__ import annotations

import asyncio
from typing import Any

from outlast import telemetry
from outlast.store.shelf import KeyHold, Shelf

__all__ = ["Claim", "Holding"]


class Claim:
    """A handler's right to work under a key; in ``scope["outlast"]["claim"]``.

    takeover: how many worked under this key before and never answered; any of them may have acted. lost:
    whether it is known that another one has taken over; what this one answers is not kept then.
    """

    def __init__(self, shelf: Shelf, hold: KeyHold, *, takeover: int, epoch: int | None) -> None:
        self.hold = hold
        self.takeover = takeover
        self.epoch = epoch
        self.lost = False
        self.done = asyncio.Event()
        self._shelf = shelf

    @property
    def key(self) -> str:
        """The idempotency key."""
        return self.hold.key

    async def confirm(self, connection: Any) -> None:
        """Make sure, in the handler's own transaction, that nobody takes over before it commits.

        connection: to the database that the keys are in, in a transaction (asyncpg; or apsw, begun with
        ``begin immediate``). Raises LeaseLost when somebody has: then roll back. With this as the last
        statement, a frozen handler that thaws commits nothing that its successor cannot see.
        """
        await self._shelf.confirm(connection, self.hold)


class Holding:
    """Every claim of a process, renewed together a few times a lease."""

    def __init__(self, shelf: Shelf, lease_us: int) -> None:
        self._shelf = shelf
        self._lease_us = lease_us
        self._claims: dict[tuple[str, str], Claim] = {}
        self._renewing: asyncio.Task[None] | None = None

    def begin(self, claim: Claim) -> None:
        """Keep a claim alive from now on."""
        self._claims[claim.hold.scope, claim.hold.key] = claim
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    def end(self, claim: Claim) -> None:
        """Let a claim go, and tell those here who wait for it."""
        if self._claims.get((claim.hold.scope, claim.hold.key)) is claim:
            del self._claims[claim.hold.scope, claim.hold.key]
        claim.done.set()

    def of(self, scope: str, key: str) -> Claim | None:
        """Answer the claim that this process holds of a key."""
        return self._claims.get((scope, key))

    def stop(self) -> None:
        """Renew no more."""
        if self._renewing is not None:
            self._renewing.cancel()

    async def _renew(self) -> None:
        try:
            while self._claims:
                await asyncio.sleep(self._lease_us / 3_000_000)
                claims = list(self._claims.values())
                if not claims:
                    return
                try:
                    held = await self._shelf.renew([claim.hold for claim in claims], self._lease_us)
                except Exception as error:
                    # Whatever it is, it is tried again; the lease may run out meanwhile, and another work.
                    telemetry.emit(telemetry.StoreAway(duty="otherside renew", detail=type(error).__name__))
                    continue
                for claim, still in zip(claims, held, strict=True):
                    # One that has answered meanwhile is not lost.
                    claim.lost = not still and not claim.done.is_set()
        finally:
            self._renewing = None
