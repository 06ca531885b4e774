"""Submit the demo's task once, when told to: ``python -m outlast.drills.demo_client KEY POOL INVOICE``.

It connects, says ``ready``, waits for a line on its standard input, submits, and says ``submitted`` with the
task's id and whether it was somebody else's already.
"""

from __future__ import annotations

import asyncio
import os
import sys

from outlast.drills.demo_app import TICKETS_URL, build
from outlast.drills.serving import leave_with_parent, say
from outlast.settings import Settings


async def _submit(key: str, pool: str, invoice: str) -> None:
    told = asyncio.Event()
    leave_with_parent(lambda _: told.set())
    async with build(Settings().database_url, os.environ[TICKETS_URL]) as app:
        say("ready")
        await told.wait()
        handle = await app.submit("reimburse", {"invoice": invoice}, key=key, pool=pool)
        say("submitted", task=handle.id, replayed=handle.replayed)


if __name__ == "__main__":
    asyncio.run(_submit(*sys.argv[1:]))
