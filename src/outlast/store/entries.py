"""The frozen records that a worker writes into its tasks' journals, and what it is answered.

Instants, durations and payloads are as in ``outlast.store.records``.
"""

from __future__ import annotations

from typing import Literal

from outlast.core import values
from outlast.core.operation import Effect, OperationKind, OperationState
from outlast.core.record import record
from outlast.store.approving import Subject
from outlast.store.records import TaskState


@record
class NewEvent:
    """An event to append. kind as in protocol: ``operation.succeeded``, ``progress``, …; data is JSON
    text."""

    kind: str
    data: str


@record
class RecordOperation:
    """Record: an operation that needs no intent (a step, a value, a timer), whole.

    state: ``succeeded``, ``failed``, or ``running`` for a timer, or ``planned`` for a call put on record
    before its intent. due_in_us / due_at: when a timer, or the time limit of a wait, is due, relative to the
    database's now, or absolute; the store writes ``due_at``. takes: numbers of the inbox rows that this
    record consumes. takes_end: of a child whose end the parent's worker has heard of by itself: what that
    has left for the task is consumed, on its way or in the inbox, whatever becomes of the record; where
    somebody is just delivering it, they find the record and drop it. Whether an end in the same batch is
    consumed is left open. closes: questions to people about it that are open are withdrawn, answers to
    questions stay. lost: it failed since another branch of its race was first; a fork from before that race
    makes it anew. Replaces an entry under the same key only if that one is not final. Accepted whenever the
    epoch matches.
    """

    key: str
    position: int
    kind: OperationKind
    name: str
    state: OperationState
    request: str
    arguments: str | None = None
    result: str | None = None
    error: str | None = None
    due_in_us: int | None = None
    due_at: int | None = None
    takes: tuple[int, ...] = ()
    takes_end: bool = False
    closes: bool = False
    lost: bool = False
    events: tuple[NewEvent, ...] = ()


@record
class AskApproval:
    """Record: put an operation on record and a question about it before people.

    The operation: a call (kind ``tool``, state ``planned``) or a question (kind ``signal``, state
    ``running``), as by RecordOperation, but one that is ``unknown`` stays so and keeps what was sent;
    request, arguments: as there. number: 1 for the first question about this operation. Any question about it
    that is still pending or approved is withdrawn (event ``approval.withdrawn``). expires_in_us: counted from
    the database's now, None for never; for a question the operation's ``due_at`` as well. The rest as in
    ApprovalRow, whose id is made from task, key and number. Appends ``approval.requested`` with the
    approval's id. Idempotent by that id.
    """

    key: str
    position: int
    kind: OperationKind
    name: str
    request: str
    arguments: str
    number: int
    subject: Subject
    fingerprint: str
    shown: str
    reason: str
    policy: str
    target: str | None = None
    roles: tuple[str, ...] = ()
    quorum: int = 1
    four_eyes: bool = False
    requester: str | None = None
    expires_in_us: int | None = None
    events: tuple[NewEvent, ...] = ()


@record
class ExpireApproval:
    """Gate: record that the time of a question is over, by the database's clock.

    Admitted when the approval is pending or approved and its time is over (state ``expired``, event
    ``approval.expired``), and when it is expired already. Refused as ``not_expired`` otherwise, and where a
    question was answered in time.
    """

    key: str
    number: int
    events: tuple[NewEvent, ...] = ()


@record
class AdoptIssued:
    """Record: take a call over that the task which this one was forked from has made behind the fork.

    Copies the issued row into the ledger as ``unknown`` under its old idempotency key, attempt, first intent
    and deadline, turn one higher, and into the reconciliation queue (``sender_gone`` where it had ended), so
    that evidence says what it has done. Nothing where there is none, or the ledger has the key.
    """

    key: str
    position: int
    events: tuple[NewEvent, ...] = ()


@record
class AttachSession:
    """Gate: hold a conversation or run at a provider. Refused as ``taken <task>`` while another live task of
    the
    tenant holds it. Idempotent."""

    provider: str
    session: str
    run: str = ""
    events: tuple[NewEvent, ...] = ()


@record
class Consent:
    """Under what a call is made.

    policy: the version of the policy that was asked. rules: the version of the tool's standing rules that was
    looked at, 0 for none. approval: number of the decision that the intent consumes, None where policy allows
    the call by itself. fingerprint: what that decision has to be about.
    """

    policy: str
    rules: int = 0
    approval: int | None = None
    fingerprint: str = ""


@record
class BusinessKey:
    """What a call is about in the business's own words, such as an employee and an invoice; unique in its
    tenant.

    tool: whose keys these are. value: the key, 1 to 255 characters. mode ``lock``: at most one operation
    holds it, from its intent until it has an outcome. mode ``once``: after a success it also stands for
    ``window_us`` longer, None for good; of several successes, the one that stands longest counts. The end of
    a task gives up what operations hold that are not under way or unknown, and so does a record that ends one
    without a call, or an attempt under another key.

    Evidence against an outcome puts its operation in doubt: it has the key of its last intent again, beside
    whoever has it by then, and no other intent is admitted under it until it is settled.
    """

    tool: str
    value: str
    mode: Literal["lock", "once"]
    window_us: int | None = None

    def stored(self) -> str:
        """Answer it as it is kept with its operation: JSON text."""
        return values.encode(
            {"tool": self.tool, "value": self.value, "mode": self.mode, "window_us": self.window_us}
        )


@record
class CommitIntent:
    """Gate: commit the intent of one attempt at an operation before the call.

    Admitted: the row exists, state ``running``, attempt and turn one higher than ``attempt`` and ``turn``
    given here (0 and 0 for a new operation), epoch that of the lease, deadline_at = now + timeout_us, never
    later than the task's; visible_at = deadline_at + visible_us, which is how long an effect may take to
    show; the business key, if there is one, is held by this operation.
    Refused, nothing written, by the first that applies: ``deadline`` (the task's time is over),
    ``cancelled`` (a cancel stands), ``not_planned`` (the stored state, attempt or turn is another), ``news``
    (the head has more facts than ``heard``, where that is given),
    ``paused`` (a switch stands for everything, this tenant or this tool), ``held <us>`` (the provider asked
    everybody to wait that many microseconds more), ``rules_changed`` (the version of the tool's standing
    rules is not the one of ``consent``; without consent, any rule at all), ``no_approval`` (the decision that
    ``consent`` names is not approved, or is about another fingerprint or policy, or its time is over; or it
    names none, and a person has refused exactly this call under this policy),
    ``key_held`` (another operation holds the business key), ``key_done`` (another operation succeeded under
    it, inside its window). provider: whose shared waits are honoured. repeat: go ahead although the key is
    done (a person decided so). Of intents in one batch the first place gets a key. An intent sees keys that
    outcomes before it in its own task have given up; whether it sees those of later ones, and of other tasks
    in its batch, is left open.

    A decision is consumed here: approved becomes ``used``. A later attempt of the same operation stays under
    a used decision of the same fingerprint and policy until it expires or is ``spent``.

    resend: the stored state has to be ``unknown`` instead of planned: the call is made again although nobody
    knows of the last one. Admitted: the item leaves the reconciliation queue in this very entry. Refused: it
    stays there untouched.
    """

    key: str
    position: int
    kind: OperationKind
    name: str
    request: str
    decision: str
    effect: Effect
    arguments: str
    timeout_us: int
    visible_us: int = 0
    attempt: int = 0
    turn: int = 0
    provider: str | None = None
    business: BusinessKey | None = None
    repeat: bool = False
    resend: bool = False
    consent: Consent | None = None
    heard: int | None = None
    events: tuple[NewEvent, ...] = ()


@record
class RecordOutcome:
    """Record: how one attempt at an operation ended, or what evidence says of it.

    Compare-and-set on (attempt, turn, state in running, unknown); a mismatch is refused as ``turn_passed``.
    So is ``failed`` or ``planned`` while evidence stands that it happened (see ``Evidence``). state:
    ``succeeded``, ``failed``, ``unknown``; or, of a running one only, ``planned`` (known not sent; to be sent
    again under the same key). ``unknown`` puts an item into the reconciliation queue, anything else takes it
    out. The turn is raised by one. A business key that the operation holds is given up with ``failed``; with
    ``succeeded`` it is given up (mode lock) or stands for its window (mode once); else it stays held.
    settled_by: who settled it, where this came by evidence; such an outcome is counted (SettledCounts).
    sender_gone: with ``unknown``, that whoever made the attempt is known to be unable to send any more. wait:
    (provider, microseconds) that a provider asked everybody to wait; the longer of that and what stands is
    kept. It holds every intent from the next batch on; whether it holds one in its own batch is left open.
    usage: JSON text of what the attempts have spent so far, or None.
    """

    key: str
    attempt: int
    turn: int
    state: OperationState
    result: str | None = None
    error: str | None = None
    settled_by: str | None = None
    sender_gone: bool = False
    wait: tuple[str, int] | None = None
    usage: str | None = None
    events: tuple[NewEvent, ...] = ()


@record
class TakeTurn:
    """Gate: take an operation's next turn before asking the other side about it.

    Compare-and-set on (attempt, turn, state in running, unknown); moves ``running`` to ``unknown`` and puts
    the item into the reconciliation queue if it is not there. Refused as ``turn_passed`` on a mismatch. The
    turn is raised by one.
    """

    key: str
    attempt: int
    turn: int
    reason: str = ""
    events: tuple[NewEvent, ...] = ()


@record
class AppendEvents:
    """Record: events that no operation carries (progress, log)."""

    events: tuple[NewEvent, ...]


@record
class Note:
    """Record: append one piece of evidence to an operation; changes no state.

    source: ``asked``, ``answered``, ``late``, ``person``. data: JSON text with what was asked or seen.
    """

    key: str
    attempt: int
    source: str
    data: str


@record
class EndAttempt:
    """Record: end this attempt and give back the lease; the last entry of its task in a batch.

    attempt_end: ``succeeded``, ``failed``, ``cancelled``, ``suspended``, ``released``.
    task_state: the task's next state. ``succeeded``/``failed``/``cancelled``: a result row for this round is
    written (``result`` or ``error``), open effectful operations (running) become unknown and go to the
    reconciliation queue, the deadline timer goes, and the store appends ``task.<state>`` with
    ``effects_open`` and, for announced tasks, an outbox message; approvals that are pending or not used are
    withdrawn (answered questions stay); its end is posted to its parent, and a cancel to its children that
    are not detached. ``waiting``: with ``reason``; becomes ``queued`` at once if the head's facts are more
    than ``facts`` seen, if the wait is for reconciliation and nothing is open, or if its time is already
    over. ``queued``: released.
    While a cancel stands every ending becomes cancelled, whatever is said here: attempt and task end as
    ``cancelled`` with the reason that the cancel gave, and with what ``error`` says under ``compensation`` of
    an undo, if anything.
    wake_in_us: the wait, whatever its reason, is over that long after now; None: at the earliest ``due_at``
    of the task's running operations, if there is any (reason timer without one: at once). at_latest: the
    earlier of both. reopen: keys of failed operations to put back to ``planned`` (agent retry policy).
    judged: (verdict, by, reason, evidence) of a checker on the work of a task that succeeded, recorded as its
    first acceptance.
    heard: the worker tells the parent's run itself, so that nobody is hinted to deliver what the end has left
    for the parent; it lies there for whoever looks all the same.
    """

    attempt_end: Literal["succeeded", "failed", "cancelled", "suspended", "released"]
    task_state: TaskState
    reason: str | None = None
    facts: int = 0
    result: str | None = None
    error: str | None = None
    wake_in_us: int | None = None
    at_latest: bool = False
    reopen: tuple[str, ...] = ()
    judged: tuple[str, str, str, str] | None = None
    heard: bool = False
    events: tuple[NewEvent, ...] = ()


Entry = (
    RecordOperation
    | AskApproval
    | ExpireApproval
    | AdoptIssued
    | AttachSession
    | CommitIntent
    | RecordOutcome
    | TakeTurn
    | AppendEvents
    | Note
    | EndAttempt
)


@record
class TaskWrites:
    """All entries of one task in one batch, in order, under one lease. One task occurs once in a batch."""

    tenant: str
    task: str
    epoch: int
    entries: tuple[Entry, ...]


@record
class Batch:
    """One numbered batch of one writer. The same (writer, number) is applied once, however often it is
    sent."""

    writer: str
    number: int
    writes: tuple[TaskWrites, ...]


@record
class Flushed:
    """The verdict on one TaskWrites.

    kind ``accepted``: every record was written; gates not named in ``refusals`` were admitted. ``stale``: the
    epoch is no longer ours; nothing of this task was written. ``deferred``: somebody else holds the head's
    lock and the epoch is still ours; nothing of this task was written; send it again.
    refusals: (index of the entry, name) of each gate or compare-and-set that was refused; an entry refused
    does not undo its neighbours.
    state: the task's state after the batch (tells whether a suspension became queued at once).
    """

    kind: Literal["accepted", "stale", "deferred"]
    refusals: tuple[tuple[int, str], ...] = ()
    state: TaskState = "running"
