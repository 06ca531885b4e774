"""What an idle worker offers to those who submit in its process: to claim in their transaction.

Purpose: a task that is accepted where a worker waits for one is claimed with it. The worker need not be told,
and asks no second time. Temporal knows the same as eager start.

Identity: an offer is one claim of one worker; it is taken once or withdrawn.

State: open, then taken or withdrawn; taken, then answered.

What is fenced: as in every claim. Whoever takes an offer owes its answer: an answer that is lost leaves the
claim in doubt, and its worker reconciles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from outlast.errors import StoreUnavailable
from outlast.store.records import ANY_VERSION, ClaimReply, ClaimRequest, Submission


class Offer:
    """A claim that waits for something to claim."""

    def __init__(self, request: ClaimRequest, answered: Callable[[], None]) -> None:
        """Make an offer. answered: called once it has been answered."""
        self.request = request
        self.loop = asyncio.get_running_loop()
        self._answered = answered
        self._reply: asyncio.Future[ClaimReply | None] = self.loop.create_future()

    def answer(self, reply: ClaimReply | None) -> None:
        """Answer it; None: nothing was done."""
        # A worker that was cancelled waits no more.
        if not self._reply.done():
            self._reply.set_result(reply)
            self._answered()

    def lose(self, why: BaseException) -> None:
        """Say that nobody knows what became of it."""
        if not self._reply.done():
            self._reply.set_exception(StoreUnavailable(f"a claim that went along with a submit: {why}"))
            self._answered()

    async def reply(self) -> ClaimReply | None:
        """Wait for what an offer that was taken is answered. Raises StoreUnavailable."""
        return await self._reply

    def serves(self, batch: Sequence[Submission]) -> bool:
        """Say whether it would take any of these."""
        served = self.request
        return any(
            one.pool in served.pools
            and any(
                one.agent == serve.agent
                and (serve.default if one.version == ANY_VERSION else one.version == serve.version)
                for serve in served.serves
            )
            for one in batch
        )


class Offers:
    """The open offers of a process."""

    def __init__(self) -> None:
        self._open: list[Offer] = []

    def make(self, offer: Offer) -> None:
        """Let an offer stand until it is taken or withdrawn."""
        self._open.append(offer)

    def take(self, batch: Sequence[Submission]) -> Offer | None:
        """Take an offer for a batch that is about to be submitted; None where none serves it."""
        for offer in self._open:
            if offer.serves(batch) and offer.loop is asyncio.get_running_loop():
                self._open.remove(offer)
                return offer
        return None

    def withdraw(self, offer: Offer) -> bool:
        """Take an offer back; answer False where somebody has taken it, who will answer it."""
        try:
            self._open.remove(offer)
        except ValueError:
            return False
        return True
