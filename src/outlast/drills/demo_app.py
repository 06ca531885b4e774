"""The worked example as an app: an agent files a ticket for an invoice that is over its limit."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

from outlast.app import Outlast
from outlast.core.durations import Duration
from outlast.engine.context import TaskContext
from outlast.engine.settings import WorkerSettings
from outlast.tools.call import ToolCall

__all__ = ["AMOUNT", "CALM", "INVOICE", "LEASE_S", "TICKETS_URL", "TIMEOUT", "build", "demo_settings"]

INVOICE = "INV-102"
AMOUNT = Decimal("118.50")
LIMIT = Decimal("80.00")

TICKETS_URL = "OUTLAST_DEMO_TICKETS_URL"
"""The variable that tells the demo's processes where the ticket service is."""
TIMEOUT = "OUTLAST_DEMO_TIMEOUT_S"
"""The variable that tells a worker of the demo how many seconds one call may take."""
CALM = "OUTLAST_DEMO_CALM"
"""The variable that keeps a worker of the demo from writing anything but its task."""
LEASE_S = 1.5
"""A tenth of a worker's default, so that nobody waits long for a dead one's tasks to move on."""


def demo_settings(name: str, pool: str, *, calm: bool) -> WorkerSettings:
    """Answer a worker's settings with every time scaled down as the lease is.

    pool: each window has its own, so that what one leaves behind does not end up in the next. calm: without a
    sweeper, and with renewals as late as can be.
    """
    settings = WorkerSettings(
        name=name,
        pools=(pool,),
        slots=4,
        lease_s=LEASE_S,
        poll_s=0.1,
        sweep_s=0.1,
        linger_s=0.3,
        grace_s=2.0,
    )
    return dataclasses.replace(settings, sweep_s=60.0, renew_s=0.8 * LEASE_S) if calm else settings


async def read_invoice(invoice: str) -> dict[str, str]:
    """Look an invoice up; a step, so it is read once however many workers die."""
    return {"invoice": invoice, "amount": str(AMOUNT), "limit": str(LIMIT), "over_by": str(AMOUNT - LIMIT)}


def build(database_url: str, tickets_url: str, *, timeout: Duration = 10.0) -> Outlast:
    """Make the app. timeout: how long one call to the ticket service may take."""
    app = Outlast("reimbursements", database_url=database_url)

    async def find_ticket(call: ToolCall) -> dict[str, Any] | None:
        """Evidence for an unknown outcome: the ticket made under this key, or None."""
        found = await call.http.get(
            f"{tickets_url}/tickets", params={"idempotency_key": call.idempotency_key}
        )
        tickets: list[dict[str, Any]] = found.json()
        return tickets[0] if tickets else None

    @app.tool(effect="keyed", key_window="24h", find=find_ticket, timeout=timeout)
    async def create_ticket(call: ToolCall, invoice: str, amount: Decimal) -> dict[str, Any]:
        """File the ticket; ``call.http`` sends the key, the epoch and the deadline."""
        reply = await call.http.post(
            f"{tickets_url}/tickets", json={"invoice": invoice, "amount": str(amount)}
        )
        ticket: dict[str, Any] = reply.json()
        return ticket

    @app.agent(version="1")
    async def reimburse(task: TaskContext, invoice: str) -> dict[str, Any]:
        """Read the invoice, file a ticket for it, tell the employee."""
        facts = await task.step(read_invoice, invoice)
        await task.emit("progress", {"text": f"{invoice}: {facts['amount']}, over by {facts['over_by']}"})
        ticket = await task.call(create_ticket, invoice=invoice, amount=facts["amount"])
        await task.emit("progress", {"text": f"{ticket['id']} filed, awaiting your supervisor"})
        return {"ticket": ticket["id"], "amount": ticket["amount"]}

    return app
