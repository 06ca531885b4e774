"""Scenario O25: what is secret reaches no log, no event, no journal, no error and no answer, whatever fails.

Every canary is a text of its own, so that what leaks says where it comes from.
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine import computing
from tests.logging_alone import logging_alone
from tests.server.desk import PATIENCE_S, Desk, settings

from outlast import Backoff, Outlast, TaskContext, ToolCall, telemetry
from outlast.errors import Rejected, StepFailed, StoreUnavailable, ToolFailed, ToolRejected
from outlast.observability import logs
from outlast.server import create_app
from outlast.testing.recorder import Recorder, Rule

API_KEY = "canary-api-key-4f1d"
WRONG_KEY = "canary-wrong-key-8a2c"
BEARER = "canary-bearer-77e0"
QUERY = "canary-query-token-15bb"
IN_URL = "canary-user-password-c3d9"
ECHOED = "canary-echoed-by-the-provider-90ab"
RAISED = "canary-in-an-exception-2be4"
DATABASE = "canary-database-password-6d10"
IN_STEP = "canary-in-a-step-31f7"
IN_PROCESS = "canary-in-a-step-of-a-process-b20c"
IN_AGENT = "canary-in-an-agent-5e88"
IN_POLICY = "canary-in-a-policy-94ad"
IN_VALUES = "canary-in-a-value-that-does-not-fit-61c2"
IN_CONDITION = "canary-in-a-precondition-7e21"
REFUSED = "canary-in-a-refusal-0c6b"
CANARIES = (API_KEY, WRONG_KEY, BEARER, QUERY, IN_URL, ECHOED, RAISED, DATABASE)
IN_ERRORS = (IN_STEP, IN_PROCESS, IN_AGENT, IN_POLICY, IN_VALUES, IN_CONDITION, REFUSED)

PATHS = {
    "declined": Rule.refuse(422, body=ECHOED),
    "refused": Rule.refuse(503, body=ECHOED),
    "not let in": Rule.refuse(401, body=ECHOED),
    "broken": Rule.refuse(500, body=ECHOED),
    "cut": Rule.act_then_reset(),
    "half": Rule.act_then_half(),
    "garbage": Rule.act_then_garbage(),
    "silent": Rule.hang(),
    "never begun": Rule.reset_before_acting(),
}
"""How a call ends that was sent with secrets."""


def address(password: str) -> str:
    """Say what some drivers put into their errors whole."""
    return f"postgresql://ada:{password}@db.internal/books"


@pytest.fixture
def heard() -> Iterator[tuple[io.StringIO, list[telemetry.Signal]]]:
    """Everything that is logged, at level debug, and every record of telemetry."""
    target, signals = io.StringIO(), []
    with logging_alone():
        logs.install(stream=target, level="debug")
        for name in ("httpx2", "httpcore2", "asyncio", "asyncpg"):
            logging.getLogger(name).setLevel(logging.DEBUG)
        end = telemetry.subscribe(signals.append)
        yield target, signals
        end()


async def test_no_canary_is_seen_anywhere(
    desk: Desk, recorder: Recorder, heard: tuple[io.StringIO, list[telemetry.Signal]]
) -> None:
    stream, signals = heard
    url = recorder.url.replace("://", f"://ada:{IN_URL}@")

    @desk.app.tool(effect="manual", timeout=0.5, retry=Backoff(base_s=0.01, max_s=0.01, attempts=2))
    async def file(call: ToolCall, how: str) -> Any:
        if how == "raised":
            raise RuntimeError(f"the driver said: {RAISED}")
        reply = await call.http.post(
            f"{url}/tickets",
            params={"token": QUERY},
            headers={"authorization": f"Bearer {BEARER}"},
            json={"invoice": how, "amount": "1"},
        )
        return reply.json()["id"]

    @desk.app.agent
    async def files(task: TaskContext, how: str) -> Any:
        return await task.call(file, how)

    desk.work()
    answers: list[str] = []
    for how, rule in (*PATHS.items(), ("raised", None)):
        if rule is not None:
            await recorder.plan(rule, rule)
        task = await desk.submitted("files", how=how)
        async with asyncio.timeout(PATIENCE_S):
            async for event in desk.app.events(task):
                if event.kind in ("task.waiting", "task.failed", "task.succeeded"):
                    break
        for path in ("", "/operations", "/attempts", "/events"):
            reply = await desk.client.get(f"/v1/tasks/{task}{path}", headers={"accept": "application/json"})
            answers.append(reply.text)
        await desk.app.cancel(task) if event.kind == "task.waiting" else None
    answers.append((await desk.client.get("/v1/operations?state=unknown")).text)

    api = create_app(desk.app, settings(api_keys=f"default:{API_KEY}:ada:operator"), manage=False)
    for key in (API_KEY, WRONG_KEY):
        client = desk.client_of(api, authorization=f"Bearer {key}")
        for ask in (
            client.get("/v1/tasks"),
            client.get("/v1/tasks/none"),
            client.post("/v1/tasks", content=b"{", headers={"content-type": "application/json"}),
            client.get("/v1/operations", params={"state": "x"}),
        ):
            reply = await ask
            answers += [reply.text, str(reply.headers)]

    away = Outlast("away", database_url=f"postgresql://u:{DATABASE}@127.0.0.1:1/x")
    with pytest.raises(StoreUnavailable) as refused:
        await away.open()
    answers.append(str(refused.value))
    await away.close()

    seen = {
        "log": stream.getvalue(),
        "telemetry": repr(signals),
        "answers": "\n".join(answers),
        "store": repr(await desk.store.dump()),
    }
    leaked = [(where, canary) for where, text in seen.items() for canary in CANARIES if canary in text]
    assert leaked == []
    # The calls were really made with them, and the lines stay useful.
    sent = [call for call in await recorder.log() if call.method == "POST"]
    assert {call.query.get("token") for call in sent} == {QUERY}
    assert "file" in seen["log"]
    assert "422 from POST" in seen["answers"]


async def test_no_password_that_an_error_of_the_application_tells_is_kept(
    desk: Desk, heard: tuple[io.StringIO, list[telemetry.Signal]]
) -> None:
    """Whichever of its functions raised it. What the agent sees is what it sees when it runs again."""
    stream, signals = heard

    def policy(to: str) -> Any:
        raise RuntimeError(f"cannot connect to {address(IN_POLICY)}")

    async def condition(to: str) -> Any:
        raise RuntimeError(f"cannot connect to {address(IN_CONDITION)}")

    @desk.app.tool(effect="manual", approval=policy)
    async def asking(call: ToolCall, to: str) -> None:
        return None

    @desk.app.tool(effect="manual", requires=condition)
    async def requiring(call: ToolCall, to: str) -> None:
        return None

    @desk.app.tool(effect="manual")
    async def refusing(call: ToolCall, to: str) -> None:
        raise Rejected(f"cannot connect to {address(REFUSED)}")

    async def read() -> None:
        raise RuntimeError(f"cannot connect to {address(IN_STEP)}")

    async def parse() -> None:
        computing.Account.model_validate({"token": [IN_VALUES], "owner": IN_VALUES})

    seen: list[list[str]] = []

    @desk.app.agent(retry=Backoff(base_s=0.01, max_s=0.01, attempts=2))
    async def tries(task: TaskContext) -> None:
        said = []
        for work in (
            lambda: task.step(read, key="read"),
            lambda: task.step(computing.cannot_connect, address(IN_PROCESS), key="elsewhere"),
            lambda: task.step(parse, key="parse"),
            lambda: task.step(computing.open_account, {"token": [IN_VALUES]}, key="parse-elsewhere"),
            lambda: task.call(requiring, to="x", key="requiring"),
            lambda: task.call(refusing, to="x", key="refusing"),
        ):
            try:
                await work()
            except (StepFailed, ToolFailed, ToolRejected) as error:
                said.append(str(error))
        seen.append(said)
        raise RuntimeError(f"cannot connect to {address(IN_AGENT)}")

    @desk.app.agent
    async def asks(task: TaskContext) -> None:
        await task.call(asking, to="x")

    desk.work()
    answers: list[str] = []
    # Nothing runs where policy cannot be asked: that task waits for an operator.
    for agent, until in (("tries", "task.failed"), ("asks", "task.waiting")):
        task = await desk.submitted(agent)
        async with asyncio.timeout(PATIENCE_S):
            async for event in desk.app.events(task):
                if event.kind == until:
                    break
        for path in ("", "/operations", "/attempts", "/events"):
            reply = await desk.client.get(f"/v1/tasks/{task}{path}", headers={"accept": "application/json"})
            answers.append(reply.text)
    places = {
        "log": stream.getvalue(),
        "telemetry": repr(signals),
        "answers": "\n".join(answers),
        "store": repr(await desk.store.dump()),
        "agent": repr(seen),
    }
    leaked = [(where, canary) for where, text in places.items() for canary in IN_ERRORS if canary in text]
    assert leaked == []
    assert "cannot connect to postgresql://ada:***@db.internal/books" in places["store"]
    assert "/token: Input should be a valid string" in places["store"]
    assert seen == [seen[0]] * 2
    assert len(seen[0]) == 6
