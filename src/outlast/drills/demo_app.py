"""The worked example as an app: an agent files a ticket for an invoice that is over its limit."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any, Literal

from outlast.app import Outlast
from outlast.core.approval import Allow, Answer, Ask
from outlast.core.durations import Duration
from outlast.engine.context import TaskContext
from outlast.engine.declaring import ToolOptions
from outlast.engine.settings import WorkerSettings
from outlast.tools.call import ToolCall

__all__ = [
    "AMOUNT",
    "ASKS",
    "ATTACHES",
    "CALM",
    "EFFECT",
    "LEASE_S",
    "TICKETS_URL",
    "TIMEOUT",
    "TIMEOUT_S",
    "WANTED",
    "DemoEffect",
    "build",
    "demo_settings",
]

DemoEffect = Literal["keyed", "queryable", "manual"]
"""What the tool is declared as: the service honours keys; can be asked by invoice; neither."""

AMOUNT = Decimal("118.50")
LIMIT = Decimal("80.00")

TICKETS_URL = "OUTLAST_DEMO_TICKETS_URL"
"""The variable that tells the demo's processes where the ticket service is."""
EFFECT = "OUTLAST_DEMO_EFFECT"
"""The variable that tells the demo's processes what kind of service that is."""
TIMEOUT = "OUTLAST_DEMO_TIMEOUT_S"
"""The variable that tells a worker of the demo how many seconds one call may take."""
ASKS = "OUTLAST_DEMO_ASKS"
"""The variable that puts a supervisor before whatever is over the limit."""
ATTACHES = "OUTLAST_DEMO_ATTACHES"
"""The variable that lets the agent of a worker attach the invoice to its ticket, and undo when that fails."""
WANTED = "OUTLAST_DEMO_WANTED"
"""The variable that lets the agent of a worker want another amount than the invoice says."""
CALM = "OUTLAST_DEMO_CALM"
"""The variable that keeps a worker of the demo from writing anything but its task."""
TIMEOUT_S = 10.0
"""How long a call may take where the variable does not say so."""
VISIBLE_S = 0.5
"""How long after its deadline a ticket may take to be found, where it is looked up by invoice."""
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


def supervised(invoice: str, amount: Decimal) -> Answer:
    """Ask the supervisor about what is over the limit."""
    return Ask(f"{invoice}, {amount}, over by {amount - LIMIT}") if amount > LIMIT else Allow()


def build(
    database_url: str,
    tickets_url: str,
    *,
    timeout: Duration = TIMEOUT_S,
    effect: DemoEffect = "keyed",
    asks: bool = False,
    wanted: str | None = None,
    attaches: bool = False,
) -> Outlast:
    """Make the app.

    timeout: of one call to the ticket service. effect: what its tool is declared as. asks: whether a
    supervisor is asked about what is over the limit. wanted: the amount that the agent wants, by default the
    invoice's. attaches: whether it attaches the invoice to the ticket as well, and undoes what it has done
    when it fails.
    """
    app = Outlast("reimbursements", database_url=database_url)

    async def find_by_key(call: ToolCall) -> list[dict[str, Any]]:
        """Evidence for an unknown outcome: the ticket made under this key."""
        asked = {"idempotency_key": call.idempotency_key}
        found: list[dict[str, Any]] = (await call.http.get(f"{tickets_url}/tickets", params=asked)).json()
        return found

    async def find_by_invoice(call: ToolCall, invoice: str) -> list[dict[str, Any]]:
        """Evidence for an unknown outcome: the tickets that there are for this invoice."""
        asked = {"invoice": invoice}
        found: list[dict[str, Any]] = (await call.http.get(f"{tickets_url}/tickets", params=asked)).json()
        return found

    declared: dict[DemoEffect, ToolOptions] = {
        "keyed": {"effect": "keyed", "timeout": timeout, "key_window": "24h", "find": find_by_key},
        "queryable": {
            "effect": "queryable",
            "timeout": timeout,
            "find": find_by_invoice,
            "visible_within": VISIBLE_S,
        },
        "manual": {"effect": "manual", "timeout": timeout},
    }

    options = declared[effect]
    options["undo"] = "withdraw_ticket"
    if asks:
        options["approval"] = supervised

    @app.tool(**options)
    async def create_ticket(call: ToolCall, invoice: str, amount: Decimal) -> dict[str, Any]:
        """File the ticket; ``call.http`` sends the key, the epoch and the deadline."""
        reply = await call.http.post(
            f"{tickets_url}/tickets", json={"invoice": invoice, "amount": str(amount)}
        )
        ticket: dict[str, Any] = reply.json()
        return ticket

    async def find_withdrawn(call: ToolCall, result: dict[str, Any]) -> dict[str, Any] | None:
        """Evidence for an unknown withdrawal: the ticket, once it is not open any more."""
        found: dict[str, Any] = (await call.http.get(f"{tickets_url}/tickets/{result['id']}")).json()
        return found if found["state"] == "withdrawn" else None

    @app.tool(effect="keyed", timeout=timeout, key_window="24h", find=find_withdrawn)
    async def withdraw_ticket(call: ToolCall, result: dict[str, Any]) -> dict[str, Any]:
        """Take a ticket back; what ``create_ticket`` has answered comes as ``result``."""
        ticket: dict[str, Any] = (
            await call.http.post(f"{tickets_url}/tickets/{result['id']}/withdraw")
        ).json()
        return ticket

    @app.tool(effect="idempotent", timeout=timeout)
    async def attach_invoice(call: ToolCall, ticket: str, invoice: str) -> str:
        """Attach the invoice to the ticket."""
        reply = await call.http.put(f"{tickets_url}/tickets/{ticket}/note", json={"text": invoice})
        return str(reply.json()["id"])

    @app.agent(version="1", on_failure="undo" if attaches else None)
    async def reimburse(task: TaskContext, invoice: str) -> dict[str, Any]:
        """Read the invoice, file a ticket for it, tell the employee."""
        facts = await task.step(read_invoice, invoice)
        await task.emit("progress", {"text": f"{invoice}: {facts['amount']}, over by {facts['over_by']}"})
        ticket = await task.call(create_ticket, invoice=invoice, amount=wanted or facts["amount"])
        if attaches:
            await task.call(attach_invoice, ticket=ticket["id"], invoice=invoice)
        await task.emit("progress", {"text": f"{ticket['id']} filed, awaiting your supervisor"})
        return {"ticket": ticket["id"], "amount": ticket["amount"]}

    return app
