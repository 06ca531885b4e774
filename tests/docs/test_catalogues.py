"""Lists that the pages write by hand, held against the code."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import httpx2
from tests.docs.blocks import ROOT, page

from outlast import Outlast, TaskContext
from outlast.core import transitions
from outlast.server import create_app

SOURCES = ROOT / "src" / "outlast"
EVENT = re.compile(r"""['"]((?:task|attempt|operation|signal|approval)\.[a-z_]+)['"]""")


def _sources(folder: str, *kinds: str) -> list[Path]:
    return [path for path in (SOURCES / folder).rglob("*") if path.suffix in kinds]


def test_every_event_that_the_code_names_is_listed() -> None:
    listed = page("docs/reference/events.md").text
    named = {
        kind
        for path in [*_sources("engine", ".py"), *_sources("store", ".py", ".sql")]
        for kind in EVENT.findall(path.read_text(encoding="utf-8"))
    }
    named |= {f"task.{state}" for state in transitions.TASK.final}
    named |= {f"attempt.{state}" for state in transitions.ATTEMPT.final}
    assert len(named) > 10
    assert {kind for kind in named if f"`{kind}`" not in listed} == set()


def test_every_failure_that_the_engine_names_is_explained() -> None:
    explained = page("docs/reference/errors.md").text
    # endings.failed(run, code, …), by whatever name it is called.
    codes = {
        call.args[1].value
        for module in ("run", "endings")
        for call in ast.walk(ast.parse((SOURCES / "engine" / f"{module}.py").read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and (getattr(call.func, "attr", "") == "failed" or getattr(call.func, "id", "") == "failed")
        and isinstance(call.args[1], ast.Constant)
    }
    assert {"agent_error", "journal_rejected"} <= codes
    assert {code for code in codes if f"`{code}`" not in explained} == set()


def test_every_reason_to_wait_is_accounted_for() -> None:
    text = page("docs/reference/states.md").prose
    shown = {reason for reason in transitions.WAITING_REASONS if f"`{reason}`" in text}
    assert shown == set(transitions.WAITING_REASONS)


async def test_the_problem_that_is_shown_is_the_one_that_is_answered() -> None:
    (shown,) = [
        json.loads(block.text) for block in page("docs/reference/http.md").blocks if block.kind == "json"
    ]
    app = Outlast("docs", database_url="sqlite://:memory:")

    @app.agent
    async def reimburse(task: TaskContext, invoice: str) -> str:
        return invoice

    await app.open(migrate=True)
    transport = httpx2.ASGITransport(app=create_app(app, manage=False))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.post("/v1/tasks", json={"agent": "reimburse", "input": {}})
    await app.close()
    assert answer.json() == shown
    assert answer.headers["content-type"] == "application/problem+json"
