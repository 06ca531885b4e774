"""What the README and the tutorial say of the first agent, with the processes that they start.

Commands and requests are taken from the pages; only ports are others, and the lease is shorter.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.docs.blocks import Page, page
from tests.docs.lines import Line, lines, request_of
from tests.docs.processes import Shell, Started, free_port, shell
from tests.docs.session import printed_by

from outlast.cli.options import DEFAULT_PORT
from outlast.testing import Recorder

README = page("README.md")
TUTORIAL = page("docs/tutorial/first-agent.md")


def module_of(page: Page) -> str:
    """Answer the page's app.py."""
    shown = page.files().get("app.py")
    if shown is not None:
        return shown
    return "".join(block.text for block in page.blocks if block.name == "first-agent")


def commands(page: Page, program: str, *, task: str = "") -> list[Line]:
    """Answer the commands of a program that the page's first agent needs, in order."""
    text = "".join(block.text for block in page.blocks if block.kind == "console")
    names = {"the task's id": task} if task else {}
    return [line for line in lines(text, **names) if line.program == program]


class Stage:
    """The page's processes, on ports of their own."""

    def __init__(self, page: Page, at: Shell, api_port: int, tickets_port: int) -> None:
        self.page, self._shell = page, at
        self._api_port, self._tickets_port = api_port, tickets_port
        self.recorder = Recorder(port=tickets_port)
        self.kinds: set[str] = set()

    async def tickets(self) -> Started:
        """Start the ticket service as the page does."""
        (command,) = [
            line for line in commands(self.page, "python") if line.words[2] == "outlast.testing.recorder"
        ]
        assert command.background
        words = [str(self._tickets_port) if word == "9009" else word for word in command.words]
        started = await self._shell.start(*words)
        await started.says("pid")
        return started

    async def dev(self) -> Started:
        """Start ``outlast dev`` as the page does."""
        command = next(line for line in commands(self.page, "outlast") if line.words[1] == "dev")
        started = await self._shell.start(*command.words, "--port", str(self._api_port))
        await started.says("API")
        await started.says("Not for production")
        return started

    async def ask(self, words: tuple[str, ...], **headers: str) -> Any:
        """Make the request that a curl command of the page makes."""
        asked = request_of(words)
        url = asked.url.replace("127.0.0.1:9009", f"127.0.0.1:{self._tickets_port}")
        url = re.sub(r"localhost:\d+", f"127.0.0.1:{self._api_port}", url)
        async with httpx2.AsyncClient(timeout=40, trust_env=False) as client:
            answer = await client.request(
                asked.method, url, headers={**asked.headers, **headers}, content=asked.body
            )
        assert answer.is_success, answer.text
        return answer.json()

    async def result(self, task: str) -> Any:
        """Wait for a task's end over HTTP."""
        url = f"localhost:{self._api_port}/v1/tasks/{task}"
        answer = await self.ask(("curl", f"{url}/result"), prefer="wait=30")
        assert answer["state"] == "succeeded", answer
        events = await self.ask(("curl", f"{url}/events"), accept="application/json")
        self.kinds |= {event["kind"] for event in events["items"]}
        return answer["result"]


@pytest.fixture(params=[README, TUTORIAL], ids=lambda page: page.name)
async def stage(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stage]:
    port = free_port()
    text = module_of(request.param).replace("127.0.0.1:9009", f"127.0.0.1:{port}")
    # A reader can wait for these; a test need not.
    text = text.replace('timeout="5s"', 'timeout="1s"').replace('sleep("3s")', 'sleep("1s")')
    (folder / "app.py").write_text(text, encoding="utf-8")
    # Processes find the database by themselves; commands in this process are told where that is.
    monkeypatch.setenv("OUTLAST_DATABASE_URL", f"sqlite:///{folder}/.outlast/outlast.db")
    async with shell(folder, OUTLAST_LEASE_S="1") as at:
        yield Stage(request.param, at, free_port(), port)


async def test_one_ticket_although_dev_is_killed(stage: Stage) -> None:
    tickets = await stage.tickets()
    dev = await stage.dev()
    submit = next(line for line in commands(stage.page, "curl") if "/v1/tasks" in " ".join(line.words))
    task = (await stage.ask(submit.words))["id"]
    again = await stage.ask(submit.words)
    assert again["id"] == task

    await stage.recorder.wait_for(method="POST", path="/tickets", acted=True)
    assert await dev.ends(signal.SIGKILL) == -signal.SIGKILL
    dev = await stage.dev()
    assert await stage.result(task) == {"ticket": "R-55821"}
    assert len(await stage.recorder.tickets()) == 1

    for line in commands(stage.page, "outlast", task=task):
        if line.words[1] in ("tasks", "operations"):
            printed = await asyncio.to_thread(printed_by, line.words, stage.page.name)
            assert task in printed or "reimburse" in printed, printed

    if stage.page is TUTORIAL:
        await _an_answer_is_lost(stage)
    assert await dev.ends(signal.SIGTERM) == 0
    assert await tickets.ends(signal.SIGTERM) == 0
    for kind in stage.kinds:
        assert f"`{kind}`" in page("docs/reference/events.md").text


async def _an_answer_is_lost(stage: Stage) -> None:
    plan, submit = [
        line for line in commands(stage.page, "curl") if re.search("_plan|INV-103", " ".join(line.words))
    ]
    await stage.ask(plan.words)
    task = (await stage.ask(submit.words))["id"]
    assert await stage.result(task) == {"ticket": "R-55822"}
    assert {"operation.unknown", "operation.settled"} <= stage.kinds
    posts = [call for call in await stage.recorder.log() if call.method == "POST"]
    assert [call.ending for call in posts] == ["answer", "hang"]
    assert len(await stage.recorder.tickets()) == 2


@pytest.mark.parametrize("page", [README, TUTORIAL], ids=lambda page: page.name)
def test_requests_go_where_dev_listens(page: Page) -> None:
    text = "".join(block.text for block in page.blocks if block.kind == "console")
    first = text.split("outlast serve")[0]
    assert set(re.findall(r"localhost:(\d+)", first)) == {str(DEFAULT_PORT)}


def test_the_body_that_is_shown_is_what_the_agent_takes() -> None:
    for each in (README, TUTORIAL):
        bodies = [request_of(line.words).body for line in commands(each, "curl")]
        tasks = [json.loads(body) for body in bodies if body and "agent" in body]
        assert {task["agent"] for task in tasks} == {"reimburse"}
        assert all(set(task["input"]) == {"invoice"} for task in tasks)
