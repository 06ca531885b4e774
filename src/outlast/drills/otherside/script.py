"""A plain script in a scope: ``python -m outlast.drills.otherside.script '{"scope": …, "tool": …}'``.

It enters, files a ticket, stays if it is told to, and says each thing that happens.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Final

from outlast.app import Outlast
from outlast.core.approval import Answer, Ask
from outlast.drills.serving import leave_with_parent, say
from outlast.engine.settings import WorkerSettings
from outlast.errors import OutlastError
from outlast.settings import Settings
from outlast.testing.probes import install_from_env
from outlast.tools.call import ToolCall

__all__ = ["AMOUNT", "SHORT", "TICKETS_URL", "build"]

TICKETS_URL: Final = "OUTLAST_DRILL_TICKETS_URL"
AMOUNT: Final = "118.50"
SHORT: Final = WorkerSettings(name="script", lease_s=3.0, poll_s=0.1, sweep_s=0.2, grace_s=2.0)
_TIMEOUT_S: Final = 20.0


def build(database_url: str, tickets: str) -> Outlast:
    """Make an app that has tools and no agent."""
    app = Outlast("drill", database_url=database_url)

    async def find(call: ToolCall, invoice: str) -> Any:
        found = await call.http.get(f"{tickets}/tickets", params={"invoice": invoice}, changes=False)
        return found.json()[0] if found.json() else None

    async def file(call: ToolCall, invoice: str, amount: str = AMOUNT) -> Any:
        """File a ticket."""
        reply = await call.http.post(f"{tickets}/tickets", json={"invoice": invoice, "amount": amount})
        return reply.json()

    def ask(amount: str) -> Answer:
        return Ask(f"it is {amount}")

    app.tool(name="manual", effect="manual", timeout=_TIMEOUT_S)(file)
    app.tool(name="queryable", effect="queryable", find=find, timeout=_TIMEOUT_S)(file)
    app.tool(name="asked", effect="manual", approval=ask, timeout=_TIMEOUT_S)(file)
    return app


async def _main(given: dict[str, Any]) -> None:
    stay = asyncio.Event()
    leave_with_parent(lambda _: stay.set())
    async with build(Settings().database_url, os.environ[TICKETS_URL]) as app:
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
