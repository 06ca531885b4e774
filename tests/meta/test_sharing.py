"""Which of the suite's tests stay together when several processes share them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sharing import group_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("test", "group"),
    [
        ("tests/core/test_ids.py::test_one[a]", "tests/core/test_ids.py"),
        ("tests/core/test_ids.py::test_one[a::b]", "tests/core/test_ids.py"),
        (
            "tests/contract/test_store.py::TestClaim::test_one[sqlite]",
            "tests/contract/test_store.py::TestClaim",
        ),
        ("tests/crashes/test_undo.py::test_one[postgres]", "crashes"),
        ("tests/drills/test_people.py::TestDrill::test_one", "drills"),
        ("tests/simulation/test_mixture.py::test_one[3]", "tests/simulation/test_mixture.py::test_one[3]"),
    ],
)
def test_a_group_is_a_folder_a_class_or_a_module(test: str, group: str) -> None:
    assert group_of(test) == group


def test_a_run_in_several_processes_keeps_groups_together() -> None:
    """xdist had marks for that, which one day were not looked at any more, and nothing said so."""
    modules = ["tests/core/test_ids.py", "tests/core/test_record.py", "tests/core/test_masking.py"]
    asked = [sys.executable, "-m", "pytest", "-n", "2", "-v", "-p", "no:cacheprovider", *modules]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    run = subprocess.run(asked, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    ran = re.findall(r"\[(gw\d)\] .*? PASSED (\S+?)::", run.stdout)
    assert {module for _, module in ran} == set(modules)
    assert len(set(ran)) == len(modules)
    assert len({process for process, _ in ran}) == 2
