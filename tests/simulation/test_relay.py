"""The relay in the world: what its judge lets pass, and what it does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from outlast.store.sqlite.transaction import SQL
from outlast.testing.simulation import Faults, run_schedule
from outlast.testing.simulation.agents import AGENTS

RELAYED = dataclasses.replace(Faults.turmoil(), relays=2, broker=0.4)


def first_broken(schedules: int, **faults: Any) -> str:
    for seed in range(schedules):
        report = run_schedule(
            seed, tasks=2, faults=dataclasses.replace(RELAYED, **faults), agents=("refund", "flaky")
        )
        if report.violations:
            return " ".join(report.violations)
    return ""


def test_every_message_leaves_whatever_becomes_of_relays_and_broker() -> None:
    moves, played = set(), set()
    for seed in range(30):
        report = run_schedule(seed, tasks=3, faults=RELAYED, agents=AGENTS)
        assert not report.violations, report
        moves |= report.moves
        played |= report.played
    assert {("message", "pending", "publish"), ("message", "pending", "park")} <= moves
    assert {each for each in played if each.startswith(("broker", "relay"))} == {
        "broker dropped", "broker late", "broker twice", "broker unconfirmed", "relay crash", "relay freeze",
    }  # fmt: skip


def test_a_schedule_without_relays_announces_nothing() -> None:
    report = run_schedule(1, faults=Faults.calm())
    assert not any(line.split()[1] == "broker" for line in report.lines)


def test_a_message_that_is_never_written_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    announce = SQL["announce"]
    assert "values (" in announce
    begun = announce.replace("values (", "select ").replace(":created_at)", ":created_at where :number = 1")
    monkeypatch.setitem(SQL, "announce", begun)
    assert "were due" in first_broken(20, broker=0.0)


def test_a_message_that_goes_with_another_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    drop = SQL["drop_message"]
    assert "and number = :number" in drop
    monkeypatch.setitem(SQL, "drop_message", drop.replace("number = :number", ":number = :number"))
    assert "were due" in first_broken(200)


def test_messages_out_of_order_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    take = SQL["take_messages"]
    assert "order by rowid" in take
    monkeypatch.setitem(SQL, "take_messages", take.replace("order by rowid", "order by number desc"))
    assert "came as" in first_broken(200, broker=0.0)


def test_a_message_that_passes_a_parked_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    take = SQL["take_messages"]
    assert "and earlier.parked is not null" in take
    monkeypatch.setitem(
        SQL, "take_messages", take.replace("and earlier.parked is not null", "and earlier.number < 0")
    )
    assert "were due" in first_broken(60)


def test_a_message_that_tells_another_thing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    take = SQL["take_messages"]
    monkeypatch.setitem(SQL, "take_messages", take.replace("number, topic", "number + 1, topic", 1))
    assert "which is not there" in first_broken(3)
