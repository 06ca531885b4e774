"""The frozen records of schedules: what fires tasks by the clock.

Units and payloads are those of ``outlast.store.records``. The store keeps times as text (``timing``) and
never works out an instant: whoever fires states the instant that was next and the one that is, and the store
compares the first.
"""

from __future__ import annotations

from typing import Literal

from outlast.core.record import record
from outlast.store.records import ANY_VERSION, Submission

ANY_REVISION: None = None
NEW = 0
"""The revision that is expected of a schedule that is not there yet."""


@record
class Schedule:
    """What a schedule fires, and when.

    version, pool, priority, input, user, deadline_us: as in ``Submission``. timing: see
    ``outlast.core.schedule.written``. missed: ``skip``, ``once``, ``all`` (the newest ``max_missed``).
    overlap: ``allow``, or ``skip`` while the last task that it fired lives. jitter_us: how long after its
    instant a task may start.
    """

    tenant: str
    id: str
    agent: str
    timing: str
    version: str = ANY_VERSION
    pool: str = "default"
    priority: int = 0
    input: str = "{}"
    user: str | None = None
    deadline_us: int | None = None
    missed: str = "once"
    max_missed: int = 100
    overlap: str = "allow"
    jitter_us: int = 0


@record
class PutSchedule:
    """Make a schedule, or put another in its place.

    next_at: its first instant; kept as it stands where the timing is. revision: the one that was seen, NEW
    for none, ANY_REVISION for whatever it is. by, reason: for the audit trail.
    """

    schedule: Schedule
    next_at: int | None
    by: str
    reason: str = ""
    revision: int | None = ANY_REVISION


@record
class SchedulePut:
    """kind ``created``; ``replaced``; ``unchanged`` (it says so already; no new revision); ``conflict``
    (another revision than the one expected stands, 0 for none). revision: what stands now."""

    kind: Literal["created", "replaced", "unchanged", "conflict"]
    revision: int


@record
class SetSchedule:
    """Pause a schedule, let it go on, or delete it; tasks that it fired are left alone.

    next_at: with ``resume``, its first instant from now on. revision: as in ``PutSchedule``.
    """

    tenant: str
    id: str
    command: Literal["pause", "resume", "delete"]
    by: str
    reason: str
    next_at: int | None = None
    revision: int | None = ANY_REVISION


@record
class ScheduleSet:
    """kind ``done``; ``unchanged`` (it stood so already); ``not_found``; ``conflict`` (as in
    ``SchedulePut``)."""

    kind: Literal["done", "unchanged", "not_found", "conflict"]
    revision: int


@record
class ScheduleRow:
    """A schedule as it stands.

    paused: the reason while it is paused. next_at: the first instant that has not fired, None when it is
    over. last_at, last_task: the newest instant that fired, and its task. fired, skipped: how many tasks were
    submitted, and how many were not because the last one lived. note: what people should know of it, since
    noted_at.
    """

    schedule: Schedule
    revision: int
    paused: str | None
    paused_by: str | None
    next_at: int | None
    last_at: int | None
    last_task: str | None
    fired: int
    skipped: int
    note: str | None
    noted_at: int | None
    created_at: int
    changed_at: int
    changed_by: str


# -- firing ------------------------------------------------------------------------------------------------


@record
class DueRequest:
    """Ask for at most ``limit`` schedules that are due; others leave them alone for ``lease_us``."""

    limit: int
    lease_us: int


@record
class DueSchedules:
    """What is due by the database's clock, which says ``now``. next_due_us: until the next one is, None for
    none."""

    now: int
    rows: tuple[ScheduleRow, ...] = ()
    next_due_us: int | None = None


@record
class Firing:
    """Fire a schedule for one instant, or only move it on.

    Compare-and-set on (revision, not paused, ``expected`` is next). instant: what it fires for, not ahead of
    the database's clock. next_at: what is next then, ``expected`` itself to leave it. submission: the task,
    whose key names schedule and instant; None to submit nothing. note: kept for people.
    """

    tenant: str
    schedule: str
    revision: int
    expected: int
    instant: int
    next_at: int | None
    submission: Submission | None = None
    note: str | None = None


@record
class Fired:
    """The verdict on one firing; ``passed``, ``early`` and ``busy`` changed nothing.

    kind ``fired``: moved on, and ``task`` is submitted. ``replayed``: moved on; its task was submitted
    before. ``conflict``: moved on, with a note; the key is another request's, of ``task``. ``skipped``: moved
    on; the last task, ``task``, still lives. ``moved``: moved on, as asked. ``passed``: somebody else has
    fired, changed, paused or deleted it. ``early``: the instant lies ahead. ``busy``: a twin's open
    transaction did not end within the bound.
    """

    kind: Literal["fired", "replayed", "conflict", "skipped", "moved", "passed", "early", "busy"]
    task: str = ""
