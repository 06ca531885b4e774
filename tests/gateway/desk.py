"""A gateway in this process over a real socket, an operation that runs, and other sides that can be told what
to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2

from outlast import tokens
from outlast.gateway import Gateway, GatewaySettings
from outlast.gateway.serving import Server
from outlast.store.contract import Store
from outlast.store.records import Claimed
from outlast.store.rows import EvidenceRow
from outlast.testing.recorder import Recorder
from outlast.testing.store_suite.scene import SECOND, Scene
from outlast.tools.passing import Pass

SECRET = "a secret of the tests, and of nobody else"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HOST = "tickets.test"


@dataclass
class Other:
    """A service that keeps what came as it came, and answers what it is told.

    answer: raw bytes. hold: what to wait for before the answer. cut: close after the answer's bytes.
    """

    answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    hold: asyncio.Event | None = None
    cut: bool = False
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                body = await reader.readexactly(length)
                self.heads.append(head)
                self.bodies.append(body)
                self.came.set()
                if self.hold is not None:
                    gone = asyncio.create_task(reader.read(1))
                    held = asyncio.create_task(self.hold.wait())
                    await asyncio.wait({gone, held}, return_when=asyncio.FIRST_COMPLETED)
                    held.cancel()
                    if gone.done():
                        return
                    gone.cancel()
                writer.write(self.answer)
                await writer.drain()
                if self.cut:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.left.set()
            writer.close()

    def headers(self, number: int = -1) -> dict[str, list[str]]:
        """Answer the headers of a request by their names in lower case."""
        found: dict[str, list[str]] = {}
        for line in self.heads[number].decode("latin-1").split("\r\n")[1:-2]:
            name, _, value = line.partition(":")
            found.setdefault(name.lower(), []).append(value.strip())
        return found

    def target(self, number: int = -1) -> str:
        """Answer the request line."""
        return self.heads[number].decode("latin-1").split("\r\n")[0]


@asynccontextmanager
async def other_side(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Other]:
    """Serve on an address of the loopback."""
    other = Other()
    server = await asyncio.start_server(other.serve, host, port)
    other.port = server.sockets[0].getsockname()[1]
    try:
        yield other
    finally:
        server.close()


@dataclass
class Desk:
    """One running operation, and a gateway that knows its store.

    names: what the resolver answers by host; a list of lists is answered one after the other, the last again
    and again.
    """

    store: Store
    scene: Scene
    client: httpx2.AsyncClient
    recorder: Recorder
    names: dict[str, list[list[str]]] = field(default_factory=lambda: {HOST: [["127.0.0.1"]]})
    asked: list[str] = field(default_factory=list)
    gateway: Gateway | None = None
    url: str = ""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Look a name up."""
        self.asked.append(host)
        answers = self.names.get(host)
        if not answers:
            raise OSError("no such host")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    @asynccontextmanager
    async def open(self, store: Store | None = None, **changes: Any) -> AsyncIterator[str]:
        """Serve a gateway that may connect to 127.0.0.1 and to nothing else of the loopback."""
        settings = GatewaySettings(**{"ranges": ("127.0.0.1/32",), **changes})
        gateway = Gateway(store or self.store, SECRET, settings, resolver=self.resolve)
        server = Server(gateway, "127.0.0.1:0", grace_s=1)
        ready = asyncio.Event()
        serving = asyncio.create_task(server.run_until_stopped(ready.set))
        await ready.wait()
        self.gateway, self.url = gateway, server.url
        try:
            yield server.url
        finally:
            server.stop()
            await serving
            await gateway.close()

    # -- the operation -------------------------------------------------------------------------------------

    async def called(self, *, ttl_us: int = 60 * SECOND, **changes: Any) -> tuple[Claimed, Pass]:
        """Have an operation that runs; answer its lease and what a token for it says."""
        claimed = await self.scene.running(ttl_us=ttl_us, trace=TRACE)
        intent = self.scene.intent(**{"timeout_us": 60 * SECOND, **changes})
        await self.scene.write(claimed, intent)
        return claimed, await self.passing(claimed, intent.key)

    async def passing(self, claimed: Claimed, key: str, **changes: Any) -> Pass:
        """Answer what a token for a running operation says."""
        row = await self.scene.operation(claimed, key)
        assert row.decision is not None
        assert row.deadline_at is not None
        said = Pass(
            tenant=claimed.tenant,
            task=claimed.task,
            epoch=claimed.epoch,
            key=key,
            attempt=row.attempt,
            decision=row.decision,
            approval=None,
            hosts=(f"http://{HOST}:{self.recorder.port}",),
            expires_at=row.deadline_at,
        )
        return replace(said, **changes)

    # -- requests ------------------------------------------------------------------------------------------

    @property
    def tickets(self) -> str:
        """Answer the reverse form of the Recorder's tickets."""
        return self.reverse(f"http://{HOST}:{self.recorder.port}/tickets")

    def reverse(self, url: str) -> str:
        """Answer the reverse form of a URL."""
        return f"{self.url}/{url.replace('://', '/', 1)}"

    async def send(
        self, said: Pass | str | None, url: str | None = None, method: str = "POST", **options: Any
    ) -> httpx2.Response:
        """Send a request in the reverse form, by default one that creates a ticket."""
        headers = dict(options.pop("headers", {}))
        if said is not None:
            headers["Outlast-Token"] = said if isinstance(said, str) else token(said)
        if (
            (url or self.tickets).endswith("/tickets")
            and "json" not in options
            and "content" not in options
            and method == "POST"
        ):
            options["json"] = {"invoice": "INV-1", "amount": "118.50"}
        return await self.client.request(method, url or self.tickets, headers=headers, **options)

    async def refused(self, code: str, said: Pass | str | None, **options: Any) -> httpx2.Response:
        """Demand that a request is refused with a code, and that the Recorder has seen nothing of it."""
        before = len(await self.recorder.log())
        answer = await self.send(said, **options)
        assert answer.json()["code"] == code, answer.text
        assert answer.headers["outlast-gateway"] in ("refused", "not-sent")
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(await self.recorder.log()) == before
        return answer

    # -- what is on record -----------------------------------------------------------------------------------

    async def rows(self, said: Pass) -> list[EvidenceRow]:
        """Answer the evidence of the operation."""
        return await self.store.read_evidence(said.tenant, said.task, said.key)

    async def notes(self, said: Pass) -> list[dict[str, Any]]:
        """Answer what the gateway noted, oldest first."""
        return [json.loads(row.data) for row in await self.rows(said) if row.source == "gateway"]


def token(said: Pass, secret: str = SECRET) -> str:
    """Sign a token."""
    return tokens.sign(secret, "gateway", said.parts())
