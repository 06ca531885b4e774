"""What the processes of the crash tests run: agents that do one of everything, over the ticket service."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from outlast import Outlast, TaskContext, ToolCall
from outlast.core.retry import Backoff
from outlast.drills.serving import say
from outlast.store.contract import Store

TICKETS_URL = "TESTS_TICKETS_URL"
QUICK = Backoff(base_s=0.05, max_s=0.2, jitter_s=0.05, attempts=10)


def build(database_url: str, tickets_url: str, store: Store | None = None) -> Outlast:
    """Make the app. store: instead of the one that the URL names."""
    app = Outlast("crashes", database_url=database_url, store=store)

    async def find_ticket(call: ToolCall) -> Any:
        found = await call.http.get(
            f"{tickets_url}/tickets", params={"idempotency_key": call.idempotency_key}
        )
        return found.json()[0] if found.json() else None

    @app.tool(effect="keyed", key_window="24h", find=find_ticket, timeout=20, retry=QUICK)
    async def create_ticket(call: ToolCall, invoice: str, amount: str) -> dict[str, Any]:
        reply = await call.http.post(f"{tickets_url}/tickets", json={"invoice": invoice, "amount": amount})
        ticket: dict[str, Any] = reply.json()
        return ticket

    @app.tool(effect="idempotent", timeout=20, retry=QUICK)
    async def put_note(call: ToolCall, ticket: str, text: str) -> str:
        reply = await call.http.put(f"{tickets_url}/tickets/{ticket}/note", json={"text": text})
        return str(reply.json()["note"])

    async def file_once(call: ToolCall, invoice: str) -> str:
        """File a ticket with a service that knows no keys."""
        reply = await call.http.post(f"{tickets_url}/tickets", json={"invoice": invoice, "amount": "1"})
        return str(reply.json()["id"])

    async def find_filed(call: ToolCall, invoice: str) -> str | None:
        found = await call.http.get(f"{tickets_url}/tickets", params={"invoice": invoice})
        return str(found.json()[0]["id"]) if found.json() else None

    app.tool(effect="manual", name="file_manual", retry=QUICK)(file_once)
    app.tool(effect="queryable", name="file_queryable", find=find_filed, retry=QUICK)(file_once)

    @app.agent
    async def files(task: TaskContext, invoice: str, tool: str) -> str:
        return str(await task.call(tool, invoice))

    async def amount_of(invoice: str) -> str:
        say("step", task=invoice)
        return "118.50"

    @app.agent
    async def aside(task: TaskContext, invoice: str) -> str:
        """What a journey has done by a child."""
        return str(await task.step(amount_of, invoice))

    @app.agent
    async def journey(task: TaskContext, invoice: str, pool: str | None = None) -> dict[str, Any]:
        """A step, a keyed tool, an event, a wait that suspends, an idempotent tool, a result.

        pool: where a child of it is to run; it has none otherwise.
        """
        amount = await task.step(amount_of, invoice)
        ticket = await task.call(create_ticket, invoice=invoice, amount=amount)
        await task.emit("progress", {"ticket": ticket["id"]})
        if pool is not None:
            assert await task.spawn(aside, {"invoice": invoice}, pool=pool).result() == amount
        # Long enough for a busy process to find that nothing else is left to do, and to suspend.
        await task.sleep(1.0)
        note = await task.call(put_note, ticket["id"], f"for {invoice}")
        return {"ticket": ticket["id"], "note": note}

    @app.agent
    async def asks(task: TaskContext, invoice: str) -> dict[str, Any]:
        """A question to a person, and then a ticket as they say."""
        amount = await task.ask(f"how much is {invoice}?")
        ticket = await task.call(create_ticket, invoice=invoice, amount=amount)
        note = await task.call(put_note, ticket["id"], f"for {invoice}")
        return {"ticket": ticket["id"], "note": note}

    @app.agent
    async def waits(task: TaskContext, invoice: str) -> dict[str, Any]:
        """A signal, and then a ticket."""
        said = await task.wait("go")
        ticket = await task.call(create_ticket, invoice=invoice, amount=said)
        return {"ticket": ticket["id"], "note": said}

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @app.agent
    async def poison(task: TaskContext) -> None:
        """Take its process down, every time."""
        await task.step(die)

    @app.tool(effect="keyed", key_window="24h", timeout=20, retry=QUICK)
    async def withdraw_ticket(call: ToolCall, result: dict[str, Any]) -> None:
        await call.http.post(f"{tickets_url}/tickets/{result['id']}/withdraw")

    @app.tool(effect="keyed", key_window="24h", timeout=20, retry=QUICK, undo=withdraw_ticket)
    async def file_ticket(call: ToolCall, invoice: str, amount: str) -> dict[str, Any]:
        return await create_ticket(call, invoice, amount)

    @app.agent(on_failure="undo")
    async def regrets(task: TaskContext, invoice: str, waits: bool = False) -> None:
        """File three tickets, and fail, or wait until it is cancelled."""
        for number in range(3):
            await task.call(file_ticket, f"{invoice}-{number}", "1")
        if waits:
            await task.wait("never")
        raise LookupError(invoice)

    def block(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @app.agent
    async def long(task: TaskContext, invoice: str, seconds: float) -> str:
        """Compute for longer than any lease of these tests lasts, then file a ticket."""
        await task.step(block, seconds)
        ticket = await task.call(create_ticket, invoice=invoice, amount="1")
        return str(ticket["id"])

    @app.agent
    async def stepwise(task: TaskContext, invoice: str, steps: int) -> int:
        """Many short steps, with a ticket in the middle."""
        for number in range(steps):
            await task.step(block, 0.05)
            if number == steps // 2:
                await task.call(create_ticket, invoice=invoice, amount="1")
        return steps

    return app
