"""The command line as a shell runs it: real processes, their output line by line, their exit codes."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from typer.testing import CliRunner

from outlast.cli.main import command_line

PATIENCE_S = 30.0

APP = '''\
import asyncio
import gc
from pathlib import Path
from typing import Any

from outlast import ApprovalDenied, Outlast, TaskContext, ToolCall, Uncertain

app = Outlast("shell")


@app.agent
async def greet(task: TaskContext, name: str) -> str:
    return f"hello {name}"


@app.agent
async def look_around(task: TaskContext) -> dict[str, Any]:
    """Tells how its process looks for cycles."""
    return {"every": gc.get_threshold()[0], "left_alone": gc.get_freeze_count() > 0, "on": gc.isenabled()}


@app.agent
async def break_down(task: TaskContext) -> None:
    raise RuntimeError("it broke")


@app.agent
async def stand(task: TaskContext) -> str:
    await task.emit("progress", {"stage": "standing"})
    await asyncio.Event().wait()


@app.agent
async def cling(task: TaskContext) -> None:
    """Ignores that it is to stop."""
    await task.emit("progress", {"stage": "clinging"})
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass


async def letters(call: ToolCall, since: Any) -> list[str]:
    return Path("letters.txt").read_text().split()


@app.tool(effect="manual", timeout="1h", list_effects=letters)
async def send_letter(call: ToolCall, to: str) -> Any:
    raise Uncertain("the clerk did not say")


@app.agent
async def correspond(task: TaskContext, to: str) -> Any:
    return await task.call(send_letter, to=to)


@app.tool(effect="idempotent", approval=lambda amount: "over by 38.50" if amount != "1" else True)
async def file(call: ToolCall, invoice: str, amount: str) -> str:
    with Path("filed.txt").open("a") as filed:
        filed.write(f"{invoice} {amount}\\n")
    return amount


@app.agent
async def files(task: TaskContext, amount: str = "118.50") -> Any:
    try:
        return await task.call(file, invoice="INV-102", amount=amount)
    except ApprovalDenied as error:
        return error.reason


@app.agent
async def listen(task: TaskContext, times: int = 1) -> Any:
    return [await task.wait("word") for _ in range(times)]


@app.agent
async def wonders(task: TaskContext) -> Any:
    return await task.ask("Which one?", choices=["1", 1, "red"])


@app.agent
async def parent(task: TaskContext) -> Any:
    return await task.spawn(greet, {"name": "Ada"}).result()
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it answered, as JSON."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        """The error that it said as JSON."""
        said: dict[str, str] = json.loads(self.err.splitlines()[-1])["error"]
        return said


class Shell:
    """Run ``outlast`` in a folder; ``env`` is added to an environment without any OUTLAST_ variable."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
        self.env: dict[str, str] = {**clean, "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1", **env}

    def run(self, *arguments: str, given: str | None = None) -> Ended:
        """Run a command to its end. Whatever it says, it shows no traceback."""
        done = subprocess.run(
            [sys.executable, "-m", "outlast", *arguments],
            cwd=self.folder,
            env=self.env,
            input=given,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert "Traceback" not in done.stderr + done.stdout
        return Ended(code=done.returncode, out=done.stdout, err=done.stderr)

    def start(self, *arguments: str) -> Running:
        """Start a command that goes on."""
        return Running(self, arguments)


class Terminal(Shell):
    """Run commands in this process, which is quicker; ``start`` still makes real ones.

    An app that was loaded stays loaded: each command opens it and closes it again.
    """

    def run(self, *arguments: str, given: str | None = None) -> Ended:
        """Run a command to its end."""
        before, environ = Path.cwd(), dict(os.environ)
        os.chdir(self.folder)
        try:
            done = CliRunner().invoke(
                command_line(arguments), arguments, input=given, env=self.env, prog_name="outlast"
            )
        finally:
            os.chdir(before)
            # What a command sets ends with its process, and here with the command.
            os.environ.clear()
            os.environ.update(environ)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Ended(code=done.exit_code, out=done.stdout, err=done.stderr)

    def forget(self) -> None:
        """Forget what was loaded from the folder: the next test's app is another one of the same name."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(f"{self.folder}{os.sep}"):
                del sys.modules[name]
        if str(self.folder) in sys.path:
            sys.path.remove(str(self.folder))


class Running:
    """A command that goes on; ended, at the latest, with the block."""

    def __init__(self, shell: Shell, arguments: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "outlast", *arguments],
            cwd=shell.folder,
            env=shell.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[tuple[str, str]] = []
        self._ends = 0
        self._lines: queue.Queue[tuple[str, str] | None] = queue.Queue()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=("out", self.process.stdout), daemon=True),
            threading.Thread(target=self._read, args=("err", self.process.stderr), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, where: str, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.put((where, line.rstrip("\n")))
        self._lines.put(None)

    def until(self, holds: Callable[[str], bool] | str) -> str:
        """Wait for a line that holds something, and answer it."""
        wanted = (lambda line: holds in line) if isinstance(holds, str) else holds
        while True:
            try:
                item = self._lines.get(timeout=PATIENCE_S)
            except queue.Empty:
                raise AssertionError(f"it did not say {holds}; it said {self.said}") from None
            if item is None:
                self._ends += 1
                if self._ends == len(self._readers):
                    raise AssertionError(f"it ended without saying {holds}; it said {self.said}")
                continue
            self.said.append(item)
            if wanted(item[1]):
                return item[1]

    def log(self, event: str) -> dict[str, Any]:
        """Wait for a line of its log, and answer it."""
        line: dict[str, Any] = json.loads(self.until(f'"event": "{event}"'))
        return line

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def ended(self, within_s: float = PATIENCE_S) -> int:
        """Wait for its end and answer its exit code. Whatever it said, it showed no traceback."""
        code = self.process.wait(within_s)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        while not self._lines.empty():
            item = self._lines.get()
            if item is not None:
                self.said.append(item)
        assert not any("Traceback" in line for _, line in self.said), self.said
        return code

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(PATIENCE_S)
