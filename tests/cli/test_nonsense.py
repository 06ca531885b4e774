"""Every command with arguments that make no sense: a fair exit code, one clear line, JSON where asked for.

Generated over the commands that there are, so that a new one is tried too.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.cli.shell import Terminal
from typer.main import get_command

from outlast.cli.failing import EXIT_CODES
from outlast.cli.main import command_line

TASK = "task_01jz8f5s9ve5ptq3mwr7n1k2bd"
GOES_ON = {
    "dev", "demo", "serve", "worker", "gateway", "tasks watch", "drill effects", "drill people",
    "drill change", "drill otherside", "drill storm",
}  # fmt: skip
"""Commands that go on for long where their arguments make sense: tried with what cannot."""
GOOD = {
    "agent": "greet", "approval": f"{TASK}:file#1~1", "arguments": "{}", "fingerprint": "f" * 64,
    "id": "nightly", "key": "k", "name": "word", "number": "1", "operation": f"{TASK}:file#1",
    "reason": "since", "scope": "all", "target": "app:app", "task": TASK, "tool": "file", "answer": "1",
    "to": "ada", "count": "3", "said": "1", "schedule": "nightly", "cron": "0 6 * * *",
}  # fmt: skip
WORDS = [
    "",
    " ",
    "nonsense",
    "a\x00b",
    "\udcff",
    "\x1b[31m",
    "../../etc/passwd",
    "x" * 5_000,
    "'; drop table",
]
NUMBERS = ["abc", "", "-1", "1.5", "99999999999999999999", "nan"]
TARGETS = [
    "",
    ":",
    "app:",
    ":app",
    "no_such_module:app",
    "app:no_such_name",
    "os:path",
    "app:app:app",
    "\udcff",
]
DATABASES = [
    "",
    "nonsense",
    "nonsense://x",
    "postgresql://u:pa55word@127.0.0.1:1/x",
    "sqlite:////proc/no/x.db",
]
SECRET = "pa55word"
WHOLE = bool(os.environ.get("OUTLAST_TEST_ALL"))


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if hasattr(command, "commands"):
            for name, each in command.commands.items():
                yield from walk(each, (*path, name))
        else:
            yield path, command

    yield from walk(get_command(command_line()), ())


def kind_of(command: Any, parameter: Any) -> str:
    """Answer what a parameter says that it takes: ``str``, ``int range``, or its choices."""
    context = command.make_context(command.name, [], resilient_parsing=True)
    return str(parameter.display_type(context)).strip("<>")


def values_for(path: tuple[str, ...], command: Any, parameter: Any) -> list[str]:
    kind = kind_of(command, parameter)
    goes_on = " ".join(path) in GOES_ON
    if parameter.name == "database_url":
        # An app that was loaded before keeps its store: of those that go on, others are tried in a process.
        return [] if goes_on else DATABASES
    if parameter.name == "target":
        return [one for one in TARGETS if one not in ("", "app:")] if goes_on else TARGETS
    if kind.startswith(("int", "float")):
        return ["abc", "nan"] if goes_on else NUMBERS
    if "|" in kind:
        return ["perhaps", "", "\x1b[31m"]
    return [] if goes_on else WORDS


def line_for(command: Any, bad: Any, value: str) -> list[str]:
    """Write the arguments of a command in which one is bad and the rest make sense."""
    line, last = [], []
    for parameter in command.params:
        given = value if parameter is bad else None
        if given is None and parameter.required:
            kind = kind_of(command, parameter)
            given = kind.split("|")[0] if "|" in kind else GOOD[parameter.name]
        if given is None:
            continue
        if parameter.param_type_name == "argument":
            last.append(given)
        else:
            line.append(f"{parameter.opts[0]}={given}")
    return [*line, "--", *last] if last else line


def complaint(ended: Any, has_json: bool) -> str | None:
    """Say what is wrong with how a command ended."""
    said = ended.err + ended.out
    if SECRET in said or "Traceback" in said or "internal error" in said or "\x1b" in said:
        return said[-300:]
    if ended.code == 0:
        return None
    if ended.code not in EXIT_CODES.values():
        return f"{ended.code} is no exit code of ours"
    if ended.out and not ended.err:
        # A report that is not good is an answer, such as what ``check`` has found.
        if has_json:
            json.loads(ended.out)
        return None
    if not has_json:
        return None if len(ended.err.splitlines()) == 1 else ended.err[-300:]
    try:
        error = json.loads(ended.err)["error"]
    except (ValueError, KeyError, TypeError):
        return f"{ended.code}, no JSON: {ended.err[-300:]!r}"
    return None if EXIT_CODES[error["code"]] == ended.code and error["message"] else f"{ended.code}: {error}"


@contextmanager
def in_time(line: list[str]) -> Iterator[None]:
    """Cut a command that goes on although it was told nonsense."""

    def cut(*_: object) -> None:
        raise TimeoutError("it goes on")

    before = signal.signal(signal.SIGALRM, cut)
    signal.setitimer(signal.ITIMER_REAL, 4)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("as_json", [True, False])
def test_nonsense_is_refused_in_one_clear_line(terminal: Terminal, as_json: bool) -> None:
    wrong, tried = [], 0
    for path, command in commands():
        has_json = any(parameter.name == "as_json" for parameter in command.params)
        for parameter in command.params:
            if getattr(parameter, "is_flag", False) or parameter.name == "help":
                continue
            # What a line for people says is what JSON says, so that it is looked at less often.
            values = values_for(path, command, parameter)
            # In the short form each parameter meets a half of them, the next one the other half.
            first, step = (0, 1) if WHOLE else (tried % 2, 2)
            for value in values[first :: step if as_json else 4 * step]:
                json_too = ["--json"] if has_json and as_json else []
                line = [*path, *json_too, *line_for(command, parameter, value)]
                tried += 1
                try:
                    with in_time(line):
                        wrongly = complaint(terminal.run(*line), has_json and as_json)
                # Whatever a command raises is what this looks for.
                except BaseException as error:
                    wrongly = f"{type(error).__name__}: {error}"
                if wrongly is not None:
                    wrong.append(f"{ascii(line)[:160]}: {wrongly}")
    assert "\n".join(wrong) == ""
    assert tried > (800 if as_json else 200) // (1 if WHOLE else 2)
