"""Checkers of undo: what was done is undone in reverse order of success, and only after that was decided."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

from outlast.core import canonical
from outlast.core.operation import changes_something
from outlast.core.transitions import TASK
from outlast.testing.checkers.seen import Evidence, Name, Row, where

UNDOING = "compensation"
DECISION = "undo"
SUFFIX = "/undo"
LONGEST = 200
"""Characters of an operation's key. That of the undo of a longer one has a digest in it."""


def undos_go_backwards(seen: Evidence) -> Iterator[str]:
    """Of two effects of a task, the one that came later is undone first.

    One that was known only after an undo had begun is behind that. What its undo never began, since it was
    left to a person, stands outside of the order.
    """
    events, ledger = seen.by_task("events"), seen.by_task("operations")
    for name, undos in _undos(seen).items():
        # What an undo is of. The first event by which an undo was begun.
        of = {_undo_of(row["key"]): row["key"] for row in ledger[name]}
        first: dict[str, int] = {}
        # Where an effect was seen to be there, and not to be there, by its operation.
        there: dict[str, list[tuple[int, bool]]] = defaultdict(list)
        for row in sorted(events[name], key=lambda one: int(one["number"])):
            if not row["kind"].startswith("operation."):
                continue
            data = json.loads(row["data"])
            key, number = data.get("operation"), int(row["number"])
            if row["kind"] == "operation.started" and key in undos:
                first.setdefault(key, number)
            elif row["kind"] == "operation.succeeded":
                there[key].append((number, True))
            elif row["kind"] == "operation.settled":
                there[key].append((number, data.get("verdict") == "happened"))
        for undo, begun in first.items():
            if _since(there[of.get(undo, "")], begun) is None:
                yield f"{where((*name, undo))}: was begun by event {begun}, and there was nothing to undo"
        order = sorted((number, undo) for undo, number in first.items())
        for place, (number, undo) in enumerate(order):
            at = _since(there[of.get(undo, "")], number)
            for _, later in order[place + 1 :]:
                other = _since(there[of.get(later, "")], number)
                if at is not None and other is not None and other > at:
                    yield (
                        f"{where((*name, undo))}: was begun by event {number}, before {later}, whose effect"
                        " came later"
                    )


def _undo_of(key: str) -> str:
    """Answer the key under which an operation is undone."""
    short = len(key) + len(SUFFIX) <= LONGEST
    return f"{key if short else f'{key[:150]}~{canonical.digest(key)[-32:]}'}{SUFFIX}"


def _since(seen: list[tuple[int, bool]], before: int) -> int | None:
    """Answer since which event an effect was there when another one happened, None where it was not."""
    known = [(number, is_there) for number, is_there in seen if number < before]
    return known[-1][0] if known and known[-1][1] else None


def undos_are_decided_first(seen: Evidence) -> Iterator[str]:
    """Nothing is undone before that was decided, and after that no other call of the round begins.

    The end of a task that undid says how far it came.
    """
    undos, results = _undos(seen), seen.by_task("results")
    for name, rows in seen.by_task("operations").items():
        head = seen.heads.get(name)
        decided = _decided(name, rows)
        at = min((row["created_at"] for row, _ in decided), default=None)
        for row in undos[name].values():
            if at is None or row["created_at"] < at:
                yield f"{where(row)}: was put on record before it was decided to undo"
        for decision, round_ in decided:
            if head is None or round_ != head["round"]:
                continue
            for row in rows:
                begun = row["kind"] in ("tool", "model") and row["intent_at"] is not None
                if begun and row["intent_at"] > decision["created_at"]:
                    yield f"{where(row)}: began after it was decided to undo"
        if head is None or head["state"] not in TASK.final:
            continue
        for end in results[name]:
            if end["error"] is not None and any(round_ == end["round"] for _, round_ in decided):
                yield from _told(name, json.loads(end["error"]), {row["key"]: row for row in rows})


def _decided(name: Name, rows: list[Row]) -> list[tuple[Row, int]]:
    """Answer a task's own decisions to undo, and the rounds that they are of. A fork has others' too."""
    found = []
    for row in rows:
        if (row["kind"], row["name"]) == ("value", DECISION) and row["result"] is not None:
            said = json.loads(row["result"])
            if said["task"] == name[1]:
                found.append((row, said["round"]))
    return found


def _told(name: Name, error: Row, ledger: dict[str, Row]) -> Iterator[str]:
    """Compare what an end says of its undo with the ledger."""
    told = error.get("compensation")
    if told is None:
        # A cancel without undo, or the deadline, came in between; the ledger has what was done.
        return
    for key in told["undone"]:
        row = ledger.get(_undo_of(key))
        if row is None or row["state"] != "succeeded":
            what = "not in the ledger" if row is None else row["state"]
            yield f"{where((*name, key))}: its end says that it was undone, and its undo is {what}"
    if (told["state"] == "complete") != (not told["left"]):
        yield f"{where(name)}: its end says {told['state']}, and leaves {len(told['left'])}"


def _undos(seen: Evidence) -> dict[Name, dict[str, Row]]:
    found: dict[Name, dict[str, Row]] = defaultdict(dict)
    for row in seen.rows("operations"):
        # A fork has those of the task that it was made from.
        if row["kind"] == UNDOING and row["epoch"] > 0 and changes_something(row["effect"] or "manual"):
            found[row["tenant"], row["task"]][row["key"]] = row
    return found
