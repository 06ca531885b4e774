"""Submit one task: ``python -m tests.crashes.client KEY POOL INVOICE``."""

from __future__ import annotations

import asyncio
import os
import sys

from tests.crashes.app import TICKETS_URL, build

from outlast.drills.serving import leave_with_parent, say
from outlast.settings import Settings
from outlast.testing.probes import install_from_env


async def _submit(key: str, pool: str, invoice: str) -> None:
    leave_with_parent()
    async with build(Settings().database_url, os.environ[TICKETS_URL]) as app:
        handle = await app.submit("journey", {"invoice": invoice}, key=key, pool=pool)
        say("submitted", task=handle.id, replayed=handle.replayed)


if __name__ == "__main__":
    install_from_env()
    asyncio.run(_submit(*sys.argv[1:]))
