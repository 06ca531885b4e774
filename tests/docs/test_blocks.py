"""Nothing in a block may name what does not exist, and no Python may stand there untried."""

from __future__ import annotations

import json

import pytest
from tests.docs.blocks import KINDS, Block, blocks_of, pages
from tests.docs.lines import check, check_command, check_request, lines

BLOCKS = [block for page in pages() for block in page.blocks]


def _ids(block: Block) -> str:
    return block.where


@pytest.mark.parametrize("block", BLOCKS, ids=_ids)
def test_every_block_is_of_a_known_kind(block: Block) -> None:
    assert block.kind in KINDS, (
        f"{block.where}: a block of kind {block.kind!r}; the kinds are {', '.join(KINDS)}"
    )
    if block.kind == "python":
        assert block.marker in ("run", "file"), f"{block.where}: Python that nothing runs; mark it"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "console"], ids=_ids)
def test_every_command_and_option_exists(block: Block) -> None:
    check(block)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "ini"], ids=_ids)
def test_commands_in_units_exist(block: Block) -> None:
    for text in block.text.splitlines():
        name, _, command = text.partition("=")
        if name.startswith("Exec") and "outlast" in command:
            (line,) = lines(command)
            check_command(list(line.words[1:]), block.where)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "json"], ids=_ids)
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


# ── the tests themselves ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "outlast worker app:app --slotz 5",
        "outlast tusks list",
        "outlast operations settle <operation> perhaps --reason x",
        "outlast operations settle <operation> happened",
        "curl -s localhost:8700/v1/jobs",
        "curl -s -X DELETE localhost:8700/v1/tasks",
        "make coffee",
        "python -m outlast.testing.recorder --porte 1",
        "python -m outlast.nothing",
        "rm -r .",
    ],
)
def test_a_slip_of_the_pen_is_seen(text: str) -> None:
    block = Block(page="x.md", line=1, kind="console", marker="", name="", text=text)
    with pytest.raises(AssertionError):
        check(block)


def test_what_is_right_passes() -> None:
    check_command(["operations", "settle", "task_1:x", "happened", "--reason", "seen there"], "here")
    check_request(("curl", "-s", "localhost:8700/v1/tasks/x/result"), "here")


def test_markers_are_read() -> None:
    text = (
        "# Page\n\n<!-- run: one -->\n```python\nx = 1\n```\n\n```python\ny = 2\n```\n"
        "<!-- hidden: one\nassert x == 1\n-->\n<!-- file: app.py -->\n```python\nz = 3\n```\n"
        "\n```text\n<!-- run: two -->\n```\n"
    )
    found = [(b.line, b.kind, b.marker, b.name, b.text) for b in blocks_of("x.md", text)]
    assert found == [
        (5, "python", "run", "one", "x = 1\n"),
        (9, "python", "", "", "y = 2\n"),
        (12, "python", "run", "one", "assert x == 1\n"),
        (16, "python", "file", "app.py", "z = 3\n"),
        (20, "text", "", "", "<!-- run: two -->\n"),
    ]
