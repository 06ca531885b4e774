"""A server in a process of its own, and one connection to it that stays open and costs little."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Self

from bench.footprint import cpu_s

__all__ = ["BODY", "Asking"]

BODY = b'{"invoice":"INV-102","amount":"118.50"}'


class Asking:
    """The server, and the connection. port: where it listens."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self.port = port
        self._reader, self._writer = reader, writer

    @classmethod
    async def start(cls, module: str, *arguments: str) -> Self:
        """Start a module that prints its port, and connect to it."""
        root = str(Path(__file__).parents[1])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, "--serve", *arguments,
            stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        return cls(process, port, *await asyncio.open_connection("127.0.0.1", port))

    async def post(self, target: str, header: str) -> float:
        """Send one request that makes a ticket; answer how many milliseconds its answer took. header: one
        more than every request has."""
        began = time.perf_counter()
        self._writer.write(
            b"POST %b HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
            b"%b\r\nContent-Length: %d\r\n\r\n%b" % (target.encode(), header.encode(), len(BODY), BODY)
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        await self._reader.readexactly(length)
        assert b" 201 " in head, head
        return (time.perf_counter() - began) * 1000

    def cpu_ms(self) -> float:
        """Answer how much of a processor the server has used so far, in milliseconds."""
        return 1000 * cpu_s(self._process.pid)

    async def stop(self) -> None:
        """End the server."""
        self._writer.close()
        self._process.terminate()
        await self._process.wait()
