"""Streams over HTTP: every event once and in order, an end that is said, and clients that do not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.server.desk import PATIENCE_S, Desk, frames, until

from outlast.server.serving import Server
from outlast.streams import tail

STREAM = {"accept": "text/event-stream"}
PAGE = {"accept": "application/json"}


async def read(
    client: httpx2.AsyncClient, task: str, query: str = "", **headers: str
) -> list[dict[str, str]]:
    """Read a stream to its end; comments are left out."""
    async with asyncio.timeout(PATIENCE_S):
        async with client.stream("GET", f"/v1/tasks/{task}/events{query}", headers=headers) as response:
            assert response.status_code == 200
            return [frame async for frame in frames(response) if "" not in frame]


class TestStreams:
    async def test_tell_everything_and_end(self, desk: Desk) -> None:
        task = await desk.ended("talk", lines=3)
        async with desk.served() as (_, client):
            seen = await read(client, task)
        stored = await desk.app.stored_events(task)
        assert [int(frame["id"]) for frame in seen] == [event.number for event in stored]
        assert [frame["event"] for frame in seen] == [event.kind for event in stored]
        assert seen[-1]["event"] == "task.succeeded"
        data = [json.loads(frame["data"]) for frame in seen]
        assert [entry["data"] for entry in data] == [event.data for event in stored]
        assert {entry["task"] for entry in data} == {task}
        assert [entry["number"] for entry in data] == list(range(1, len(stored) + 1))

    async def test_go_on_live(self, desk: Desk) -> None:
        desk.work()
        task = await desk.submitted("stand")
        seen: list[str] = []
        async with desk.served() as (_, client), asyncio.timeout(PATIENCE_S):
            async with client.stream("GET", f"/v1/tasks/{task}/events", headers=STREAM) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                assert response.headers["cache-control"] == "no-store"
                async for frame in frames(response):
                    if "event" in frame:
                        seen.append(frame["event"])
                    if frame.get("event") == "progress":
                        desk.gate.set()
        assert seen.count("progress") == 1
        assert seen[-1] == "task.succeeded"

    @pytest.mark.parametrize("how", ["query", "header", "both"])
    async def test_resume_after_what_was_seen(self, desk: Desk, how: str) -> None:
        task = await desk.ended("talk", lines=4)
        query = {"query": "?after=3", "header": "", "both": "?after=1"}[how]
        headers = {} if how == "query" else {"last-event-id": "3"}
        async with desk.served() as (_, client):
            seen = await read(client, task, query, **headers)
        assert [int(frame["id"]) for frame in seen] == list(range(4, len(seen) + 4))

    async def test_have_nothing_more_after_the_final_event(self, desk: Desk) -> None:
        task = await desk.ended("echo")
        last = (await desk.app.get(task)).last_event
        for after in (last, last + 7):
            answer = await desk.client.get(f"/v1/tasks/{task}/events?after={after}", headers=STREAM)
            assert (answer.status_code, answer.content) == (204, b"")

    @pytest.mark.parametrize("place", ["?after=999", "?after=9007199254740992"])
    async def test_end_with_the_task_wherever_they_begin(self, desk: Desk, place: str) -> None:
        """A place of another task's stream is one that this one may never come to."""
        task = await desk.submitted("stand")
        async with desk.served() as (_, client):
            reading = asyncio.create_task(read(client, task, place))
            await until(lambda: bool(desk.app._tail._followers))  # type: ignore[union-attr]
            desk.work()
            desk.gate.set()
            assert await reading == []

    async def test_stay_open_with_comments_that_do_not_move_the_position(self, desk: Desk) -> None:
        task = await desk.submitted("echo")
        comments: list[dict[str, str]] = []
        async with desk.served() as (_, client), asyncio.timeout(PATIENCE_S):
            async with client.stream("GET", f"/v1/tasks/{task}/events?after=1", headers=STREAM) as response:
                async for frame in frames(response):
                    comments.append(frame)
                    if len(comments) == 4:
                        break
        assert all("" in frame and "id" not in frame and "data" not in frame for frame in comments)
        assert [frame[""] for frame in comments[1:]] == ["keep-alive"] * 3

    @pytest.mark.parametrize("place", ["?after=-1", "?after=x", "?after=1.5", "?after=99999999999999999999"])
    async def test_refuse_a_position_that_is_none(self, desk: Desk, place: str) -> None:
        task = await desk.submitted("echo")
        answer = await desk.client.get(f"/v1/tasks/{task}/events{place}", headers=STREAM)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")

    async def test_refuse_a_last_event_id_that_is_none(self, desk: Desk) -> None:
        task = await desk.submitted("echo")
        headers = {**STREAM, "last-event-id": "seven"}
        answer = await desk.client.get(f"/v1/tasks/{task}/events", headers=headers)
        assert [(item["in"], item["name"]) for item in answer.json()["errors"]] == [
            ("header", "Last-Event-ID")
        ]

    async def test_serve_many_at_once(self, desk: Desk) -> None:
        desk.work()
        task = await desk.submitted("stand")
        await desk.begun.wait()
        async with desk.served() as (_, client):
            limits = httpx2.Limits(max_connections=50)
            async with httpx2.AsyncClient(base_url=client.base_url, trust_env=False, limits=limits) as many:
                reading = [asyncio.create_task(read(many, task)) for _ in range(40)]
                await asyncio.sleep(0)
                desk.gate.set()
                streams = await asyncio.gather(*reading)
        assert all(stream == streams[0] for stream in streams)
        assert streams[0][-1]["event"] == "task.succeeded"


class TestPages:
    async def test_of_json_hold_a_bounded_number(self, desk: Desk) -> None:
        task = await desk.ended("talk", lines=5)
        last = (await desk.app.get(task)).last_event
        numbers: list[int] = []
        after: Any = 0
        while after is not None:
            answer = await desk.client.get(f"/v1/tasks/{task}/events?after={after}&limit=3", headers=PAGE)
            assert answer.status_code == 200
            page = answer.json()
            assert len(page["items"]) <= 3
            numbers += [item["number"] for item in page["items"]]
            after = page["next"]
        assert numbers == list(range(1, last + 1))

    async def test_of_a_live_task_say_where_to_go_on(self, desk: Desk) -> None:
        task = await desk.submitted("echo")
        first = (await desk.client.get(f"/v1/tasks/{task}/events", headers=PAGE)).json()
        assert (len(first["items"]), first["next"]) == (1, 1)
        again = (await desk.client.get(f"/v1/tasks/{task}/events?after=1", headers=PAGE)).json()
        assert again == {"items": [], "next": 1}

    async def test_beyond_the_end_are_empty(self, desk: Desk) -> None:
        task = await desk.ended("echo")
        answer = await desk.client.get(f"/v1/tasks/{task}/events?after=99", headers=PAGE)
        assert answer.json() == {"items": [], "next": None}


class TestEnds:
    async def test_a_stopping_service_ends_streams_and_held_requests(self, desk: Desk) -> None:
        desk.work()
        task = await desk.submitted("stand")
        await desk.begun.wait()
        clock = asyncio.get_running_loop()
        async with desk.served() as (server, client), asyncio.timeout(PATIENCE_S):
            held = asyncio.create_task(client.get(f"/v1/tasks/{task}", headers={"prefer": "wait=60"}))
            async with client.stream("GET", f"/v1/tasks/{task}/events", headers=STREAM) as response:
                seen: list[dict[str, str]] = []
                async for frame in frames(response):
                    seen.append(frame)
                    if frame.get("event") == "progress":
                        began = clock.time()
                        server.stop()
            assert seen[-1]["event"] == "stream.stopping"
            assert "id" not in seen[-1]
            answer = await held
            assert clock.time() - began < 2.0
            assert (answer.status_code, answer.json()["state"]) == (200, "running")
            assert answer.headers["retry-after"] == "1"

    async def test_what_is_kept_is_told_whatever_its_length(self, desk: Desk) -> None:
        task = await desk.ended("talk", lines=3 * tail.BUFFER)
        async with desk.served() as (_, client):
            seen = await read(client, task)
        assert [int(frame["id"]) for frame in seen] == list(range(1, len(seen) + 1))
        assert len(seen) > 3 * tail.BUFFER
        assert seen[-1]["event"] == "task.succeeded"

    async def test_a_reader_that_fell_behind_is_told_where_to_go_on(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = await desk.ended("talk", lines=60, width=400_000)
        async with desk.served() as (server, client), asyncio.timeout(PATIENCE_S):
            with monkeypatch.context() as narrow:
                narrow.setattr(desk.app._tail, "_limit", 4)
                narrow.setattr(tail, "BUFFER", 3)
                narrow.setattr(tail, "PATIENCE_S", 0.0)
                reader, writer = await silent(server, task)
                followers = desk.app._tail._followers  # type: ignore[union-attr]
                await until(lambda: any(follower.cut for follower in followers))
            seen = [frame async for frame in lines_to_frames(reader) if "" not in frame]
            assert seen[-1]["event"] == "stream.overrun"
            assert "id" not in seen[-1]
            assert json.loads(seen[-1]["data"])["code"] == "stream_overrun"
            writer.close()
            last = int(seen[-2]["id"])
            rest = await read(client, task, **{"last-event-id": str(last)})
        numbers = [int(frame["id"]) for frame in seen[:-1] + rest]
        assert numbers == list(range(1, len(numbers) + 1))

    async def test_a_client_that_reads_nothing_is_dropped(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outlast.server.routes.tasks.SEND_TIMEOUT_S", 0.3)
        task = await desk.ended("talk", lines=60, width=400_000)
        async with desk.served() as (server, _), asyncio.timeout(PATIENCE_S):
            _, writer = await silent(server, task)
            await until(lambda: not server.server_state.tasks)
            assert not desk.app._tail._followers  # type: ignore[union-attr]
            writer.close()


async def silent(server: Server, task: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stream and take nothing of it yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
    writer.write(
        f"GET /v1/tasks/{task}/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    )
    await until(lambda: bool(server.server_state.tasks))
    # A writer that nobody holds closes its connection.
    return reader, writer


async def lines_to_frames(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, str]]:
    """Read what a silent client was sent after all: the body of an answer in chunks."""
    text = await reader.read(-1)
    body = bytearray()
    rest = text.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    for block in body.decode().split("\n\n"):
        if block:
            yield {name: value for name, _, value in (line.partition(": ") for line in block.splitlines())}
