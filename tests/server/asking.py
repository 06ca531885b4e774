"""A desk whose tool asks people first, and clients that are people."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from urllib.parse import quote

import httpx2
from tests.server.desk import Desk, settings

from outlast import Ask, TaskContext, ToolCall
from outlast.errors import OperationError
from outlast.server import create_app
from outlast.testing.recorder import Call, Recorder

KEYS = (
    "default:key-ana:ana:approver,default:key-bob:bob:approver+finance,default:key-eve:eve:finance,"
    "default:key-ops:ops:operator,default:key-sub:sub:submitter,default:key-adm:adm:admin,"
    "bolt:key-bolt:bolt:approver+operator+submitter,default:key-all"
)


def register(desk: Desk, recorder: Recorder, **ask: Any) -> None:
    """Register an agent whose one call asks people first, with these options of the question."""

    async def policy(amount: Decimal) -> Any:
        return Ask(f"over by {amount - 80}", **ask) if amount > 80 else True

    @desk.app.tool(name="file", effect="idempotent", timeout=5.0, approval=policy)
    async def file(call: ToolCall, invoice: str, amount: Decimal) -> Any:
        reply = await call.http.post(
            f"{recorder.url}/tickets", json={"invoice": invoice, "amount": str(amount)}
        )
        return reply.json()

    @desk.app.agent
    async def files(
        task: TaskContext, invoice: str = "INV-102", amount: str = "118.50", key: str | None = None
    ) -> Any:
        try:
            ticket = await task.call(file, invoice, Decimal(amount), key=key)
        except OperationError as error:
            return {"code": error.code, "reason": error.reason}
        return ticket["amount"]


def people(desk: Desk, **more: Any) -> dict[str, httpx2.AsyncClient]:
    """Answer a client for each person of ``KEYS``."""
    api = create_app(desk.app, settings(api_keys=KEYS, **more), manage=False)
    return {
        key.split(":")[1]: desk.client_of(api, authorization=f"Bearer {key.split(':')[1]}")
        for key in KEYS.split(",")
    }


async def asked(desk: Desk, agent: str = "files", /, **given: Any) -> dict[str, Any]:
    """Submit a task and answer the approval that it waits for."""
    desk.work()
    task = await desk.submitted(agent, **given)
    await desk.waiting(task)
    (approval,) = (await desk.client.get("/v1/approvals", params={"task": task})).json()["items"]
    return dict(approval)


def path(approval: str) -> str:
    """Where an approval is found, as a client writes it."""
    return f"/v1/approvals/{quote(approval, safe='')}"


async def decide(client: httpx2.AsyncClient, approval: dict[str, Any], verdict: str, **more: Any) -> Any:
    body = {"verdict": verdict, "fingerprint": approval["fingerprint"], "reason": "seen", **more}
    return await client.post(f"{path(approval['id'])}/decision", json=body)


async def filed(recorder: Recorder) -> list[Call]:
    """Answer the calls that reached the other side."""
    return [call for call in await recorder.log() if call.method == "POST"]
