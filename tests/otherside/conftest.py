"""A shelf on each database, and services in processes of their own in front of it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

from outlast.drills.fleet import Fleet, Process
from outlast.otherside import shelf_for
from outlast.store.shelf import Shelf

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=("sqlite", "postgres"))
def url(request: pytest.FixtureRequest) -> str:
    """A database of the service's own, without any table of Outlast's."""
    fixture = {"sqlite": "sqlite_url", "postgres": "bare_postgres_url"}[request.param]
    return str(request.getfixturevalue(fixture))


@pytest.fixture
async def shelf(url: str) -> AsyncIterator[Shelf]:
    """A prepared shelf."""
    made = shelf_for(url)
    await made.prepare()
    yield made
    await made.close()


async def a_moment() -> None:
    """Let the databases' clocks go on: SQLite's goes in milliseconds."""
    await asyncio.sleep(0.003)


async def somebody_waits(url: str) -> None:
    """Wait until a backend of a PostgreSQL database waits for a lock."""
    watcher = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(20):
            while True:
                if await watcher.fetchval(
                    "select count(*) > 0 from pg_stat_activity"
                    " where wait_event_type = 'Lock' and datname = current_database()"
                ):
                    return
                await asyncio.sleep(0.005)
    finally:
        await watcher.close(timeout=10)


@dataclass(slots=True)
class Services:
    """Ticket services over one database, and the log that they share."""

    url: str
    log: Path
    fleet: Fleet
    clients: list[httpx2.AsyncClient] = field(default_factory=list)

    async def start(self, name: str = "service", **options: Any) -> tuple[Process, httpx2.AsyncClient]:
        """Start one; answer its process, and a client of it."""
        given = json.dumps({"url": self.url, "log": str(self.log), **options})
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = self.fleet.start(name, "tests.otherside.service", given, environ={"PYTHONPATH": path})
        port = (await process.says("ready")).data["port"]
        limits = httpx2.Limits(max_connections=None)
        client = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=30, limits=limits, trust_env=False
        )
        self.clients.append(client)
        return process, client

    def did(self, word: str) -> list[dict[str, Any]]:
        """Answer the log's lines of one word."""
        if not self.log.exists():
            return []
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["word"] == word]


@pytest.fixture
async def services(url: str, tmp_path: Path) -> AsyncIterator[Services]:
    """No service yet; whatever is started is ended."""
    async with Fleet(tmp_path) as fleet:
        made = Services(url, tmp_path / "service.log", fleet)
        yield made
        for client in made.clients:
            await client.aclose()
