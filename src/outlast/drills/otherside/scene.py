"""What a fault is played with: services behind the middleware, scripts in scopes, and who calls them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx2

from outlast.app import Outlast
from outlast.drills import crew, looking
from outlast.drills.crew import PATIENCE_S
from outlast.drills.fleet import Fleet, Process
from outlast.drills.stage import Check
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Recorder

__all__ = ["SERVICES", "STEADY", "WORKER", "Played", "Scene", "Service", "invoice_of", "label"]

T = TypeVar("T")
STEADY: Final = "steady"
WORKER: Final = "outlast.drills.otherside.worker"
_LOOK_S: Final = 0.05
SERVICES: Final[Mapping[str, Mapping[str, Any]]] = {
    "one": {"wait": "30s"},
    "two": {"wait": "30s"},
    "narrow": {"timeout": "1s", "retention": "6s", "max_body": 2_000, "max_answer": 2_000, "required": True},
    "doomed": {"lease": "2s"},
    "heir": {"lease": "2s", "wait": "30s"},
}
"""How services are set up; of ``doomed`` each cell that needs one has its own."""


def invoice_of(cell: str) -> str:
    """Answer what a cell's requests are about, and how they are found in the logs."""
    return f"INV-{cell}"


@dataclass(slots=True, kw_only=True)
class Played:
    """What a fault left behind. told: what its callers were answered. checks: on top of the table."""

    cell: str
    told: Sequence[str]
    checks: Sequence[Check] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service that runs, and a client of it."""

    process: Process
    client: httpx2.AsyncClient

    async def post(
        self, cell: str, *, key: str | None = None, headers: Mapping[str, str] | None = None, **body: Any
    ) -> httpx2.Response:
        """Ask for a ticket of a cell. key: by default the cell's own."""
        sent = {"Idempotency-Key": cell if key is None else key, **(headers or {})}
        return await self.client.post("/tickets", json={"invoice": invoice_of(cell), **body}, headers=sent)

    async def open(self, door: str) -> None:
        """Let handlers go on that wait at a door."""
        await self.client.get(f"/open/{door}")

    async def began(self, cell: str) -> None:
        """Wait until a handler has begun with a cell's request. Raises FleetError."""
        seen = 0
        while True:
            seen += 1
            said = await self.process.says("began", nth=seen, timeout=PATIENCE_S)
            if said.data["invoice"] == invoice_of(cell):
                return


def label(answer: httpx2.Response) -> str:
    """Answer in one word what a client was told."""
    if "idempotent-replayed" in answer.headers:
        return f"replayed_{answer.status_code}"
    if answer.headers.get("content-type") == "application/problem+json":
        return str(answer.json()["code"])
    return str(answer.status_code)


@dataclass(slots=True, kw_only=True)
class Scene:
    """Everything that a fault is played with.

    url: of the store. gateway: where it listens. environ: what processes need. chance: seeded.
    """

    app: Outlast
    url: str
    gateway: str
    recorder: Recorder
    fleet: Fleet
    folder: Path
    environ: dict[str, str]
    chance: random.Random
    tell: Callable[[str], None]
    clients: list[httpx2.AsyncClient] = field(default_factory=list)
    _services: dict[str, asyncio.Future[Service]] = field(default_factory=dict)
    _steady: asyncio.Future[Process] | None = None

    @property
    def log(self) -> Path:
        """Where the services write what they do."""
        return self.folder / "service.log"

    def lines(self, cell: str) -> list[dict[str, Any]]:
        """Answer what the services have done about a cell."""
        found = [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]
        return [line for line in found if line["invoice"] == invoice_of(cell)]

    async def service(self, name: str, **options: Any) -> Service:
        """Answer a service; it is started the first time that anybody asks for it."""
        if name not in self._services:
            self._services[name] = asyncio.ensure_future(self._start(name, options))
        return await asyncio.shield(self._services[name])

    async def _start(self, name: str, options: Mapping[str, Any]) -> Service:
        kind = name.partition("-")[0]
        given = {"url": self.url, "log": str(self.log), **SERVICES.get(kind, {}), **options}
        process = self.fleet.start(
            f"service-{name}", "outlast.drills.otherside.service", json.dumps(given), environ=self.environ
        )
        port = (await process.says("ready", timeout=PATIENCE_S)).data["port"]
        client = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            timeout=PATIENCE_S,
            # A connection that a handler's fault has closed must not be used once more.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        )
        self.clients.append(client)
        return Service(process=process, client=client)

    async def steady(self) -> None:
        """Wait for the worker that stays, which serves the pool ``STEADY``."""
        if self._steady is None:
            self._steady = asyncio.ensure_future(
                crew.start(self.fleet, WORKER, "steady", (STEADY,), "steady", environ=self.environ)
            )
        await asyncio.shield(self._steady)

    # -- scopes ----------------------------------------------------------------------------------------------

    async def script(self, cell: str, *probe: Trigger, tool: str, **given: Any) -> Process:
        """Start a script in the scope of a cell."""
        text = json.dumps({"scope": cell, "tool": tool, "invoice": invoice_of(cell), **given})
        process = self.fleet.start(
            f"script-{cell}", "outlast.drills.otherside.script", text, probe=probe, environ=self.environ
        )
        await process.says("ready", timeout=PATIENCE_S)
        return process

    async def until(self, look: Callable[[], Awaitable[T | None]], otherwise: str) -> T:
        """Look until there is an answer. Raises TimeoutError."""
        return await looking.until(look, otherwise, patience_s=PATIENCE_S, every_s=_LOOK_S)
