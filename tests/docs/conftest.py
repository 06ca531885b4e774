"""Fixtures for the tests of the documentation: the other side, and a folder that stands for the reader's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.testing import Recorder


@pytest.fixture(scope="session")
def tickets() -> Iterator[Recorder]:
    """A ticket service for every page that runs in this process."""
    recorder = Recorder().start()
    yield recorder
    recorder.stop()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the current one, importable, with a database of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OUTLAST_DATABASE_URL", f"sqlite:///{tmp_path / 'page.db'}")
    monkeypatch.setenv("OUTLAST_SECRET", "the-secret-of-these-pages")
    monkeypatch.setenv("OUTLAST_PUBLIC_URL", "http://127.0.0.1:8700")
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path
