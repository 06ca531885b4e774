"""What must be true of a store at any moment, as functions over a dump of it.

Each checker looks at one promise and answers the violations it sees, named by tenant, task and operation.
``check_all`` asks every one. They read ``await store.dump()`` and, where the outside is the judge, the log of
the Recorder; they share no code with the stores, so that a fault there cannot hide itself here.

What is not here yet comes with its part: decisions, acknowledged cancels, undo, limits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.core.ids import check_key, operation_id
from outlast.core.operation import changes_something
from outlast.core.transitions import TASK
from outlast.errors import InvalidKey
from outlast.store.reconciling import EVERY_TENANT

__all__ = ["CHECKERS", "Call", "Dump", "Evidence", "Violation", "calls_of", "check_all"]

Row = Mapping[str, Any]
Dump = Mapping[str, Sequence[Row]]
Name = tuple[str, str]
"""A task: (tenant, id)."""

EVERYBODYS = ("pauses", "audit")
"""Tables whose rows may stand for every tenant."""
FINAL_EVENTS = frozenset(f"task.{state}" for state in TASK.final)
HISTORY = {
    "events": ("tenant", "task", "number"),
    "evidence": ("tenant", "task", "key", "number"),
    "attempts": ("tenant", "task", "epoch"),
    "results": ("tenant", "task", "round"),
    "audit": ("tenant", "number"),
}
"""Tables that are only ever added to, and what names a row of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken promise: which, and where."""

    promise: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call as the other side logged it. effect_id: what it changed there, None for nothing new."""

    key: str | None
    effect_id: str | None = None
    fingerprint: str | None = None
    method: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the checkers look at.

    dump: every row by table. accepted: (tenant, task) of every acknowledged submission. calls: the other
    side's whole log. tools: names of the tools whose effects that log judges, None for all. published:
    (tenant, task, topic) of every message that left. earlier: an older dump of the same store. quiet: no task
    is runnable and two leases have gone by.
    """

    dump: Dump
    accepted: frozenset[Name] | None = None
    calls: tuple[Call, ...] | None = None
    tools: Collection[str] | None = None
    published: frozenset[tuple[str, str, str]] | None = None
    earlier: Dump | None = None
    quiet: bool = False
    heads: dict[Name, Row] = field(init=False)

    def __post_init__(self) -> None:
        heads = {(row["tenant"], row["id"]): row for row in self.rows("tasks")}
        object.__setattr__(self, "heads", heads)

    def rows(self, table: str) -> Sequence[Row]:
        """Answer a table's rows."""
        return self.dump.get(table, ())

    def by_task(self, table: str) -> dict[Name, list[Row]]:
        """Group a table's rows by task."""
        found: dict[Name, list[Row]] = defaultdict(list)
        for row in self.rows(table):
            found[row["tenant"], row["task"]].append(row)
        return found


Checker = Callable[[Evidence], Iterator[str]]


def accepted_is_stored(seen: Evidence) -> Iterator[str]:
    """Accepted means stored."""
    inputs = seen.by_task("inputs")
    events = seen.by_task("events")
    for name in sorted(seen.accepted or seen.heads):
        if name not in seen.heads:
            yield f"{_of(name)}: accepted, and there is no such task"
        elif len(inputs[name]) != 1:
            yield f"{_of(name)}: has {len(inputs[name])} inputs"
        elif not any(row["number"] == 1 and row["kind"] == "task.submitted" for row in events[name]):
            yield f"{_of(name)}: its first event is missing"


def announced_together(seen: Evidence) -> Iterator[str]:
    """A task and its outbox row are there together or not at all."""
    inputs = {name: rows[0] for name, rows in seen.by_task("inputs").items()}
    there = set()
    for row in seen.rows("outbox"):
        name = (row["tenant"], row["task"])
        there.add((*name, row["topic"]))
        if name not in inputs:
            yield f"{_of(name)}: message {row['number']} announces a task that is not there"
        elif not inputs[name]["announce"]:
            yield f"{_of(name)}: message {row['number']} announces a task that asked for silence"
    if seen.published is None:
        return
    for name, row in inputs.items():
        if row["announce"] and name in seen.heads:
            state = seen.heads[name]["state"]
            for topic in ("task.submitted", *([f"task.{state}"] if state in TASK.final else [])):
                if (*name, topic) not in there | seen.published:
                    yield f"{_of(name)}: its message {topic} is neither kept nor published"


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


def only_the_current_epoch_writes(seen: Evidence) -> Iterator[str]:
    """Epochs never fall, and only the current one writes."""
    for table in ("leases", "attempts", "operations", "events"):
        for row in seen.rows(table):
            head = seen.heads.get((row["tenant"], row["task"]))
            if head is not None and row["epoch"] > head["epoch"]:
                yield f"{_of(row)}: a row of {table} has epoch {row['epoch']}, the task {head['epoch']}"
    attempts = seen.by_task("attempts")
    for row in seen.rows("leases"):
        if any(row["epoch"] <= ended["epoch"] for ended in attempts[row["tenant"], row["task"]]):
            yield f"{_of(row)}: its lease has epoch {row['epoch']}, and a later attempt has ended"
    for name, rows in seen.by_task("events").items():
        highest = 0
        for row in sorted(rows, key=lambda one: int(one["number"])):
            # Epoch 0 belongs to no attempt.
            if row["epoch"] and row["epoch"] < highest:
                yield f"{_of(name)}: event {row['number']} of epoch {row['epoch']} follows epoch {highest}"
            highest = max(highest, row["epoch"])


def final_states_stand(seen: Evidence) -> Iterator[str]:
    """A final state never changes within its round, and its event is the last."""
    results, events = seen.by_task("results"), seen.by_task("events")
    for name, head in seen.heads.items():
        of_round = [row for row in results[name] if row["round"] == head["round"]]
        states = [row["state"] for row in of_round]
        if head["state"] in TASK.final:
            if states != [head["state"]]:
                yield f"{_of(name)}: is {head['state']}, its results of the round say {states}"
        elif states:
            yield f"{_of(name)}: is {head['state']} and has a result of this round"
        if any(row["round"] > head["round"] for row in results[name]):
            yield f"{_of(name)}: has a result of a round to come"
        stream = sorted(events[name], key=lambda one: int(one["number"]))
        finals = [row["kind"] for row in stream if row["kind"] in FINAL_EVENTS]
        ended = [f"task.{row['state']}" for row in sorted(results[name], key=lambda r: int(r["round"]))]
        if finals != ended:
            yield f"{_of(name)}: its final events are {finals}, its results {ended}"
        last = stream[-1]["kind"] if stream else None
        if head["state"] in TASK.final and last != f"task.{head['state']}":
            yield f"{_of(name)}: is {head['state']}, and its last event is {last}"


def results_never_change(seen: Evidence) -> Iterator[str]:
    """What is recorded stays, and numbers never fall (between an earlier dump and this one)."""
    earlier = Evidence(dump=seen.earlier or {})
    for table, names in HISTORY.items():
        now = {tuple(row[name] for name in names): row for row in seen.rows(table)}
        for row in earlier.rows(table):
            key = tuple(row[name] for name in names)
            if now.get(key) != row:
                of = _of(row) if "task" in row else f"tenant {row['tenant']}"
                yield f"{of}: a row of {table} {'changed' if key in now else 'went'}: {key[-1]}"
    for name, was in earlier.heads.items():
        head = seen.heads.get(name)
        if head is None:
            yield f"{_of(name)}: is gone"
            continue
        for column in ("epoch", "round", "last_event", "facts"):
            if head[column] < was[column]:
                yield f"{_of(name)}: its {column} fell from {was[column]} to {head[column]}"
        stands = head["round"] > was["round"] or head["state"] == was["state"]
        if was["state"] in TASK.final and not stands:
            yield f"{_of(name)}: was {was['state']}, is {head['state']} in the same round"
    ledger = {_operation(row): row for row in seen.rows("operations")}
    for was in earlier.rows("operations"):
        if _operation(was) not in ledger:
            yield f"{_of(was)}: is gone"
            continue
        row = ledger[_operation(was)]
        if row["attempt"] < was["attempt"] or row["turn"] < was["turn"]:
            yield f"{_of(was)}: its attempt or turn fell"
        same = all(row[column] == was[column] for column in ("state", "result", "error"))
        # A failed one may be opened again; evidence may put either back to unknown.
        reopened = was["state"] == "failed" and (row["state"] == "planned" or row["attempt"] > was["attempt"])
        if (
            was["state"] in ("succeeded", "failed")
            and not same
            and not reopened
            and row["state"] != "unknown"
        ):
            yield f"{_of(was)}: was {was['state']}, and its record changed"


def intent_before_call_before_outcome(seen: Evidence) -> Iterator[str]:
    """The intent is on disk before the call, and an outcome belongs to its attempt."""
    for row in seen.rows("operations"):
        sent = row["attempt"] > 0
        if sent != (row["intent_at"] is not None) or sent != (row["first_intent_at"] is not None):
            yield f"{_of(row)}: has {row['attempt']} attempts and intents at {row['intent_at']}"
            continue
        calls = row["kind"] in ("tool", "model", "compensation")
        if calls and not sent and row["state"] in ("running", "unknown"):
            yield f"{_of(row)}: is {row['state']} without an intent"
        if sent:
            if row["effect"] is None or row["decision"] is None or row["deadline_at"] is None:
                yield f"{_of(row)}: was sent without an effect class, a decision or a deadline"
            if row["first_intent_at"] > row["intent_at"] or row["created_at"] > row["first_intent_at"]:
                yield f"{_of(row)}: its first intent is not the first"
            if row["ended_at"] is not None and row["ended_at"] < row["intent_at"]:
                yield f"{_of(row)}: ended before its intent"
            if row["turn"] < row["attempt"]:
                yield f"{_of(row)}: has made {row['attempt']} attempts in {row['turn']} turns"
        ended = row["state"] in ("succeeded", "failed")
        if row["state"] != "unknown" and ended != (row["ended_at"] is not None):
            yield f"{_of(row)}: is {row['state']} and has ended at {row['ended_at']}"
    operations = _by_operation_id(seen)
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
    operations = _by_operation_id(seen)
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
        done = sum(row["state"] == "succeeded" for row in judged)
        maybe = sum(row["state"] in ("unknown", "running") for row in judged)
        if not done <= len(effects[key]) <= done + maybe:
            states = sorted(row["state"] for row in judged)
            yield f"operation {key}: is {', '.join(states)}, and has {len(effects[key])} effects outside"
    for key in effects.keys() - operations.keys():
        yield f"operation {key}: has an effect outside and is not in the ledger"


def unknowns_are_queued(seen: Evidence) -> Iterator[str]:
    """Every unknown is in the reconciliation queue, and nothing else is."""
    unknown = {_operation(row) for row in seen.rows("operations") if row["state"] == "unknown"}
    queued = {_operation(row) for row in seen.rows("unsettled")}
    for name in sorted(unknown - queued):
        yield f"{_of(name)}: is unknown and not in the reconciliation queue"
    for name in sorted(queued - unknown):
        yield f"{_of(name)}: is in the reconciliation queue and not unknown"
    for row in seen.rows("unsettled"):
        if not 0 <= row["unusable"] <= row["asked"]:
            yield f"{_of(row)}: {row['unusable']} of {row['asked']} questions brought no evidence"


def settlements_are_counted(seen: Evidence) -> Iterator[str]:
    """Every settlement that stands in the ledger is counted; those that stand no more are counted too."""
    counted = {(row["tenant"], row["tool"]): row for row in seen.rows("settled_counts")}
    settled = Counter(
        (row["tenant"], row["name"], "happened" if row["state"] == "succeeded" else "did_not_happen")
        for row in seen.rows("operations")
        if row["kind"] == "tool" and row["settled_by"] and row["state"] in ("succeeded", "failed")
    )
    for (tenant, tool, verdict), count in sorted(settled.items()):
        there = counted.get((tenant, tool), {}).get(verdict, 0)
        if there < count:
            yield f"tenant {tenant}: {count} of {tool} were settled as {verdict}, and {there} are counted"


def business_keys_follow_their_operations(seen: Evidence) -> Iterator[str]:
    """A key that is held is held by a call that may still be made or have its effect; one that is done, by a
    success.

    What runs does hold its key, and no operation has two.
    """
    ledger = {_operation(row): row for row in seen.rows("operations")}
    names = [(row["tenant"], row["tool"], row["value"]) for row in seen.rows("business_keys")]
    for (tenant, tool, value), count in Counter(names).items():
        if count > 1:
            yield f"tenant {tenant}: the key {value!r} of {tool} is there {count} times"
    for name, count in Counter(_operation(row) for row in seen.rows("business_keys")).items():
        if count > 1:
            yield f"{_of(name)}: has {count} business keys"
    for row in seen.rows("business_keys"):
        owner = ledger.get(_operation(row))
        allowed = ("planned", "running", "unknown") if row["state"] == "held" else ("succeeded",)
        what = f"the key {row['value']!r} of {row['tool']}"
        if owner is None:
            yield f"{_of(row)}: has {what} and is not in the ledger"
            continue
        if owner["state"] not in allowed:
            yield f"{_of(row)}: is {owner['state']}, and {what} is {row['state']}"
        if owner["business_key"] != row["value"]:
            yield f"{_of(row)}: has {what}, and says that its own is {owner['business_key']!r}"
        if (row["state"] == "done") != (row["until_at"] is not None):
            yield f"{_of(row)}: {what} is {row['state']} until {row['until_at']}"
    held = {_operation(row) for row in seen.rows("business_keys") if row["state"] == "held"}
    for name, row in ledger.items():
        # An unknown may have had it and lost it: when evidence contradicts a failure, another may hold it.
        if row["state"] == "running" and row["business_key"] is not None and name not in held:
            yield f"{_of(name)}: is running and does not hold its business key"


def events_are_dense(seen: Evidence) -> Iterator[str]:
    """Event numbers of a task are dense and end at its head's."""
    events = seen.by_task("events")
    for name, head in seen.heads.items():
        numbers = sorted(row["number"] for row in events[name])
        if numbers != list(range(1, head["last_event"] + 1)):
            yield f"{_of(name)}: its events are {_ranges(numbers)}, its head says {head['last_event']}"


def leases_have_living_sessions(seen: Evidence) -> Iterator[str]:
    """Whoever holds a lease has a session that was not ended."""
    living = {row["id"] for row in seen.rows("sessions") if row["lost_at"] is None}
    for row in seen.rows("leases"):
        if row["session"] not in living:
            yield f"{_of(row)}: its lease is held by the session {row['session']}, which has ended"


def every_row_has_one_tenant(seen: Evidence) -> Iterator[str]:
    """Every row has its tenant and belongs to a task of its own; only switches may be everybody's."""
    lanes = {row["id"]: row["tenant"] for row in seen.rows("lanes")}
    for table in sorted(seen.dump):
        for row in seen.rows(table):
            if "tenant" in row and not row["tenant"]:
                yield f"a row of {table} has no tenant"
            if row.get("tenant") == EVERY_TENANT and table not in EVERYBODYS:
                yield f"a row of {table} belongs to every tenant"
            if "tenant" in row and "task" in row and (row["tenant"], row["task"]) not in seen.heads:
                yield f"{_of(row)}: a row of {table} belongs to no task of this tenant"
    for table in ("queue", "tasks"):
        for row in seen.rows(table):
            if lanes.get(row["lane"]) != row["tenant"]:
                yield f"{_of(row)}: stands in a lane of {lanes.get(row['lane'])}"
    operations = {_operation(row) for row in seen.rows("operations")}
    for row in seen.rows("evidence"):
        if _operation(row) not in operations:
            yield f"{_of(row)}: evidence of an operation that is not in the ledger"


def every_live_task_goes_on(seen: Evidence) -> Iterator[str]:
    """A live task has one of a lease, a queue entry, a timer and a recorded wait; an ended one none."""
    tables = ("leases", "queue", "timers", "unsettled")
    leases, queue, timers, unsettled = (seen.by_task(table) for table in tables)
    for name, head in seen.heads.items():
        state, reason = head["state"], head["reason"]
        wakes = [row for row in timers[name] if row["kind"] == "wake"]
        if (state == "running") != (len(leases[name]) == 1):
            yield f"{_of(name)}: is {state} and has {len(leases[name])} leases"
        for lease in leases[name]:
            if (lease["epoch"], lease["round"]) != (head["epoch"], head["round"]):
                yield f"{_of(name)}: has a lease of another epoch or round"
        if ((state, reason) == ("waiting", "timer")) != (len(wakes) == 1):
            yield f"{_of(name)}: is {_state(head)} and has {len(wakes)} timers that wake it"
        # Stale entries may stand elsewhere; a claim skips them.
        if state == "queued" and not any(row["lane"] == head["lane"] for row in queue[name]):
            yield f"{_of(name)}: is queued and not in its lane"
        if (state, reason) == ("waiting", "reconciliation") and not unsettled[name]:
            yield f"{_of(name)}: waits for a settlement, and nothing of it is unsettled"
        if (state == "waiting") != (reason is not None):
            yield f"{_of(name)}: is {state} with the reason {reason}"
        deadlines = [row["due_at"] for row in timers[name] if row["kind"] == "deadline"]
        owed = [head["deadline_at"]] if state not in TASK.final and head["deadline_at"] is not None else []
        if deadlines != owed:
            yield f"{_of(name)}: is {state}, has deadline timers {deadlines}, should have {owed}"


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


def quiet_is_quiet(seen: Evidence) -> Iterator[str]:
    """A quiet system holds nothing that only work in progress needs, and grows no table."""
    if not seen.quiet:
        return
    for name, head in seen.heads.items():
        if head["state"] in ("queued", "running"):
            yield f"{_of(name)}: is {head['state']} in a quiet system"
    for table in ("queue", "leases"):
        if seen.rows(table):
            yield f"{table} holds {len(seen.rows(table))} rows in a quiet system"
    pending = [row for row in seen.rows("outbox") if row["parked"] is None]
    if pending:
        yield f"outbox holds {len(pending)} rows to publish in a quiet system"
    for table, rows in (seen.earlier or {}).items():
        if len(seen.rows(table)) > len(rows):
            yield f"{table} grew from {len(rows)} to {len(seen.rows(table))} rows in a quiet system"


CHECKERS: dict[str, Checker] = {
    checker.__name__: checker
    for checker in (
        accepted_is_stored,
        announced_together,
        one_task_per_key,
        only_the_current_epoch_writes,
        final_states_stand,
        results_never_change,
        intent_before_call_before_outcome,
        effects_are_accounted_for,
        unknowns_are_queued,
        settlements_are_counted,
        business_keys_follow_their_operations,
        events_are_dense,
        leases_have_living_sessions,
        every_row_has_one_tenant,
        every_live_task_goes_on,
        schedules_account_for_their_tasks,
        quiet_is_quiet,
    )
}
"""Every checker by name."""


def check_all(
    dump: Dump,
    *,
    accepted: Iterable[Any] | None = None,
    recorder: Iterable[Any] | None = None,
    tools: Collection[str] | None = None,
    published: Iterable[tuple[str, str, str]] | None = None,
    earlier: Dump | None = None,
    quiet: bool = False,
) -> list[Violation]:
    """Ask every checker; answer every violation, none for a store that keeps its promises.

    accepted: what was acknowledged, as (tenant, task) or anything that has both (a Submission, a TaskRef).
    recorder: the other side's log, as ``calls_of`` takes it; see ``Evidence`` for the rest.
    """
    seen = Evidence(
        dump=dump,
        accepted=None if accepted is None else frozenset(_name(one) for one in accepted),
        calls=None if recorder is None else tuple(calls_of(recorder)),
        tools=tools,
        published=None if published is None else frozenset(published),
        earlier=earlier,
        quiet=quiet,
    )
    return [
        Violation(promise=name, text=text) for name, checker in CHECKERS.items() for text in checker(seen)
    ]


def calls_of(entries: Iterable[Any]) -> Iterator[Call]:
    """Read a log: ``Call`` records, mappings with ``key`` and ``effect_id``, or the Recorder's rows."""
    for entry in entries:
        if isinstance(entry, Call):
            yield entry
            continue
        effect_id = entry.get("effect_id")
        if effect_id is None and entry.get("effect") is not None:
            effect_id = f"{entry['effect']} {entry.get('ticket') or entry.get('number')}"
        yield Call(
            key=entry["key"],
            effect_id=effect_id,
            fingerprint=entry.get("fingerprint") or entry.get("body_digest"),
            method=str(entry.get("method", "")),
            path=str(entry.get("path", "")),
        )


def _name(one: Any) -> Name:
    return (one[0], one[1]) if isinstance(one, tuple) else (one.tenant, one.task)


def _operation(row: Row) -> tuple[str, str, str]:
    return row["tenant"], row["task"], row["key"]


def _by_operation_id(seen: Evidence) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in seen.rows("operations"):
        found[operation_id(row["task"], row["key"])].append(row)
    return found


def _of(what: Row | tuple[str, ...]) -> str:
    if isinstance(what, tuple):
        tenant, task, *key = what
    else:
        tenant, task = what["tenant"], what["task"] if "task" in what else what["id"]
        key = [what["key"]] if "key" in what else []
    return f"tenant {tenant}, task {task}" + (f", operation {key[0]}" if key else "")


def _state(head: Row) -> str:
    return f"waiting({head['reason']})" if head["state"] == "waiting" else str(head["state"])


def _ranges(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans) or "none"
