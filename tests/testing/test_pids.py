"""Looks at a process by its number: alive, dead and not waited for, gone, and gone amid the look."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from outlast.testing.pids import lives


def test_one_that_runs_lives() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert lives(process.pid)
        process.communicate(b"\n")


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not tell who is dead and not waited for"
)
def test_one_that_nobody_has_waited_for_is_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not lives(process.pid)


def test_one_that_is_gone_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not lives(process.pid)
    if sys.platform == "linux":
        # It was there a moment ago, when the system was asked for the first time.
        monkeypatch.setattr(os, "kill", lambda pid, number: None)
        assert not lives(process.pid)
