"""A worker process's session: renewed by one small write, whatever the number of its tasks.

Purpose: the right to work. Every lease of this process hangs on its session.

Identity: a random incarnation id, new at every start and after every loss; the name is only a label.

Clock: the database's clock decides expiry. The worker keeps a trust deadline of its own, counted from
*before* it sent the renewal, on a clock that goes on while the process is stopped, and looks at it
immediately before every send.

Failure by failure: the store is away: renewals go on being tried, trust runs out, no call is sent, journal
writes wait. The process was frozen: trust has run out when it thaws. The session was swept: ``on_lost`` is
called once, every task of it is given up, and a new session is opened under a new incarnation id.

Not covered: a process frozen between its look at the trust deadline and the send (protocol of effects: the
epoch and key travel with the call).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from outlast import clock, probes, telemetry
from outlast.core import ids, values
from outlast.engine.settings import WorkerSettings
from outlast.errors import StoreUnavailable
from outlast.store.contract import Store
from outlast.store.records import SessionRenewal


class Session:
    """Keep one worker's session alive."""

    def __init__(self, store: Store, settings: WorkerSettings, on_lost: Callable[[str], None]) -> None:
        self._store = store
        self._settings = settings
        self._on_lost = on_lost
        self.id = clock.new_id(ids.SESSION)
        # What it says of itself, for those who look at workers.
        self.serves: dict[str, Any] = {}
        self.trusted_until = float("-inf")
        self._offset_us = self._ahead_us = 0
        self._anchor = clock.monotonic()
        self._renewed = asyncio.Event()

    async def trust(self) -> None:
        """Wait until this session can be trusted; at once if it can be now."""
        while not self.trusted():
            self._renewed.clear()
            await self._renewed.wait()

    def trusted(self) -> bool:
        """Answer whether calls may be sent under this session now."""
        return clock.monotonic() < self.trusted_until

    def database_now(self) -> int:
        """Estimate the database's clock in microseconds; for waits in memory, never for what is stored."""
        return self._offset_us + int((clock.monotonic() - self._anchor) * 1_000_000)

    def saw_now(self, now: int) -> None:
        """Take note of the database's clock as a verb answered it."""
        self._offset_us, self._anchor = now, clock.monotonic()

    async def renew(self) -> bool:
        """Renew once. Answers whether the session is known to be alive; a dead one has been replaced by a new
        one, once, however many renewals of it were under way.

        Raises StoreUnavailable.
        """
        session, sent, sent_at = self.id, clock.monotonic(), clock.unix_us()
        probes.reach("session.before_renew")
        renewed = await self._store.renew(
            SessionRenewal(
                session=session,
                name=self._settings.name,
                ttl_us=int(self._settings.lease_s * 1_000_000),
                serves=values.encode({**self.serves, "ahead_us": self._ahead_us}),
            )
        )
        self._ahead_us = clock.ahead_us(sent_at, renewed.now, clock.unix_us())
        self.saw_now(renewed.now)
        if self.id != session:
            # Another renewal was told first that it is gone: of the one since then this answer says nothing.
            return False
        if renewed.alive:
            self.trusted_until = sent + self._settings.lease_s
            self._renewed.set()
            return True
        self.id = clock.new_id(ids.SESSION)
        self.trusted_until = float("-inf")
        self._on_lost(session)
        return False

    async def open(self) -> None:
        """Open the session, waiting for the store as long as it takes."""
        while True:
            try:
                if await self.renew():
                    return
            except StoreUnavailable as error:
                telemetry.emit(telemetry.StoreAway(duty="renew", detail=str(error)))
                await asyncio.sleep(min(1.0, self._settings.renewal_s))

    async def keep(self) -> None:
        """Renew for ever; end by cancelling."""
        away = False
        while True:
            try:
                alive = await self.renew()
                if away:
                    telemetry.emit(telemetry.StoreBack(duty="renew"))
                away = False
                pause = self._settings.renewal_s if alive else 0.0
            except StoreUnavailable as error:
                telemetry.emit(telemetry.StoreAway(duty="renew", detail=str(error)))
                away = True
                pause = min(1.0, self._settings.renewal_s / 2)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """End the session in the store, where it can be reached; otherwise the sweeper will."""
        self.trusted_until = float("-inf")
        try:
            await self._store.retire(self.id)
        except StoreUnavailable as error:
            telemetry.emit(telemetry.StoreAway(duty="retire", detail=str(error)))
