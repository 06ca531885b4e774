"""Console blocks line by line: which programs are named, and whether what they are told exists."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.docs.blocks import ROOT, Block
from typer.main import get_command

from outlast.cli.main import command_line
from outlast.core import ids

SHELL = frozenset(
    {
        "cd",
        "createdb",
        "export",
        "kill",
        "mkdir",
        "pg_dump",
        "pg_restore",
        "pip",
        "psql",
        "systemctl",
        "touch",
    }
)
"""Programs that are not ours: named, not checked."""

TASK = ids.new_id(ids.TASK, 1_700_000_000_000, 7)
PLACEHOLDER = re.compile(r"<[^<>\n]+>")
_COMMENT = re.compile(r"(?:^|\s)# .*$")
_ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A command as the shell would read it. environ: what it is given in front of it."""

    words: tuple[str, ...]
    environ: tuple[str, ...]
    background: bool

    @property
    def program(self) -> str:
        """What is started."""
        return self.words[0]


def lines(text: str, **names: str) -> Iterator[Line]:
    """Read the commands of a console block; ``<name>`` is what ``names`` says, or a task's id."""
    whole = re.sub(r"\\\n\s*", " ", text)
    for raw in whole.splitlines():
        filled = PLACEHOLDER.sub(lambda match: shlex.quote(names.get(match[0][1:-1], TASK)), raw)
        # Not shlex's own comments: it sees one in the middle of a word too, and operations have a # there.
        words = shlex.split(_COMMENT.sub("", filled))
        environ = []
        while words and _ASSIGNMENT.match(words[0]):
            environ.append(words.pop(0))
        background = bool(words) and words[-1] == "&"
        if background:
            words.pop()
        if words:
            yield Line(words=tuple(words), environ=tuple(environ), background=background)


def check(block: Block) -> None:
    """Refuse a console block that names what does not exist. Raises AssertionError."""
    for line in lines(block.text):
        where = f"{block.where}: {' '.join(line.words)}"
        match line.words:
            case ("outlast", *arguments):
                check_command(arguments, where)
            case ("curl", *_):
                check_request(line.words, where)
            case ("make", target, *_):
                makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
                assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), (
                    f"{where}: no such target"
                )
            case ("python", "-m", module, *arguments):
                check_module(module, arguments, where)
            case (program, *_):
                assert program in SHELL, f"{where}: {program} is not a program that the docs may name"


def check_command(arguments: list[str], where: str) -> None:
    """Refuse a command line of ours that the CLI would not take."""
    command: Any = get_command(command_line(arguments))
    context: Any = None
    try:
        while True:
            name = command.name
            if not hasattr(command, "resolve_command"):
                command.make_context(name, list(arguments), parent=context)
                return
            context = command.make_context(name, list(arguments), parent=context, resilient_parsing=True)
            _, command, arguments = command.resolve_command(context, list(arguments))
    except AssertionError:
        raise
    # The parser's own errors; they have no public base that says all of it.
    except Exception as error:
        raise AssertionError(f"{where}: {getattr(error, 'message', error)}") from error


def check_module(module: str, arguments: list[str], where: str) -> None:
    """Refuse a module that cannot be started, or an option that its source does not name."""
    found = importlib.util.find_spec(module)
    assert found is not None, f"{where}: no such module"
    if module.startswith("outlast."):
        inner = importlib.util.find_spec(f"{module}.__main__") or found
        assert inner.origin is not None
        source = Path(inner.origin).read_text(encoding="utf-8")
        for argument in arguments:
            if argument.startswith("--"):
                assert f'"{argument}"' in source, f"{where}: no option {argument}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The HTTP request that a curl command makes."""

    method: str
    url: str
    headers: dict[str, str]
    body: str | None


def request_of(words: tuple[str, ...]) -> Asked:
    """Read a curl command. Raises AssertionError for an option that the docs do not use."""
    method, url, headers, body = "", "", {}, None
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word in ("-H", "--header"):
            name, _, value = rest.pop(0).partition(":")
            headers[name.strip().lower()] = value.strip()
        elif word in ("-d", "--data"):
            body = rest.pop(0)
        elif word in ("-X", "--request"):
            method = rest.pop(0)
        elif word.startswith("-"):
            assert word in ("-s", "-i", "-N", "-sN", "-si"), f"curl {word}"
        else:
            url = word if "://" in word else f"http://{word}"
    return Asked(method=method or ("GET" if body is None else "POST"), url=url, headers=headers, body=body)


@functools.cache
def routes() -> dict[str, Any]:
    """Answer the paths of the HTTP API as OpenAPI describes them."""
    from outlast import Outlast
    from outlast.server import create_app

    paths: dict[str, Any] = create_app(Outlast("docs")).openapi()["paths"]
    return paths


def check_request(words: tuple[str, ...], where: str) -> None:
    """Refuse a request to our API that no route takes, and a body that is no JSON."""
    asked = request_of(words)
    path = urlsplit(asked.url).path
    if not path.startswith(("/v1", "/healthz", "/readyz")):
        return  # the ticket service's
    if asked.body is not None:
        json.loads(asked.body)
        assert asked.headers.get("content-type") == "application/json", f"{where}: no content type"
    for template, methods in routes().items():
        pattern = re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path) and asked.method.lower() in methods:
            return
    raise AssertionError(f"{where}: no route takes {asked.method} {path}")
