"""Checkers of what reaches a task from outside: cancels, signals, the ends of its children and its parent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from outlast.core.transitions import OPERATION, TASK
from outlast.testing.checkers.seen import Evidence, Row, state_of, where

UNDOING = "compensation"
WAITS = ("timer", "signal", "child")
FINAL_EVENTS = frozenset(f"task.{state}" for state in TASK.final)


def cancels_are_final(seen: Evidence) -> Iterator[str]:
    """After an acknowledged cancel no intent begins, and the task ends as cancelled and as nothing else."""
    audited = {(row["tenant"], row["subject"]) for row in seen.rows("audit") if row["what"] == "cancel"}
    operations, events = seen.by_task("operations"), seen.by_task("events")
    for name, head in seen.heads.items():
        kinds = {row["key"]: row["kind"] for row in operations[name]}
        mark: Row | None = None
        ends = 0
        for row in sorted(events[name], key=lambda one: int(one["number"])):
            if row["kind"] == "task.cancel_requested":
                if name not in audited:
                    yield f"{where(name)}: was cancelled, and the audit trail does not say by whom"
                if mark is not None:
                    yield f"{where(name)}: event {row['number']} marks it a second time"
                mark = row
            elif row["kind"] in FINAL_EVENTS:
                ends += 1
                if mark is not None and row["kind"] != "task.cancelled":
                    yield f"{where(name)}: was to be cancelled by event {mark['number']}, has {row['kind']}"
                # Whoever opens the next round takes the cancel back.
                mark = mark if ends == head["round"] else None
            elif row["kind"] == "operation.started" and mark is not None:
                key = json.loads(row["data"]).get("operation")
                # What is recorded of a wait is no intent.
                if kinds.get(key) not in (*WAITS, UNDOING):
                    yield f"{where(name)}: event {row['number']} begins {key} after the cancel"
        marked = mark is not None and head["state"] not in TASK.final
        if marked != bool(head["cancelling"]):
            yield f"{where(name)}: its stream and its head disagree about a cancel"
        if mark is None:
            continue
        for row in operations[name]:
            if row["kind"] != UNDOING and row["intent_at"] is not None and row["intent_at"] > mark["at"]:
                yield f"{where(row)}: its intent comes after the cancel"


def inboxes_hold_facts(seen: Evidence) -> Iterator[str]:
    """A number of an inbox is one of the head's facts; what is taken was taken by an operation."""
    operations = {(row["tenant"], row["task"], row["key"]) for row in seen.rows("operations")}
    for name, rows in seen.by_task("inbox").items():
        head = seen.heads.get(name)
        for number, count in Counter(row["number"] for row in rows).items():
            if count > 1:
                yield f"{where(name)}: {count} things lie under the number {number}"
            if head is not None and number > head["facts"]:
                yield f"{where(name)}: something lies under {number}, and it knows {head['facts']} facts"
        keys = Counter((row["name"], row["key"]) for row in rows if row["key"] is not None)
        for (signal, key), count in keys.items():
            if count > 1:
                yield f"{where(name)}: {count} signals {signal} have the key {key!r}"
        for row in rows:
            if row["taken_by"] is not None and (*name, row["taken_by"]) not in operations:
                taker = row["taken_by"]
                yield f"{where(name)}: number {row['number']} was taken by {taker}, which is not there"
    told = {
        (row["tenant"], row["task"], json.loads(row["data"])["number"])
        for row in seen.rows("events")
        if row["kind"] == "signal.received"
    }
    lying = {
        (row["tenant"], row["task"], row["number"]) for row in seen.rows("inbox") if row["kind"] == "signal"
    }
    for tenant, task, number in sorted(told ^ lying):
        yield f"{where((tenant, task))}: signal {number} is in one of the stream and the inbox"
    for row in seen.rows("leases"):
        head = seen.heads.get((row["tenant"], row["task"]))
        if head is not None and row["news"] > head["facts"]:
            yield f"{where(row)}: its worker is told of {row['news']} facts of {head['facts']}"


def families_hear_of_each_other(seen: Evidence) -> Iterator[str]:
    """A child is on its parent's record. Each end of a child is with its parent or on its way, once, unless
    the parent has it on record, where its worker may have told it; so is its parent's end with a child."""
    on_the_way = Counter((row["tenant"], row["task"], row["kind"], row["name"]) for row in seen.rows("posts"))
    cancels = {(row["tenant"], row["task"]) for row in seen.rows("posts") if row["kind"] == "cancel"}
    arrived = Counter(
        (row["tenant"], row["task"], row["kind"], row["name"])
        for row in seen.rows("inbox")
        if row["kind"] == "child"
    )
    counted: Counter[tuple[str, str]] = Counter()
    results = seen.by_task("results")
    records = {(row["tenant"], row["task"], row["key"]): row["state"] for row in seen.rows("operations")}
    family = set()
    for row in seen.rows("inputs"):
        child = (row["tenant"], row["task"])
        if row["parent"] is None or child not in seen.heads:
            continue
        above = (row["tenant"], row["parent"])
        counted[above] += 1
        family.add((*above, "child", row["parent_key"]))
        parent, state = seen.heads.get(above), seen.heads[child]["state"]
        if parent is None:
            yield f"{where(child)}: its parent {row['parent']} is not there"
            continue
        if (*above, row["parent_key"]) not in records:
            yield f"{where(child)}: is not on the record of its parent {row['parent']}"
        name = (*above, "child", row["parent_key"])
        heard, ended = arrived[name] + on_the_way[name], len(results[child])
        on_record = records.get((*above, row["parent_key"])) in OPERATION.final
        if heard > ended or (heard < ended and parent["state"] != "succeeded" and not on_record):
            if not ended:
                yield f"{where(child)}: is {state}, and its parent hears of its end"
            else:
                often = "" if ended == 1 else f" {ended} times"
                yield f"{where(child)}: has ended{often}, and its parent hears of it {heard} times"
        # One that people have tried again goes on because they said so.
        alone = (
            parent["state"] in TASK.final
            and state not in TASK.final
            and not row["detached"]
            and seen.heads[child]["round"] == 1
        )
        if alone and not seen.heads[child]["cancelling"] and child not in cancels:
            yield f"{where(child)}: goes on although its parent has ended"
    for tenant, task, _, key in arrived.keys() - family:
        yield f"{where((tenant, task))}: hears of {key}, which is no child of its"
    for of, head in seen.heads.items():
        if head["children"] != counted[of]:
            yield f"{where(of)}: has {counted[of]} children and counts {head['children']}"


def ends_are_told_as_they_are(seen: Evidence) -> Iterator[str]:
    """What a parent has on record of a child's end is how that child has ended, in one of its rounds."""
    results = seen.by_task("results")
    children = {
        (row["tenant"], row["parent"], row["parent_key"]): (row["tenant"], row["task"])
        for row in seen.rows("inputs")
        if row["parent"] is not None
    }
    for row in seen.rows("operations"):
        child = children.get((row["tenant"], row["task"], row["key"]))
        if child is None or row["state"] not in OPERATION.final:
            continue
        succeeded = row["state"] == "succeeded"
        if not any(
            (end["state"] == "succeeded") == succeeded and (not succeeded or end["result"] == row["result"])
            for end in results[child]
        ):
            ended = ", ".join(str(end["state"]) for end in results[child]) or "in no way"
            yield f"{where(row)}: has it on record as {row['state']} that child {child[1]} ended {ended}"


def waits_are_recorded(seen: Evidence) -> Iterator[str]:
    """Whoever waits for a signal, a child or a decision has that on record, and what has a time has a
    timer, which is not later."""
    operations, approvals = seen.by_task("operations"), seen.by_task("approvals")
    timers, attempts = seen.by_task("timers"), seen.by_task("attempts")
    for name, head in seen.heads.items():
        if head["state"] != "waiting":
            continue
        running = [row for row in operations[name] if row["state"] == "running"]
        if head["reason"] in ("signal", "child") and not any(r["kind"] == head["reason"] for r in running):
            yield f"{where(name)}: is {state_of(head)} and has no such wait on record"
        if head["reason"] == "approval" and not any(r["state"] == "pending" for r in approvals[name]):
            yield f"{where(name)}: waits for a decision, and nothing is asked"
        due = [row["due_at"] for row in running if row["due_at"] is not None]
        wakes = [row["due_at"] for row in timers[name] if row["kind"] == "wake"]
        # Whoever waits for something else, or to try again, goes on when they said they would, whatever waits
        # beside it.
        ends = max(attempts[name], key=lambda row: row["epoch"], default=None)
        own = head["reason"] not in WAITS or (ends is not None and ends["end"] == "failed")
        if due and not any(own or wake <= min(due) for wake in wakes):
            yield f"{where(name)}: is {state_of(head)}, a wait of its has a time, and nothing wakes it then"
