"""A process of a drill, in its engine's own interpreter: listened to, frozen, thawed, killed by its id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.peers.install import interpreter
from bench.peers.part import Part, Report

__all__ = ["Player", "PlayerError"]

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
"""How long to wait for a process; a loaded machine is slow, a wrong drill never gets there."""


class PlayerError(RuntimeError):
    """A process ended, or stayed silent, where the drill needed it to say something."""


class Player:
    """A process that plays a part until the end of the ``async with`` block.

    log: the file that takes what it writes to its standard error.
    """

    def __init__(self, part: Part, log: Path) -> None:
        self.part = part
        self._log = log
        self._said: list[dict[str, Any]] = []

    async def __aenter__(self) -> Player:
        python = sys.executable if self.part.engine == "outlast" else str(interpreter(self.part.engine))
        with self._log.open("ab") as errors:
            self._popen = subprocess.Popen(  # noqa: ASYNC220 - it answers at once
                [python, "-m", f"bench.peers.of_{self.part.engine}", json.dumps(asdict(self.part))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                process_group=0,  # Ctrl-C is for the drill
            )
        assert self._popen.stdout is not None
        self._lines = asyncio.StreamReader()
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._lines), self._popen.stdout
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        self._popen.wait()
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()
        self._transport.close()

    async def says(self, point: str) -> dict[str, Any]:
        """Wait until it says something, unless it has; each thing is taken once, in whatever order.

        Raises PlayerError when it ends first, or takes too long.
        """
        for number, said in enumerate(self._said):
            if said["point"] == point:
                return self._said.pop(number)
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for line in self._lines:
                    answered: dict[str, Any] = json.loads(line)
                    if answered["point"] == point:
                        return answered
                    self._said.append(answered)
        except TimeoutError:
            raise PlayerError(f"no {point!r} within {PATIENCE_S:g} s; see {self._log}") from None
        raise PlayerError(f"ended before {point!r}; see {self._log}")

    async def ended(self) -> Report:
        """Wait until the engine has said what became of the job."""
        return _report(await self.says("ended"))

    async def look(self) -> Report:
        """Ask what the engine has on record now."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(b"look\n")
        self._popen.stdin.flush()
        return _report(await self.says("looked"))

    def kill(self) -> None:
        """End it as a crash would."""
        self._popen.kill()

    async def freeze(self) -> None:
        """Stop it (SIGSTOP), and wait until it stands."""
        self._popen.send_signal(signal.SIGSTOP)
        await self.frozen()

    async def frozen(self) -> None:
        """Wait until it stands still. Raises PlayerError when it ends instead."""
        flags = os.WSTOPPED | os.WEXITED | os.WNOWAIT
        async with asyncio.timeout(PATIENCE_S):
            state = await asyncio.to_thread(os.waitid, os.P_PID, self._popen.pid, flags)
        if state is None or state.si_code != os.CLD_STOPPED:
            raise PlayerError(f"ended instead of freezing; see {self._log}")

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self._popen.send_signal(signal.SIGCONT)


def _report(said: dict[str, Any]) -> Report:
    return Report(end=said["end"], words=said["words"], ticket=said["ticket"])
