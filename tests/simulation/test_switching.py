"""Switches in the world: what the judge lets pass, and what it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from outlast.store.sqlite import switches
from outlast.testing.simulation import Faults, database, run_schedule
from outlast.testing.simulation.agents import AGENTS

SWITCHED = dataclasses.replace(Faults.turmoil(), switches=2)


def test_nothing_begins_while_a_switch_stands_and_all_goes_on_after_it() -> None:
    thrown = 0
    for seed in range(30):
        report = run_schedule(seed, tasks=3, faults=SWITCHED, agents=AGENTS)
        assert not report.violations, report
        thrown += sum(line.split()[2] == "pause" for line in report.lines if len(line.split()) > 2)
    assert thrown > 100


Break = Callable[[pytest.MonkeyPatch], None]


def _looks_at_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "standing", lambda *_: None)


def _looks_at_its_tool_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    standing = switches.standing

    def narrow(tx: object, tenant: str, tool: str) -> tuple[str, str] | None:
        found = standing(tx, tenant, tool)  # type: ignore[arg-type]
        return None if found is not None and found[1] == "all" else found

    monkeypatch.setattr(switches, "standing", narrow)


def _forgets_what_it_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "released", lambda *_: [])


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        (_looks_at_none, "while a switch stands"),
        (_looks_at_its_tool_alone, "while a switch stands"),
        (_forgets_what_it_held_back, "did not come to rest"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_what_is_broken_is_seen(monkeypatch: pytest.MonkeyPatch, broken: Break, seen: str) -> None:
    # How long a calm schedule is has to be known before anything is broken.
    run_schedule(0, tasks=2, faults=SWITCHED)
    broken(monkeypatch)
    found: set[str] = set()
    for seed in range(200):
        found.update(run_schedule(seed, tasks=2, faults=SWITCHED).violations)
        if found:
            break
    database._idle.clear()
    assert any(seen in each for each in found), found
