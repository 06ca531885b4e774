"""Submit beside a worker of the same process: ``python -m tests.crashes.beside KEY POOL INVOICE``.

A first task is submitted and done, so that the second one, which has the key, is claimed in the transaction
that accepts it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from tests.crashes.app import TICKETS_URL, build
from tests.crashes.worker import QUICK
from tests.offering import Watched, tell, told_of

from outlast import WorkerSettings
from outlast.drills.serving import leave_with_parent
from outlast.opening import store_for
from outlast.settings import Settings
from outlast.testing.probes import install_from_env

IDLE_S = 60.0


async def _submit(key: str, pool: str, invoice: str) -> None:
    leave_with_parent()
    store: Any = Watched(store_for(Settings().database_url))
    app = build("", os.environ[TICKETS_URL], store)
    tell(app)
    async with app:
        worker = app.worker(WorkerSettings(**{**QUICK, "poll_s": IDLE_S, "pools": (pool,)}))
        running = asyncio.create_task(worker.run())
        first = await app.submit("journey", {"invoice": f"{invoice}-first"}, key=f"{key}-first", pool=pool)
        await first.result(timeout=IDLE_S)
        await told_of(app).wait()
        await app.submit("journey", {"invoice": invoice}, key=key, pool=pool)
        await running


if __name__ == "__main__":
    install_from_env()
    asyncio.run(_submit(*sys.argv[1:]))
