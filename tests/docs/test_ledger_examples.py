"""The examples of the ledger alone run, delivered twice, with one effect."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
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


class _StandIn:
    """As much of DBOS as the step touches."""

    workflow_id = "reimburse-INV-102"

    @staticmethod
    def step(**_: Any) -> Callable[[Any], Any]:
        return lambda function: function

    @staticmethod
    def workflow() -> Callable[[Any], Any]:
        return lambda function: function


def test_the_body_of_a_dbos_step_run_twice_calls_once(
    place: Path, tickets: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = types.ModuleType("dbos")
    stand_in.__dict__.update(DBOS=_StandIn, DBOSConfig=dict, SetWorkflowID=None)
    monkeypatch.setitem(sys.modules, "dbos", stand_in)
    example = _example("ledger_in_dbos")

    async def twice() -> tuple[str, str]:
        async with example.app:
            return (
                await example.reimburse("INV-102", "118.50"),
                await example.reimburse("INV-102", "118.50"),
            )

    first, second = asyncio.run(twice())
    assert first == second
    assert posts(tickets) == 1


@pytest.mark.skipif(importlib.util.find_spec("dbos") is None, reason="DBOS is not installed")
def test_the_example_runs_inside_dbos(
    place: Path, tickets: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DBOS_SYSTEM_DATABASE_URL", f"sqlite:///{place / 'dbos.db'}")
    example = _example("ledger_in_dbos")
    asyncio.run(example.main())
    assert capsys.readouterr().out.splitlines()[-1].startswith("R-")
    assert posts(tickets) == 1
