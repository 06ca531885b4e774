"""The frozen records that stores answer to those who read: tasks, events, attempts, evidence, outbox rows.

Units and payloads are those of ``outlast.store.records``; views read committed rows and take no locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Final, Literal

from outlast.core.record import record
from outlast.store.records import TaskState

NO_VALUE: Final = "null"
"""What stands for an input that was not read."""


@record
class TaskRow:
    """A task as people see it.

    reason: while waiting. attempts: those begun. cancelling: a cancel stands while it runs. parent: whose
    child it is. asks: approvals that are pending. children: spawned so far. forked_from: the task whose
    journal it began with. accepted: the verdict that stands on its work, ``accepted`` or ``rejected``.
    """

    tenant: str
    task: str
    agent: str
    version: str
    pool: str
    priority: int
    state: TaskState
    reason: str | None
    epoch: int
    round: int
    last_event: int
    key: str | None
    user: str | None
    input: str
    result: str | None
    error: str | None
    attempts: int
    effects_open: int
    submitted_at: int
    ended_at: int | None
    deadline_at: int | None
    cancelling: bool = False
    parent: str | None = None
    children: int = 0
    asks: int = 0
    forked_from: str | None = None
    accepted: str | None = None
    budget: str | None = None


@record
class TaskFilter:
    """List newest first; ``before`` is the id to go on below; at most ``limit`` rows. parent: its
    children."""

    tenant: str
    state: str | None = None
    agent: str | None = None
    parent: str | None = None
    before: str | None = None
    limit: int = 50


@record
class EndRow:
    """How a task has ended in its latest round; result and error are None while it lives. version: the one
    that it is bound to, ANY_VERSION before the first claim."""

    tenant: str
    task: str
    agent: str
    version: str
    state: TaskState
    result: str | None
    error: str | None


@record
class AttemptRow:
    """One attempt; end is None while its lease stands."""

    epoch: int
    round: int
    session: str
    worker: str
    version: str
    config: str
    started_at: int
    ended_at: int | None
    end: str | None


EVENTS_ROOM: Final = 8 << 20
"""Bytes of events with which it is enough for once, where whoever reads may read on."""


@record
class EventCursor:
    """Events of one task with numbers above ``after``."""

    tenant: str
    task: str
    after: int = 0


@record
class EventRow:
    """A stored event. epoch names the attempt that it belongs to (0: none)."""

    tenant: str
    task: str
    number: int
    kind: str
    epoch: int
    data: str
    at: int


EVIDENCE_ROOM: Final = 4 << 20
"""Bytes of evidence with which it is enough for once, where whoever reads may read on."""


def may_be_more(rows: Sequence[EventRow], limit: int) -> bool:
    """Whether a read of at most ``limit`` events within EVENTS_ROOM may have left some that are kept."""
    # A character is four bytes at most.
    return len(rows) >= limit or 4 * sum(len(row.data) for row in rows) >= EVENTS_ROOM


@record
class OperationFilter:
    """The ledger of one task (``task``), or all operations in a state (only ``unknown`` without a task).

    after: the operation to go on behind, by its id, or within a task by its key. values: whether arguments
    and results are read, which may be megabytes each; None in the rows otherwise.
    """

    tenant: str
    task: str | None = None
    key: str | None = None
    state: str | None = None
    after: str | None = None
    limit: int = 100
    values: bool = True


@record
class EvidenceRow:
    """Stored evidence; ``number`` orders it within the operation. says: what it says of its attempt, if
    anything; see ``outlast.store.records.Evidence``."""

    number: int
    attempt: int
    source: str
    data: str
    at: int
    says: Literal["happened", "did_not_happen", "over"] | None = None


@record
class Message:
    """An outbox row. number orders the messages of one task."""

    tenant: str
    task: str
    number: int
    topic: str
    data: str
    created_at: int


@record
class Publication:
    """What became of a message: published (the row goes) or parked with a reason."""

    tenant: str
    task: str
    number: int
    parked: str | None = None


@record
class SessionRow:
    """The session of a worker process that lives. name: a label. serves: JSON text, what the worker says of
    itself: ``pools``, ``agents`` as pairs of name and version, ``tools`` with their effect classes, and
    ``ahead_us``, by how much its wall clock was before the database's at the last renewal."""

    session: str
    name: str
    serves: str
    started_at: int
    expires_at: int


@record
class Health:
    """What the store says of itself. queued counts at most 10,000 entries."""

    reachable: bool
    now: int = 0
    schema_version: int = 0
    queued: int = 0
    detail: str = field(default="")
