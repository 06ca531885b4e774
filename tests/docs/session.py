"""Run what a page shows: Python with ``await`` at the top, and our command line, in one folder."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
from tests.docs.blocks import Block, Page
from tests.docs.lines import lines, request_of
from typer.testing import CliRunner

from outlast.cli.main import command_line
from outlast.server import create_app

TICKETS = "http://127.0.0.1:9009"
"""Where the pages' ticket service is; each test puts its own Recorder in its place."""
DATABASE = "postgresql://outlast:secret@db.internal/outlast"
"""Where the pages' PostgreSQL is."""
PRINTER = "9100"
"""The port of the pages' printer."""
SERVICE = "agents.internal:8700"
"""Where the pages' service is."""
GATEWAY = "8790"
"""The port of the pages' gateway."""
SERVING = frozenset({"dev", "gateway", "serve", "worker"})
"""Commands that go on until they are stopped; what the pages say of them is tested elsewhere."""


class Session:
    """The blocks of one name on one page. places: what to put in the place of the pages' addresses.

    names: the blocks' namespace. A text in it also fills ``<its name>`` in console blocks.
    """

    def __init__(self, page: Page, name: str, folder: Path, places: dict[str, str]) -> None:
        self._page, self._name, self._folder, self._places = page, name, folder, places
        self._printed = io.StringIO()
        self.names: dict[str, Any] = {"__name__": "__page__"}

    def run(self) -> None:
        """Run every block in order. Raises what a block raises, with its line in the page."""
        for path, text in self._page.files().items():
            file = self._folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self._here(text), encoding="utf-8")
        before = set(sys.modules)
        try:
            with asyncio.Runner() as runner:
                for block in self._page.blocks:
                    if block.name == self._name and block.marker in ("run", "prints"):
                        self._one(runner, block)
        finally:
            for name in set(sys.modules) - before:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(self._folder)):
                    del sys.modules[name]

    def _here(self, text: str) -> str:
        for shown, real in self._places.items():
            text = text.replace(shown, real)
        return text

    def _one(self, runner: asyncio.Runner, block: Block) -> None:
        match block.marker, block.kind:
            case "run", "python":
                # Line numbers of the page, so that a traceback leads to the block.
                source = "\n" * (block.line - 1) + self._here(block.text)
                code = compile(source, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                runner.run(self._evaluate(code))
            case "run", "console":
                for line in lines(self._here(block.text), **self._texts()):
                    if line.program == "outlast" and line.words[1] not in SERVING:
                        runner.run(asyncio.to_thread(self._command, line.words, block))
                    elif line.program == "python":
                        self._python(line.words, block)
                    elif line.program == "curl" and "app" in self.names:
                        runner.run(self._request(line.words, block))
            case "prints", _:
                expected = re.escape(self._here(block.text).strip()).replace("…", ".*?")
                seen = "\n".join(text.rstrip() for text in self._printed.getvalue().strip().splitlines())
                assert re.fullmatch(expected, seen, re.DOTALL), f"{block.where} prints:\n{seen}"
                self._printed = io.StringIO()
            case _:
                raise AssertionError(f"{block.where}: nobody knows how to run a block of {block.kind!r}")

    async def _evaluate(self, code: Any) -> None:
        with contextlib.redirect_stdout(self._printed):
            result = eval(code, self.names)
            if inspect.iscoroutine(result):
                await result

    def _command(self, words: tuple[str, ...], block: Block) -> None:
        self._printed.write(printed_by(words, block.where))

    async def _request(self, words: tuple[str, ...], block: Block) -> None:
        """Send the page's request to its app, in this process."""
        asked = request_of(words)
        api = create_app(self.names["app"], manage=False)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=api)) as client:
            answer = await client.request(asked.method, asked.url, headers=asked.headers, content=asked.body)
        assert answer.status_code < 400, f"{block.where}: {answer.status_code} {answer.text}"
        self._printed.write(answer.text + "\n")

    def _python(self, words: tuple[str, ...], block: Block) -> None:
        # Only the plugin that the page names: others cost seconds to load.
        plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p pytest_asyncio.plugin"}
        answer = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=self._folder,
            env={**os.environ, **plain},
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, f"{block.where}:\n{answer.stdout}\n{answer.stderr}"
        self._printed.write(answer.stdout)

    def _texts(self) -> dict[str, str]:
        return {name: value for name, value in self.names.items() if isinstance(value, str)}


def printed_by(words: tuple[str, ...], where: str) -> str:
    """Run a command of ours in this process and thread; answer what it printed. Raises AssertionError."""
    answer = CliRunner().invoke(command_line(words[1:]), words[1:], prog_name="outlast")
    said = f"{where}: {shlex.join(words)}\n{answer.output}"
    assert answer.exit_code == 0, f"{said}\n{answer.exception!r}"
    return answer.stdout
