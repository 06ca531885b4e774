"""The examples of the ledger alone run, delivered twice, with one effect."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import ROOT

from outlast import Outlast
from outlast.testing import Recorder
from outlast.testing.recorder import Rule


@pytest.fixture
def place(folder: Path, tickets: Recorder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A migrated database, and the ticket service where the examples look for it."""
    monkeypatch.setenv("TICKETS_URL", tickets.url)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    asyncio.run(tickets.reset())
    asyncio.run(_migrate())
    return folder


async def _migrate() -> None:
    app = Outlast("migrate")
    await app.open(migrate=True)
    await app.close()


def _example(name: str) -> Any:
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def posts(tickets: Recorder) -> int:
    return len([call for call in asyncio.run(tickets.log()) if call.method == "POST"])


def test_a_plain_function_delivered_twice_calls_once(place: Path, tickets: Recorder) -> None:
    example = _example("ledger_in_celery")
    asyncio.run(tickets.plan(Rule.act_then_reset()))
    first = example.file_ticket("m-1", "INV-102", "118.50")
    assert example.file_ticket("m-1", "INV-102", "118.50") == first
    assert example.file_ticket("m-2", "INV-102", "118.50") != first
    assert posts(tickets) == 2


@pytest.mark.skipif(
    sys.version_info >= (3, 12) and sqlite3.sqlite_version_info < (3, 42),
    reason="DBOS takes it that Python 3.12 comes with SQLite 3.42, whose 'subsec' it uses",
)
def test_a_dbos_step_that_dbos_has_forgotten_runs_again_and_calls_once(
    place: Path, tickets: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = _example("ledger_in_dbos")
    asyncio.run(tickets.plan(Rule.act_then_reset()))
    for memory in ("lost.db", "kept.db", "kept.db"):
        monkeypatch.setenv("DBOS_SYSTEM_DATABASE_URL", f"sqlite:///{place / memory}")
        asyncio.run(example.main())
    tickets_said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("R-")]
    assert len(tickets_said) == 3
    assert len(set(tickets_said)) == 1
    assert posts(tickets) == 1
