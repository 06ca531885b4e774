"""Processes that go on: they stop in order when asked, and at once when asked again."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.cli.shell import APP, PATIENCE_S, Shell, Terminal

from outlast.cli.collecting import YOUNG


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


class TestWorker:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_gives_its_tasks_back_when_asked_to_stop(self, shell: Shell, number: signal.Signals) -> None:
        task = shell.run("tasks", "submit", "app:app", "stand", "--json").json["task"]["id"]
        with shell.start("worker", "app:app", "--name", "w1") as worker:
            assert worker.log("worker started")["agents"]
            with shell.start("tasks", "watch", task) as watching:
                watching.until("progress")
            worker.signal(number)
            worker.log("worker stopped")
            assert worker.ended() == 0
        shown = shell.run("tasks", "show", task, "--json").json
        assert shown["task"]["state"] == "queued"
        assert [(each["worker"], each["end"]) for each in shown["attempts"]] == [("w1", "released")]

    def test_leaves_at_once_when_asked_twice(self, shell: Shell) -> None:
        task = shell.run("tasks", "submit", "app:app", "cling", "--json").json["task"]["id"]
        with shell.start("worker", "app:app") as worker:
            worker.log("worker started")
            with shell.start("tasks", "watch", task) as watching:
                watching.until("progress")
            worker.signal()
            # It drains as long as the task clings; the second signal may come at any moment of that.
            with pytest.raises(subprocess.TimeoutExpired):
                worker.process.wait(1.0)
            worker.signal()
            assert worker.ended(within_s=5.0) == 128 + signal.SIGTERM

    def test_logs_what_it_does_without_what_it_does_it_with(self, shell: Shell) -> None:
        with shell.start("worker", "app:app") as worker:
            worker.log("worker started")
            shell.run("tasks", "submit", "app:app", "greet", "-i", '{"name": "s3cret"}', "--wait")
            ended = worker.log("attempt_ended")
            assert (ended["agent"], ended["end"]) == ("greet", "succeeded")
            worker.signal()
            worker.ended()
            assert not any("s3cret" in line for _, line in worker.said)

    def test_looks_for_cycles_seldom_since_its_process_is_its_own(self, shell: Shell) -> None:
        with shell.start("worker", "app:app") as worker:
            worker.log("worker started")
            seen = shell.run("tasks", "submit", "app:app", "look_around", "--wait", "--json").json
            assert seen["task"]["result"] == {"every": YOUNG, "left_alone": True, "on": True}
            worker.signal()
            worker.ended()


class TestServe:
    def test_ends_with_open_streams_when_asked_to_stop(self, shell: Shell) -> None:
        task = shell.run("tasks", "submit", "app:app", "greet", "-i", '{"name": "Ada"}', "--json").json[
            "task"
        ]["id"]
        with shell.start("serve", "app:app", "--port", "0") as serving:
            url = serving.log("serving")["url"]
            assert get(f"{url}/readyz") == {"status": "ready"}
            assert get(f"{url}/v1/tasks/{task}")["state"] == "queued"
            with urllib.request.urlopen(f"{url}/v1/tasks/{task}/events", timeout=PATIENCE_S) as stream:
                assert stream.readline() == b": open\n"
                began = time.monotonic()
                serving.signal()
                assert b"event: stream.stopping\n" in stream.readlines()
                assert serving.ended(within_s=5.0) == 0
                assert time.monotonic() - began < 3.0

    def test_serves_other_machines_with_keys_only(self, shell: Shell) -> None:
        refused = shell.run("serve", "app:app", "--host", "0.0.0.0", "--port", "0")
        assert refused.code == 2
        assert "OUTLAST_API_KEYS" in refused.err
        keyed = Shell(shell.folder, **{**shell.env, "OUTLAST_API_KEYS": "acme:s3cret"})
        with keyed.start("serve", "app:app", "--host", "0.0.0.0", "--port", "0") as serving:
            port = serving.log("serving")["url"].rpartition(":")[2]
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/tasks", headers={"Authorization": "Bearer s3cret"}
            )
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                assert json.loads(answer.read()) == {"items": [], "next": None}
            assert not any("s3cret" in line for _, line in serving.said)


class TestGateway:
    def test_listens_says_how_it_is_and_ends_when_asked(self, shell: Shell) -> None:
        keyed = Shell(shell.folder, **{**shell.env, "OUTLAST_SECRET": "a-secret-of-this-very-test"})
        with keyed.start("gateway", "--listen", "127.0.0.1:0", "--allow", "api.example.com") as serving:
            url = serving.log("gateway listening")["url"]
            assert get(f"{url}/healthz") == {"store": "reachable"}
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(f"{url}/https/api.example.com/")
            assert json.loads(refused.value.read())["code"] == "token_missing"
            serving.signal()
            assert serving.ended() == 0
            assert not any("a-secret" in line for _, line in serving.said)

    @pytest.mark.parametrize(
        ("config", "options", "says"),
        [
            ("", ["--listen", "nowhere"], "no host:port"),
            ("", ["--allow", "ftp://x"], "neither http nor https"),
            ("", ["--allow-range", "10.0.0.1/8"], "no range"),
            ("", ["--config", "missing.toml"], "missing.toml"),
            ("allow = 'x'", [], "list of texts"),
            ("allowed = []", [], "no setting allowed"),
            ("fresh_s = 0", [], "more than zero"),
            ("fresh_s = 'x'", [], "no str"),
            ("listen =", [], "gateway.toml"),
        ],
    )
    def test_refuses_what_it_cannot_keep(
        self, terminal: Terminal, config: str, options: list[str], says: str
    ) -> None:
        terminal.env["OUTLAST_SECRET"] = "a-secret-of-this-very-test"
        path = terminal.folder / "gateway.toml"
        path.write_text(config)
        refused = terminal.run("gateway", *(options or ["--config", str(path)]))
        assert (refused.code, says in refused.err) == (2, True), refused.err

    def test_needs_the_secret_of_the_app(self, terminal: Terminal) -> None:
        terminal.env["OUTLAST_SECRET"] = ""
        refused = terminal.run("gateway", "--allow", "api.example.com")
        assert (refused.code, "OUTLAST_SECRET" in refused.err) == (2, True)


class TestDev:
    def test_paints_within_six_lines_and_runs_tasks(self, bare: Shell) -> None:
        with bare.start("dev", "--port", "0") as running:
            running.until("Not for production")
            painted = [line for where, line in running.said if where == "out"]
            assert len(painted) <= 6
            text = "\n".join(painted)
            for word in ("shell", "http://127.0.0.1:", "/docs", ".outlast/outlast.db", "greet@1"):
                assert word in text
            ended = bare.run(
                "tasks", "submit", "app:app", "greet", "-i", '{"name": "Ada"}', "--wait", "--json"
            )
            assert ended.json["task"]["result"] == "hello Ada"
            running.signal()
            assert running.ended() == 0

    def test_starts_again_with_new_code_and_survives_broken_code(self, bare: Shell) -> None:
        source = bare.folder / "app.py"
        with bare.start("dev", "app:app", "--port", "0") as running:
            running.until("Not for production")
            write(source, APP.replace("hello", "good day"))
            running.until("(started again)")
            running.until("Not for production")
            ended = bare.run(
                "tasks", "submit", "app:app", "greet", "-i", '{"name": "Ada"}', "--wait", "--json"
            )
            assert ended.json["task"]["result"] == "good day Ada"
            write(source, "def broken(:\n")
            assert "SyntaxError" in running.until("waiting for a change")
            write(source, APP)
            running.until("Not for production")
            running.signal(signal.SIGINT)
            assert running.ended() == 0

    def test_says_what_to_do_in_an_empty_folder(self, tmp_path: Path) -> None:
        ended = Shell(tmp_path).run("dev")
        assert ended.code == 2
        assert "outlast dev module:app" in ended.err

    def test_finds_main_too(self, bare: Shell) -> None:
        (bare.folder / "app.py").rename(bare.folder / "main.py")
        with bare.start("dev", "--port", "0", "--json") as running:
            facts = json.loads(running.until('"event":"ready"'))
            assert get(f"{facts['url']}/readyz") == {"status": "ready"}
            running.signal()
            assert running.ended() == 0

    def test_says_when_its_port_is_taken(self, bare: Shell) -> None:
        with bare.start("dev", "--port", "0", "--json") as running:
            port = json.loads(running.until('"event":"ready"'))["url"].rpartition(":")[2]
            second = bare.run("dev", "--port", port)
            assert second.code == 2
            assert "choose another with --port" in second.err


def write(path: Path, text: str) -> None:
    """Save a file as an editor does: whole, and with a new time."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)
