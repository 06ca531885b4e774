"""The checkers of undo: none of them says a word about a sound dump, and each is shown a broken one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.testing.exhibits import Broken, Exhibit, into, seen_by, shown, staged

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


async def test_a_whole_dump_has_no_violations(exhibit: Exhibit) -> None:
    assert exhibit.check() == []


async def test_what_a_fork_has_of_a_settlement_is_not_counted_again(exhibit: Exhibit) -> None:
    copied = dict(_row(exhibit, "c"), task="task_fork", epoch=0)
    exhibit.dump["operations"].append(copied)
    assert seen_by(exhibit, "settlements_are_counted") == []
    copied["epoch"] = 1
    assert seen_by(exhibit, "settlements_are_counted") != []


test_a_broken_dump_is_seen = shown(BROKEN)
