"""One attempt at a scope of the ledger alone, and how long its calls wait.

Purpose: what an attempt's code does not see of a block: it ends when the block is left, not when nothing but
waits is open, and a call that has to wait is told to whoever made it. See ``outlast.engine.alone``.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from outlast import clock
from outlast.core.transitions import WAITING_REASONS
from outlast.engine import endings, mismatch
from outlast.engine.host import Host
from outlast.engine.registry import AgentSpec
from outlast.engine.run import Run, Wait
from outlast.engine.wording import event
from outlast.store.entries import EndAttempt, NewEvent
from outlast.store.records import Claimed, Loaded

BRIEF_S: Final = 60.0
"""A pause that is over by itself within this is waited for."""
SOON_S: Final = 1.0
"""A wait that is over by itself within this is waited for, whatever it is for."""


class Scoped(Run):
    """An attempt at a scope: it ends when its block is left, not when nothing but waits is open."""

    again = False
    """Whether what failed and may be tried again is to be opened again."""
    _stirring: asyncio.Future[None] | None = None

    def __init__(self, host: Host, claimed: Claimed, loaded: Loaded, spec: AgentSpec) -> None:
        super().__init__(host, claimed, loaded, spec)
        self.owed: dict[str, str] = {}
        """What calls that were given up wait for."""

    def quiet(self) -> None:
        """Stay: the block knows when to leave."""

    def begin_wait(self, key: str, wait: Wait) -> None:
        """Note that an operation does nothing but wait, and tell whoever made it."""
        super().begin_wait(key, wait)
        self._stir()

    def end_wait(self, key: str) -> None:
        """Note that a wait is over."""
        super().end_wait(key)
        self._stir()

    def stirring(self) -> asyncio.Future[None]:
        """Answer what is done as soon as any operation begins or ends to wait."""
        if self._stirring is None or self._stirring.done():
            self._stirring = asyncio.get_running_loop().create_future()
        return self._stirring

    def _stir(self) -> None:
        if self._stirring is not None and not self._stirring.done():
            self._stirring.set_result(None)

    def interrupt(self, kind: Any, detail: str = "") -> None:
        """Seal the run for a reason. That the ledger has moved on is none: whoever called looks again, under
        the same lease."""
        if kind != "outpaced":
            super().interrupt(kind, detail)

    def leave(self, *, again: bool) -> None:
        """End the attempt, and let the scope wait until it is entered again."""
        self.again = again
        self.interrupt("drained", "the block was left")

    async def after_interruption(self) -> EndAttempt:
        if self.interruption in ("cancelled", "expired"):
            return await super().after_interruption()
        events: tuple[NewEvent, ...] = ()
        if self.interruption == "unstorable":
            events = (event("log", level="error", message=self.detail),)
        owed = {*self.owed.values()} - {"timer"}
        if self.interruption == "mismatched":
            owed, events = {"operator"}, (mismatch.noted(self.detail),)
        return EndAttempt(
            attempt_end="suspended",
            task_state="waiting",
            reason=next((name for name in WAITING_REASONS if name in owed), "signal"),
            facts=self.facts,
            reopen=endings.to_be_reopened(self) if self.again else (),
            events=events,
        )


class Patience:
    """How long one call waits for what holds it back, by reasons; each counts from its first time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[str, float] = {}

    def left(self, wait: Wait) -> float:
        """Answer how many seconds more, 0 or less for none."""
        now = clock.monotonic()
        own = self._seconds - (now - self._since.setdefault(wait.reason, now))
        if wait.due is not None and wait.due - now <= SOON_S:
            return max(own, SOON_S)
        if wait.reason not in ("timer", "limit"):
            return own
        brief = BRIEF_S - (now - self._since[wait.reason]) if wait.reason == "limit" else BRIEF_S
        left = max(own, brief)
        # There is no use in waiting for a part of it.
        return 0.0 if wait.due is not None and wait.due - now > left else left
