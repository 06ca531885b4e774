"""Checkers of the ledger: intent, call, outcome; effects outside; what is unknown; business keys."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator

from outlast.core.operation import changes_something
from outlast.core.transitions import TASK
from outlast.testing.checkers.seen import Evidence, by_operation_id, operation_of, where


def intent_before_call_before_outcome(seen: Evidence) -> Iterator[str]:
    """The intent is on disk before the call, and an outcome belongs to its attempt."""
    for row in seen.rows("operations"):
        sent = row["attempt"] > 0
        if sent != (row["intent_at"] is not None) or sent != (row["first_intent_at"] is not None):
            yield f"{where(row)}: has {row['attempt']} attempts and intents at {row['intent_at']}"
            continue
        calls = row["kind"] in ("tool", "model", "compensation")
        # What could not be made at all is put before people as unknown, where nobody may leave it undone.
        put = row["kind"] == "compensation" and row["turn"] > 0
        if calls and not sent and (row["state"] == "running" or (row["state"] == "unknown" and not put)):
            yield f"{where(row)}: is {row['state']} without an intent"
        if sent:
            if row["effect"] is None or row["decision"] is None or row["deadline_at"] is None:
                yield f"{where(row)}: was sent without an effect class, a decision or a deadline"
            # What a fork has taken over was sent before the fork was made.
            own = row["idempotency_key"] is None
            if row["first_intent_at"] > row["intent_at"] or (
                own and row["created_at"] > row["first_intent_at"]
            ):
                yield f"{where(row)}: its first intent is not the first"
            if row["ended_at"] is not None and row["ended_at"] < row["intent_at"]:
                yield f"{where(row)}: ended before its intent"
            if row["turn"] < row["attempt"]:
                yield f"{where(row)}: has made {row['attempt']} attempts in {row['turn']} turns"
        ended = row["state"] in ("succeeded", "failed")
        if row["state"] != "unknown" and ended != (row["ended_at"] is not None):
            yield f"{where(row)}: is {row['state']} and has ended at {row['ended_at']}"
    operations = by_operation_id(seen)
    for call in seen.calls or ():
        if call.key is not None and not any(row["attempt"] > 0 for row in operations[call.key]):
            yield f"operation {call.key}: was called, and no intent of it is on disk"


def effects_are_accounted_for(seen: Evidence) -> Iterator[str]:
    """Per key: what succeeded <= effects at the outside <= that + what is open; one key, one request."""
    if seen.calls is None:
        return
    effects: dict[str, set[str]] = defaultdict(set)
    requests: dict[str, set[str]] = defaultdict(set)
    for call in seen.calls:
        if call.key is None:
            if call.effect_id is not None:
                yield f"effect {call.effect_id}: was made without a key"
            continue
        if call.effect_id is not None:
            effects[call.key].add(call.effect_id)
        if call.fingerprint is not None and call.method not in ("GET", "HEAD"):
            requests[call.key].add(call.fingerprint)
    for key, different in requests.items():
        if len(different) > 1:
            yield f"operation {key}: {len(different)} different requests were sent under its key"
    operations = by_operation_id(seen)
    for key, rows in operations.items():
        judged = [
            row
            for row in rows
            if row["kind"] in ("tool", "compensation")
            and row["effect"] is not None
            and changes_something(row["effect"])
            and (seen.tools is None or row["name"] in seen.tools)
        ]
        if not judged:
            continue
        # Several are of a task and its forks: one key, one effect.
        done = int(any(row["state"] == "succeeded" for row in judged))
        maybe = int(not done and any(row["state"] in ("unknown", "running") for row in judged))
        if not done <= len(effects[key]) <= done + maybe:
            states = sorted(row["state"] for row in judged)
            yield f"operation {key}: is {', '.join(states)}, and has {len(effects[key])} effects outside"
    for key in effects.keys() - operations.keys():
        yield f"operation {key}: has an effect outside and is not in the ledger"


def unknowns_are_queued(seen: Evidence) -> Iterator[str]:
    """Every unknown is in the reconciliation queue, and nothing else is; what was under way when its task
    ended is unknown."""
    for row in seen.rows("operations"):
        head = seen.heads.get((row["tenant"], row["task"]))
        sent = row["kind"] in ("tool", "model", "compensation") and row["state"] == "running"
        if sent and head is not None and head["state"] in TASK.final:
            yield f"{where(row)}: is running in a task that has ended"
    unknown = {operation_of(row) for row in seen.rows("operations") if row["state"] == "unknown"}
    queued = {operation_of(row) for row in seen.rows("unsettled")}
    for name in sorted(unknown - queued):
        yield f"{where(name)}: is unknown and not in the reconciliation queue"
    for name in sorted(queued - unknown):
        yield f"{where(name)}: is in the reconciliation queue and not unknown"
    for row in seen.rows("unsettled"):
        if not 0 <= row["unusable"] <= row["asked"]:
            yield f"{where(row)}: {row['unusable']} of {row['asked']} questions brought no evidence"
        head = seen.heads.get((row["tenant"], row["task"]))
        if row["resend"] and head is not None and head["state"] in TASK.final:
            yield f"{where(row)}: is to be sent again by a task that has ended"
        if row["resend"] and row["ask_at"] is not None:
            yield f"{where(row)}: is to be sent again and asked about at {row['ask_at']}"


def words_are_heard(seen: Evidence) -> Iterator[str]:
    """What evidence says to have happened has not failed and is not to be sent again, unless a person has
    settled it since: what a person has said last stands."""
    overruled: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in seen.rows("evidence"):
        if row["source"] == "person":
            overruled[operation_of(row)] = max(overruled[operation_of(row)], row["number"])
    ledger = {operation_of(row): row for row in seen.rows("operations")}
    for row in seen.rows("evidence"):
        operation = ledger.get(operation_of(row))
        if (
            operation is not None
            and operation["state"] in ("failed", "planned", "approved")
            and (operation["effect"] or "read") != "read"
            and row["says"] == "happened"
            # What a gateway saw is of one request; a call may make several, and fail.
            and row["source"] != "gateway"
            and 1 <= row["attempt"] <= operation["attempt"]
            and row["number"] >= overruled[operation_of(row)]
        ):
            yield f"{where(row)}: is {operation['state']}, and attempt {row['attempt']} says that it happened"


_ENDS_OR_BEGINS = frozenset({"succeeded", "failed", "settled", "started", "unknown", "contradicted"})


def calls_succeed_once(seen: Evidence) -> Iterator[str]:
    """After a call has succeeded, or was settled as happened, no other end of it is told, unless it was begun
    again or thrown in doubt."""
    for name, rows in seen.by_task("events").items():
        done: dict[str, int] = {}
        for row in sorted(rows, key=lambda one: int(one["number"])):
            word = row["kind"].removeprefix("operation.")
            if word == row["kind"] or word not in _ENDS_OR_BEGINS:
                continue
            data = json.loads(row["data"])
            key = str(data.get("operation"))
            if data.get("kind") not in (None, "tool", "compensation"):
                continue
            if word in ("succeeded", "failed", "settled") and key in done:
                yield f"{where((*name, key))}: has ended by event {done[key]}, and again by {row['number']}"
            if word == "succeeded" or (word == "settled" and data.get("verdict") == "happened"):
                done[key] = row["number"]
            elif word in ("started", "unknown", "contradicted"):
                done.pop(key, None)


def settlements_are_counted(seen: Evidence) -> Iterator[str]:
    """Every settlement that stands in the ledger is counted; those that stand no more are counted too."""
    counted = {(row["tenant"], row["tool"]): row for row in seen.rows("settled_counts")}
    settled = Counter(
        (row["tenant"], row["name"], "happened" if row["state"] == "succeeded" else "did_not_happen")
        for row in seen.rows("operations")
        # What a fork has copied, and no lease has written since, was counted where it was settled.
        if row["kind"] in ("tool", "compensation")
        and row["epoch"]
        and row["settled_by"]
        and row["state"] in ("succeeded", "failed")
    )
    for (tenant, tool, verdict), count in sorted(settled.items()):
        there = counted.get((tenant, tool), {}).get(verdict, 0)
        if there < count:
            yield f"tenant {tenant}: {count} of {tool} were settled as {verdict}, and {there} are counted"


def business_keys_follow_their_operations(seen: Evidence) -> Iterator[str]:
    """A key is held by one call that may still be made or have its effect, done by successes, and in doubt
    for what is unknown.

    What runs has its key, and so has what was contradicted; no operation has two.
    """
    ledger = {operation_of(row): row for row in seen.rows("operations")}
    names = [
        (row["tenant"], row["tool"], row["value"])
        for row in seen.rows("business_keys")
        if row["state"] == "held"
    ]
    for (tenant, tool, value), count in Counter(names).items():
        if count > 1:
            yield f"tenant {tenant}: the key {value!r} of {tool} is held {count} times"
    for name, count in Counter(operation_of(row) for row in seen.rows("business_keys")).items():
        if count > 1:
            yield f"{where(name)}: has {count} business keys"
    for row in seen.rows("business_keys"):
        owner = ledger.get(operation_of(row))
        allowed = {
            "held": ("planned", "approved", "running", "unknown"),
            "doubt": ("unknown",),
            "done": ("succeeded",),
        }[row["state"]]
        what = f"the key {row['value']!r} of {row['tool']}"
        if owner is None:
            yield f"{where(row)}: has {what} and is not in the ledger"
            continue
        if owner["state"] not in allowed:
            yield f"{where(row)}: is {owner['state']}, and {what} is {row['state']}"
        if owner["business_key"] != row["value"]:
            yield f"{where(row)}: has {what}, and says that its own is {owner['business_key']!r}"
        if (row["state"] == "done") != (row["until_at"] is not None):
            yield f"{where(row)}: {what} is {row['state']} until {row['until_at']}"
    kept = {operation_of(row) for row in seen.rows("business_keys") if row["state"] != "done"}
    doubted = {
        operation_of(row)
        for row in seen.rows("unsettled")
        if row["why"].startswith("late evidence contradicts")
    }
    for name, row in ledger.items():
        # Another unknown may have none: people are asked about a call that another one has made already.
        acting = row["state"] == "running" or name in doubted
        if acting and row["business_key"] is not None and name not in kept:
            yield f"{where(name)}: is {row['state']} and does not have its business key"
