"""What the checkers look at: a dump, the other side's log, and the names by which violations are told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.core.ids import sent_key

Row = Mapping[str, Any]
Dump = Mapping[str, Sequence[Row]]
Name = tuple[str, str]
"""A task: (tenant, id)."""


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


class _Grouped(dict[Name, list[Row]]):
    """Rows by task, in which looking leaves no trace."""

    def __missing__(self, name: Name) -> list[Row]:
        return []


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
    _by_task: dict[str, dict[Name, list[Row]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        heads = {(row["tenant"], row["id"]): row for row in self.rows("tasks")}
        object.__setattr__(self, "heads", heads)

    def rows(self, table: str) -> Sequence[Row]:
        """Answer a table's rows."""
        return self.dump.get(table, ())

    def by_task(self, table: str) -> dict[Name, list[Row]]:
        """Group a table's rows by task; a task without any has none. Not to be changed: checkers share it."""
        found = self._by_task.get(table)
        if found is None:
            found = self._by_task[table] = _Grouped()
            for row in self.rows(table):
                found.setdefault((row["tenant"], row["task"]), []).append(row)
        return found


Checker = Callable[[Evidence], Iterator[str]]


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


# -- names ------------------------------------------------------------------------------------------------


def name_of(one: Any) -> Name:
    """Name a task by whatever has a tenant and a task."""
    return (one[0], one[1]) if isinstance(one, tuple) else (one.tenant, one.task)


def operation_of(row: Row) -> tuple[str, str, str]:
    """Name a row's operation."""
    return row["tenant"], row["task"], row["key"]


def by_operation_id(seen: Evidence) -> dict[str, list[Row]]:
    """Group the ledger by the keys that the other side sees: a fork goes on under those of the task that it
    was made from."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in seen.rows("operations"):
        found[sent_key(row["task"], row["key"], row.get("idempotency_key"))].append(row)
    return found


def where(what: Row | tuple[str, ...]) -> str:
    """Say where a violation is."""
    if isinstance(what, tuple):
        tenant, task, *key = what
    else:
        tenant, task = what["tenant"], what["task"] if "task" in what else what["id"]
        key = [what["key"]] if "key" in what else []
    return f"tenant {tenant}, task {task}" + (f", operation {key[0]}" if key else "")


def state_of(head: Row) -> str:
    """Say a task's state, with the reason of a wait."""
    return f"waiting({head['reason']})" if head["state"] == "waiting" else str(head["state"])


def ranges(numbers: Sequence[int]) -> str:
    """Say numbers as spans."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans) or "none"
