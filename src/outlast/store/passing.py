"""The frozen records of a passage: what decides whether a request of a running operation may leave.

Units and payloads are those of ``outlast.store.records``.
"""

from __future__ import annotations

from outlast.core.record import record

PASSED_BOUND = 1_000
"""So many of an operation's notes at most are read."""


@record
class PassageNote:
    """A piece of evidence with the source ``gateway``. data: JSON text."""

    attempt: int
    data: str


@record
class Passage:
    """An operation and all that its requests stand under, read in one statement.

    now: the database's clock, read after the rest. task_state, task_epoch, cancelling: of the head.
    lease_epoch: of the lease, None without one. lease_until: when its session runs out, None without a lease
    or when it was swept. kind, tool, state, attempt, epoch, deadline_at, decision: of the operation.
    idempotency_key: the key that was sent before a fork took it over; None for its own. paused: a switch
    stands for it. approval…: of the last question about this call that was not withdrawn,
    None where there was none. trace: of the task. notes: what the gateway noted of the operation and of those
    that it was taken over from, oldest first, at most PASSED_BOUND.
    """

    now: int
    task_state: str
    task_epoch: int
    cancelling: bool
    lease_epoch: int | None
    lease_until: int | None
    kind: str
    tool: str
    state: str
    attempt: int
    epoch: int
    deadline_at: int | None
    decision: str | None
    paused: bool
    approval: int | None
    approval_state: str | None
    approval_fingerprint: str | None
    approval_spent: bool
    trace: str | None
    idempotency_key: str | None
    notes: tuple[PassageNote, ...] = ()
