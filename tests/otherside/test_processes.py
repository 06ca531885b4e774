"""Real processes behind real sockets: twins that race, die, freeze and thaw; the service's own log judges."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import apsw
import asyncpg
import httpx2
import pytest
from tests.otherside.conftest import Services

from outlast import clock
from outlast.errors import Rejected
from outlast.testing.servers import EmbeddedPostgres
from outlast.tools.call import ToolCall
from outlast.tools.http import make_client

KEY = {"Idempotency-Key": "op-1"}


async def post(client: httpx2.AsyncClient, headers: Any = KEY, **body: Any) -> httpx2.Response:
    return await client.post("/tickets", json=body, headers=headers)


async def rows(url: str) -> list[tuple[Any, ...]]:
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            return list(connection.execute("select key, state, takeovers from outlast_otherside_keys"))
        finally:
            connection.close()
    asked = await asyncpg.connect(url)
    try:
        found = await asked.fetch("select key, state, takeovers from outlast_otherside.keys")
        return [tuple(row) for row in found]
    finally:
        await asked.close()


async def test_two_hundred_racing_twins_are_one_row_and_one_run(services: Services) -> None:
    (_, one), (_, other) = await asyncio.gather(
        services.start("one", wait="20s"), services.start("other", wait="20s")
    )
    answers = await asyncio.gather(*(post((one, other)[n % 2], turns=50) for n in range(200)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    assert len(services.did("began")) == len(services.did("acted")) == 1
    assert await rows(services.url) == [("op-1", "answered", 0)]


async def test_racing_twins_that_do_not_wait_are_told_to_come_again(services: Services) -> None:
    process, client = await services.start()
    first = asyncio.create_task(post(client, hold="door"))
    await process.says("began")
    twins = await asyncio.gather(*(post(client, hold="door") for _ in range(50)))
    assert {(twin.status_code, twin.json()["code"]) for twin in twins} == {(409, "in_flight")}
    assert {twin.headers["retry-after"] for twin in twins} == {"1"}
    await client.get("/release/door")
    assert (await first).status_code == 201
    assert (await post(client, hold="door")).headers["idempotent-replayed"] == "true"
    assert len(services.did("began")) == 1


async def test_a_first_that_is_killed_is_taken_over_when_its_lease_is_over(services: Services) -> None:
    (dying, one), (_, other) = await asyncio.gather(
        services.start("dying", lease="1s"), services.start("heir", lease="1s", wait="20s")
    )
    with pytest.raises(httpx2.HTTPError):
        await post(one, die_first=True)
    assert await dying.exited() == -9
    answer = await post(other, die_first=True)
    assert answer.status_code == 201
    assert "idempotent-replayed" not in answer.headers
    assert answer.json()["ticket"].endswith("-1")
    assert [line["takeover"] for line in services.did("acted")] == [0, 1]
    assert await rows(services.url) == [("op-1", "answered", 1)]


async def test_nobody_takes_over_while_the_lease_is_renewed(services: Services) -> None:
    (process, one), (_, other) = await asyncio.gather(
        services.start("slow", lease="2s"), services.start("waiting", lease="2s", wait="5s")
    )
    first = asyncio.create_task(post(one, hold="door"))
    await process.says("began")
    # Two leases and a half pass while the twin waits.
    assert (await post(other, hold="door")).json()["code"] == "in_flight"
    await one.get("/release/door")
    assert (await first).status_code == 201
    assert len(services.did("began")) == 1


async def test_a_first_that_was_frozen_and_thaws_writes_nothing(services: Services) -> None:
    (frozen, one), (_, other) = await asyncio.gather(
        services.start("frozen", lease="1s"), services.start("heir", lease="1s", wait="20s")
    )
    first = asyncio.create_task(post(one, freeze_first=True))
    await frozen.stopped()
    answer = await post(other, freeze_first=True)
    assert answer.json()["ticket"].endswith("-1")
    before = await rows(services.url)
    frozen.thaw()
    # It finishes its work, which is what it is; but it answers what its successor answered.
    thawed = await first
    assert thawed.content == answer.content
    assert thawed.headers["idempotent-replayed"] == "true"
    assert await rows(services.url) == before == [("op-1", "answered", 1)]
    again = await post(other, freeze_first=True)
    assert again.content == answer.content
    assert [line["takeover"] for line in services.did("acted")] == [1, 0]


async def test_call_http_and_the_middleware_understand_each_other(services: Services) -> None:
    _, client = await services.start()
    url = str(client.base_url.join("/tickets"))
    async with make_client(trust_env=False) as sender:

        async def send(epoch: int, key: str = "task_1:act-1") -> httpx2.Response:
            call = ToolCall(
                idempotency_key=key, task="task_1", tenant="acme", epoch=epoch, attempt=1,
                deadline=clock.monotonic() + 20, client=lambda: sender,
            )  # fmt: skip
            return await call.http.post(url, json={})

        first, again = await send(1), await send(2)
        assert first.json() == again.json()
        assert again.headers["idempotent-replayed"] == "true"
        # A worker that lost its task, whichever of its calls this is.
        with pytest.raises(Rejected, match="409"):
            await send(1)
        with pytest.raises(Rejected, match="409"):
            await send(1, "task_1:act-2")
    assert len(services.did("began")) == 1


async def test_a_client_that_goes_away_leaves_a_whole_answer_behind(services: Services) -> None:
    process, client = await services.start(wait="20s")
    first = asyncio.create_task(post(client, hold="door"))
    await process.says("began")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    twin = asyncio.create_task(post(client, hold="door"))
    await client.get("/release/door")
    answer = await twin
    assert answer.status_code == 201
    assert answer.headers["idempotent-replayed"] == "true"
    (acted,) = services.did("acted")
    assert acted["gone"] is False


async def test_a_shutdown_finishes_what_is_under_way(services: Services) -> None:
    process, client = await services.start()
    first = asyncio.create_task(post(client, hold="door"))
    await process.says("began")
    first.cancel()
    async with httpx2.AsyncClient(base_url=client.base_url, trust_env=False) as other:
        await other.get("/release/door")
        assert await process.stop() in (0, -15)
    assert [row[1] for row in await rows(services.url)] == ["answered"]
    assert json.loads(services.log.read_text().splitlines()[-1])["word"] == "closing"


# A file that is open does not go away; see test_middleware.
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_a_database_that_is_away_means_503_and_nothing_done(
    services: Services, postgres_server: EmbeddedPostgres
) -> None:
    _, client = await services.start()
    assert (await post(client)).status_code == 201
    postgres_server.drop_database(services.url.rpartition("/")[2])
    answer = await post(client, {"Idempotency-Key": "op-2"})
    assert answer.status_code == 503
    assert answer.json()["code"] == "store_unavailable"
    assert int(answer.headers["retry-after"]) >= 1
    assert [line["key"] for line in services.did("began")] == ["op-1"]
