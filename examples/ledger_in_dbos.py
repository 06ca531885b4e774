"""A DBOS step whose call to the outside happens once, also where the step runs again.

DBOS remembers what a step returned; a step that dies between its call and that record runs again, and would
call again. Inside a scope of Outlast's ledger the second run asks what became of the first one's call.

Run it with ``OUTLAST_DATABASE_URL``, ``DBOS_SYSTEM_DATABASE_URL`` and ``TICKETS_URL`` set.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from dbos import DBOS, DBOSConfig, SetWorkflowID

from outlast import Outlast, ToolCall

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


@DBOS.step(retries_allowed=True, max_attempts=5)
async def file_ticket(invoice: str, amount: str) -> dict[str, Any]:
    """File the ticket of an invoice.

    The scope is what DBOS runs: the same one when it runs this again, another one for another invoice. What
    is not over (``CallPending``) is an error to DBOS, which tries the step again; nothing is sent twice.
    """
    async with app.ledger(f"dbos/{DBOS.workflow_id}/file_ticket", final=True) as ledger:
        ticket: dict[str, Any] = await ledger.call(create_ticket, invoice, amount, key="file")
        return ticket


@DBOS.workflow()
async def reimburse(invoice: str, amount: str) -> str:
    """Reimburse an invoice."""
    ticket = await file_ticket(invoice, amount)
    return str(ticket["id"])


async def main() -> None:
    """Reimburse one invoice, under an id of its own."""
    config: DBOSConfig = {
        "name": "reimbursements",
        "system_database_url": os.environ["DBOS_SYSTEM_DATABASE_URL"],
    }
    DBOS(config=config)
    DBOS.launch()
    try:
        # Migrating here is for a first try; in production run "outlast migrate" once.
        await app.open(migrate=True)
        async with app:
            with SetWorkflowID("reimburse-INV-102"):
                print(await reimburse("INV-102", "118.50"))
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main())
