"""Schedules in the world: what the book lets pass, and what it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from outlast import schedules as people
from outlast.core import schedule
from outlast.engine.housekeeping import schedules as firing
from outlast.store.sqlite import scheduling
from outlast.store.sqlite.transaction import SQL
from outlast.testing.simulation import Faults, database, run_schedule

KEPT = Faults(crashes=2, freezes=1, clock_steps=1, drains=1, store=0.05, hints=0.2, schedules=2)
SECOND_US = 1_000_000


def test_every_instant_fires_once_whatever_becomes_of_workers() -> None:
    fired = 0
    for seed in range(30):
        report = run_schedule(seed, tasks=1, faults=KEPT)
        assert not report.violations, report
        fired += sum("fire_schedules" in line for line in report.lines)
    assert fired > 60


def test_what_is_on_time_is_not_passed_over() -> None:
    """A look that comes some seconds late leaves nothing out, however few missed firings are made up for."""
    for seed in (10, 17, 21):
        faults = Faults.parse("crashes=2,freezes=1,clock_steps=2,store=0.05,tools=0.3,schedules=2")
        report = run_schedule(seed, faults=faults)
        assert not report.violations, report


Break = Callable[[pytest.MonkeyPatch], None]


def _sql(name: str, old: str, new: str) -> Break:
    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        assert old in SQL[name]
        monkeypatch.setitem(SQL, name, SQL[name].replace(old, new))

    return apply


def _stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    _sql("move_schedule", "set next_at = :next_at", "set next_at = coalesce(:expected, :next_at)")(
        monkeypatch
    )


def _fires_while_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    _sql("schedules_due", "paused is null and", "")(monkeypatch)
    read = scheduling.read

    def blind(*asked: Any) -> Any:
        row = read(*asked)
        return None if row is None else dataclasses.replace(row, paused=None)

    fire = scheduling._fire

    def unlooked(*asked: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(scheduling, "read", blind)
            return fire(*asked)

    monkeypatch.setattr(scheduling, "_fire", unlooked)


def _fires_early(monkeypatch: pytest.MonkeyPatch) -> None:
    fire, due = scheduling._fire, scheduling.due
    monkeypatch.setattr(scheduling, "_fire", lambda tx, one, at: fire(tx, one, at + SECOND_US))
    monkeypatch.setattr(scheduling, "peek", lambda *_: None)
    monkeypatch.setattr(scheduling, "due", lambda tx, request, now: due(tx, request, tx.now(now) + SECOND_US))


def _leaves_out_what_is_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = schedule.decide

    def hasty(*asked: Any) -> schedule.Due:
        due = decide(*asked)
        return dataclasses.replace(due, fires=due.fires[-1:])

    monkeypatch.setattr(firing.schedule, "decide", hasty)


def _makes_up_for_what_is_to_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = schedule.decide
    monkeypatch.setattr(firing.schedule, "decide", lambda timing, _, *asked: decide(timing, "all", *asked))


def _goes_on_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    going_on = schedule.going_on

    def late(timing: Any, first: int | None, now: int) -> int | None:
        return going_on(timing, first, now + 60 * SECOND_US)

    monkeypatch.setattr(people.schedule, "going_on", late)


def _forgets_one_that_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firing, "LEASE_US", 3600 * SECOND_US)


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        (_stays_where_it_is, "was fired for"),
        (_fires_while_paused, "was fired for"),
        (_fires_early, "fired early"),
        (_leaves_out_what_is_on_time, "passed over"),
        (_makes_up_for_what_is_to_be_skipped, "against its word"),
        (_goes_on_too_late, "went on without"),
        (_forgets_one_that_was_taken, "has not fired for"),
        (_sql("is_live", "'queued', 'running', 'waiting'", "'nothing'"), "while its last task lives"),
        (_sql("is_live", "in ('queued', 'running', 'waiting')", "<> 'nothing'"), "for nothing"),
        (_sql("move_schedule", "fired = fired + :fired", "fired = fired + min(:fired, 0)"), "the book"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else value.replace(" ", "_"),
)
def test_what_is_broken_is_seen(monkeypatch: pytest.MonkeyPatch, broken: Break, seen: str) -> None:
    # How long a calm schedule is has to be known before anything is broken.
    run_schedule(0, faults=KEPT)
    broken(monkeypatch)
    found = ""
    for seed in range(300):
        found = " ".join(run_schedule(seed, faults=KEPT).violations)
        if found:
            break
    database._idle.clear()
    assert seen in found
