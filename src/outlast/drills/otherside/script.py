"""A plain script in a scope: ``python -m outlast.drills.otherside.script '{"scope": …, "tool": …}'``.

It enters, files a ticket, stays if it is told to, and says each thing that happens.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from outlast.drills.otherside.agents import FOLDER, SHORT, TICKETS_URL, build
from outlast.drills.serving import leave_with_parent, say
from outlast.errors import OutlastError
from outlast.settings import Settings
from outlast.testing.probes import install_from_env


async def _main(given: dict[str, Any]) -> None:
    stay = asyncio.Event()
    leave_with_parent(lambda _: stay.set())
    async with build(Settings().database_url, os.environ[TICKETS_URL], Path(os.environ[FOLDER])) as app:
        say("ready")
        try:
            async with app.ledger(given["scope"], timeout=given.get("timeout", 30), settings=SHORT) as ledger:
                say("entered")
                ticket = await ledger.call(given["tool"], given["invoice"], key="file")
                say("filed", ticket=ticket["id"])
                if given.get("stays"):
                    await stay.wait()
        except OutlastError as error:
            say("refused", code=error.code)


if __name__ == "__main__":
    install_from_env()
    asyncio.run(_main(json.loads(sys.argv[1])))
