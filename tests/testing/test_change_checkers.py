"""The checkers of undo: none of them says a word about a sound dump, and each is shown a broken one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.testing.exhibits import (
    Broken,
    Exhibit,
    Sound,
    beside,
    empty_each,
    into,
    seen_by,
    shown,
    staged,
    turn_round,
    unseen,
)

from outlast.core import canonical
from outlast.store.entries import NewEvent
from outlast.testing.store_suite.scene import HOUR, SECOND, Scene


def said(kind: str, key: str, **more: Any) -> NewEvent:
    return NewEvent(kind=f"operation.{kind}", data=json.dumps({"operation": key, **more}))


async def make(scene: Scene, claimed: Any, key: str, kind: str = "tool") -> None:
    """Have a call begin and succeed, with the events of the engine."""
    await scene.write(claimed, scene.intent(key, kind=kind, events=(said("started", key),)))
    outcome = await scene.outcome(claimed, key, "succeeded", events=(said("succeeded", key),))
    await scene.write(claimed, outcome)


@pytest.fixture
async def exhibit() -> AsyncIterator[Exhibit]:
    async with staged() as scene:
        sorry = await scene.running(ttl_us=99 * HOUR)
        for key in ("a", "b"):
            await make(scene, sorry, key)
        # What became of this one is known only after the first undo.
        late = await scene.called(sorry, "unknown", key="c", events=(said("started", "c"),))
        scene.pass_time(SECOND)
        decided = json.dumps({"task": sorry.task, "round": sorry.round, "error": {}})
        await scene.write(sorry, scene.step("undo!", kind="value", name="undo", result=decided))
        await make(scene, sorry, "b/undo", "compensation")
        await scene.store.settle([scene.settlement(sorry, late)], now=scene.now)
        await make(scene, sorry, "c/undo", "compensation")
        await make(scene, sorry, "a/undo", "compensation")
        error = {"compensation": {"state": "complete", "undone": ["b", "c", "a"], "left": []}}
        await scene.write(sorry, scene.failure(error=json.dumps(error)))
        yield Exhibit(
            dump=await scene.store.dump(),
            tasks={"sorry": sorry.task},
            accepted=[(sorry.tenant, sorry.task)],
            calls=[],
            tools=[],
        )


BROKEN: Broken = []
breaks = into(BROKEN)
SOUND: Sound = []
spares = beside(SOUND)


def _event(it: Exhibit, kind: str, key: str) -> dict[str, Any]:
    [row] = [
        row
        for row in it.dump["events"]
        if row["kind"] == f"operation.{kind}" and json.loads(row["data"])["operation"] == key
    ]
    return row


def _row(it: Exhibit, key: str) -> dict[str, Any]:
    [row] = [row for row in it.dump["operations"] if row["key"] == key]
    return row


def _swap(one: dict[str, Any], other: dict[str, Any]) -> None:
    one["number"], other["number"] = other["number"], one["number"]


def _end(it: Exhibit, **changes: Any) -> None:
    [row] = it.dump["results"]
    told = json.loads(row["error"])
    told["compensation"].update(changes)
    row["error"] = json.dumps(told)


@breaks("undos_go_backwards", "before b/undo, whose effect came later")
def _undo_the_oldest_first(it: Exhibit) -> None:
    _swap(_event(it, "started", "b/undo"), _event(it, "started", "a/undo"))


@breaks("undos_go_backwards", "before c/undo, whose effect came later")
def _pass_over_what_is_known(it: Exhibit) -> None:
    _swap(_event(it, "started", "c/undo"), _event(it, "started", "a/undo"))


@breaks("undos_go_backwards", "there was nothing to undo")
def _undo_what_was_not_done(it: Exhibit) -> None:
    it.dump["events"].remove(_event(it, "succeeded", "a"))


@breaks("undos_go_backwards", "there was nothing to undo")
def _undo_what_did_not_happen(it: Exhibit) -> None:
    _event(it, "settled", "c")["data"] = json.dumps({"operation": "c", "verdict": "did_not_happen"})


@breaks("undos_are_decided_first", "before it was decided to undo")
def _undo_without_a_decision(it: Exhibit) -> None:
    it.dump["operations"].remove(_row(it, "undo!"))


@breaks("undos_are_decided_first", "before it was decided to undo")
def _decide_afterwards(it: Exhibit) -> None:
    _row(it, "undo!")["created_at"] += HOUR


@breaks("undos_are_decided_first", "its end says that it was undone, and its undo is unknown")
def _say_what_is_not_so(it: Exhibit) -> None:
    _row(it, "b/undo")["state"] = "unknown"


@breaks("undos_are_decided_first", "its end says complete, and leaves 1")
def _call_it_complete(it: Exhibit) -> None:
    _end(it, left=["a"])


@breaks("undos_are_decided_first", "its end says incomplete, and leaves 0")
def _call_it_incomplete(it: Exhibit) -> None:
    _end(it, state="incomplete")


def _say(it: Exhibit, kind: str, key: str, number: float, **more: Any) -> None:
    """Put an event of an operation into the stream. number: between two others, where it is not whole."""
    row = _event(it, "started", "a")
    data = json.dumps({"operation": key, **more})
    it.dump["events"].append({**row, "kind": f"operation.{kind}", "data": data, "number": number})
    it.dump["events"].sort(key=lambda one: float(one["number"]))
    for place, one in enumerate(it.dump["events"], 1):
        one["number"] = place


@breaks("undos_go_backwards", "there was nothing to undo")
def _undo_the_newest_that_was_not_done(it: Exhibit) -> None:
    it.dump["events"].remove(_event(it, "succeeded", "b"))


@breaks("undos_go_backwards", "b/undo: was begun by event 9, and there was nothing to undo")
def _undo_what_was_settled_since_as_not_done(it: Exhibit) -> None:
    begun = _event(it, "started", "b/undo")["number"]
    _say(it, "settled", "b", begun - 0.5, verdict="did_not_happen")


@breaks("undos_go_backwards", "before a/undo, whose effect came later")
def _undo_first_what_was_done_before_another_was_done_again(it: Exhibit) -> None:
    begun = _event(it, "started", "b/undo")["number"]
    _say(it, "settled", "a", begun - 0.5, verdict="happened")


@breaks("undos_go_backwards", "stray/undo: was begun by event 8, and there was nothing to undo")
def _undo_nothing_on_record(it: Exhibit) -> None:
    begun = _event(it, "started", "b/undo")
    begun["data"] = json.dumps({"operation": "stray/undo"})
    _row(it, "b/undo")["key"] = "stray/undo"


@spares("undos_go_backwards")
def _leave_an_undo_to_people(it: Exhibit) -> None:
    begun = _event(it, "started", "a/undo")
    _say(it, "unknown", "b/undo", begun["number"] + 0.5)
    for kind in ("started", "succeeded"):
        it.dump["events"].remove(_event(it, kind, "b/undo"))


@spares("undos_go_backwards")
def _try_again_what_succeeded(it: Exhibit) -> None:
    begun = _event(it, "started", "b/undo")["number"]
    _say(it, "contradicted", "b", begun - 0.5)


@spares("undos_go_backwards")
def _undo_what_happened_after_all(it: Exhibit) -> None:
    done = _event(it, "succeeded", "b")["number"]
    _say(it, "settled", "b", done - 0.5, verdict="did_not_happen")
    turn_round(it)


def _undo_under(it: Exhibit, key: str, undo: str) -> None:
    for kind in ("started", "succeeded"):
        _event(it, kind, "b")["data"] = json.dumps({"operation": key})
        _event(it, kind, "b/undo")["data"] = json.dumps({"operation": undo})
    _row(it, "b")["key"], _row(it, "b/undo")["key"] = key, undo


@spares("undos_go_backwards")
def _undo_what_has_a_long_key(it: Exhibit) -> None:
    _undo_under(it, "b" * 195, f"{'b' * 195}/undo")


@spares("undos_go_backwards")
def _undo_what_has_a_longer_key(it: Exhibit) -> None:
    _undo_under(it, "b" * 196, f"{'b' * 150}~{canonical.digest('b' * 196)[-32:]}/undo")


def _have_in_a_fork(it: Exhibit, **changes: Any) -> None:
    """Put what a fork has of an undo, or what is no undo, on another task's record."""
    it.dump["operations"].append({**_row(it, "b/undo"), "task": "task_fork", "epoch": 0, **changes})


@spares("undos_are_decided_first")
def _have_an_undo_in_a_fork(it: Exhibit) -> None:
    _have_in_a_fork(it)


@spares("undos_are_decided_first")
def _look_before_it_was_decided(it: Exhibit) -> None:
    _have_in_a_fork(it, epoch=1, effect="read")


@breaks("undos_are_decided_first", "before it was decided to undo")
def _plan_without_a_decision(it: Exhibit) -> None:
    _have_in_a_fork(it, epoch=1, effect=None, state="planned")


@spares("undos_are_decided_first")
def _decide_again_in_a_later_round(it: Exhibit) -> None:
    decision = _row(it, "undo!")
    later = json.dumps({**json.loads(decision["result"]), "round": 9})
    again = {**decision, "key": "undo!2", "created_at": decision["created_at"] + HOUR, "result": later}
    it.dump["operations"].append(again)


@breaks("undos_are_decided_first", "its end says complete, and leaves 1")
def _call_it_complete_and_decide_again(it: Exhibit) -> None:
    _decide_again_in_a_later_round(it)
    _end(it, left=["a"])


@spares("undos_are_decided_first")
def _undo_anew_in_a_later_round(it: Exhibit) -> None:
    it.dump["tasks"][0].update(state="running", round=2)
    _row(it, "b/undo")["state"] = "running"


@breaks("undos_are_decided_first", "before it was decided to undo")
def _undo_by_the_decision_of_the_task_that_was_forked(it: Exhibit) -> None:
    decision = _row(it, "undo!")
    decision["result"] = json.dumps({**json.loads(decision["result"]), "task": "task_origin"})


def _send_after(it: Exhibit, later: int) -> dict[str, Any]:
    """Have a call sent later than it was decided to undo."""
    row = _row(it, "a")
    row["intent_at"] = _row(it, "undo!")["created_at"] + later
    return row


@breaks("undos_are_decided_first", "a: began after it was decided to undo")
def _go_on_after_the_decision(it: Exhibit) -> None:
    _send_after(it, 1)


@breaks("undos_are_decided_first", "a: began after it was decided to undo")
def _think_on_after_the_decision(it: Exhibit) -> None:
    _send_after(it, 1)["kind"] = "model"


@spares("undos_are_decided_first")
def _send_at_the_moment_of_the_decision(it: Exhibit) -> None:
    _send_after(it, 0)


@spares("undos_are_decided_first")
def _go_on_in_the_next_round(it: Exhibit) -> None:
    _send_after(it, 1)
    it.dump["tasks"][0].update(state="running", round=2)


@spares("undos_are_decided_first")
def _be_told_of_the_end_of_another_round(it: Exhibit) -> None:
    """Of one in which it was not decided to undo."""
    it.dump["results"].append({**it.dump["results"][0], "round": 2})
    it.dump["tasks"][0]["round"] = 2
    it.dump["results"][1]["error"] = json.dumps(
        {"compensation": {"state": "complete", "undone": [], "left": ["a"]}}
    )


@spares("undos_are_decided_first")
def _end_without_a_word_of_it(it: Exhibit) -> None:
    it.dump["results"][0]["error"] = json.dumps({"code": "deadline_exceeded"})


@spares("undos_are_decided_first")
def _end_without_an_error(it: Exhibit) -> None:
    it.dump["results"][0]["error"] = None


@spares("undos_are_decided_first")
def _decide_without_saying_what(it: Exhibit) -> None:
    it.dump["operations"].append({**_row(it, "undo!"), "key": "undo!2", "result": None})


@breaks("undos_are_decided_first", "b: its end says that it was undone, and its undo is not in the ledger")
def _say_what_is_not_on_record(it: Exhibit) -> None:
    it.dump["operations"].remove(_row(it, "b/undo"))


async def test_a_whole_dump_has_no_violations(exhibit: Exhibit) -> None:
    assert exhibit.check() == []
    turn_round(exhibit)
    assert exhibit.check() == []


async def test_no_checker_falls_over_a_table_that_is_lost(exhibit: Exhibit) -> None:
    empty_each(exhibit)


async def test_what_a_fork_has_of_a_settlement_is_not_counted_again(exhibit: Exhibit) -> None:
    copied = dict(_row(exhibit, "c"), task="task_fork", epoch=0)
    exhibit.dump["operations"].append(copied)
    assert seen_by(exhibit, "settlements_are_counted") == []
    copied["epoch"] = 1
    assert seen_by(exhibit, "settlements_are_counted") != []


test_a_broken_dump_is_seen = shown(BROKEN)
test_what_breaks_nothing_is_spared = unseen(SOUND)
