"""Looking at tasks, submitting, following and settling, on each database."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from tests.cli.shell import Running, Terminal

from outlast import Outlast
from outlast.ledger import EVIDENCE_PAGE
from outlast.store.records import Evidence

NOBODYS = "task_01jz8f5s9ve5ptq3mwr7n1k2bd"


@pytest.fixture
def worker(terminal: Terminal) -> Any:
    """A worker process."""
    with terminal.start("worker", "app:app") as running:
        running.log("worker started")
        yield running


def submit(terminal: Terminal, agent: str, *options: str, **given: Any) -> dict[str, Any]:
    ended = terminal.run(
        "tasks", "submit", "app:app", agent, "--input", json.dumps(given), "--json", *options
    )
    assert ended.code in (0, 1), ended.err
    task: dict[str, Any] = ended.json["task"]
    return task


def test_a_task_from_its_submission_to_its_end(terminal: Terminal, worker: Running) -> None:
    task = submit(terminal, "greet", "--wait", name="Ada")
    assert (task["state"], task["result"]) == ("succeeded", "hello Ada")
    shown = terminal.run("tasks", "show", task["id"], "--json").json
    assert shown["task"] == task
    assert [attempt["end"] for attempt in shown["attempts"]] == ["succeeded"]
    watched = terminal.run("tasks", "watch", task["id"], "--json")
    events = [json.loads(line) for line in watched.out.splitlines()]
    assert [event["number"] for event in events] == list(range(1, task["last_event"] + 1))
    assert (watched.code, events[-1]["kind"]) == (0, "task.succeeded")
    text = terminal.run("tasks", "show", task["id"]).out
    assert "hello Ada" in text
    assert "succeeded" in text
    assert task["id"] in terminal.run("tasks", "list").out


def test_a_task_that_fails_is_1(terminal: Terminal, worker: Running) -> None:
    ended = terminal.run("tasks", "submit", "app:app", "break_down", "--wait", "--json")
    assert (ended.code, ended.json["task"]["state"]) == (1, "failed")
    watched = terminal.run("tasks", "watch", ended.json["task"]["id"])
    assert watched.code == 1
    assert "task.failed" in watched.out


def test_an_unknown_outcome_is_settled_by_a_person(terminal: Terminal, worker: Running) -> None:
    assert terminal.run("operations", "stats").out == "nothing was ever unknown\n"
    task = submit(terminal, "correspond", to="the bank")["id"]
    with terminal.start("tasks", "watch", task) as watching:
        watching.until("task.waiting")
        (operation,) = terminal.run("operations", "list", "--json").json["items"]
        assert (operation["task"], operation["name"], operation["state"]) == (task, "send_letter", "unknown")
        (same,) = terminal.run("operations", "list", "--task", task, "--json").json["items"]
        assert same == operation
        assert {"arguments", "result"} & set(operation) == set()
        after = ("--task", task, "--after", operation["id"])
        assert terminal.run("operations", "list", *after, "--json").json == {"items": [], "next": None}
        paged = terminal.run("operations", "list", "--task", task, "--limit", "1", "--json").json
        assert paged["next"] == operation["id"]
        assert operation["id"] in terminal.run("operations", "list").out
        early = terminal.run(
            "operations", "settle", operation["id"], "did_not_happen", "--reason", "no", "--json"
        )
        assert (early.code, early.error["code"]) == (4, "settlement_conflict")
        settle = ("--result", '{"letter": 9}', "--reason", "the bank has it", "--by", "ada", "--json")
        settled = terminal.run("operations", "settle", operation["id"], "happened", *settle)
        assert (settled.code, settled.json["operation"]["settled_by"]) == (0, "person:ada")
        assert watching.ended() == 0
    shown = terminal.run("operations", "show", operation["id"], "--json").json
    assert shown["operation"]["result"] == {"letter": 9}
    assert "the bank has it" in json.dumps(shown["evidence"])
    assert "the bank has it" in terminal.run("operations", "show", operation["id"]).out
    counted = {"tool": "send_letter", "unknown": 0, "happened": 1, "did_not_happen": 0, "sent_again": 0,
               "share": 0.0, "hint": None}  # fmt: skip
    assert terminal.run("operations", "stats", "--json").json == {"items": [counted]}
    assert terminal.run("operations", "stats").out.splitlines()[1].split() == ["send_letter", *"0100", "0%"]
    again = terminal.run("operations", "settle", operation["id"], "happened", "--reason", "twice")
    assert again.code == 4
    assert terminal.run("operations", "list").out == "nothing is unknown\n"
    assert operation["id"] in terminal.run("operations", "list", "--task", task).out


def test_what_is_open_shows_its_place_its_plan_and_its_timeline(terminal: Terminal, worker: Running) -> None:
    task = submit(terminal, "correspond", to="the bank")["id"]
    with terminal.start("tasks", "watch", task) as watching:
        watching.until("task.waiting")
    name = f"{task}:send_letter#1"
    shown = terminal.run("operations", "show", name, "--json").json
    queue = shown["queue"]
    assert (queue["ask_at"], queue["needs_person"], queue["sender_gone"]) == (None, True, True)
    assert [event["kind"] for event in shown["timeline"]] == ["operation.started", "operation.unknown"]
    text = terminal.run("operations", "show", name).out
    assert "it waits for a person" in text
    assert "operation.started" in text
    for more in ([], ["--app", "app:app"]):
        plan = terminal.run("operations", "plan", name, "--json", *more).json["plan"]
        assert (plan["action"], plan["state"], plan["operation"]) == ("person", "unknown", name)
        assert "manual" in plan["why"]
    text = terminal.run("operations", "plan", name).out
    assert "person" in text
    assert re.search(r"not happened, or again +refused until 20\S+ .*unless forced", text)
    settle = ("--result", "1", "--reason", "seen", "--by", "ada")
    assert terminal.run("operations", "settle", name, "happened", *settle).code == 0
    assert terminal.run("operations", "plan", name, "--json").json["plan"]["action"] == "nothing"
    assert terminal.run("operations", "show", name, "--json").json["queue"] is None
    (decision,) = terminal.run("audit", "list", "--json").json["items"]
    assert (decision["who"], decision["what"], decision["subject"], decision["reason"]) == (
        "person:ada", "settle:happened", name, "seen",
    )  # fmt: skip


async def _note(url: str, operation: str, count: int) -> None:
    task, key = operation.split(":")
    app = Outlast("notes", database_url=url)
    try:
        await app.open()
        await app.store.note(
            [
                Evidence(tenant="default", task=task, key=key, attempt=1, source="late", data=f'"note-{n}."')
                for n in range(count)
            ]
        )
    finally:
        await app.close()


def test_much_evidence_is_shown_in_parts(terminal: Terminal, worker: Running, database_url: str) -> None:
    task = submit(terminal, "correspond", to="the bank")["id"]
    with terminal.start("tasks", "watch", task) as watching:
        watching.until("task.waiting")
    name = f"{task}:send_letter#1"
    asyncio.run(_note(database_url, name, EVIDENCE_PAGE + 1))
    text = terminal.run("operations", "show", name).out
    assert "note-1." in text
    assert "note-0." not in text
    shown = terminal.run("operations", "show", name, "--json").json
    earlier = shown["evidence_earlier"]
    assert (len(shown["evidence"]), shown["evidence"][0]["number"]) == (EVIDENCE_PAGE, earlier)
    assert f"earlier evidence: --evidence-before {earlier}" in text
    rest = terminal.run("operations", "show", name, "--evidence-before", str(earlier), "--json").json
    assert (rest["evidence"][-1]["data"], rest["evidence_earlier"]) == ("note-0.", None)
    text = terminal.run("operations", "show", name, "--evidence-before", str(earlier)).out
    assert "note-0." in text
    assert "earlier evidence" not in text
    assert terminal.run("operations", "show", name, "--evidence-before", "0").code == 2


def test_what_is_to_be_sent_again_waits_for_nobody(terminal: Terminal) -> None:
    task = submit(terminal, "correspond", to="the bank")["id"]
    with terminal.start("worker", "app:app"), terminal.start("tasks", "watch", task) as watching:
        watching.until("task.waiting")
    name = f"{task}:send_letter#1"
    assert terminal.run("operations", "show", name, "--json").json["queue"]["needs_person"] is True
    again = ("--reason", "lost in the post", "--force")
    assert terminal.run("operations", "settle", name, "send_again", *again).code == 0
    queue = terminal.run("operations", "show", name, "--json").json["queue"]
    assert (queue["resend"], queue["ask_at"], queue["needs_person"]) == (True, None, False)
    assert "never: it is to be sent again" in terminal.run("operations", "show", name).out
    plan = terminal.run("operations", "plan", name, "--json").json["plan"]
    assert (plan["action"], plan["why"]) == ("send_again", "it was settled as to be sent again")


def test_the_sweep_of_the_other_side_finds_what_was_never_admitted(
    terminal: Terminal, worker: Running
) -> None:
    task = submit(terminal, "correspond", to="the bank")["id"]
    with terminal.start("tasks", "watch", task) as watching:
        watching.until("task.waiting")
    listing = terminal.folder / "letters.txt"
    listing.write_text(f"{task}:send_letter#1\n")
    clean = terminal.run("operations", "sweep", "app:app", "send_letter", "--since", "1h", "--json")
    assert (clean.code, clean.json["sweep"]["verdict"], clean.json["sweep"]["seen"]) == (0, "clean", 1)
    listing.write_text(f"{task}:send_letter#1 {task}:send_letter#2 somebody-elses")
    found = terminal.run("operations", "sweep", "app:app", "send_letter", "--json")
    assert (found.code, found.json["sweep"]["unadmitted"]) == (1, [f"{task}:send_letter#2", "somebody-elses"])
    assert "somebody-elses" in terminal.run("operations", "sweep", "app:app", "send_letter").out
    listing.unlink()
    away = terminal.run("operations", "sweep", "app:app", "send_letter", "--since", "2026-01-02T03:04:05Z")
    assert (away.code, away.out) == (5, "unknown: the other side could not be asked (FileNotFoundError)\n")
    for wrong in (
        ["nobody"],
        ["send_letter", "--since", "yesterday"],
        ["send_letter", "--since", "2026-01-02"],
    ):
        assert terminal.run("operations", "sweep", "app:app", *wrong).code == 2


def test_a_switch_is_set_seen_and_cleared_and_kept_in_the_audit_trail(terminal: Terminal) -> None:
    assert terminal.run("pause", "list").out == "nothing is paused\n"
    why = ("--reason", "wrong cost centre", "--by", "ada")
    assert (
        terminal.run("pause", "set", "tool:send_letter", *why).out == "paused: tool:send_letter of default\n"
    )
    everybody = terminal.run("pause", "set", "all", *why, "--everybody", "--json").json["pause"]
    assert (everybody["tenant"], everybody["scope"], everybody["by"]) == ("*", "all", "ada")
    scopes = [
        (item["tenant"], item["scope"]) for item in terminal.run("pause", "list", "--json").json["items"]
    ]
    assert sorted(scopes) == [("*", "all"), ("default", "tool:send_letter")]
    assert terminal.run("pause", "list", "--tenant", "acme", "--json").json["items"] == [everybody]
    assert "everybody" in terminal.run("pause", "list").out
    cleared = terminal.run("pause", "clear", "tool:send_letter", *why, "--json")
    assert cleared.json == {"cleared": {"tenant": "default", "scope": "tool:send_letter"}}
    again = terminal.run("pause", "clear", "tool:send_letter", *why, "--json")
    assert (again.code, again.error["code"]) == (3, "not_found")
    for wrong in (["set", "everything", *why], ["set", "tool:", *why], ["set", "all", "--reason", ""],
                  ["set", "all", *why, "--everybody", "--tenant", "acme"]):  # fmt: skip
        assert terminal.run("pause", *wrong).code == 2
    page = terminal.run("audit", "list", "--limit", "1", "--json").json
    rest = terminal.run("audit", "list", "--after", str(page["next"]), "--json").json
    assert [item["what"] for item in page["items"] + rest["items"]] == [
        "pause:tool:send_letter", "resume:tool:send_letter",
    ]  # fmt: skip
    assert "pause:all" in terminal.run("audit", "list", "--everybody").out
    assert terminal.run("audit", "list", "--tenant", "acme").out == "nothing was decided\n"


def test_a_key_makes_one_task(terminal: Terminal) -> None:
    first = submit(terminal, "greet", "--key", "k", name="Ada")
    again = terminal.run("tasks", "submit", "app:app", "greet", "-i", '{"name": "Ada"}', "--key", "k")
    assert again.out == f"{first['id']} (as before)\n"
    other = terminal.run(
        "tasks", "submit", "app:app", "greet", "-i", '{"name": "Bob"}', "--key", "k", "--json"
    )
    assert (other.code, other.error["code"]) == (4, "idempotency_conflict")


def test_lists_are_filtered_and_in_pages(terminal: Terminal) -> None:
    tasks = [submit(terminal, "greet", name=str(number))["id"] for number in range(3)]
    page = terminal.run("tasks", "list", "--json", "--limit", "2").json
    # Values are shown of one task alone, or of one operation: in a list they were not read.
    assert all("agent" in item and not {"input", "result"} & set(item) for item in page["items"])
    rest = terminal.run("tasks", "list", "--json", "--limit", "2", "--before", page["next"]).json
    assert [item["id"] for item in page["items"] + rest["items"]] == sorted(tasks, reverse=True)
    assert rest["next"] is None
    assert terminal.run("tasks", "list", "--state", "failed").out == "no tasks\n"
    assert terminal.run("tasks", "list", "--agent", "stand", "--json").json["items"] == []
    assert len(terminal.run("tasks", "list", "--agent", "greet", "--json").json["items"]) == 3
    assert terminal.run("tasks", "list", "--tenant", "acme").out == "no tasks\n"


def test_what_is_not_there_is_3(terminal: Terminal) -> None:
    for arguments in (
        ["tasks", "show", NOBODYS],
        ["tasks", "watch", NOBODYS],
        ["tasks", "show", "nonsense"],
        ["operations", "show", f"{NOBODYS}:a"],
        ["operations", "show", "nonsense"],
        ["operations", "plan", f"{NOBODYS}:a"],
        ["operations", "plan", "nonsense"],
        ["pause", "clear", "all", "--reason", "r"],
        ["operations", "list", "--task", NOBODYS],
        ["operations", "settle", f"{NOBODYS}:a", "happened", "--reason", "r"],
        ["tasks", "submit", "app:app", "nobody"],
    ):
        ended = terminal.run(*arguments)
        assert (ended.code, ended.out, len(ended.err.splitlines())) == (3, "", 1), arguments


def test_input_that_does_not_fit_is_2(terminal: Terminal) -> None:
    for given in ("{", "[1]", '{"nam": "Ada"}', '{"name": 5}'):
        ended = terminal.run("tasks", "submit", "app:app", "greet", "--input", given, "--json")
        assert ended.code == 2
        assert ended.error["code"] in ("invalid_input", "invalid_request")
    assert terminal.run("tasks", "list").out == "no tasks\n"


def test_input_comes_from_a_pipe_too(terminal: Terminal) -> None:
    ended = terminal.run(
        "tasks", "submit", "app:app", "greet", "--input", "-", "--json", given='{"name": "Ada"}'
    )
    assert ended.json["task"]["input"] == {"name": "Ada"}


def test_what_users_sent_does_not_steer_the_terminal(terminal: Terminal) -> None:
    task = submit(terminal, "greet", "--user", "[red]ada[/red]", name="\x1b[2J\x07")["id"]
    for arguments in (["tasks", "show", task], ["tasks", "list"]):
        out = terminal.run(*arguments).out
        assert "\x1b" not in out
        assert "\x07" not in out
    assert "[red]ada[/red]" in terminal.run("tasks", "show", task).out


def test_migrations_may_be_repeated(terminal: Terminal) -> None:
    assert terminal.run("migrate", "--json").json["applied"] == []
    assert "up to date" in terminal.run("migrate").out
