"""The hook that stops a process at a named point: what it reads, and that it does what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outlast import probes
from outlast.errors import ConfigurationError
from outlast.testing.probes import MARK, PROBE, Trigger, install_from_env, parse, spell

WALK = """
from outlast import probes
from outlast.testing.probes import install_from_env
install_from_env()
for number in range(3):
    probes.reach("worker.claimed")
    print(number, flush=True)
"""


BESIDE = """
import threading, time
from outlast import probes
from outlast.testing.probes import install_from_env
install_from_env()
begun = threading.Event()
def transaction():
    begun.set()
    time.sleep(0.02)
    print("ended", flush=True)
threading.Thread(target=transaction).start()
begun.wait()
probes.reach("worker.claimed")
print("on", flush=True)
"""


def walk(probe: str, mark: Path, program: str = WALK) -> subprocess.Popen[str]:
    environ = {**os.environ, PROBE: probe, MARK: str(mark)}
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environ)


def test_triggers_are_read_as_they_are_spelled() -> None:
    text = "effects.before_outcome=kill, http.before_send=freeze:2,worker.claimed=mark"
    triggers = (
        Trigger(point="effects.before_outcome", action="kill"),
        Trigger(point="http.before_send", action="freeze", nth=2),
        Trigger(point="worker.claimed", action="mark"),
    )
    assert parse(text) == triggers
    assert parse(spell(*triggers)) == triggers
    assert parse("") == ()


@pytest.mark.parametrize(
    "text",
    ["worker.claimed", "worker.claimed=", "worker.claimd=kill", "worker.claimed=stop",
     "worker.claimed=kill:0", "worker.claimed=kill:-1", "worker.claimed=kill:x", "=kill"],
)  # fmt: skip
def test_a_slip_of_the_pen_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse(text)


def test_nothing_is_installed_without_the_variable() -> None:
    assert install_from_env({}) == ()
    probes.reach("worker.claimed")


def test_kill_is_told_and_done_at_the_pass_it_names(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    process = walk("worker.claimed=kill:3", mark)
    said, _ = process.communicate(timeout=30)
    assert said == "0\n1\n"
    assert process.returncode == -signal.SIGKILL
    assert json.loads(mark.read_text()) == {
        "point": "worker.claimed", "pass": 3, "action": "kill", "pid": process.pid,
    }  # fmt: skip


def test_freeze_stops_the_process_until_it_is_continued(tmp_path: Path) -> None:
    process = walk("worker.claimed=freeze:2", tmp_path / "mark")
    state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert state is not None
    assert state.si_code == os.CLD_STOPPED
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(timeout=30)
    assert said == "0\n1\n2\n"
    assert process.returncode == 0


def test_what_another_thread_has_in_hand_ends_before_a_freeze(tmp_path: Path) -> None:
    """A frozen process that holds a file's write lock would stop everybody else, too."""
    process = walk("worker.claimed=freeze", tmp_path / "mark", BESIDE)
    state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert state is not None
    assert state.si_code == os.CLD_STOPPED
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 100) == b"ended\n"
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=30)[0] == "on\n"


def test_mark_only_tells(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    process = walk("worker.claimed=mark,worker.claimed=mark:2", mark)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert [json.loads(line)["pass"] for line in mark.read_text().splitlines()] == [1, 2]
