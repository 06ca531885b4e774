"""Load named SQL statements from files beside an adapter.

A file is a heading comment (which states the lock order), then statements. Each begins with a line
``-- name: verb_name``; the comment lines directly above that line are the sentence that documents it, and
everything up to the next statement's sentence is its text::

    -- Read one task's head.
    -- name: read_head
    select state, epoch from tasks where tenant = $1 and id = $2;

Names are unique within a folder, so that a statement is called by name alone.
"""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable

from outlast.core.record import record

_NAME = re.compile(r"^--\s*name:\s*([a-z][a-z0-9_]*)\s*$")


@record
class Statement:
    """One named statement: text without the last semicolon, the sentence above it, the file it is in."""

    name: str
    sql: str
    sentence: str
    file: str


def load(folder: str | Traversable) -> dict[str, str]:
    """Read every ``*.sql`` file of a folder and answer statement texts by name.

    folder: a dotted path (``outlast.store.sqlite.sql``) or a directory.

    Raises ValueError for a name used twice, an empty statement, or one without a sentence above it.
    """
    return {statement.name: statement.sql for statement in read(folder)}


def read(folder: str | Traversable) -> tuple[Statement, ...]:
    """Read a folder's statements with their sentences, by file and line; raises as ``load``."""
    root = resources.files(folder) if isinstance(folder, str) else folder
    found: dict[str, Statement] = {}
    for file in sorted(root.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        for statement in parse(file.read_text(encoding="utf-8"), file.name):
            if statement.name in found:
                other = found[statement.name].file
                raise ValueError(f"{file.name}: statement {statement.name} is already in {other}")
            found[statement.name] = statement
    return tuple(found.values())


def parse(text: str, file: str) -> tuple[Statement, ...]:
    """Split one file's text into its statements; raises as ``load``."""
    lines = text.splitlines()
    names = [(index, match[1]) for index, line in enumerate(lines) if (match := _NAME.match(line))]
    tops = [_top_of_sentence(lines, index) for index, _ in names]
    statements = []
    for place, (index, name) in enumerate(names):
        sentence = " ".join(line.lstrip("- ").strip() for line in lines[tops[place] : index])
        end = tops[place + 1] if place + 1 < len(names) else len(lines)
        sql = "\n".join(lines[index + 1 : end]).strip().removesuffix(";").rstrip()
        if not sentence or not sql:
            raise ValueError(f"{file}: statement {name} has no {'text' if sentence else 'sentence above it'}")
        statements.append(Statement(name=name, sql=sql, sentence=sentence, file=file))
    return tuple(statements)


def _top_of_sentence(lines: list[str], name_line: int) -> int:
    top = name_line
    while top > 0 and lines[top - 1].startswith("--") and not _NAME.match(lines[top - 1]):
        top -= 1
    return top
