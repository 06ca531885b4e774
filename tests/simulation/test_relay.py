"""The relay in the world; what its judge does not let pass is in ``tests.defects``."""

from __future__ import annotations

from tests.defects.worlds import RELAYED

from outlast.testing.simulation import Faults, run_schedule
from outlast.testing.simulation.agents import AGENTS


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
