"""The frozen records that cross the seam between engine and store.

Instants (``*_at``) are microseconds since the epoch by the database's clock; durations (``*_us``) are
microseconds. Payloads (``input``, ``result``, ``arguments``, ``error``, ``data``, ``evidence``) are JSON text
made by ``outlast.core.values``; the store never looks inside them.
"""

from __future__ import annotations

from typing import Literal

from outlast.core.operation import Effect, OperationKind, OperationState
from outlast.core.record import record
from outlast.store.approving import ApprovalRow

TaskState = Literal["queued", "running", "waiting", "succeeded", "failed", "cancelled"]
ANY_VERSION = ""
"""The version of a lane whose tasks are not bound yet."""


# -- submit ------------------------------------------------------------------------------------------------


@record
class Parent:
    """The task that spawned a child, by the operation ``key`` under the lease of ``epoch``.

    position, request: of that operation, which is put on its parent's record together with the child.
    detached: the child goes on when its parent ends; otherwise it is cancelled then.
    """

    task: str
    epoch: int
    key: str
    position: int
    request: str
    detached: bool = False


@record
class Submission:
    """One task to accept.

    task: its new id, made by the caller, so that a repeated submit of the same record is recognised. key: the
    caller's idempotency key or None. request_digest: digest of the request as the caller sent it. version:
    ANY_VERSION, or the version that the caller asked for. deadline_us: how long after acceptance the task
    must have ended; None for no bound. run_at: instant before which it must not start; None for now.
    announce: write an outbox message with the task and one with its end. budget: JSON text of the bounds on
    what the task may spend, or None. parent: whose child it is. Accepted only while the parent runs under
    that epoch and no cancel stands; a child that exists already is ``accepted`` whatever became of its
    parent. A new one is put on its parent's record as a running operation (kind ``child``, the agent's name,
    the input as arguments; event ``operation.started``). Its end is posted to the parent. origin: a JSON
    object, not empty, whose members the first event's data says as well.
    """

    tenant: str
    task: str
    key: str | None
    request_digest: str
    agent: str
    version: str = ANY_VERSION
    pool: str = "default"
    priority: int = 0
    input: str = "{}"
    user: str | None = None
    deadline_us: int | None = None
    run_at: int | None = None
    trace: str | None = None
    announce: bool = False
    budget: str | None = None
    parent: Parent | None = None
    origin: str | None = None


@record
class Submitted:
    """The verdict on one submission.

    kind ``accepted``: stored now (or by an earlier execution of this very record). ``replayed``: the tenant's
    key was used for the same request; ``task`` is that first task. ``conflict``: the key was used for another
    request; ``task`` is the one that holds it. ``busy``: a twin's open transaction did not end within the
    bound. ``stale``: the parent does not run under that epoch any more, or is being cancelled.
    """

    kind: Literal["accepted", "replayed", "conflict", "busy", "stale"]
    task: str


# -- sessions and leases -----------------------------------------------------------------------------------


@record
class SessionRenewal:
    """Open or renew one worker process's session.

    session: random incarnation id. name: a label. serves: JSON text listing pools, agents and versions, for
    people.
    """

    session: str
    name: str
    ttl_us: int
    serves: str = "{}"


@record
class Renewed:
    """alive is False when the sweeper has ended this session: every lease under it is gone."""

    alive: bool
    now: int
    expires_at: int


@record
class Serves:
    """One agent version that a worker can run. ``default``: new tasks without a version bind to it."""

    agent: str
    version: str
    default: bool = True


@record
class ClaimRequest:
    """Ask for at most ``limit`` tasks.

    config: digest of the configuration that attempts run under. fence: raised by each ``reconcile``; a claim
    with a lower one than the session's is refused, since its worker gave up on it.
    """

    session: str
    pools: tuple[str, ...]
    serves: tuple[Serves, ...]
    limit: int
    config: str = ""
    fence: int = 0


@record
class Claimed:
    """One lease: (tenant, task, epoch) under the session that asked. Small columns only.

    cancelling: a cancel with undo stands; nothing is left but to undo, and to end as cancelled.
    """

    tenant: str
    task: str
    epoch: int
    round: int
    agent: str
    version: str
    facts: int
    deadline_at: int | None
    cancelling: bool = False


@record
class ClaimReply:
    """What was claimed. refused is True when the session is no longer alive (nothing was claimed).

    loaded: what ``load`` answers for some of the claims, which need not be asked for.
    """

    now: int
    claims: tuple[Claimed, ...]
    refused: bool = False
    loaded: tuple[Loaded, ...] = ()


@record
class TaskRef:
    """A task's whole name."""

    tenant: str
    task: str


@record
class Held:
    """A lease, as the worker that holds it knows it."""

    tenant: str
    task: str
    epoch: int


@record
class OperationRow:
    """One operation as it stands on disk.

    position: order of first record within the task. attempt: sends so far (an intent raises it). turn: the
    compare-and-set counter that every send, query and settlement takes. epoch: the lease of the last intent.
    deadline_at: of the last attempt. visible_at: until when an effect of it may still show, by what its tool
    said at the intent. due_at: of a timer. settled_by: worker, settler or ``person:<who>``.
    idempotency_key: of an operation that a fork took over, the key that was sent before; None for its own.
    usage: JSON text of what its attempts have spent.
    """

    tenant: str
    task: str
    key: str
    position: int
    kind: OperationKind
    name: str
    state: OperationState
    request: str
    decision: str | None = None
    effect: Effect | None = None
    attempt: int = 0
    turn: int = 0
    epoch: int = 0
    arguments: str | None = None
    result: str | None = None
    error: str | None = None
    created_at: int = 0
    intent_at: int | None = None
    first_intent_at: int | None = None
    deadline_at: int | None = None
    due_at: int | None = None
    ended_at: int | None = None
    settled_by: str | None = None
    business_key: str | None = None
    idempotency_key: str | None = None
    usage: str | None = None
    visible_at: int | None = None


@record
class InboxRow:
    """What lies before a task: a signal, or the end of a child.

    number: the head's ``facts`` when it was posted. kind ``signal``: name and data as sent. kind ``child``:
    name is the key of the child's operation, data ``{"task": id, "state": final state}``.
    """

    tenant: str
    task: str
    number: int
    kind: Literal["signal", "child"]
    name: str
    data: str
    at: int


@record
class Loaded:
    """What a worker needs to run a claimed task; read without locks after the claim, or by the claim itself.

    failures: attempts of this round that ended as failed (for the agent's retry policy). attempts: attempts
    of this task that have ended, whatever the round. budget, depth: bounds on what it may spend, and how many
    parents it has. issued: calls that the task which it was forked from has made behind the fork. inbox: what
    lies before the task and was not taken, oldest first. approvals: all questions that its operations ever
    asked, by operation and number.
    """

    tenant: str
    task: str
    input: str
    user: str | None
    trace: str | None
    submitted_at: int
    failures: int
    attempts: int
    operations: tuple[OperationRow, ...]
    inbox: tuple[InboxRow, ...] = ()
    approvals: tuple[ApprovalRow, ...] = ()
    budget: str | None = None
    depth: int = 0
    issued: tuple[OperationRow, ...] = ()


# -- facts from outside ------------------------------------------------------------------------------------


@record
class Settlement:
    """What a person or the settler records of an unknown operation.

    verdict ``happened`` (result: JSON text), ``did_not_happen``, ``send_again``. turn: the turn that was
    seen, or None for whatever it is now. Unless ``forced``, the last two are refused as ``too_early``: of a
    person before the operation's ``visible_at``, of the settler, which knows what it has seen, before the
    attempt's deadline. by: ``person:<who>`` or ``settler``; by a person, what was decided of the operation
    before is spent. retryable: with ``did_not_happen``, that the same call may be made again: nothing was
    done, unless the attempt itself was declined, as it would be again. ``send_again`` leaves the operation
    unknown and in the queue, marked to be sent again (turn + 1, nobody asks any more): only the intent of
    that resend takes it out.
    """

    tenant: str
    task: str
    key: str
    verdict: Literal["happened", "did_not_happen", "send_again"]
    by: str
    reason: str
    turn: int | None = None
    result: str | None = None
    evidence: str = "{}"
    forced: bool = False
    retryable: bool = True


@record
class Settled:
    """kind ``settled``; ``not_found``; ``conflict`` (not unknown, its turn moved on, or only a person may
    settle it so, since evidence says that it happened; state says what is recorded); ``too_early`` (wait_us
    tells for how long)."""

    kind: Literal["settled", "not_found", "conflict", "too_early"]
    state: str = ""
    wait_us: int = 0


@record
class Evidence:
    """A piece of evidence that needs no lease, such as a late answer of a fenced-out attempt.

    says: what it says of its attempt, if anything; ``over``: that it sends nothing any more, and not what it
    did. Evidence that contradicts what is recorded (``happened``, of any attempt that was made, of one that
    failed or is to be sent again; ``did_not_happen``, of the last attempt, of one settled as succeeded)
    reopens it: state ``unknown``, back in the reconciliation queue. That an operation which changes something
    happened stands until a person settles it: nobody else settles it otherwise, no outcome says that it
    failed or is to be sent again, and no intent sends it again, unless twice is once. A note of the gateway
    (source ``gateway``) does not stand so: it is of one request, and a call may make several.

    Evidence about an unknown operation makes the settler look at it at once; one that was to be sent again is
    not any more, and its turn is raised, so that whoever was about to send it is refused. ``over`` does
    neither: of the last attempt of an unknown operation it sets ``sender_gone`` in the queue, also when it
    was said before the operation came there, and makes the settler look at once unless that is to be sent
    again.
    """

    tenant: str
    task: str
    key: str
    attempt: int
    source: str
    data: str
    says: Literal["happened", "did_not_happen", "over"] | None = None


# -- sweeping ----------------------------------------------------------------------------------------------


@record
class SweepRequest:
    """Look for sessions that ran out, timers that are due and deadlines that passed; at most ``limit`` of
    each.

    max_deaths: consecutive attempts ended by the loss of the worker that park a task as ``crash_loop``.
    grace_us: how long past its deadline a running task is left to its worker.
    """

    limit: int = 500
    max_deaths: int = 3
    grace_us: int = 5_000_000


@record
class Swept:
    """What one sweep did. more is True when a limit was reached; next_due_us is the time to the next known
    timer."""

    sessions: tuple[str, ...] = ()
    lost: tuple[TaskRef, ...] = ()
    parked: tuple[TaskRef, ...] = ()
    woken: tuple[TaskRef, ...] = ()
    expired: tuple[TaskRef, ...] = ()
    more: bool = False
    next_due_us: int | None = None
