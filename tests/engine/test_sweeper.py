"""When the sweeper looks, and when it lets others speak first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast.engine.housekeeping import sweeper
from outlast.engine.settings import WorkerSettings
from outlast.errors import StoreUnavailable
from outlast.store.records import SweepRequest, Swept
from outlast.store.rows import Health

SETTINGS = WorkerSettings(lease_s=9.0, renew_s=2.5, sweep_s=0.75)


class Script:
    """A store of which only sweeping and health are asked, with answers that are told beforehand."""

    def __init__(self, *answers: Swept | bool | None) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def sweep(self, request: SweepRequest, *, now: int | None = None) -> Swept:
        self.asked.append("sweep")
        answer = self._next()
        if answer is None:
            raise StoreUnavailable("away")
        assert isinstance(answer, Swept)
        return answer

    async def health(self) -> Health:
        self.asked.append("health")
        return Health(reachable=bool(self._next()))

    def _next(self) -> Any:
        if not self._answers:
            raise asyncio.CancelledError
        return self._answers.pop(0)


async def pauses_of(script: Script, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the sweeper go through the script; answer how long it paused after each look."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(sweeper.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await sweeper.keep_sweeping(script, SETTINGS)  # type: ignore[arg-type]
    return pauses


async def test_after_an_outage_live_workers_may_renew_before_anybody_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script(Swept(), None, False, True, Swept())
    pauses = await pauses_of(script, monkeypatch)
    assert script.asked == ["sweep", "sweep", "health", "health", "sweep", "sweep"]
    # The pause before the first sweep after the outage is longer than one renewal of a live worker.
    assert pauses == [0.75, 0.75, 0.75, 0.75 + 2.5, 0.75]


async def test_a_timer_that_is_due_soon_is_looked_at_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(
        Swept(next_due_us=300_000), Swept(next_due_us=1), Swept(next_due_us=5_000_000), Swept(more=True)
    )
    assert await pauses_of(script, monkeypatch) == [0.3, 0.01, 0.75, 0.0]
