"""A plain function, as Celery and its like run it: delivered at least once, its call happens once.

A broker delivers a message again when a worker dies before it has acknowledged it, so the function runs
again, and would call again. The scope is the message's own id, which is the same at every delivery.

With Celery: ``@celery.task(bind=True, acks_late=True, autoretry_for=(CallPending, Unavailable),
retry_backoff=True)`` above ``file_ticket``, which then takes ``self`` and uses ``self.request.id``.
Run it with ``OUTLAST_DATABASE_URL`` and ``TICKETS_URL`` set.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from outlast import Outlast, ToolCall


def outlast() -> Outlast:
    """Make the app: one for each run, since each ``asyncio.run`` has a loop of its own."""
    app = Outlast("reimbursements")

    async def find_ticket(call: ToolCall) -> Any:
        """Look a ticket up by the key under which it was sent."""
        found = await call.http.get(
            f"{os.environ['TICKETS_URL']}/tickets",
            params={"idempotency_key": call.idempotency_key},
            changes=False,
        )
        return found.json()[0] if found.json() else None

    @app.tool(effect="keyed", key_window="24h", find=find_ticket)
    async def create_ticket(call: ToolCall, invoice: str, amount: str) -> dict[str, Any]:
        """File a ticket."""
        reply = await call.http.post(
            f"{os.environ['TICKETS_URL']}/tickets", json={"invoice": invoice, "amount": amount}
        )
        ticket: dict[str, Any] = reply.json()
        return ticket

    return app


def file_ticket(message_id: str, invoice: str, amount: str) -> str:
    """File the ticket of an invoice; answer its id.

    Raises CallPending for a call that is not over: let the message come again, and it is looked at again.
    """
    return asyncio.run(_file_ticket(message_id, invoice, amount))


async def _file_ticket(message_id: str, invoice: str, amount: str) -> str:
    async with outlast() as app, app.ledger(f"celery/{message_id}", final=True) as ledger:
        ticket = await ledger.call("create_ticket", invoice, amount, key="file")
        return str(ticket["id"])


if __name__ == "__main__":
    # As if it were delivered twice.
    for _ in range(2):
        print(file_ticket("5d9c2a", "INV-102", "118.50"))
