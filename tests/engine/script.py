"""A plain script in a process of its own: ``python -m tests.engine.script '{"scope": …, "tool": …}'``.

It enters a scope, files a ticket, and says each thing that happens; OUTLAST_PROBE says where it dies or
freezes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from outlast import Outlast, ToolCall, WorkerSettings
from outlast.core.retry import Backoff
from outlast.drills.serving import leave_with_parent, say
from outlast.errors import OutlastError
from outlast.store.contract import Store
from outlast.store.sqlite import SqliteStore
from outlast.testing.probes import install_from_env

TICKETS_URL = "TESTS_TICKETS_URL"
QUICK = WorkerSettings(name="script", lease_s=1.0, poll_s=0.05, sweep_s=0.05, grace_s=2.0)
SOON = Backoff(base_s=0.02, max_s=0.16, jitter_s=0, attempts=6)


def build(tickets_url: str, url: str | None = None, store: Store | None = None) -> Outlast:
    """Make an app with a tool of each effect class, and no agent."""
    app = Outlast("scripts", database_url=url, store=store)

    async def find(call: ToolCall) -> Any:
        found = await call.http.get(
            f"{tickets_url}/tickets", params={"idempotency_key": call.idempotency_key}, changes=False
        )
        return found.json()[0] if found.json() else None

    async def file(call: ToolCall, invoice: str, amount: str = "118.50") -> dict[str, Any]:
        reply = await call.http.post(f"{tickets_url}/tickets", json={"invoice": invoice, "amount": amount})
        answer: dict[str, Any] = reply.json()
        return answer

    common: dict[str, Any] = {"timeout": 5.0, "retry": SOON}
    app.tool(name="keyed", effect="keyed", key_window="24h", find=find, **common)(file)
    app.tool(name="manual", effect="manual", **common)(file)
    app.tool(name="queryable", effect="queryable", find=find, visible_within="1s", **common)(file)
    return app


async def main(given: dict[str, Any]) -> None:
    """Enter, call, leave; say what happens."""
    leave_with_parent()
    url = os.environ["OUTLAST_DATABASE_URL"]
    # No thread of its own for transactions: the process never freezes inside one.
    store = SqliteStore(url, executor="inline") if url.startswith("sqlite:") else None
    go = asyncio.Event()
    async with build(os.environ[TICKETS_URL], url, store) as app:
        try:
            ledger = app.ledger(given["scope"], timeout=given.get("timeout", 20), settings=QUICK)
            async with ledger:
                say("entered", task=ledger.id)
                if given.get("freezes"):
                    signal.raise_signal(signal.SIGSTOP)
                ticket = await ledger.call(given["tool"], given["invoice"], key="file")
                say("filed", ticket=ticket["id"])
                if given.get("stays"):
                    await go.wait()
        except OutlastError as error:
            say("refused", code=error.code, text=str(error))
        say("left")


if __name__ == "__main__":
    install_from_env()
    asyncio.run(main(json.loads(sys.argv[1])))
