"""A service that stops: whoever waits inside a request is told at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class Stopping(Exception):
    """The service is stopping; what was waited for may still come."""


class Closing:
    """Wakes every wait that goes through ``unless_closed`` when the service begins to stop."""

    def __init__(self) -> None:
        self._begun = False
        self._limits: set[asyncio.Timeout] = set()

    @property
    def begun(self) -> bool:
        """Whether the service is stopping."""
        return self._begun

    def begin(self) -> None:
        """Wake all who wait. Idempotent."""
        self._begun = True
        now = asyncio.get_running_loop().time()
        for limit in list(self._limits):
            # A second call may find those that the first has ended, and that are not yet woken.
            if not limit.expired():
                limit.reschedule(now)

    async def unless_closed(self, waited: Awaitable[T]) -> T:
        """Wait for something. Raises Stopping when the service stops first; the wait is cancelled."""
        limit = asyncio.timeout(0 if self._begun else None)
        try:
            async with limit:
                self._limits.add(limit)
                try:
                    return await waited
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            if limit.expired():
                raise Stopping from None
            raise
