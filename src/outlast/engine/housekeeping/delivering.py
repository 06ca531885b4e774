"""The delivery: what ends of tasks and of switches have left for other tasks is brought to them.

Purpose: a child's end reaches its parent, a parent's end its children, and the end of a switch those whose
calls it held back, apart from the transaction that caused it, so that no batch locks the heads of two
families, and taking a switch back costs the same however many it held.

Failure by failure: whoever delivers dies: its transaction is undone, and another delivers. A hint is lost:
the next look comes a few seconds later. The store is away: what was left is delivered when it answers again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from outlast import probes, telemetry
from outlast.engine.settings import WorkerSettings
from outlast.errors import StoreUnavailable
from outlast.store.contract import Store

BATCH: Final = 500
SWEEPS: Final = 2
"""It looks every second time that the sweeper does, where no hint comes."""


async def deliver_once(store: Store) -> bool:
    """Deliver a batch; answer whether there is more. Raises StoreUnavailable."""
    probes.reach("deliver.before")
    delivered = await store.deliver(BATCH)
    if delivered.told or delivered.cancelled:
        probes.reach("deliver.after")
    return delivered.more


async def keep_delivering(store: Store, settings: WorkerSettings) -> None:
    """Deliver for ever; end by cancelling."""
    # Whatever lies there from before is delivered first.
    more = True
    while True:
        if not more:
            await store.wakes.wait("posts", SWEEPS * settings.sweep_s)
        try:
            more = await deliver_once(store)
        except StoreUnavailable as error:
            telemetry.emit(telemetry.StoreAway(duty="deliver", detail=str(error)))
            more = False
            await asyncio.sleep(0.25)
