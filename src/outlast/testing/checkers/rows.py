"""Checkers of rows whatever they mean: who wrote them, whose they are, and that history stands."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.core.transitions import APPROVAL, TASK
from outlast.store.reconciling import EVERY_TENANT
from outlast.testing.checkers.seen import Evidence, operation_of, ranges, where

EVERYBODYS = ("pauses", "audit")
"""Tables whose rows may stand for every tenant."""
HISTORY = {
    "events": ("tenant", "task", "number"),
    "evidence": ("tenant", "task", "key", "number"),
    "attempts": ("tenant", "task", "epoch"),
    "results": ("tenant", "task", "round"),
    "audit": ("tenant", "number"),
    "votes": ("tenant", "approval", "number"),
}
"""Tables that are only ever added to, and what names a row of each."""


def only_the_current_epoch_writes(seen: Evidence) -> Iterator[str]:
    """Epochs never fall, and only the current one writes."""
    for table in ("leases", "attempts", "operations", "events"):
        for row in seen.rows(table):
            head = seen.heads.get((row["tenant"], row["task"]))
            if head is not None and row["epoch"] > head["epoch"]:
                yield f"{where(row)}: a row of {table} has epoch {row['epoch']}, the task {head['epoch']}"
    attempts = seen.by_task("attempts")
    for row in seen.rows("leases"):
        if any(row["epoch"] <= ended["epoch"] for ended in attempts[row["tenant"], row["task"]]):
            yield f"{where(row)}: its lease has epoch {row['epoch']}, and a later attempt has ended"
    for name, rows in seen.by_task("events").items():
        highest = 0
        for row in sorted(rows, key=lambda one: int(one["number"])):
            # Epoch 0 belongs to no attempt.
            if row["epoch"] and row["epoch"] < highest:
                yield f"{where(name)}: event {row['number']} of epoch {row['epoch']} follows epoch {highest}"
            highest = max(highest, row["epoch"])


def results_never_change(seen: Evidence) -> Iterator[str]:
    """What is recorded stays, and numbers never fall (between an earlier dump and this one)."""
    if seen.earlier is None:
        return
    earlier = Evidence(dump=seen.earlier)
    for table, names in HISTORY.items():
        now = {tuple(row[name] for name in names): row for row in seen.rows(table)}
        for row in earlier.rows(table):
            key = tuple(row[name] for name in names)
            if now.get(key) != row:
                of = where(row) if "task" in row else f"tenant {row['tenant']}"
                yield f"{of}: a row of {table} {'changed' if key in now else 'went'}: {key[-1]}"
    for name, was in earlier.heads.items():
        head = seen.heads.get(name)
        if head is None:
            yield f"{where(name)}: is gone"
            continue
        for column in ("epoch", "round", "last_event", "facts"):
            if head[column] < was[column]:
                yield f"{where(name)}: its {column} fell from {was[column]} to {head[column]}"
        stands = head["round"] > was["round"] or head["state"] == was["state"]
        if was["state"] in TASK.final and not stands:
            yield f"{where(name)}: was {was['state']}, is {head['state']} in the same round"
    ledger = {operation_of(row): row for row in seen.rows("operations")}
    doubted = _doubted_since(seen, earlier)
    for was in earlier.rows("operations"):
        if operation_of(was) not in ledger:
            yield f"{where(was)}: is gone"
            continue
        row = ledger[operation_of(was)]
        if row["attempt"] < was["attempt"] or row["turn"] < was["turn"]:
            yield f"{where(was)}: its attempt or turn fell"
        same = all(row[column] == was[column] for column in ("state", "result", "error"))
        # A failed one may be opened again, and end otherwise in an attempt of its task that began after that;
        # evidence may put either back to unknown, and a person settle it since.
        reopened = was["state"] == "failed" and (row["state"] == "planned" or row["epoch"] > was["epoch"])
        settled_since = operation_of(was) in doubted and row["settled_by"] is not None
        if (
            was["state"] in ("succeeded", "failed")
            and not same
            and not reopened
            and not settled_since
            and row["state"] != "unknown"
        ):
            yield f"{where(was)}: was {was['state']}, and its record changed"
    yield from _inboxes_stand(seen, earlier)
    yield from _questions_stand(seen, earlier)


def _doubted_since(seen: Evidence, earlier: Evidence) -> set[tuple[str, str, str]]:
    """Answer the operations of which evidence has come that says what became of them."""
    known = {(operation_of(row), row["number"]) for row in earlier.rows("evidence")}
    return {
        operation_of(row)
        for row in seen.rows("evidence")
        if row["says"] in ("happened", "did_not_happen") and (operation_of(row), row["number"]) not in known
    }


def _inboxes_stand(seen: Evidence, earlier: Evidence) -> Iterator[str]:
    """What lay before a task lies there still, or was taken since, by one operation for good."""
    inbox = {(row["tenant"], row["task"], row["number"]): row for row in seen.rows("inbox")}
    for was in earlier.rows("inbox"):
        row = inbox.get((was["tenant"], was["task"], was["number"]))
        if row is None:
            yield f"{where(was)}: what lay under {was['number']} is gone"
        elif {**row, "taken_by": None} != {**was, "taken_by": None}:
            yield f"{where(was)}: what lay under {was['number']} changed"
        elif was["taken_by"] not in (None, row["taken_by"]):
            yield f"{where(was)}: {was['number']} was taken by {was['taken_by']}, is by {row['taken_by']}"


def _questions_stand(seen: Evidence, earlier: Evidence) -> Iterator[str]:
    """A question moves as the table of approvals says, and is never forgotten."""
    onward: dict[str, set[str]] = {state: {state} for state in APPROVAL.states}
    for _ in APPROVAL.states:
        for (source, _command), target in APPROVAL.moves.items():
            onward[source] |= onward[target]
    questions = {(row["tenant"], row["id"]): row for row in seen.rows("approvals")}
    for was in earlier.rows("approvals"):
        row = questions.get((was["tenant"], was["id"]))
        if row is None:
            yield f"{where(was)}: question {was['number']} is gone"
        elif row["state"] not in onward[was["state"]]:
            yield f"{where(was)}: question {was['number']} was {was['state']}, is {row['state']}"
        elif was["spent"] and not row["spent"]:
            yield f"{where(was)}: question {was['number']} was spent, and is not"


def events_are_dense(seen: Evidence) -> Iterator[str]:
    """Event numbers of a task are dense and end at its head's."""
    events = seen.by_task("events")
    for name, head in seen.heads.items():
        numbers = sorted(row["number"] for row in events[name])
        if numbers != list(range(1, head["last_event"] + 1)):
            yield f"{where(name)}: its events are {ranges(numbers)}, its head says {head['last_event']}"


def leases_have_living_sessions(seen: Evidence) -> Iterator[str]:
    """Whoever holds a lease has a session that was not ended."""
    living = {row["id"] for row in seen.rows("sessions") if row["lost_at"] is None}
    for row in seen.rows("leases"):
        if row["session"] not in living:
            yield f"{where(row)}: its lease is held by the session {row['session']}, which has ended"


def every_row_has_one_tenant(seen: Evidence) -> Iterator[str]:
    """Every row has its tenant and belongs to a task of its own; only switches may be everybody's."""
    lanes = {row["id"]: row["tenant"] for row in seen.rows("lanes")}
    for table in sorted(seen.dump):
        for row in seen.rows(table):
            if "tenant" in row and not row["tenant"]:
                yield f"a row of {table} has no tenant"
            if row.get("tenant") == EVERY_TENANT and table not in EVERYBODYS:
                yield f"a row of {table} belongs to every tenant"
            if "task" in row and (row["tenant"], row["task"]) not in seen.heads:
                yield f"{where(row)}: a row of {table} belongs to no task of this tenant"
    for table in ("queue", "tasks"):
        for row in seen.rows(table):
            if lanes.get(row["lane"]) != row["tenant"]:
                yield f"{where(row)}: stands in a lane of {lanes.get(row['lane'])}"
    operations = {operation_of(row) for row in seen.rows("operations")}
    for row in seen.rows("evidence"):
        if operation_of(row) not in operations:
            yield f"{where(row)}: evidence of an operation that is not in the ledger"
