"""A folder with an app in it, and a shell there, on each store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.shell import APP, Shell, Terminal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an app."""
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture(params=("sqlite", "postgres"))
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database of the test's own."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def shell(folder: Path, database_url: str) -> Shell:
    """A shell whose commands use the database."""
    made = Shell(folder, OUTLAST_DATABASE_URL=database_url)
    if database_url.startswith("sqlite"):
        assert made.run("migrate").code == 0
    return made


@pytest.fixture
def terminal(shell: Shell) -> Iterator[Terminal]:
    """The same, with commands run in this process."""
    made = Terminal(shell.folder)
    made.env = shell.env
    yield made
    made.forget()


@pytest.fixture
def bare(folder: Path) -> Shell:
    """A shell in a folder without any database yet."""
    return Shell(folder)
