"""The job in Outlast, on PostgreSQL.

Ways, named after what the tool declares. ``keyed``: the service honours keys; asked by key, sent again under
the same key. ``queryable``: it can only be asked, and shows a ticket after ``LAG_S`` at the latest.
``manual``: neither. All tools name what a call is about (``business_key``), so that asking again is one call.

Takeover. A second worker stands by; the database's clock tells it when the first one's lease is over.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.peers.part import LAG_S, LEASE_S, TIMEOUT_S, EventLoop, Part, Report, play, say
from outlast import Outlast, TaskContext, ToolCall
from outlast.engine.declaring import ToolOptions
from outlast.engine.settings import WorkerSettings
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.probes import PROBE, Trigger, install_from_env, spell

PATIENCE_S = 3.0
"""How long what waits for a person is given, so that a late answer can still settle it."""


class OfOutlast:
    """Outlast with the job declared in it."""

    def __init__(self, part: Part) -> None:
        self._part = part
        if part.freezes:
            # In the tool's own code it would be too early: ``call.http`` looks at the lease before it sends.
            install_from_env({PROBE: spell(Trigger(point="http.before_send", action="freeze"))})
        self._loop = EventLoop()
        self._app = Outlast("peers", database_url=part.database)
        self._declare()
        self._loop.do(self._open())

    def _declare(self) -> None:
        async def find_by_key(call: ToolCall) -> Any:
            asked = {"idempotency_key": call.idempotency_key}
            return (await call.http.get(f"{self._part.tickets}/tickets", params=asked)).json()

        async def find_by_invoice(call: ToolCall, invoice: str) -> Any:
            return (await call.http.get(f"{self._part.tickets}/tickets", params={"invoice": invoice})).json()

        ways: dict[str, ToolOptions] = {
            "keyed": {"effect": "keyed", "key_window": "24h", "find": find_by_key},
            "queryable": {"effect": "queryable", "find": find_by_invoice, "visible_within": LAG_S + 1.0},
            "manual": {"effect": "manual"},
        }

        options: ToolOptions = {
            "timeout": TIMEOUT_S,
            "business_key": "{invoice}",
            "once": "90d",
            **ways[self._part.way],
        }

        @self._app.tool(**options)
        async def create_ticket(call: ToolCall, invoice: str, amount: str) -> dict[str, Any]:
            try:
                reply = await call.http.post(
                    f"{self._part.tickets}/tickets", json={"invoice": invoice, "amount": amount}
                )
                ticket: dict[str, Any] = reply.json()
                return ticket
            finally:
                say("sent")

        @self._app.agent(version="1")
        async def reimburse(task: TaskContext, invoice: str, asks: int) -> str:
            ticket: dict[str, Any] = {}
            for _ in range(asks):
                ticket = await task.call(create_ticket, invoice=invoice, amount="25")
            return str(ticket["id"])

    async def _open(self) -> None:
        await self._app.open(migrate=True)
        settings = WorkerSettings(lease_s=LEASE_S, poll_s=0.2, sweep_s=0.2)
        self._working = asyncio.ensure_future(self._app.worker(settings).run())

    def begin(self) -> Report:
        """Submit the job under its name, and work."""
        return self._loop.do(self._follow())

    def go_on(self) -> Report:
        """Work; what a dead worker had is claimed when its lease is over."""
        return self._loop.do(self._follow())

    def look(self) -> Report:
        """Answer the task's end, or that it still waits."""
        return self._loop.do(self._follow())

    async def _follow(self) -> Report:
        """Follow the task to its end, or to where only a person can say what has happened."""
        part = self._part
        # The same key is the same task, whoever submits it.
        handle = await self._app.submit("reimburse", {"invoice": part.run, "asks": part.asks}, key=part.run)
        waits_since: float | None = None
        while True:
            task = await handle.get()
            if task.state in ("succeeded", "failed"):
                words = task.state if task.error is None else f"{task.state}, {task.error.get('code')}"
                return Report(end=task.state, words=words, ticket=task.result)
            if not await self._needs_a_person(handle.id):
                waits_since = None
            elif waits_since is None:
                waits_since = time.monotonic()
            elif time.monotonic() > waits_since + PATIENCE_S:
                return Report(end="unknown", words="unknown, waits for a person")
            await asyncio.sleep(0.1)

    async def _needs_a_person(self, task: str) -> bool:
        for operation in await self._app.operations.list(task=task, state="unknown"):
            place = await self._app.store.read_open(DEFAULT_TENANT, task, operation.key)
            if place is not None and place.ask_at is None:
                return True
        return False


if __name__ == "__main__":
    play(OfOutlast)
