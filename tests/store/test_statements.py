"""Named SQL in files: what the loader takes, and what every file of both stores says of itself."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from outlast.store import statements

POSTGRES = Path(str(resources.files("outlast.store.postgres")))
VERBS = sorted(POSTGRES.glob("migrations/0001_begin/[3-9]*.sql"))


def test_a_statement_has_a_name_a_sentence_and_a_text() -> None:
    text = "-- The file.\n\n-- Read one,\n-- and say so.\n-- name: read_one\nselect 1\n  from x;\n\n"
    text += "-- Read two.\n-- name: read_two\nselect 2;\n"
    one, two = statements.parse(text, "file.sql")
    assert (one.name, one.sentence, one.sql) == ("read_one", "Read one, and say so.", "select 1\n  from x")
    assert (two.name, two.sentence, two.sql) == ("read_two", "Read two.", "select 2")


def test_a_comment_inside_a_statement_stays_in_it() -> None:
    [one] = statements.parse("-- Read.\n-- name: read\nselect 1\n-- because\n, 2;\n", "f.sql")
    assert one.sql == "select 1\n-- because\n, 2"


@pytest.mark.parametrize(
    "text", ["-- name: read\nselect 1;", "-- Read.\n-- name: read\n\n", "\n-- name: read\n"]
)
def test_a_statement_without_a_sentence_or_a_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="read"):
        statements.parse(text, "f.sql")


def test_names_are_unique_within_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("-- Read.\n-- name: read\nselect 1;\n")
    (tmp_path / "b.sql").write_text("-- Read again.\n-- name: read\nselect 2;\n")
    with pytest.raises(ValueError, match=r"b\.sql.*read.*a\.sql"):
        statements.load(tmp_path)


def test_only_sql_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("-- Read.\n-- name: read\nselect 1;\n")
    (tmp_path / "b.txt").write_text("-- name: read\n")
    assert statements.load(tmp_path) == {"read": "select 1"}


@pytest.mark.parametrize("folder", ["outlast.store.postgres.sql", "outlast.store.sqlite.sql"])
def test_the_stores_statements_can_be_read(folder: str) -> None:
    assert len(statements.load(folder)) > 10


@pytest.mark.parametrize("file", VERBS, ids=lambda file: file.name)
def test_a_file_of_functions_states_its_lock_order_at_its_top(file: Path) -> None:
    assert "-- Lock order: " in file.read_text().partition("create function")[0]


@pytest.mark.parametrize("file", VERBS, ids=lambda file: file.name)
def test_every_function_has_a_sentence_above_it(file: Path) -> None:
    lines = file.read_text().splitlines()
    functions = [number for number, line in enumerate(lines) if line.startswith("create function ")]
    assert functions
    assert [lines[number] for number in functions if not lines[number - 1].startswith("-- ")] == []


def test_every_write_of_a_flush_is_fenced() -> None:
    """Each writes rows of heads whose locked epoch was compared (``h_ok``), or what came of that (``x_``,
    ``s_``)."""
    text = (POSTGRES / "migrations/0001_begin/50_flush.sql").read_text()
    body = text[text.index("\nbegin\n") :]
    seen = 0
    for statement in body.split(";\n"):
        tables = set(re.findall(r"(?:insert into|update|delete from) outlast\.(\w+)", statement))
        if tables - {"writers"}:
            seen += 1
            assert "h_ok[" in statement or "unnest(x_" in statement or "unnest(s_" in statement, statement
    assert seen > 8
