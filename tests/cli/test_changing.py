"""Trying again, forking, waking, judging and adopting, on each database."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.shell import Running, Terminal

NOBODYS = "task_01jz8f5s9ve5ptq3mwr7n1k2bd"
WHY = ("--reason", "the fault is found", "--by", "kim")


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


def test_a_task_is_tried_again(terminal: Terminal, worker: Running) -> None:
    task = submit(terminal, "break_down", "--wait")["id"]
    again = terminal.run("tasks", "retry", task, *WHY, "--wait", "--json")
    assert (again.code, again.json["round"], again.json["task"]["state"]) == (1, 2, "failed")
    assert "round      2" in terminal.run("tasks", "show", task).out
    watched = terminal.run("tasks", "watch", task, "--json")
    kinds = [json.loads(line)["kind"] for line in watched.out.splitlines()]
    assert (kinds.count("task.failed"), kinds.count("task.retried"), kinds[-1]) == (2, 1, "task.failed")
    assert terminal.run("tasks", "retry", task, *WHY).out == "round 3 is queued\n"
    assert terminal.run("tasks", "watch", task).code == 1
    (first, second) = terminal.run("audit", "list", "--json").json["items"]
    assert {(each["who"], each["what"], each["reason"]) for each in (first, second)} == {
        ("person:kim", "retry", "the fault is found")
    }
    done = submit(terminal, "greet", "--wait", name="Ada")["id"]
    for other, code, exit_code in ((done, "task_not_ended", 4), (NOBODYS, "task_not_found", 3)):
        refused = terminal.run("tasks", "retry", other, *WHY, "--json")
        assert (refused.code, refused.error["code"]) == (exit_code, code)
    assert terminal.run("tasks", "retry", task).code == 2


def test_a_task_is_forked(terminal: Terminal, worker: Running) -> None:
    task = submit(terminal, "greet", "--wait", name="Ada")["id"]
    other = terminal.run("tasks", "fork", task, *WHY, "--input", '{"name": "Bob"}', "--wait", "--json")
    assert (other.code, other.json["task"]["result"]) == (0, "hello Bob")
    assert other.json["task"]["forked_from"] == task
    made = terminal.run("tasks", "fork", task, *WHY).out.strip()
    assert f"forked from  {task}" in terminal.run("tasks", "show", made).out
    for options, exit_code, code in (
        (["--before", "nothing#1"], 3, "operation_not_found"),
        (["--input", "[1]"], 2, "invalid_request"),
        (["--input", "{"], 2, "invalid_input"),
    ):
        refused = terminal.run("tasks", "fork", task, *WHY, *options, "--json")
        assert (refused.code, refused.error["code"]) == (exit_code, code)


def test_what_is_not_settled_is_not_forked_behind(terminal: Terminal, worker: Running) -> None:
    task = submit(terminal, "correspond", to="the bank")["id"]
    with terminal.start("tasks", "watch", task) as watching:
        watching.until("task.waiting")
    refused = terminal.run("tasks", "fork", task, *WHY, "--json")
    assert (refused.code, refused.error["code"]) == (4, "unsettled_prefix")
    assert "send_letter#1" in refused.error["message"]


def test_finished_work_is_judged(terminal: Terminal, worker: Running) -> None:
    task = submit(terminal, "greet", "--wait", name="Ada")["id"]
    given = ("--evidence", '{"sum": "118.50"}', "--json")
    accepted = terminal.run("tasks", "accept", task, *WHY, *given)
    assert accepted.code == 0
    verdict = accepted.json["acceptance"]
    assert (verdict["verdict"], verdict["by"], verdict["number"]) == ("accepted", "person:kim", 1)
    assert verdict["evidence"] == {"sum": "118.50"}
    late = terminal.run("tasks", "reject", task, *WHY, "--seen", "0", "--json")
    assert (late.code, late.error["code"]) == (4, "acceptance_conflict")
    assert (
        terminal.run("tasks", "reject", task, *WHY, "--seen", "1").out == "rejected: verdict 2 of round 1\n"
    )
    assert terminal.run("tasks", "show", task, "--json").json["task"]["accepted"] == "rejected"
    assert "the work is rejected" in terminal.run("tasks", "show", task).out
    failed = submit(terminal, "break_down", "--wait")["id"]
    assert terminal.run("tasks", "accept", failed, *WHY).code == 4


def test_only_what_waits_for_an_operator_is_woken(terminal: Terminal, worker: Running) -> None:
    task = submit(terminal, "greet", "--wait", name="Ada")["id"]
    woken = terminal.run("tasks", "wake", task, *WHY, "--json")
    assert (woken.code, woken.json["woken"]) == (0, False)
    assert terminal.run("tasks", "wake", task, *WHY).out == (
        "it does not wait for an operator: it is succeeded\n"
    )


def test_a_cancel_with_undo_ends_what_has_not_begun_at_once(terminal: Terminal) -> None:
    task = submit(terminal, "greet", name="Ada")["id"]
    assert terminal.run("tasks", "cancel", task, "--undo").out == "cancelled\n"


def test_a_budget_is_kept_with_the_task(terminal: Terminal) -> None:
    task = submit(terminal, "greet", "--budget", '{"operations": 3, "cost": "1.50"}', name="Ada")
    assert task["budget"] == {"operations": 3, "cost": "1.50"}
    given = ("--input", '{"name": "Ada"}', "--budget", '{"money": 3}', "--json")
    refused = terminal.run("tasks", "submit", "app:app", "greet", *given)
    assert (refused.code, refused.error["code"]) == (2, "invalid_request")


NEW = """
from outlast import Outlast, TaskContext

app = Outlast("shell")


@app.agent(version="2")
async def listen(task: TaskContext, word: str) -> str:
    await task.step(str.upper, word, name="shout")
    return str(await task.wait("go")) + "!"


@app.agent(version="9", name="listen")
async def other(task: TaskContext, word: str) -> str:
    await task.step(str.upper, word * 2, name="shout")
    return str(await task.wait("go"))
"""

OLD = NEW.partition('@app.agent(version="9"')[0].replace('version="2"', 'version="1"').replace(' + "!"', "")


def test_tasks_are_counted_by_version_and_adopted_by_another(terminal: Terminal) -> None:
    assert terminal.run("versions", "list").out == "no task lives\n"
    (terminal.folder / "before_deploy.py").write_text(OLD)
    (terminal.folder / "after_deploy.py").write_text(NEW)
    tasks = []
    with terminal.start("worker", "before_deploy:app") as running:
        running.log("worker started")
        for word in ("a", "b"):
            made = terminal.run(
                "tasks",
                "submit",
                "before_deploy:app",
                "listen",
                "--input",
                json.dumps({"word": word}),
                "--json",
            )
            tasks.append(made.json["task"]["id"])
            with terminal.start("tasks", "watch", tasks[-1]) as watching:
                watching.until("task.waiting")
        running.signal()
        assert running.ended() == 0
    (row,) = terminal.run("versions", "list", "--json").json["items"]
    assert (row["agent"], row["version"], row["waiting"], row["served_by"]) == ("listen", "1", 2, 0)
    assert "nobody" in terminal.run("versions", "list", "--all").out
    every = ("--agent", "listen", "--from", "1")
    dry = terminal.run(
        "versions", "adopt", "after_deploy:app", *every, "--version", "2", "--dry-run", "--json"
    )
    assert (dry.code, dry.json["adopted"], dry.json["refused"]) == (0, [], {})
    assert [each["goes_on_at"] for each in dry.json["rehearsals"]] == [["go#1"], ["go#1"]]
    differs = terminal.run("versions", "adopt", "after_deploy:app", tasks[0], *WHY)
    assert differs.code == 4
    assert "does not fit" in differs.out
    assert "shout#1" in differs.out
    assert terminal.run("versions", "list", "--json").json["items"] == [row]
    done = terminal.run("versions", "adopt", "after_deploy:app", *every, "--version", "2", *WHY, "--json")
    assert (done.code, sorted(done.json["adopted"])) == (0, sorted(tasks))
    with terminal.start("worker", "after_deploy:app") as running:
        running.log("worker started")
        for task in tasks:
            assert terminal.run("tasks", "signal", task, "go", "--data", '"on"').code == 0
            assert terminal.run("tasks", "watch", task).code == 0
    assert terminal.run("tasks", "show", tasks[0], "--json").json["task"]["result"] == "on!"
    ended = terminal.run("versions", "adopt", "after_deploy:app", tasks[0], *WHY, "--json")
    assert (ended.code, ended.error["code"]) == (4, "task_ended")


@pytest.mark.parametrize(
    "options", [[], [NOBODYS, "--agent", "a", "--from", "1"], ["--agent", "a"], ["--from", "1"], [NOBODYS]]
)
def test_adoption_says_what_it_needs(terminal: Terminal, options: list[str]) -> None:
    refused = terminal.run("versions", "adopt", "app:app", *options, "--json")
    assert (refused.code, refused.error["code"]) == (2, "invalid_request")
