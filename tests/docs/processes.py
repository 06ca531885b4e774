"""Real processes for the pages that start some: their lines are read, and their ends are waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

PATIENCE_S = 30.0


def free_port() -> int:
    """Answer a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Started:
    """A process that a page starts."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.seen: list[str] = []

    async def says(self, text: str) -> str:
        """Wait for a line that holds ``text``. Raises AssertionError with what it said instead."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := (await self._process.stdout.readline()).decode():
                self.seen.append(line)
                if text in line:
                    return line
        raise AssertionError(f"never said {text!r}:\n{''.join(self.seen)}")

    async def ends(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; answer the exit code."""
        self._process.send_signal(number)
        return await self.ended()

    async def ended(self) -> int:
        """Wait for the end; answer the exit code."""
        async with asyncio.timeout(PATIENCE_S):
            # What it still says goes away, so that it cannot stand still before a full pipe.
            rest, _ = await self._process.communicate()
        self.seen.append(rest.decode())
        assert self._process.returncode is not None
        return self._process.returncode

    async def gone(self) -> None:
        """Kill it, unless it has ended."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()


class Shell:
    """Where a page's commands are run: one folder, one environment."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder = folder
        own = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
        self._environ = {**own, "NO_COLOR": "1", **environ}
        self.started: list[Started] = []

    def _command(self, words: tuple[str, ...]) -> list[str]:
        if words[0] == "outlast":
            return [sys.executable, "-m", "outlast", *words[1:]]
        assert words[0] == "python"
        return [sys.executable, *words[1:]]

    async def start(self, *words: str) -> Started:
        """Start a command that goes on; what it says on both outputs is kept."""
        process = await asyncio.create_subprocess_exec(
            *self._command(words),
            cwd=self._folder,
            env=self._environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self.started.append(Started(process))
        return self.started[-1]


@asynccontextmanager
async def shell(folder: Path, **environ: str) -> AsyncIterator[Shell]:
    """Run a page's commands; whatever still runs at the end of the block is killed."""
    made = Shell(folder, environ)
    try:
        yield made
    finally:
        for each in made.started:
            await each.gone()
