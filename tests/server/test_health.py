"""Whether the process lives and whether it can serve, while the database comes and goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.server.desk import PATIENCE_S, Desk

from outlast.opening import store_for
from outlast.store.contract import SCHEMA_VERSION
from outlast.store.rows import Health
from outlast.testing.servers import EmbeddedPostgres

BACK_WITHIN_S = 5.0


async def test_a_ready_service_says_so(desk: Desk) -> None:
    assert (await desk.client.get("/healthz")).json() == {"status": "ok"}
    answer = await desk.client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


async def test_a_service_is_ready_again_soon_after_its_database() -> None:
    with EmbeddedPostgres() as server:
        store = store_for(server.create_database("ready"))
        await store.migrate()
        await store.open()
        async with Desk(store) as desk:
            assert (await desk.client.get("/readyz")).status_code == 200
            await asyncio.to_thread(server.crash)
            away = await desk.client.get("/readyz")
            assert (away.status_code, away.json()["code"]) == (503, "store_unavailable")
            assert away.headers["retry-after"] == "1"
            assert (await desk.client.get("/healthz")).status_code == 200
            refused = await desk.client.get("/v1/tasks")
            assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
            await asyncio.to_thread(server.recover)
            async with asyncio.timeout(BACK_WITHIN_S):
                while (await desk.client.get("/readyz")).status_code != 200:  # noqa: ASYNC110 - it is asked, as by a probe
                    await asyncio.sleep(0.05)
            assert (await desk.post({"agent": "echo"})).status_code == 202


async def test_another_schema_is_not_served(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, code in ((SCHEMA_VERSION - 1, "schema_outdated"), (SCHEMA_VERSION + 1, "schema_too_new")):

        async def health(found: int = version) -> Health:
            return Health(reachable=True, schema_version=found)

        monkeypatch.setattr(desk.store, "health", health)
        answer = await desk.client.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, code)


async def test_a_database_that_does_not_answer_is_not_waited_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.server.routes.health.PATIENCE_S", 0.05)

    async def health() -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(desk.store, "health", health)
    async with asyncio.timeout(PATIENCE_S):
        answer = await desk.client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")


async def test_a_stopping_service_takes_itself_out(desk: Desk) -> None:
    desk.api.state.closing.begin()
    answer = await desk.client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "stopping")
    assert (await desk.client.get("/healthz")).status_code == 200
