"""How long tool calls may take: one timer for all calls of a worker.

Purpose: a call that takes too long is cancelled, and told so by ``TimeoutError``, as ``asyncio.timeout`` does
it. Calls are many and nearly all end in time; a timer of its own for each would cost more than they do.

State: the open limits, and a timer for the earliest that was known when it was set. It may ring for a limit
that is over; then it is set anew for what is open.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any


class Limit:
    """A bound of the time of what is awaited in a ``with`` block; raises TimeoutError when it is over."""

    __slots__ = ("_cancelling", "_limits", "_seconds", "_task", "due", "expired")

    def __init__(self, limits: Limits, seconds: float) -> None:
        self._limits = limits
        self._seconds = seconds
        self.expired = False

    def __enter__(self) -> Limit:
        task = asyncio.current_task(self._limits.loop())
        assert task is not None, "only what an asyncio task awaits can be cut short"
        self._task: asyncio.Task[Any] = task
        self._cancelling = task.cancelling()
        self.due = self._limits.open(self, self._seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limits.drop(self)
        # A cancellation by somebody else goes on, though the time may be over as well.
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """Cancel what is awaited: its time is over."""
        self.expired = True
        self._task.cancel()


class Limits:
    """The limits of one event loop."""

    def __init__(self) -> None:
        # A dict, since a set has no order, and a simulation needs one.
        self._open: dict[Limit, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """Answer the loop whose calls these limits bound: the one that asks first."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def within(self, seconds: float) -> Limit:
        """Answer a limit, for a ``with`` block that may take so many seconds."""
        return Limit(self, seconds)

    def open(self, limit: Limit, seconds: float) -> float:
        """Count a limit from now on; answer when it is over, by the loop's clock."""
        loop = self.loop()
        due = loop.time() + seconds
        self._open[limit] = None
        if self._timer is None or due < self._timer.when():
            self._set(loop, due)
        return due

    def drop(self, limit: Limit) -> None:
        """Count a limit no longer."""
        self._open.pop(limit, None)

    def close(self) -> None:
        """Let no timer stay behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.close()
        self._timer = loop.call_at(due, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for limit in [limit for limit in self._open if limit.due <= now]:
            del self._open[limit]
            limit.expire()
        if self._open:
            self._set(loop, min(limit.due for limit in self._open))
