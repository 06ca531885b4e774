"""What the page on production says, with its own commands: migrate, serve, worker, keys, SIGTERM."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import httpx2
from tests.docs.blocks import page
from tests.docs.lines import Line, lines
from tests.docs.processes import free_port, shell
from tests.docs.session import DATABASE

PAGE = page("docs/howto/run-in-production.md")
APP = """
from outlast import Outlast, TaskContext

app = Outlast("reimbursements")


@app.agent
async def reimburse(task: TaskContext, invoice: str) -> str:
    await task.sleep("100ms")
    return invoice
"""


def command(name: str) -> Line:
    """Answer the page's own line for a command."""
    text = "".join(block.text for block in PAGE.blocks if block.kind == "console")
    return next(line for line in lines(text) if line.words[:2] == ("outlast", name))


async def test_the_page_leads_to_a_service_that_works(folder: Path, bare_postgres_url: str) -> None:
    (folder / "app.py").write_text(APP, encoding="utf-8")
    port, serve = free_port(), command("serve")
    assert f"export OUTLAST_DATABASE_URL={DATABASE}" in PAGE.text
    keys = dict(word.split("=", 1) for word in serve.environ)
    tenant, _, key = keys["OUTLAST_API_KEYS"].partition(":")
    words = [str(port) if word == "8000" else word for word in serve.words]

    async with shell(folder, OUTLAST_DATABASE_URL=bare_postgres_url, **keys) as at:
        early = await at.start(*command("worker").words)
        assert await early.ended() == 6
        migrated = await at.start(*command("migrate").words)
        assert await migrated.ended() == 0

        api = await at.start(*words)
        worker = await at.start(*command("worker").words)
        await api.says("serving")
        await worker.says("worker started")
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.get("/v1/tasks")).status_code == 401
            answer = await client.post(
                "/v1/tasks",
                json={"agent": "reimburse", "input": {"invoice": "INV-102"}},
                headers={"Authorization": f"Bearer {key}", "Prefer": "wait=20"},
                timeout=30,
            )
        task = answer.json()
        assert (answer.status_code, task["tenant"], task["result"]) == (200, tenant, "INV-102")

        assert await asyncio.gather(api.ends(signal.SIGTERM), worker.ends(signal.SIGTERM)) == [0, 0]
        said = [json.loads(line) for line in "".join(worker.seen).splitlines()]
        assert said[-1]["event"] == "worker stopped"
