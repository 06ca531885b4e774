"""Pages of the documentation as they are tested: fenced blocks with their markers, links, headings.

A marker is an HTML comment on the line above a fence; readers do not see it.

    <!-- run: NAME -->       the block is run; blocks of one page and one name share a namespace and a folder
    <!-- file: PATH -->      the block is (a part of) a file in that folder, there before anything is run
    <!-- prints: NAME -->    the block is what the blocks above it printed since the last such block; … stands
                             for anything
    <!-- hidden: NAME ... --> code that is run in its place and not shown: what prepares or checks the rest

A Python block without a marker fails a test, and so does a kind of block that ``KINDS`` does not name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]

KINDS = {
    "python": "run, or a file that something run imports",
    "console": "every line a command that exists, with options that exist; run where it is marked",
    "text": "what something prints; compared where it is marked",
    "json": "JSON",
    "http": "not run: headers and bodies as they travel",
    "sql": "not run: statements for an administrator",
    "ini": "not run: a unit of systemd; its outlast commands are checked",
    "toml": "a file that something run reads",
    "mermaid": "not run: made by docs.generate",
    "markdown": "not run: a template",
}
"""The kinds of fenced blocks, and what is checked of each."""

_BLOCK = re.compile(
    r"(?:^<!-- (?P<marker>run|file|prints): (?P<name>[^\n]+?) -->\n)?"
    r"^```(?P<kind>[a-z]*)\n(?P<text>.*?)^```$"
    r"|^<!-- hidden: (?P<hidden>[^\n]+)\n(?P<code>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block. name: of its marker, empty without one. line: of its first line of text."""

    page: str
    line: int
    kind: str
    marker: str
    name: str
    text: str

    @property
    def where(self) -> str:
        """Where it is, for people."""
        return f"{self.page}:{self.line}"


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """Read the blocks of a page's text in order."""
    for match in _BLOCK.finditer(text):
        hidden = match["hidden"] is not None
        yield Block(
            page=page,
            line=text.count("\n", 0, match.start("code" if hidden else "text")) + 1,
            kind="python" if hidden else match["kind"],
            marker="run" if hidden else match["marker"] or "",
            name=match["hidden"].strip() if hidden else match["name"] or "",
            text=match["code"] if hidden else match["text"],
        )


@dataclass(frozen=True)
class Page:
    """A Markdown file of the project."""

    path: Path

    @property
    def name(self) -> str:
        """Its path from the project's root."""
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Its blocks in order, hidden ones included."""
        return tuple(blocks_of(self.name, self.text))

    def sessions(self) -> tuple[str, ...]:
        """The names of what is run on this page."""
        return tuple(dict.fromkeys(block.name for block in self.blocks if block.marker == "run"))

    def files(self) -> dict[str, str]:
        """The files that this page shows: their text, blocks of one name joined."""
        found: dict[str, str] = {}
        for block in self.blocks:
            if block.marker == "file":
                found[block.name] = found.get(block.name, "") + block.text
        return found

    @cached_property
    def prose(self) -> str:
        """The text without blocks and comments."""
        return re.sub(r"<!--.*?-->", "", _BLOCK.sub("", self.text), flags=re.DOTALL)

    def links(self) -> tuple[str, ...]:
        """Where its links lead."""
        return tuple(match["target"] for match in _LINK.finditer(self.prose))

    def anchors(self) -> set[str]:
        """The names that its headings have in links, as GitHub makes them."""
        return {
            re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading)).strip().lower().replace(" ", "-")
            for heading in _HEADING.findall(self.prose)
        }


def pages() -> tuple[Page, ...]:
    """Answer the README and every page of the documentation."""
    return (Page(ROOT / "README.md"), *(Page(path) for path in sorted((ROOT / "docs").rglob("*.md"))))


def page(name: str) -> Page:
    """Answer one page by its path from the project's root."""
    return Page(ROOT / name)
