"""Checkers of tasks: they are stored, announced, ended once, and go on until then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from outlast.core.ids import check_key
from outlast.core.transitions import TASK
from outlast.errors import InvalidKey
from outlast.testing.checkers.seen import Evidence, Row, state_of, where

FINAL_EVENTS = frozenset(f"task.{state}" for state in TASK.final)
VERDICTS = frozenset({"task.accepted", "task.rejected"})
"""What people say of work that is done."""


def accepted_is_stored(seen: Evidence) -> Iterator[str]:
    """Accepted means stored."""
    inputs = seen.by_task("inputs")
    events = seen.by_task("events")
    for name in sorted(seen.accepted or seen.heads):
        if name not in seen.heads:
            yield f"{where(name)}: accepted, and there is no such task"
        elif len(inputs[name]) != 1:
            yield f"{where(name)}: has {len(inputs[name])} inputs"
        elif not any(row["number"] == 1 and row["kind"] == "task.submitted" for row in events[name]):
            yield f"{where(name)}: its first event is missing"


def announced_together(seen: Evidence) -> Iterator[str]:
    """A task and its outbox row are there together or not at all."""
    inputs = {name: rows[0] for name, rows in seen.by_task("inputs").items()}
    there = set()
    for row in seen.rows("outbox"):
        name = (row["tenant"], row["task"])
        there.add((*name, row["topic"]))
        if name not in inputs:
            yield f"{where(name)}: message {row['number']} announces a task that is not there"
        elif not inputs[name]["announce"]:
            yield f"{where(name)}: message {row['number']} announces a task that asked for silence"
    if seen.published is None:
        return
    for name, row in inputs.items():
        if row["announce"] and name in seen.heads:
            state = seen.heads[name]["state"]
            for topic in ("task.submitted", *([f"task.{state}"] if state in TASK.final else [])):
                if (*name, topic) not in there | seen.published:
                    yield f"{where(name)}: its message {topic} is neither kept nor published"


def one_task_per_key(seen: Evidence) -> Iterator[str]:
    """There is one task per tenant and key, and every key follows its rules."""
    keys = [(row["tenant"], row["key"]) for row in seen.rows("inputs") if row["key"] is not None]
    for (tenant, key), count in Counter(keys).items():
        if count > 1:
            yield f"tenant {tenant}: {count} tasks have the key {key!r}"
        try:
            check_key(key, "key")
        except InvalidKey as error:
            yield f"tenant {tenant}: {error}"


def final_states_stand(seen: Evidence) -> Iterator[str]:
    """A final state never changes within its round, and its event is the last, but for verdicts."""
    results, events = seen.by_task("results"), seen.by_task("events")
    for name, head in seen.heads.items():
        of_round = [row for row in results[name] if row["round"] == head["round"]]
        states = [row["state"] for row in of_round]
        if head["state"] in TASK.final:
            if states != [head["state"]]:
                yield f"{where(name)}: is {head['state']}, its results of the round say {states}"
        elif states:
            yield f"{where(name)}: is {head['state']} and has a result of this round"
        if any(row["round"] > head["round"] for row in results[name]):
            yield f"{where(name)}: has a result of a round to come"
        stream = sorted(events[name], key=lambda one: int(one["number"]))
        finals = [row["kind"] for row in stream if row["kind"] in FINAL_EVENTS]
        ended = [f"task.{row['state']}" for row in sorted(results[name], key=lambda r: int(r["round"]))]
        if finals != ended:
            yield f"{where(name)}: its final events are {finals}, its results {ended}"
        last = next((row["kind"] for row in reversed(stream) if row["kind"] not in VERDICTS), None)
        if head["state"] in TASK.final and last != f"task.{head['state']}":
            yield f"{where(name)}: is {head['state']}, and its last event is {last}"


def every_live_task_goes_on(seen: Evidence) -> Iterator[str]:
    """A live task has one of a lease, a queue entry, a timer and a recorded wait; an ended one none."""
    tables = ("leases", "queue", "timers", "unsettled")
    leases, queue, timers, unsettled = (seen.by_task(table) for table in tables)
    for name, head in seen.heads.items():
        state, reason = head["state"], head["reason"]
        wakes = [row for row in timers[name] if row["kind"] == "wake"]
        if (state == "running") != (len(leases[name]) == 1):
            yield f"{where(name)}: is {state} and has {len(leases[name])} leases"
        for lease in leases[name]:
            if (lease["epoch"], lease["round"]) != (head["epoch"], head["round"]):
                yield f"{where(name)}: has a lease of another epoch or round"
        # Any wait may have a time; one that nothing else ends has.
        timed = reason in ("timer", "limit")
        if not (len(wakes) == 1 if timed else len(wakes) <= (state == "waiting")):
            yield f"{where(name)}: is {state_of(head)} and has {len(wakes)} timers that wake it"
        # Stale entries may stand elsewhere; a claim skips them.
        if state == "queued" and not any(row["lane"] == head["lane"] for row in queue[name]):
            yield f"{where(name)}: is queued and not in its lane"
        if (state, reason) == ("waiting", "reconciliation") and not unsettled[name]:
            yield f"{where(name)}: waits for a settlement, and nothing of it is unsettled"
        if (state == "waiting") != (reason is not None):
            yield f"{where(name)}: is {state} with the reason {reason}"
        deadlines = [row["due_at"] for row in timers[name] if row["kind"] == "deadline"]
        owed = [head["deadline_at"]] if state not in TASK.final and head["deadline_at"] is not None else []
        if deadlines != owed:
            yield f"{where(name)}: is {state}, has deadline timers {deadlines}, should have {owed}"


def schedules_account_for_their_tasks(seen: Evidence) -> Iterator[str]:
    """What a schedule says that it fired is there, under keys that name it."""
    keys: dict[tuple[str, str], str] = {}
    fired: Counter[tuple[str, str]] = Counter()
    for row in seen.rows("inputs"):
        key = row["key"] or ""
        if key.startswith("schedule:"):
            keys[row["tenant"], row["task"]] = key
            # The instant's own text has two colons.
            fired[row["tenant"], key.removeprefix("schedule:").rsplit(":", 3)[0]] += 1
    for row in seen.rows("schedules"):
        name = f"tenant {row['tenant']}, schedule {row['id']}"
        if row["fired"] > fired[row["tenant"], row["id"]]:
            yield f"{name}: says that it fired {row['fired']}, there are {fired[row['tenant'], row['id']]}"
        if row["last_task"] is not None:
            key = keys.get((row["tenant"], row["last_task"]), "")
            if not key.startswith(f"schedule:{row['id']}:"):
                yield f"{name}: its last task is {row['last_task']}, whose key is {key!r}"


def _is_over(seen: Evidence, row: Row) -> bool:
    head = seen.heads.get((row["tenant"], row["task"]))
    return head is None or head["state"] in TASK.final


def _is_held_back(seen: Evidence, message: Row) -> bool:
    """Whether a message is parked, or comes after one of its task that is."""
    name = (message["tenant"], message["task"])
    return any(
        row["parked"] is not None
        and (row["tenant"], row["task"]) == name
        and row["number"] <= message["number"]
        for row in seen.rows("outbox")
    )


def quiet_is_quiet(seen: Evidence) -> Iterator[str]:
    """A quiet system holds nothing that only work in progress needs, and grows no table."""
    if not seen.quiet:
        return
    for name, head in seen.heads.items():
        if head["state"] in ("queued", "running"):
            yield f"{where(name)}: is {head['state']} in a quiet system"
    for table in ("queue", "leases", "posts"):
        if seen.rows(table):
            yield f"{table} holds {len(seen.rows(table))} rows in a quiet system"
    switches = {(row["tenant"], row["scope"]) for row in seen.rows("pauses")}
    for row in seen.rows("held_tasks"):
        if (row["by_tenant"], row["scope"]) not in switches or _is_over(seen, row):
            by = f"({row['by_tenant']}, {row['scope']})"
            yield f"{where(row)}: is held back by nothing {by} in a quiet system"
    pending = [row for row in seen.rows("outbox") if not _is_held_back(seen, row)]
    if pending:
        yield f"outbox holds {len(pending)} rows to publish in a quiet system"
    for table, rows in (seen.earlier or {}).items():
        if len(seen.rows(table)) > len(rows):
            yield f"{table} grew from {len(rows)} to {len(seen.rows(table))} rows in a quiet system"
