"""The small app that schedules run: agents of several shapes, tools of several effect classes.

``refund`` is the plain one: a step, one keyed tool call with ``find``, a sleep that suspends. ``fan`` does
three side by side under three effect classes, ``transfer`` moves what only a person can settle, ``flaky``
fails and is run again, ``hurried`` has a deadline that may well pass. Each answers the tickets that it made.
"""

from __future__ import annotations

from typing import Any

from outlast.app import Outlast
from outlast.core.retry import Backoff
from outlast.engine.context import TaskContext
from outlast.testing.simulation.world import current_world
from outlast.tools.call import ToolCall

__all__ = ["AGENTS", "APP", "MAY_FAIL", "TOOL_TIMEOUT_S"]

TOOL_TIMEOUT_S = 5
APP = Outlast("simulation")
"""One registry for every world; bodies find their world by the context that they run in."""
AGENTS = ("refund", "fan", "transfer", "flaky", "hurried")
MAY_FAIL = frozenset({"hurried"})
"""Agents whose tasks may fail although nothing is wrong."""


# -- tools --------------------------------------------------------------------------------------------------


async def find_ticket(call: ToolCall) -> dict[str, Any] | None:
    """Look a ticket up by the call's key."""
    return await current_world().service.find(call)


async def _make(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    return await current_world().service.create(call, {"invoice": invoice, "amount": amount})


@APP.tool(effect="keyed", key_window="1h", find=find_ticket, timeout=TOOL_TIMEOUT_S)
async def create_ticket(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket; the service can be asked and deduplicates."""
    return await _make(call, invoice, amount)


@APP.tool(effect="keyed", key_window=8, timeout=TOOL_TIMEOUT_S)
async def create_soon(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket; the service cannot be asked, and promises to know the key for a short time."""
    return await _make(call, invoice, amount)


@APP.tool(effect="idempotent", timeout=TOOL_TIMEOUT_S)
async def put_ticket(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket; twice is once."""
    return await _make(call, invoice, amount)


@APP.tool(effect="manual", timeout=TOOL_TIMEOUT_S)
async def move_money(call: ToolCall, invoice: str, amount: int) -> dict[str, Any]:
    """Make a ticket; whoever does not know whether it was made has to ask a person."""
    return await _make(call, invoice, amount)


@APP.tool(effect="read", timeout=TOOL_TIMEOUT_S)
async def look_up(call: ToolCall) -> bool:
    """Look whether there is a ticket under a key that never has one."""
    return await current_world().service.find(call) is None


# -- agents -------------------------------------------------------------------------------------------------


def check_invoice(invoice: str) -> str:
    """Compute something that is not computed twice."""
    return invoice.upper()


@APP.agent(name="refund")
async def refund(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Refund an invoice: check it, make the ticket, wait a little, tell."""
    checked = await task.step(check_invoice, invoice)
    ticket = await task.call(create_ticket, invoice=checked, amount=amount)
    await task.sleep(2)
    return {"tickets": [ticket["ticket"]]}


@APP.agent(name="fan")
async def fan(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Do three at a time, some of which wait long enough to suspend the whole."""

    async def branch(number: int, tool: Any) -> str:
        checked = await task.step(check_invoice, f"{invoice}/{number}")
        ticket = await task.call(tool, invoice=checked, amount=amount + number)
        await task.sleep(0.4 * number)
        return str(ticket["ticket"])

    tools = (create_ticket, create_soon, put_ticket)
    tickets = await task.gather(*(branch(number, tool) for number, tool in enumerate(tools)))
    await task.emit("progress", {"tickets": len(tickets)})
    await task.sleep(1)
    return {"tickets": tickets}


@APP.agent(name="transfer")
async def transfer(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Read, then do what only a person can settle."""
    assert await task.call(look_up)
    ticket = await task.call(move_money, invoice=invoice, amount=amount, key="the-money")
    return {"tickets": [ticket["ticket"]]}


@APP.agent(name="flaky", retry=Backoff(base_s=0.5, max_s=2.0, jitter_s=0.5, attempts=8))
async def flaky(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Fail twice, once in a step and once after the call, and do nothing twice for it."""

    def sometimes() -> str:
        if task.attempt == 1:
            raise ValueError("not yet")
        return "done"

    ticket = await task.call(create_ticket, invoice=invoice, amount=amount)
    await task.step(sometimes)
    if task.attempt == 2:
        raise ValueError("not yet either")
    return {"tickets": [ticket["ticket"]]}


@APP.agent(name="hurried", deadline=6)
async def hurried(task: TaskContext, invoice: str, amount: int) -> dict[str, Any]:
    """Make two tickets with a pause between them, in too little time if anything goes wrong."""
    first = await task.call(create_ticket, invoice=invoice, amount=amount)
    await task.sleep(3)
    second = await task.call(move_money, invoice=invoice, amount=amount)
    return {"tickets": [first["ticket"], second["ticket"]]}
