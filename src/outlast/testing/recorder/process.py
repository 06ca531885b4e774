"""The Recorder as tests, drills and the demo hold it: start it, tell it what to do, read its log, stop it."""

from __future__ import annotations

import asyncio
import json
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlsplit

from outlast.testing.recorder.rules import Rule

__all__ = ["Call", "Recorder", "RecorderError"]

_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 5.0


class RecorderError(RuntimeError):
    """The Recorder did not start, or did not understand what it was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call in the Recorder's log. Times are in seconds since 1970 by the Recorder's clock.

    body: the JSON that was sent (None for other bodies and above 64 kB). misbehaved: the rule that took the
    call. effect: what this call changed; None when nothing, so also for a replayed answer. ticket: the ticket
    concerned. status: what was answered, None when nothing was. ending: how it ended (see ``Ending``), None
    while it is open. held: the barrier where it stands now. client_gone: the client left before the answer,
    or while it hung.
    """

    number: int
    arrived_at: float
    method: str
    path: str
    query: Mapping[str, str]
    key: str | None
    epoch: int | None
    deadline_ms: int | None
    traceparent: str | None
    body: Any
    body_digest: str
    misbehaved: str | None
    effect: Literal["created", "withdrawn", "noted"] | None
    acted_at: float | None
    ticket: str | None
    replayed: bool
    status: int | None
    ending: str | None
    ended_at: float | None
    held: str | None
    client_gone: bool


class Recorder:
    """Run a ticket service in a process of its own until ``stop``, the end of the block, or of this process.

    It listens on 127.0.0.1 only. Its log is durable: it is kept over ``kill`` and ``start``, on the same
    port. ``start`` and ``stop`` block (for scripts and the demo); ``async with`` runs them in a thread. All
    other methods may be awaited from any event loop.

    Args:
        database: The Recorder's own SQLite file; a temporary one, removed by ``stop``, when None.
        port: TCP port; 0 lets the system choose, and later starts take the same one again.
    """

    def __init__(self, *, database: str | Path | None = None, port: int = 0) -> None:
        self._own_folder: Path | None = None
        if database is None:
            self._own_folder = Path(tempfile.mkdtemp(prefix="outlast-recorder-"))
            database = self._own_folder / "recorder.db"
        self._database = Path(database)
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Recorder:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    @property
    def url(self) -> str:
        """Answer the base URL; tickets are at ``/tickets``."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """Answer the TCP port, 0 before the first start."""
        return self._port

    @property
    def pid(self) -> int | None:
        """Answer the process's id, None when it is not running."""
        return None if self._process is None else self._process.pid

    def start(self) -> Recorder:
        """Start the process, unless it runs, and wait until it listens. Raises ``RecorderError``."""
        if self._process is not None:
            return self
        command = [sys.executable, "-m", "outlast.testing.recorder", "--until-stdin-ends"]
        process = subprocess.Popen(
            [*command, "--database", str(self._database), "--port", str(self._port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C in the terminal is for us; the log is still wanted then
        )
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT)
        line = process.stdout.readline() if ready else b""
        if not line:
            _end(process)
            raise RecorderError(f"the Recorder did not start (exit code {process.returncode})")
        self._port = json.loads(line)["port"]
        self._process = process
        return self

    def stop(self) -> None:
        """Stop the process and remove a temporary file; nothing happens when that has been done."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    def kill(self) -> None:
        """End the process as a crash would (SIGKILL). The log stays; ``start`` brings it back."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            _end(process)

    async def plan(self, *rules: Rule, instead: bool = False) -> None:
        """Add rules behind those that are planned, or put them in their place (``instead``)."""
        await self._ask("POST", "/_plan", {"rules": [rule.as_json() for rule in rules], "instead": instead})

    async def configure(
        self, *, dedupe: bool = True, key_window_ms: int | None = None, check_epochs: bool = False
    ) -> None:
        """Say what kind of service it is.

        dedupe: honour idempotency keys. key_window_ms: forget a key after this time; None keeps it for ever.
        check_epochs: refuse a call (409, ``stale_epoch``) with a lower epoch than one seen under its key.
        """
        settings = {"dedupe": dedupe, "key_window_ms": key_window_ms, "check_epochs": check_epochs}
        await self._ask("POST", "/_settings", settings)

    async def hold(
        self, name: str, rule: Rule | None = None, *, at: Literal["arrived", "acted"] = "acted"
    ) -> None:
        """Keep the next call that fits at a barrier, before it is acted on or after.

        rule: which calls, and how they end once released; by default the next POST, answered honestly.
        """
        await self._ask("POST", "/_hold", {**(rule or Rule()).as_json(), "hold": name, "hold_at": at})

    async def release(self, name: str) -> None:
        """Open a barrier, for those who wait there and for those who come later."""
        await self._ask("POST", "/_release", {"hold": name})

    async def log(self, *, after: int = 0) -> list[Call]:
        """Answer every call with a higher number than ``after``, in the order of arrival."""
        return [Call(**call) for call in await self._ask("GET", f"/_log?after={after}")]

    async def tickets(self) -> list[dict[str, Any]]:
        """Answer every ticket, oldest first, whatever a stale query would say; the log does not grow."""
        found: list[dict[str, Any]] = await self._ask("GET", "/_tickets")
        return found

    async def wait_for(
        self,
        *,
        calls: int = 1,
        method: str | None = None,
        path: str | None = None,
        key: str | None = None,
        acted: bool | None = None,
        ended: bool | None = None,
        held: str | None = None,
        effect: str | None = None,
        client_gone: bool | None = None,
        timeout: float = 10.0,
    ) -> list[Call]:
        """Wait until ``calls`` calls in the log fit, and answer those.

        The Recorder tells us when; nothing polls. Each condition left None fits every call. Raises
        ``TimeoutError``, with the log in its text, after ``timeout`` seconds.
        """
        where = {
            "method": method, "path": path, "key": key, "acted": acted, "ended": ended, "held": held,
            "effect": effect, "client_gone": client_gone,
        }  # fmt: skip
        body = {"calls": calls, "where": where, "timeout_s": timeout}
        return [Call(**call) for call in await self._ask("POST", "/_wait", body)]

    async def reset(self) -> None:
        """Forget log, tickets, keys, plan and settings, and cut the calls that are open."""
        await self._ask("POST", "/_reset", {})

    async def _ask(self, method: str, target: str, value: Any = None) -> Any:
        """Ask one control path, on a connection of its own so that no event loop is bound."""
        body = b"" if value is None else json.dumps(value).encode()
        host = urlsplit(self.url).netloc
        head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(head.encode() + body)
            writer.write_eof()  # one request: the Recorder closes when it has answered
            answer = await reader.read()
        finally:
            writer.close()
        start, _, content = answer.partition(b"\r\n\r\n")
        status = int(start.split(b" ", 2)[1])
        if status == 408:
            raise TimeoutError(f"the Recorder's log does not get there:\n{content.decode()}")
        if status != 200:
            raise RecorderError(content.decode())
        return json.loads(content)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes, which stops the process, and wait for its end; SIGKILL where that does not help."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
