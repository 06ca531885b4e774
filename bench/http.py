"""Submits per second over HTTP: one API process, sixteen connections that stay open, a client that costs
little."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from urllib.parse import urlsplit

BODY = json.dumps({"agent": "one", "input": {}}).encode()


async def _post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> int:
    writer.write(
        b"POST /v1/tasks HTTP/1.1\r\nHost: " + host.encode() + b"\r\nContent-Type: application/json\r\n"
        b"Content-Length: " + str(len(BODY)).encode() + b"\r\n\r\n" + BODY
    )
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.split(b":")[1]))
    return status


async def _serve(database_url: str) -> tuple[asyncio.subprocess.Process, str]:
    """Start ``outlast serve`` and wait until it answers; the port is the one that it was given."""
    probe = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = probe.sockets[0].getsockname()[1]
    probe.close()
    await probe.wait_closed()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "outlast", "serve", "bench.apps:app", "--port", str(port),
        env={**os.environ, "OUTLAST_DATABASE_URL": database_url},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if process.returncode is not None:
                raise RuntimeError(f"the API process ended with {process.returncode}") from None
            await asyncio.sleep(0.05)
            continue
        writer.close()
        return process, url
    raise RuntimeError("the API process did not answer within ten seconds")


async def submits(database_url: str, seconds: float, connections: int = 16) -> float:
    """Answer submits per second over HTTP."""
    process, url = await _serve(database_url)
    parts = urlsplit(url)
    done = 0
    try:
        assert parts.hostname is not None
        pairs = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(connections)]
        end = time.perf_counter() + seconds

        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal done
            while time.perf_counter() < end:
                status = await _post(reader, writer, parts.netloc)
                assert status == 202, status
                done += 1

        started = time.perf_counter()
        await asyncio.gather(*(client(reader, writer) for reader, writer in pairs))
        rate = done / (time.perf_counter() - started)
        for _, writer in pairs:
            writer.close()
        return rate
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
