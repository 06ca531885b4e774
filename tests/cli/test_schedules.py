"""Schedules from the command line, on each database."""

from __future__ import annotations

from typing import Any

from tests.cli.shell import Terminal

NIGHTLY = ("--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--input", '{"name": "Ada"}')


def put(terminal: Terminal, *options: str, id: str = "nightly") -> dict[str, Any]:
    ended = terminal.run("schedules", "put", "app:app", id, "greet", *options, "--json")
    assert ended.code == 0, ended.err
    answer: dict[str, Any] = ended.json
    return answer


def test_a_schedule_from_its_making_to_its_end(terminal: Terminal) -> None:
    made = put(terminal, *NIGHTLY, "--by", "ada", "--reason", "for the board")
    assert (made["put"], made["schedule"]["revision"]) == ("created", 1)
    assert put(terminal, *NIGHTLY)["put"] == "unchanged"
    assert put(terminal, *NIGHTLY, "--overlap", "skip")["put"] == "replaced"
    shown = terminal.run("schedules", "show", "nightly", "--json").json["schedule"]
    assert (shown["cron"], shown["zone"], shown["overlap"]) == ("30 2 * * *", "Europe/Berlin", "skip")
    text = terminal.run("schedules", "show", "nightly").out
    assert "30 2 * * * Europe/Berlin" in text
    assert '{"name":"Ada"}' in text
    assert "nightly" in terminal.run("schedules", "list").out
    paused = terminal.run(
        "schedules", "pause", "nightly", "--reason", "the auditors", "--by", "ada", "--json"
    )
    assert (paused.code, paused.json["schedule"]["paused"]) == (0, "the auditors")
    assert "paused: the auditors" in terminal.run("schedules", "list").out
    resumed = terminal.run("schedules", "resume", "nightly")
    assert resumed.out.startswith("goes on: nightly, next at ")
    assert terminal.run("schedules", "delete", "nightly", "--reason", "done").out == "deleted: nightly\n"
    assert terminal.run("schedules", "list").out == "no schedules\n"
    trail = terminal.run("audit", "list", "--json").json["items"]
    assert [each["what"].removeprefix("schedule:") for each in trail] == [
        "create", "replace", "pause", "resume", "delete",
    ]  # fmt: skip
    assert (trail[0]["who"], trail[0]["reason"]) == ("ada", "for the board")


def test_a_worker_fires_it(terminal: Terminal) -> None:
    with terminal.start("worker", "app:app") as running:
        running.log("worker started")
        put(terminal, "--every", "1s", "--input", '{"name": "Ada"}', id="tick")
        fired = running.log("schedule_fired")
    task = terminal.run("tasks", "show", fired["task"], "--json").json["task"]
    assert (fired["schedule"], fired["verdict"]) == ("tick", "fired")
    assert task["key"].startswith("schedule:tick:")


def test_what_comes_next_is_said_with_and_without_a_schedule(terminal: Terminal) -> None:
    put(terminal, *NIGHTLY)
    there = terminal.run("schedules", "next", "nightly", "--count", "3", "--json").json["items"]
    tried = terminal.run("schedules", "next", *NIGHTLY[:4], "--count", "3", "--json").json["items"]
    assert (len(there), there) == (3, tried)
    text = terminal.run("schedules", "next", "nightly").out
    assert "Europe/Berlin" in text
    assert "+0" in text
    assert len(terminal.run("schedules", "next", "--every", "1h", "--count", "2").out.splitlines()) == 2
    ended = terminal.run("schedules", "next", "--at", "2020-01-01T00:00:00Z")
    assert (ended.code, ended.out) == (0, "2020-01-01T00:00:00.000Z\n")


WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("show", "none"), 3, "schedule_not_found"),
    (("show", "a b"), 3, "schedule_not_found"),
    (("delete", "none"), 3, "schedule_not_found"),
    (("resume", "none"), 3, "schedule_not_found"),
    (("pause", "none", "--reason", "x"), 3, "schedule_not_found"),
    (("next", "none"), 3, "schedule_not_found"),
    (("next",), 2, "invalid_schedule"),
    (("next", "nightly", "--every", "60s"), 2, "invalid_schedule"),
    (("next", "--cron", "0 0 30 2 *"), 2, "invalid_schedule"),
    (("next", "--cron", "0 0 * * *", "--zone", "Mars/Olympus_Mons"), 2, "invalid_schedule"),
    (("next", "--at", "tomorrow"), 2, "invalid_schedule"),
    (("put", "app:app", "s", "greet", "--every", "0"), 2, "invalid_schedule"),
    (("put", "app:app", "s", "greet", "--every", "60"), 2, "invalid_schedule"),
    (("put", "app:app", "s", "greet", "--every", "1h"), 2, "invalid_input"),
    (("put", "app:app", "s", "nobody", "--every", "1h"), 3, "agent_not_found"),
    (("put", "app:app", "s/t", "greet", "--every", "1h"), 2, "invalid_key"),
    (("put", "app:app", "s", "greet", *NIGHTLY, "--revision", "2"), 4, "schedule_conflict"),
]


def test_what_goes_wrong_has_its_exit_code(terminal: Terminal) -> None:
    for arguments, exit_code, code in WRONG:
        ended = terminal.run("schedules", *arguments, "--json")
        assert (ended.code, ended.error["code"], ended.out) == (exit_code, code, ""), arguments
