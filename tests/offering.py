"""An app that tells when a worker of its process offers to claim."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from outlast import Outlast
from outlast.engine.offers import Offer, Offers
from outlast.store.contract import Store
from outlast.store.records import ClaimReply, ClaimRequest, Submission

PATIENCE_S = 20.0


class Watched:
    """A store that notes what is submitted and claimed, and may do it in a way of its own.

    nothing: whether the last claim found nothing, so that the next offer stands for long.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.verbs: list[str] = []
        self.nothing = False
        self.along: Callable[[Callable[[], Any]], Any] = lambda work: work()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, batch: Sequence[Submission], **more: Any) -> Any:
        self.verbs.append(f"submit {len(batch)}")
        return await self._store.submit(batch, **more)

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        reply = await self._store.claim(request)
        self.nothing = not reply.claims
        if reply.claims:
            self.verbs.append(f"claim {len(reply.claims)}")
        return reply

    async def reconcile(self, *arguments: Any, **more: Any) -> Any:
        self.verbs.append("reconcile")
        return await self._store.reconcile(*arguments, **more)

    async def submit_and_claim(self, batch: Sequence[Submission], request: ClaimRequest) -> Any:
        self.verbs.append(f"submit {len(batch)} and claim")
        self.nothing = False
        return await self.along(lambda: self._store.submit_and_claim(batch, request))


class Told(Offers):
    """Offers that tell when there is one. store: who notes what is claimed."""

    def __init__(self, store: Watched) -> None:
        super().__init__()
        self._store = store
        self._made = asyncio.Event()

    def make(self, offer: Offer) -> None:
        super().make(offer)
        self._made.set()

    async def wait(self) -> None:
        """Wait until there is one that stands for long, since there was nothing to claim before."""
        async with asyncio.timeout(PATIENCE_S):
            while not (self._open and self._store.nothing):
                self._made.clear()
                await self._made.wait()


def tell(app: Outlast) -> None:
    """Have an app that is not open yet tell, whose store is watched."""
    assert isinstance(app.store, Watched)
    app._offers = Told(app.store)


def told_of(app: Outlast) -> Told:
    """Answer what tells."""
    assert isinstance(app._offers, Told)
    return app._offers
