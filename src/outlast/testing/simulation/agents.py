"""The small app that schedules run: a step, one keyed tool call with ``find``, a sleep that suspends."""

from __future__ import annotations

from typing import Any

from outlast.app import Outlast
from outlast.engine.context import TaskContext
from outlast.testing.simulation.world import current_world
from outlast.tools.call import ToolCall

__all__ = ["APP", "TOOL_TIMEOUT_S"]

TOOL_TIMEOUT_S = 5
APP = Outlast("simulation")
"""One registry for every world; bodies find their world by the context that they run in."""


async def find_ticket(call: ToolCall) -> dict[str, Any] | None:
    """Look a ticket up by the call's key."""
    return await current_world().service.find(call)


@APP.tool(effect="keyed", key_window="1h", find=find_ticket, timeout=TOOL_TIMEOUT_S)
async def create_ticket(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket for a refund."""
    return await current_world().service.create(call, {"invoice": invoice, "amount": amount})


def check_invoice(invoice: str) -> str:
    """Compute something that is not computed twice."""
    return invoice.upper()


@APP.agent(name="refund")
async def refund(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Refund an invoice: check it, make the ticket, wait a little, tell."""
    checked = await task.step(check_invoice, invoice)
    ticket = await task.call(create_ticket, invoice=checked, amount=amount)
    await task.sleep(2)
    return {"ticket": ticket["ticket"], "invoice": checked}
