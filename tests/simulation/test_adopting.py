"""Code that changes under its version, in the world: what the judge lets pass, and what it does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.simulation.breaking import Break, shows

from outlast.engine import effects, rehearsal
from outlast.store.sqlite import changing
from outlast.testing.simulation import Faults, run_schedule

MOVED = Faults(crashes=2, freezes=1, drains=1, store=0.05, tools=0.2, retries=1, forks=1, adopts=2)


def test_what_stops_is_moved_to_what_fits() -> None:
    moves, lines, stopped = set(), [], 0
    for seed in range(30):
        report = run_schedule(seed, tasks=1, faults=MOVED)
        assert not report.violations, report
        moves |= report.moves
        lines += [line for line in report.lines if " was adopted by version " in line]
        stopped += any("version_in_use" in line for line in report.lines)
    assert {("task", "queued", "adopt"), ("task", "waiting", "adopt")} <= moves
    assert len([line for line in lines if line.endswith("while waiting")]) > 10
    # People tried it at the wrong moment as well.
    assert stopped > 10


def _whatever_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt = changing._adopt_one

    def blind(tx: Any, one: Any, at: int) -> Any:
        head = changing.Head.read(tx, one.tenant, one.task, at)
        lane = tx.row("read_lane", (one.tenant, one.task))
        if head is not None and lane is not None:
            one = dataclasses.replace(
                one, seen_version=lane[2], seen_epoch=head.epoch, seen_event=head.last_event
            )
        return adopt(tx, one, at)

    monkeypatch.setattr(changing, "_adopt_one", blind)


class _Unlike(str):
    """A state that is not told from another."""

    def __eq__(self, other: object) -> bool:
        return other != "running" and str.__eq__(self, other)

    __hash__ = str.__hash__


def _while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    _whatever_was_seen(monkeypatch)

    class Head(changing.Head):
        @classmethod
        def read(cls, *asked: Any) -> Any:
            head = super().read(*asked)
            if head is not None:
                head.state = _Unlike(head.state)
            return head

    monkeypatch.setattr(changing, "Head", Head)


def _though_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal.Rehearsed, "fits", True)
    # A call that differs is not asked for either: that alone would keep the task from being moved.
    _though_it_acts_once_more(monkeypatch)


def _though_it_acts_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_may_have_acted", lambda _: False)


def _by_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt = changing._adopt_one
    monkeypatch.setattr(
        changing, "_adopt_one", lambda tx, one, at: adopt(tx, dataclasses.replace(one, version="2"), at)
    )


def _an_answer_to_another_question(monkeypatch: pytest.MonkeyPatch) -> None:
    known = effects.known

    def careless(run: Any, key: str, kind: Any, name: str, request: str, *more: Any, **options: Any) -> Any:
        row = run.row(key)
        return known(run, key, kind, name, request if row is None else row.request, *more, **options)

    monkeypatch.setattr(effects, "known", careless)


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        (_whatever_was_seen, "as nobody had seen it"),
        (_while_it_runs, "while it was running"),
        (_though_it_differs, ", which asks "),
        (_though_it_acts_once_more, "once more"),
        (_by_another_version, "is not on record"),
        (_an_answer_to_another_question, "its code asked for"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else value.strip(" ,").replace(" ", "_"),
)
def test_what_is_broken_is_seen(monkeypatch: pytest.MonkeyPatch, broken: Break, seen: str) -> None:
    shows(monkeypatch, broken, seen, MOVED)
