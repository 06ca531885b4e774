"""Processes that a drill starts, waits for, stops, and never leaves behind.

A process says things on a pipe of its own, one line of JSON each: that it is ready, that it is about to die
at a named point. Its end is the end of that pipe. Nothing here polls, and nothing waits for a fixed time.

Left behind: nothing. ``Fleet`` kills what still runs when its block ends, by process id. Should this process
be killed itself, its children see their standard input end and leave; frozen ones are hung up by the kernel,
since they are in process groups of their own that become orphans.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from outlast.testing.probes import MARK, PROBE, Trigger, spell

__all__ = ["Fleet", "FleetError", "Process", "Said"]

PATIENCE_S = 30.0
"""How long to wait for a process by default; a loaded machine is slow, a wrong drill never gets there."""

LAST_WORDS = 2_000
"""Within how many bytes at the end of a log the last line is looked for."""


class FleetError(RuntimeError):
    """A process ended, or stayed silent, where the drill needed it to do something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A line that a process wrote: its word, the rest of it, and when it was read (seconds since 1970)."""

    word: str
    data: Mapping[str, Any]
    at: float


class Process:
    """A child process; made by ``Fleet.start``."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.pid = popen.pid
        self.log = log
        """The file with what it wrote to its standard error."""
        self.said: list[Said] = []
        self.ended_at: float | None = None
        self._popen = popen
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    # -- what it tells ---------------------------------------------------------------------------------------

    async def says(self, word: str, *, nth: int = 1, timeout: float = PATIENCE_S) -> Said:
        """Wait until the process has said a word (``ready``, a point's name) for the nth time.

        Raises FleetError when it ends, or when the time is over, before it has.
        """

        def found() -> Said | None:
            fitting = [one for one in self.said if one.word == word]
            return fitting[nth - 1] if len(fitting) >= nth else None

        await self._until(lambda: found() is not None or self.ended_at is not None, f"say {word!r}", timeout)
        said = found()
        if said is None:
            raise FleetError(f"{self.name} ended ({self.ending}) before it said {word!r}; see {self.log}")
        return said

    async def stopped(self, *, timeout: float = PATIENCE_S) -> None:
        """Wait until the operating system says that the process is frozen. Raises FleetError."""
        flags = os.WSTOPPED | os.WEXITED | os.WNOWAIT
        async with asyncio.timeout(timeout):
            state = await asyncio.to_thread(os.waitid, os.P_PID, self.pid, flags)
        if state is None or state.si_code != os.CLD_STOPPED:
            raise FleetError(f"{self.name} ended instead of freezing; see {self.log}")

    async def exited(self, *, timeout: float = PATIENCE_S) -> int:
        """Wait for the process's end; answer its exit code, negative for a signal."""
        await self._until(lambda: self.ended_at is not None, "end", timeout)
        return self._popen.wait()

    @property
    def running(self) -> bool:
        """Whether the process has not ended, frozen ones included."""
        return self._popen.poll() is None

    @property
    def ending(self) -> str:
        """How the process ended, for people: ``SIGKILL``, ``exit code 0``, or ``running``."""
        code = self._popen.poll()
        if code is None:
            return "running"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    @property
    def last_words(self) -> str:
        """The last line that it wrote to its standard error, empty for none: of a traceback, its error."""
        with self.log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_WORDS))
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    # -- what is done to it ----------------------------------------------------------------------------------

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process, unless it has ended."""
        if self.running:
            self._popen.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        self.send(signal.SIGKILL)

    def thaw(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self.send(signal.SIGCONT)

    async def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(line.encode() + b"\n")
        self._popen.stdin.flush()

    async def stop(self, *, timeout: float = PATIENCE_S) -> int:
        """Ask it to leave in good order (SIGTERM) and wait until it has; answer its exit code."""
        self.thaw()
        self.send(signal.SIGTERM)
        return await self.exited(timeout=timeout)

    # -- inside ----------------------------------------------------------------------------------------------

    async def _until(self, true: Callable[[], bool], what: str, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise FleetError(f"{self.name} did not {what} within {timeout:g} s; see {self.log}") from None

    async def _read(self, pipe: BinaryIO) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            async for line in reader:
                data = json.loads(line)
                self.said.append(Said(word=data.pop("point"), data=data, at=time.time()))
                self._changed.set()
            # The pipe is closed a moment before the process can be waited for.
            await asyncio.to_thread(self._popen.wait)
            self.ended_at = time.time()
            self._changed.set()
        finally:
            transport.close()

    async def _close(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
        if self._popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._popen.stdin.close()
        if self._reading is not None:
            await self._reading


class Fleet:
    """Start processes of a drill; the end of the ``async with`` block ends every one of them.

    folder: where the processes' standard errors are kept, a file each.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Process] = []

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Kill them all before waiting for any: what is left may be waiting for one another.
        for process in self.processes:
            process.kill()
        for process in self.processes:
            await process._close()

    def start(
        self,
        name: str,
        module: str,
        *arguments: str,
        probe: Sequence[Trigger] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Process:
        """Start ``python -m module`` with what it needs to report and to be stopped.

        probe: where the process stops itself. environ: variables on top of ours. Answers at once; wait for
        ``says("ready")``.
        """
        log = self.folder / f"{len(self.processes) + 1:02}-{name.replace(' ', '-')}.log"
        read, write = os.pipe()
        variables = {**os.environ, **(environ or {}), MARK: str(write)}
        variables.pop(PROBE, None)
        if probe:
            variables[PROBE] = spell(*probe)
        try:
            with log.open("ab") as errors:
                popen = subprocess.Popen(
                    [sys.executable, "-m", module, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=errors,
                    stderr=errors,
                    pass_fds=(write,),
                    env=variables,
                    # In the terminal's session, so that the kernel hangs up frozen ones when we are gone;
                    # in a group of its own, so that Ctrl-C is for us alone.
                    process_group=0,
                )
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        process = Process(name, popen, log)
        process._reading = asyncio.get_running_loop().create_task(process._read(os.fdopen(read, "rb", 0)))
        self.processes.append(process)
        return process
