"""``outlast check``: what it says, and its exit codes, on each database."""

from __future__ import annotations

import pytest
from tests.cli.shell import Shell, Terminal

CLEAN = """
from outlast import Outlast, TaskContext

app = Outlast("clean")


@app.agent
async def greet(task: TaskContext, name: str) -> str:
    return f"hello {name}"
"""


def test_what_is_in_order_ends_with_0(terminal: Terminal) -> None:
    (terminal.folder / "clean.py").write_text(CLEAN)
    said = terminal.run("check", "clean:app")
    assert (said.code, said.out.endswith("schema 1; nothing stands in the way\n")) == (0, True)
    alone = terminal.run("check", "--json")
    assert (alone.code, alone.json["ok"], alone.json["schema"], alone.json["findings"]) == (0, True, 1, [])
    assert "secret" not in alone.out


def test_warnings_end_with_4_and_say_what_to_do(terminal: Terminal) -> None:
    options = ("--input", '{"to": "the bank"}', "--json")
    task = terminal.run("tasks", "submit", "app:app", "correspond", *options).json["task"]["id"]
    assert terminal.run("rules", "deny", "renamed", "--reason", "r").code == 0
    said = terminal.run("check", "app:app", "--json")
    assert (said.code, said.json["ok"]) == (4, False)
    found = {(one["code"], one["about"], one["level"]) for one in said.json["findings"]}
    assert found == {
        ("business_key", "send_letter", "warning"),
        ("business_key", "file", "warning"),
        ("rule_without_tool", "renamed", "warning"),
        ("no_worker", "workers", "warning"),
    }
    people = terminal.run("check", "app:app")
    assert people.code == 4
    assert (
        "warning  workers: tasks live (1), and no worker does\n         start one: outlast worker"
        in people.out
    )
    # The database alone misses nothing of an app.
    alone = terminal.run("check", "--json")
    assert {one["code"] for one in alone.json["findings"]} == {"no_worker", "version_unserved"}
    with terminal.start("worker", "app:app"), terminal.start("tasks", "watch", task) as watching:
        # It lives on, and has its worker.
        watching.until("task.waiting")
        served = terminal.run("check", "app:app", "--json")
        assert {one["code"] for one in served.json["findings"]} == {"business_key", "rule_without_tool"}


def test_errors_end_with_their_own_codes(shell: Shell, terminal: Terminal) -> None:
    terminal.env |= {"OUTLAST_API_KEYS": "no-key", "OUTLAST_SECRET": "short"}
    wrong = terminal.run("check", "app:app", "--json")
    assert (wrong.code, wrong.json["findings"][0]["code"]) == (2, "configuration_error")
    terminal.env |= {"OUTLAST_API_KEYS": "", "OUTLAST_LEASE_S": "-3"}
    wrong = terminal.run("check", "app:app", "--json")
    assert (wrong.code, len(wrong.json["findings"])) == (2, 1)
    assert wrong.json["findings"][0]["message"].startswith("OUTLAST_LEASE_S: ")
    terminal.env["OUTLAST_LEASE_S"] = "15"
    short = terminal.run("check", "app:app", "--json")
    assert (short.code, short.json["findings"][0]["code"]) == (2, "secret")
    none = terminal.run("check", "nothing:app", "--json")
    assert (none.code, none.json["database"]) == (2, None)
    assert "there is no module nothing" in none.json["findings"][0]["message"]


def test_what_code_says_when_it_breaks_is_told_without_passwords(bare: Shell) -> None:
    (bare.folder / "broken.py").write_text("raise RuntimeError('postgresql://ann:hidden@db is away')\n")
    for options in ((), ("--json",)):
        said = bare.run("check", "broken:app", *options)
        assert (said.code, "is away" in said.out, "hidden" in said.out) == (2, True, False)


@pytest.mark.parametrize(
    ("url", "exit_code", "code"),
    [
        ("postgresql://nobody:hidden@127.0.0.1:1/none", 5, "store_unavailable"),
        ("sqlite:///bare.db", 6, "schema_outdated"),
        ("mysql://x", 2, "configuration_error"),
    ],
)
def test_a_database_that_is_away_or_bare_is_an_error(
    bare: Shell, url: str, exit_code: int, code: str
) -> None:
    said = bare.run("check", "app:app", "--database-url", url, "--json")
    first = said.json["findings"][0]
    assert (said.code, first["code"], first["level"]) == (exit_code, code, "error")
    assert "hidden" not in said.out
    # Nothing is written, not even an empty file.
    assert {path.name for path in bare.folder.iterdir()} == {"app.py"}
    # What needs no database is found all the same.
    assert any(one["code"] == "business_key" for one in said.json["findings"])
