"""The drill's app: tools that scopes call, and an agent whose tool hands its call to a sandbox."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

from outlast.app import Outlast
from outlast.core.approval import Answer, Ask
from outlast.engine.context import TaskContext
from outlast.engine.settings import WorkerSettings
from outlast.errors import Rejected, ToolRejected
from outlast.tools.call import ToolCall

__all__ = ["AMOUNT", "FOLDER", "HOST", "REBOUND", "SHORT", "TICKETS_URL", "build", "done_of", "pass_of"]

TICKETS_URL: Final = "OUTLAST_DRILL_TICKETS_URL"
FOLDER: Final = "OUTLAST_DRILL_FOLDER"
HOST: Final = "tickets.drill"
"""The ticket service's name, which only the drill's gateway can look up."""
REBOUND: Final = "rebound.drill"
"""A name that leads to the ticket service once, and to a private address from then on."""
AMOUNT: Final = "118.50"
SHORT: Final = WorkerSettings(name="script", lease_s=3.0, poll_s=0.1, sweep_s=0.2, grace_s=2.0)
_TIMEOUT_S: Final = 20.0
_LOOK_S: Final = 0.1


def pass_of(folder: Path, invoice: str) -> Path:
    """Answer the file in which a sandbox finds its token."""
    return folder / f"pass-{invoice}"


def done_of(folder: Path, invoice: str) -> Path:
    """Answer the file that says how a sandbox has ended: with a ticket, or refused."""
    return folder / f"done-{invoice}"


def build(database_url: str, tickets: str, folder: Path, *, secret: str | None = None) -> Outlast:
    """Make the app. folder: where sandboxes find their tokens. secret: by default that of the
    environment."""
    app = Outlast("drill", database_url=database_url, secret=secret)

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

    async def in_sandbox(call: ToolCall, invoice: str) -> str:
        """Hand the call to a sandbox, and wait for its end."""
        port = tickets.rpartition(":")[2]
        token = call.gateway_token([f"http://{HOST}:{port}", f"http://{REBOUND}:{port}"])
        place = pass_of(folder, invoice)
        mark = place.with_name(f"{place.name}.new")
        mark.write_text(json.dumps({"token": token, "epoch": call.epoch}))
        mark.rename(place)
        done = done_of(folder, invoice)
        while not done.exists():  # noqa: ASYNC110 - the sandbox is another process
            await asyncio.sleep(_LOOK_S)
        if done.read_text() != "filed":
            raise Rejected("the sandbox was refused")
        return "filed"

    app.tool(name="asked", effect="manual", approval=ask, timeout=_TIMEOUT_S)(file)
    app.tool(name="in_sandbox", effect="manual", timeout=2 * _TIMEOUT_S)(in_sandbox)

    @app.agent
    async def sandboxed(task: TaskContext, invoice: str) -> str:
        """Have a sandbox file a ticket."""
        try:
            return str(await task.call("in_sandbox", invoice, key="act-1"))
        except ToolRejected:
            return "refused"

    return app
