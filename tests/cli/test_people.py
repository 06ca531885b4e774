"""What people do from a shell: signal, cancel, look at what is asked, and decide on it."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.cli.shell import PATIENCE_S, Running, Shell, Terminal

NOBODYS = "task_01jz8f5s9ve5ptq3mwr7n1k2bd"


@pytest.fixture
def worker(terminal: Terminal) -> Any:
    """A worker process."""
    with terminal.start("worker", "app:app") as running:
        running.log("worker started")
        yield running


def submit(terminal: Terminal, agent: str, **given: Any) -> str:
    ended = terminal.run("tasks", "submit", "app:app", agent, "--input", json.dumps(given), "--json")
    assert ended.code == 0, ended.err
    return str(ended.json["task"]["id"])


def asked(terminal: Terminal, agent: str = "files", **given: Any) -> dict[str, Any]:
    """Submit a task and answer the approval that it waits for."""
    task = submit(terminal, agent, **given)
    with terminal.start("tasks", "watch", task) as watching:
        watching.until("task.waiting")
    (approval,) = terminal.run("approvals", "list", "--task", task, "--json").json["items"]
    return dict(approval)


def result(terminal: Terminal, task: str) -> Any:
    with terminal.start("tasks", "watch", task) as watching:
        watching.ended()
    shown = terminal.run("tasks", "show", task, "--json")
    assert shown.code == 0, shown.err
    return shown.json["task"]["result"]


def filed(terminal: Terminal) -> list[str]:
    path = terminal.folder / "filed.txt"
    return path.read_text().splitlines() if path.exists() else []


def test_signals_reach_a_task_once_a_key(terminal: Terminal, worker: Running) -> None:
    task = submit(terminal, "listen", times=2)
    data = ("--data", '{"n": 1}', "--key", "k-1")
    first = terminal.run("tasks", "signal", task, "word", *data, "--json")
    assert first.json == {"signal": {"task": task, "name": "word", "number": 1}, "replayed": False}
    assert terminal.run("tasks", "signal", task, "word", *data).out == "word is stored (as before)\n"
    other = terminal.run("tasks", "signal", task, "word", "--data", "2", "--key", "k-1", "--json")
    assert (other.code, other.error["code"]) == (4, "signal_conflict")
    assert terminal.run("tasks", "signal", task, "word", "-d", "-", given="[2]").out == "word is stored\n"
    assert result(terminal, task) == [{"n": 1}, [2]]
    late = terminal.run("tasks", "signal", task, "word", "--json")
    assert (late.code, late.error["code"]) == (4, "task_ended")
    for wrong, code in (
        ((NOBODYS, "word"), 3),
        (("nonsense", "word"), 3),
        ((task, "a b"), 2),
        ((task, "word", "--data", "{"), 2),
        ((task, "callback:x"), 2),
    ):
        assert terminal.run("tasks", "signal", *wrong).code == code, wrong


def test_cancel_agrees_with_how_a_task_ends(terminal: Terminal) -> None:
    task = submit(terminal, "listen")
    done = terminal.run("tasks", "cancel", task, "--reason", "not needed", "--by", "ada", "--json")
    assert (done.code, done.json["cancel"], done.json["task"]["state"]) == (0, "cancelled", "cancelled")
    assert done.json["task"]["error"] == {"code": "cancelled", "message": "not needed"}
    again = terminal.run("tasks", "cancel", task)
    assert (again.code, again.out) == (0, "cancelled before\n")
    assert terminal.run("tasks", "cancel", NOBODYS).code == 3
    (decision,) = terminal.run("audit", "list", "--json").json["items"]
    assert (decision["who"], decision["what"], decision["reason"]) == ("person:ada", "cancel", "not needed")


def test_a_task_that_runs_or_has_ended_is_told_apart(terminal: Terminal, worker: Running) -> None:
    ended = submit(terminal, "greet", name="Ada")
    assert result(terminal, ended) == "hello Ada"
    late = terminal.run("tasks", "cancel", ended, "--json")
    assert (late.code, late.error["code"]) == (4, "task_ended")
    runs = submit(terminal, "stand")
    with terminal.start("tasks", "watch", runs) as watching:
        watching.until("standing")
        assert terminal.run("tasks", "cancel", runs).out.startswith("it runs")
        assert watching.ended() == 1
    assert terminal.run("tasks", "show", runs, "--json").json["task"]["state"] == "cancelled"


def test_children_are_listed_by_their_parent(terminal: Terminal, worker: Running) -> None:
    task = submit(terminal, "parent")
    assert result(terminal, task) == "hello Ada"
    (child,) = terminal.run("tasks", "list", "--parent", task, "--json").json["items"]
    assert (child["agent"], child["parent"]) == ("greet", task)
    assert f"parent     {task}" in terminal.run("tasks", "show", child["id"]).out
    assert "children   1" in terminal.run("tasks", "show", task).out
    assert terminal.run("tasks", "list", "--parent", "nonsense").code == 3


def test_a_call_is_shown_in_full_and_approved_by_its_fingerprint(terminal: Terminal, worker: Running) -> None:
    assert terminal.run("approvals", "list").out == "nothing waits for a person\n"
    approval = asked(terminal)
    name, task = approval["id"], approval["task"]
    assert name in terminal.run("approvals", "list").out
    assert (
        f"asks       1 open: outlast approvals list --task {task}" in terminal.run("tasks", "show", task).out
    )
    text = terminal.run("approvals", "show", name).out
    for part in ("over by 38.50", approval["fingerprint"], '"invoice": "INV-102"', '"amount": "118.50"'):
        assert part in text
    for options in ((), ("--json",)):
        blind = terminal.run("approvals", "approve", name, *options)
        assert blind.code == 2
        assert "--fingerprint" in blind.err
    other = terminal.run("approvals", "approve", name, "--fingerprint", "sha256:x", "--json")
    assert (other.code, other.error["code"]) == (4, "fingerprint_mismatch")
    assert filed(terminal) == []
    seen = ("--fingerprint", approval["fingerprint"])
    done = terminal.run("approvals", "approve", name, *seen, "--reason", "agreed", "--by", "boss", "--json")
    assert (done.code, done.json["approval"]["decided_by"]) == (0, "person:boss")
    assert result(terminal, task) == "118.50"
    assert filed(terminal) == ["INV-102 118.50"]
    late = terminal.run("approvals", "reject", name, *seen, "--json")
    assert (late.code, late.error["code"]) == (4, "approval_conflict")
    shown = terminal.run("approvals", "show", name, "--json").json
    assert [(vote["who"], vote["via"], vote["reason"]) for vote in shown["votes"]] == [
        ("person:boss", "cli", "agreed")
    ]
    assert "agreed" in terminal.run("approvals", "show", name).out
    assert name in terminal.run("approvals", "list", "--state", "used").out
    assert name in terminal.run("approvals", "list", "--state", "all").out


def test_a_rejection_and_an_edit(terminal: Terminal, worker: Running) -> None:
    rejected = asked(terminal)
    seen = ("--fingerprint", rejected["fingerprint"])
    done = terminal.run("approvals", "reject", rejected["id"], *seen)
    assert (done.code, done.out) == (0, f"rejected: {rejected['id']}\n")
    assert result(terminal, rejected["task"]) == "person"
    edited = asked(terminal)
    seen = ("--fingerprint", edited["fingerprint"])
    for wrong in (
        ("--edit", '{"invoice": "INV-102", "amount": "80"}'),
        ("--edit", "[1]", "--app", "app:app"),
        ("--edit", "{", "--app", "app:app"),
        ("--edit", '{"invoice": "INV-102"}', "--app", "app:app"),
    ):
        assert terminal.run("approvals", "approve", edited["id"], *seen, *wrong).code == 2, wrong
    edit = ("--edit", '{"invoice": "INV-102", "amount": "80"}', "--app", "app:app")
    assert terminal.run("approvals", "approve", edited["id"], *seen, *edit).code == 0
    assert result(terminal, edited["task"]) == "80"
    assert filed(terminal) == ["INV-102 80"]


@pytest.mark.parametrize(("said", "recorded"), [("red", "red"), ('"red"', "red"), ("1", "1")])
def test_a_question_is_answered(terminal: Terminal, worker: Running, said: str, recorded: Any) -> None:
    question = asked(terminal, "wonders")
    seen = ("--fingerprint", question["fingerprint"])
    text = terminal.run("approvals", "show", question["id"]).out
    assert "Which one?" in text
    assert '"red"' in text
    assert terminal.run("approvals", "answer", question["id"], "blue", *seen).code == 2
    assert terminal.run("approvals", "answer", question["id"], said, *seen).code == 0
    assert result(terminal, question["task"]) == recorded


def test_rules_are_set_seen_and_taken_back(terminal: Terminal, worker: Running) -> None:
    assert terminal.run("rules", "list").out == "no rules stand\n"
    bounds = ("--bounds", '{"amount": {"max": 120}}')
    put = terminal.run("rules", "allow", "file", *bounds, "--reason", "small", "--by", "ada", "--json")
    assert (put.json["rule"]["number"], put.json["rule"]["verdict"]) == (1, "allow")
    deny = terminal.run("rules", "deny", "file", "--bounds", '{"amount": {"min": 500}}', "--reason", "big")
    assert deny.out == "rule 2 stands: deny file\n"
    assert [rule["number"] for rule in terminal.run("rules", "list", "--json").json["items"]] == [1, 2]
    assert "small" in terminal.run("rules", "list").out
    assert result(terminal, submit(terminal, "files")) == "118.50"
    assert result(terminal, submit(terminal, "files", amount="600")) == "rule"
    assert terminal.run("rules", "withdraw", "1", "--reason", "spent").out == "withdrawn: rule 1\n"
    gone = terminal.run("rules", "withdraw", "1", "--reason", "spent", "--json")
    assert (gone.code, gone.error["code"]) == (3, "rule_not_found")
    for wrong in (("--bounds", "{"), ("--bounds", '{"amount": 5}'), ("--reason", "")):
        assert terminal.run("rules", "allow", "file", "--reason", "r", *wrong).code == 2, wrong


def test_a_link_takes_a_secret(terminal: Terminal, worker: Running) -> None:
    approval = asked(terminal)
    bare = terminal.run("approvals", "link", approval["id"], "--to", "anna", "--json")
    assert (bare.code, bare.error["code"]) == (2, "configuration_error")
    kept = terminal.folder / ".outlast" / "secret"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("the-secret-of-this-folder\n")
    made = terminal.run("approvals", "link", approval["id"], "--to", "anna").out.strip()
    assert made.startswith("http://127.0.0.1:8700/approve/")
    terminal.env["OUTLAST_PUBLIC_URL"] = "https://agents.example/"
    link = terminal.run("approvals", "link", approval["id"], "--to", "anna", "--json").json["link"]
    assert link["url"].startswith("https://agents.example/approve/")
    assert terminal.run("approvals", "link", approval["id"], "--to", "anna", "--expires-in", "31d").code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", f"{NOBODYS}:file#1~1"),
        ("show", "nonsense"),
        ("approve", f"{NOBODYS}:file#1~1", "--fingerprint", "x"),
        ("reject", f"{NOBODYS}:file#1", "--fingerprint", "x"),
        ("answer", f"{NOBODYS}:file#1~0", "1", "--fingerprint", "x"),
        ("link", f"{NOBODYS}:file#1~1", "--to", "anna"),
        ("list", "--after", f"{NOBODYS}:file#1~1"),
    ],
)
def test_unknown_ids_are_3(terminal: Terminal, arguments: tuple[str, ...]) -> None:
    ended = terminal.run("approvals", *arguments, "--json")
    assert (ended.code, ended.error["code"]) == (3, "approval_not_found")


@pytest.mark.parametrize(("said", "code"), [("y\n", 0), ("n\n", 1)])
def test_at_a_terminal_a_person_is_shown_it_and_asked(
    shell: Shell, terminal: Terminal, worker: Running, said: str, code: int
) -> None:
    approval = asked(terminal)
    text, ended = _at_a_terminal(shell, said, "approvals", "approve", approval["id"], "--reason", "agreed")
    for part in ("over by 38.50", approval["fingerprint"], '"amount": "118.50"', "approve it? [y/N]"):
        assert part in text
    assert ended == code
    view = terminal.run("approvals", "show", approval["id"], "--json").json["approval"]
    if code:
        assert view["state"] == "pending"
    else:
        assert result(terminal, approval["task"]) == "118.50"


def _at_a_terminal(shell: Shell, said: str, *arguments: str) -> tuple[str, int]:
    """Run a command as if at a terminal, and say something there."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "outlast", *arguments],
        cwd=shell.folder,
        env={**shell.env, "TERM": "dumb", "COLUMNS": "200"},
        stdin=its,
        stdout=its,
        stderr=its,
    )
    os.close(its)
    os.write(ours, said.encode())
    pieces: list[bytes] = []

    def read() -> None:
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:
                return
            if not piece:
                return
            pieces.append(piece)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        code = process.wait(PATIENCE_S)
        reader.join(PATIENCE_S)
    finally:
        if process.poll() is None:
            process.kill()
        os.close(ours)
    return b"".join(pieces).decode(), code


def test_dev_makes_a_secret_once_for_its_owner_alone(bare: Shell) -> None:
    kept: Path = bare.folder / ".outlast" / "secret"
    seen = set()
    for _ in range(2):
        with bare.start("dev", "app:app", "--port", "0", "--no-reload", "--json") as running:
            running.until('"ready"')
            seen.add(kept.read_text())
            assert stat.S_IMODE(kept.stat().st_mode) == 0o600
            running.signal()
            assert running.ended() == 0
            assert not any(kept.read_text().strip() in line for _, line in running.said)
    (secret,) = seen
    assert len(secret.strip()) >= 32
