"""A service under test: an app with a few agents, its API called in process, a worker when asked for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any

import httpx2
from fastapi import FastAPI
from pydantic import SecretStr

from outlast import Outlast, TaskContext, ToolCall, Uncertain, WorkerSettings
from outlast.server import create_app
from outlast.server.serving import Server
from outlast.settings import Settings
from outlast.store.contract import Store

PATIENCE_S = 20.0
JSON = {"content-type": "application/json"}
SECRET = "the-secret-of-this-desk"


def settings(**given: Any) -> Settings:
    """Settings that owe nothing to the environment of the test run."""
    return Settings(
        **{
            "database_url": "sqlite://:memory:",
            "api_keys": SecretStr(""),
            "max_body_bytes": 2_000_000,
            **given,
        }
    )


class Desk:
    """The app, its API, and clients of it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.app = Outlast("desk", store=store, secret=SECRET)
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.api: FastAPI = create_app(self.app, settings(), manage=False, keep_alive_s=0.05)
        self.client = self.client_of(self.api)
        self._workers: list[tuple[Any, asyncio.Task[None]]] = []
        self._register()

    def _register(self) -> None:
        app = self.app

        @app.agent
        async def echo(task: TaskContext, value: Any = None) -> Any:
            return value

        @app.agent
        async def break_down(task: TaskContext) -> None:
            raise RuntimeError("it broke at step seven")

        @app.agent
        async def stand(task: TaskContext) -> str:
            await task.emit("progress", {"stage": "standing"})
            self.begun.set()
            await self.gate.wait()
            return "gone through"

        @app.agent
        async def talk(task: TaskContext, lines: int, width: int = 10) -> int:
            for number in range(lines):
                await task.emit("progress", {"line": number, "text": "x" * width})
            return lines

        @app.tool(effect="manual", timeout="1h")
        async def send_letter(call: ToolCall, to: str) -> Any:
            raise Uncertain("the clerk did not say")

        @app.agent
        async def correspond(task: TaskContext, to: str) -> Any:
            return await task.call(send_letter, to=to)

        @app.agent
        async def listen(task: TaskContext, times: int) -> list[Any]:
            return [await task.wait("word") for _ in range(times)]

        @app.agent
        async def wonders(task: TaskContext, choices: list[Any] | None = None) -> Any:
            return await task.ask("Which one is it?", choices=choices, timeout="1h")

        async def one() -> int:
            return 1

        @app.agent
        async def steps(task: TaskContext, count: int) -> int:
            return sum([await task.step(one) for _ in range(count)])

        @app.agent
        async def parent(task: TaskContext, count: int) -> list[Any]:
            children = [task.spawn(echo, {"value": number}) for number in range(count)]
            return [await child.result() for child in children]

    @staticmethod
    def client_of(api: FastAPI, **headers: str) -> httpx2.AsyncClient:
        """Make a client that calls an API in process, as a program on this machine would."""
        # The service's own faults are answered, not raised, as over a socket.
        transport = httpx2.ASGITransport(app=api, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)

    async def __aenter__(self) -> Desk:
        await self.app.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gate.set()
        workers, self._workers = self._workers, []
        for worker, _ in workers:
            worker.stop()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(task for _, task in workers))
        await self.client.aclose()
        await self.app.close()

    def work(self) -> None:
        """Start a worker."""
        worker = self.app.worker(WorkerSettings(poll_s=0.05, sweep_s=0.05, linger_s=0.0, grace_s=2.0))
        self._workers.append((worker, asyncio.create_task(worker.run())))

    async def post(self, body: Any, **headers: str) -> httpx2.Response:
        """Submit a task; a body that is bytes is sent as it stands."""
        if isinstance(body, bytes):
            return await self.client.post("/v1/tasks", content=body, headers={**JSON, **headers})
        return await self.client.post("/v1/tasks", json=body, headers=headers)

    async def submitted(self, agent: str, /, **given: Any) -> str:
        """Submit a task and answer its id."""
        answer = await self.post({"agent": agent, "input": given})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def ended(self, agent: str, /, **given: Any) -> str:
        """Submit a task, have it run, and answer its id."""
        if not self._workers:
            self.work()
        task = await self.submitted(agent, **given)
        await self.app.wait(task, timeout=PATIENCE_S)
        return task

    async def unknown(self, to: str = "the bank") -> str:
        """Have a call end as unknown, and answer its operation's id."""
        if not self._workers:
            self.work()
        task = await self.submitted("correspond", to=to)
        await self.waiting(task)
        return f"{task}:send_letter#1"

    async def waiting(self, task: str) -> None:
        """Return once a task waits."""
        async with asyncio.timeout(PATIENCE_S):
            async for event in self.app.events(task):
                if event.kind == "task.waiting":
                    break

    async def stored(self) -> int:
        """Count the tasks there are."""
        return len((await self.store.dump())["tasks"])

    @contextlib.asynccontextmanager
    async def served(self, **options: Any) -> AsyncIterator[tuple[Server, httpx2.AsyncClient]]:
        """Serve the API on a real socket, and answer the server with a client of it."""
        api = create_app(self.app, settings(**options), manage=False, keep_alive_s=0.05)
        server = Server(api, "127.0.0.1", 0, grace_s=5)
        ready = asyncio.Event()
        serving = asyncio.create_task(server.run_until_stopped(ready.set))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await ready.wait()
            async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=PATIENCE_S) as client:
                yield server, client
        finally:
            server.stop()
            async with asyncio.timeout(PATIENCE_S):
                await serving


async def frames(response: httpx2.Response) -> AsyncIterator[dict[str, str]]:
    """Read a stream of server-sent events frame by frame; a comment is under the empty name."""
    frame: dict[str, str] = {}
    async for line in response.aiter_lines():
        if not line:
            if frame:
                yield frame
            frame = {}
            continue
        name, _, value = line.partition(":")
        frame[name] = value.removeprefix(" ")


async def until(holds: Callable[[], bool]) -> None:
    """Return once a condition holds that nobody announces, such as the end of a connection."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)
