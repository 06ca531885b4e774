"""Hearing: what is posted for tasks that run here is told to their runs.

Purpose: a signal, a decision, a child's end, a settlement or a cancel reaches a running task in milliseconds,
by one question for all tasks of the process, whatever their number.

Identity: a lease's news is the number of the task's facts; what was heard is told to the store together with
the next question, by compare-and-set, so that a post in between is not lost.

Failure by failure: a hint is lost: the next look comes a second later, and only while something runs. The
store is away: what was heard is told when it answers again. A task is claimed and has not begun: its news is
left for the next look.

Not covered: how long the store takes to answer.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from outlast import telemetry
from outlast.engine.run import Run
from outlast.engine.session import Session
from outlast.errors import StoreUnavailable
from outlast.store.contract import Store
from outlast.store.posting import Heard, News

POLL_S: Final = 1.0
"""The safety net where no hint comes."""
SOON_S: Final = 0.05
"""When to look again after news of a task that has not begun here."""


class Host(Protocol):
    """What hearing needs of the worker."""

    session: Session
    store: Store
    busy: asyncio.Event
    """Set while something runs."""

    def run_of(self, tenant: str, task: str) -> Run | None:
        """Answer the run of a task in this process."""
        ...


class Hearing:
    """Ask for news, and tell the runs."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._heard: dict[tuple[str, str], int] = {}

    async def keep(self) -> None:
        """Listen for ever; end by cancelling."""
        poll_s = POLL_S
        while True:
            await self._host.busy.wait()
            await self._host.store.wakes.wait("facts", poll_s)
            try:
                poll_s = SOON_S if await self.once() else POLL_S
            except StoreUnavailable as error:
                telemetry.emit(telemetry.StoreAway(duty="hear", detail=str(error)))
                poll_s = SOON_S
                await asyncio.sleep(0.25)

    async def once(self) -> bool:
        """Ask once; answer whether there is news for a task that has not begun here. Raises
        StoreUnavailable."""
        heard, self._heard = self._heard, {}
        told = [
            Heard(tenant=tenant, task=task, facts=facts) for (tenant, task), facts in sorted(heard.items())
        ]
        try:
            news = await self._host.store.news(self._host.session.id, told)
        except StoreUnavailable:
            self._heard = {**heard, **self._heard}
            raise
        results = await asyncio.gather(*(self._tell(one) for one in news), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return False in results

    async def _tell(self, news: News) -> bool:
        run = self._host.run_of(news.tenant, news.task)
        if run is None:
            return False
        await run.hear(news)
        self._heard[news.tenant, news.task] = news.facts
        return True
