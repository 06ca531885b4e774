"""What only a real connection shows: bodies of unstated length, and what is left when a client goes away."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator

import pytest
from tests.server.desk import JSON, PATIENCE_S, Desk, frames, until

from outlast import listening
from outlast.errors import ConfigurationError
from outlast.server.app import create_app
from outlast.server.serving import listen

pytestmark = pytest.mark.parametrize("store_kind", ["sqlite-file"], indirect=True)


async def chunks(size: int) -> AsyncIterator[bytes]:
    yield b'{"agent": "echo", "input": {"value": "'
    sent = 0
    while sent < size:
        yield b"x" * 10_000
        sent += 10_000
    yield b'"}}'


async def test_a_body_in_chunks_is_counted(desk: Desk) -> None:
    async with desk.served() as (_, client):
        small = await client.post("/v1/tasks", content=chunks(50_000), headers=JSON)
        assert small.status_code == 202
        large = await client.post("/v1/tasks", content=chunks(2_500_000), headers=JSON)
        assert (large.status_code, large.json()["code"]) == (413, "body_too_large")
    assert await desk.stored() == 1


async def test_a_body_that_says_it_is_too_long_is_not_waited_for(desk: Desk) -> None:
    async with desk.served() as (server, _), asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n\r\n"
        )
        status = await reader.readline()
        assert b" 413 " in status
        await reader.read()  # to the end: the connection is closed
        writer.close()
    assert await desk.stored() == 0


async def test_a_stream_whose_client_went_away_leaves_nothing(desk: Desk) -> None:
    task = await desk.submitted("echo")
    async with desk.served() as (server, client), asyncio.timeout(PATIENCE_S):
        async with client.stream("GET", f"/v1/tasks/{task}/events") as response:
            async for frame in frames(response):
                if frame.get("event") == "task.submitted":
                    break
        await until(lambda: not server.server_state.tasks)
        assert not desk.app._tail._followers  # type: ignore[union-attr]


@pytest.mark.skipif(sys.platform != "linux", reason="others let a socket keep no packets out")
async def test_a_stream_whose_client_vanished_without_a_word_is_given_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its network is gone: it answers nothing, and the kernel alone would try for a quarter of an hour."""
    # As long as two keep-alives.
    default = inspect.signature(create_app).parameters["keep_alive_s"].default
    assert 2_000 * default == listening.VANISHED_MS
    monkeypatch.setattr(listening, "VANISHED_MS", 500)
    task = await desk.submitted("echo")
    async with desk.served() as (server, _), asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET /v1/tasks/{task}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await reader.readuntil(b"task.submitted")
        vanish(writer.get_extra_info("socket"))
        await until(lambda: not server.server_state.tasks)
        assert not desk.app._tail._followers  # type: ignore[union-attr]
        writer.transport.abort()


def vanish(connection: socket.socket) -> None:
    """Let a socket take no packet any more, so that it confirms nothing either."""
    # A classic BPF program of one instruction, return 0: of every packet keep nothing.
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    so_attach_filter = 26
    filtered = struct.pack("HL", 1, ctypes.addressof(program))
    # What asyncio hands out is no socket to change; this is the same one.
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.setsockopt(socket.SOL_SOCKET, so_attach_filter, filtered)


async def test_a_port_that_is_taken_is_said(desk: Desk) -> None:
    async with desk.served() as (server, _):
        with pytest.raises(ConfigurationError, match="--port"):
            listen("127.0.0.1", server.port)


def test_a_name_that_is_no_address_is_said(store_kind: str) -> None:
    with pytest.raises(ConfigurationError, match="not an address"):
        listen("no such host", 0)
