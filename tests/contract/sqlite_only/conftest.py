"""A store in a file of the test's own, and the other processes of a test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from outlast.store.sqlite import SqliteStore

PROCESSES = Path(__file__).with_name("processes.py")


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[SqliteStore]:
    """A migrated, opened store in a file."""
    made = SqliteStore(sqlite_url)
    await made.migrate()
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def path(sqlite_url: str) -> str:
    """Where the file of ``store`` is."""
    return sqlite_url.removeprefix("sqlite:///")


@pytest.fixture
async def beside(store: SqliteStore, path: str) -> AsyncIterator[apsw.Connection]:
    """A connection of an application's own to the file of ``store``."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(10_000)
    try:
        yield connection
    finally:
        connection.close()


class Process:
    """Another process that carries out a duty of ``processes.py``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        """Wait for the next line that it prints."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        assert line, "the process ended without saying more"
        return line.decode().strip()

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def is_stopped(self) -> bool:
        """Say whether a signal to stop has taken hold."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    async def answer(self) -> Any:
        """Wait for its end, which must be a good one, and read the last line that it printed."""
        output, _ = await asyncio.wait_for(self._process.communicate(), 120)
        assert self._process.returncode == 0
        return json.loads(output.splitlines()[-1])

    async def end(self) -> None:
        """Kill it, whatever it does, and take it away."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.communicate()


Start = Callable[..., Any]


@pytest.fixture
async def start(store: SqliteStore, sqlite_url: str) -> AsyncIterator[Start]:
    """Start other processes on the file of ``store``; none outlives the test."""
    started: list[Process] = []

    async def begin(duty: str, argument: object = "") -> Process:
        process = Process(
            await asyncio.create_subprocess_exec(
                sys.executable,
                str(PROCESSES),
                duty,
                sqlite_url,
                str(argument),
                stdout=asyncio.subprocess.PIPE,
            )
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        await process.end()
