"""Every public error of Outlast, with a stable code each.

    OutlastError
    ├── InvalidRequest            what the caller sent cannot be accepted; nothing was stored
    │   ├── InvalidKey            an idempotency key, id or name breaks its rules
    │   ├── InvalidInput          the input does not fit the agent's or tool's signature
    │   ├── Unserializable        a value that JSON cannot hold
    │   ├── ValueTooLarge         a value over its documented bound
    │   └── InvalidSchedule       a schedule's times or options make no sense
    ├── NotFound                  no such thing in this tenant
    │   ├── TaskNotFound
    │   ├── OperationNotFound
    │   ├── ApprovalNotFound
    │   ├── RuleNotFound
    │   ├── ScheduleNotFound
    │   └── AgentNotFound
    ├── Conflict                  the request disagrees with what is recorded
    │   ├── IdempotencyConflict   same key, other request
    │   ├── OperationConflict     same operation, other arguments (seen on replay)
    │   ├── SettlementConflict    the operation is not waiting to be settled that way
    │   ├── ApprovalConflict      the approval is decided, withdrawn, used, or its time is over
    │   ├── FingerprintMismatch   the decision is about something else than was seen
    │   ├── ScheduleConflict      the schedule is not the revision that was seen
    │   ├── SignalConflict        same key, other data
    │   ├── CallbackOver          the callback was not answered in time, or is wanted no more
    │   ├── TaskEnded             the task is over, and ended otherwise
    │   ├── TaskNotEnded          the task lives, or has succeeded
    │   ├── EffectsUndone         its effects were undone; its journal no longer says what is outside
    │   ├── UnsettledPrefix       a fork cannot begin with what is not settled
    │   ├── VersionInUse          the task runs, or went on since it was looked at
    │   ├── AcceptanceConflict    somebody else has judged the work since
    │   └── SessionTaken          another task holds that outside session
    ├── NotAllowed                this person may not do that
    ├── InvalidToken              a link or callback is altered, expired, or of another secret
    ├── InvalidSignature          a message is not signed as it has to be
    ├── AmbiguousOperation        a counted name was used where its count is not repeatable
    ├── Unavailable               try again later; nothing is lost
    │   ├── StoreUnavailable      the database cannot be reached
    │   ├── Busy                  a twin of this request is still open
    │   ├── ScopeBusy             somebody else is in the ledger's scope
    │   └── InboxFull             too many signals lie before the task
    ├── SchemaMismatch            the database's schema is not the one this code knows
    │   ├── SchemaOutdated
    │   └── SchemaTooNew
    ├── ConfigurationError        the app, its settings or its registrations are wrong
    ├── LeaseLost                 this worker no longer holds the task; its write changed nothing
    ├── DeadlineExceeded          the task's or operation's time is over
    ├── CallPending               a ledger's call is not over; enter its scope again
    │   ├── Unsettled             nobody knows yet whether it happened
    │   ├── ApprovalPending       nobody has decided on it yet
    │   └── CallHeld              a switch, a limit, policy or another call holds it back
    ├── TaskFailed                the task ended as failed (raised by ``result``)
    ├── TaskCancelled             the task ended as cancelled (raised by ``result``)
    └── OperationError            what agent code sees of an operation that did not succeed
        ├── StepFailed            a step raised
        ├── ToolRejected          processed and declined
        ├── ToolFailed            not processed, or failed for good
        ├── ResultUnstorable      it was done, and its result cannot be stored
        ├── ApprovalDenied        policy or a person said no; nothing was sent
        ├── ApprovalExpired       nobody decided in time; nothing was sent
        ├── WaitTimeout           what was waited for did not come in time
        ├── BudgetExceeded        the task has spent what it may
        ├── ChildFailed           a child task ended as failed
        └── ChildCancelled        a child task ended as cancelled

    ToolVerdict                   what a tool body raises to say how its call ended
    ├── Rejected                  processed and declined
    ├── NotSent                   never processed; may be tried again
    ├── Uncertain                 nobody knows; keep it as unknown
    ├── Invalid                   the arguments are wrong; never retried
    └── Forbidden                 not permitted; never retried

Codes are part of the interface: HTTP problem documents, exit codes and recorded failures use them.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AcceptanceConflict",
    "AgentNotFound",
    "AmbiguousOperation",
    "ApprovalConflict",
    "ApprovalDenied",
    "ApprovalExpired",
    "ApprovalNotFound",
    "ApprovalPending",
    "BudgetExceeded",
    "Busy",
    "CallHeld",
    "CallPending",
    "CallbackOver",
    "ChildCancelled",
    "ChildFailed",
    "ConfigurationError",
    "Conflict",
    "DeadlineExceeded",
    "EffectsUndone",
    "FingerprintMismatch",
    "Forbidden",
    "IdempotencyConflict",
    "InboxFull",
    "Invalid",
    "InvalidInput",
    "InvalidKey",
    "InvalidRequest",
    "InvalidSchedule",
    "InvalidSignature",
    "InvalidToken",
    "LeaseLost",
    "NotAllowed",
    "NotFound",
    "NotSent",
    "OperationConflict",
    "OperationError",
    "OperationNotFound",
    "OutlastError",
    "Rejected",
    "ResultUnstorable",
    "RuleNotFound",
    "ScheduleConflict",
    "ScheduleNotFound",
    "SchemaMismatch",
    "SchemaOutdated",
    "SchemaTooNew",
    "ScopeBusy",
    "SessionTaken",
    "SettlementConflict",
    "SignalConflict",
    "StepFailed",
    "StoreUnavailable",
    "TaskCancelled",
    "TaskEnded",
    "TaskFailed",
    "TaskNotEnded",
    "TaskNotFound",
    "ToolFailed",
    "ToolRejected",
    "ToolVerdict",
    "Unavailable",
    "Uncertain",
    "Unserializable",
    "Unsettled",
    "UnsettledPrefix",
    "ValueTooLarge",
    "VersionInUse",
    "WaitTimeout",
]


class OutlastError(Exception):
    """Base of every public error. ``code`` is stable; the text is for people."""

    code: ClassVar[str] = "error"


class InvalidRequest(OutlastError):
    """What the caller sent cannot be accepted; nothing was stored.

    ``pointer`` is an RFC 6901 pointer to the offending part, empty for the whole.
    """

    code = "invalid_request"

    def __init__(self, message: str, *, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


class InvalidKey(InvalidRequest):
    """An idempotency key, id or name breaks its rules."""

    code = "invalid_key"


class InvalidInput(InvalidRequest):
    """Input or arguments do not fit a signature. ``problems`` holds (pointer, detail) pairs."""

    code = "invalid_input"

    def __init__(self, message: str, *, problems: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message, pointer=problems[0][0] if problems else "")
        self.problems = problems


class Unserializable(InvalidRequest):
    """A value that JSON cannot hold without loss."""

    code = "unserializable"


class ValueTooLarge(InvalidRequest):
    """A value over its documented bound."""

    code = "value_too_large"


class InvalidSchedule(InvalidRequest):
    """A schedule's times or options make no sense."""

    code = "invalid_schedule"


class NotFound(OutlastError):
    """No such thing in this tenant."""

    code = "not_found"


class TaskNotFound(NotFound):
    """No task of that id in this tenant."""

    code = "task_not_found"


class OperationNotFound(NotFound):
    """No operation of that id in this tenant."""

    code = "operation_not_found"


class ApprovalNotFound(NotFound):
    """No approval of that id in this tenant."""

    code = "approval_not_found"


class RuleNotFound(NotFound):
    """No standing rule of that number stands in this tenant."""

    code = "rule_not_found"


class AgentNotFound(NotFound):
    """No agent of that name is registered."""

    code = "agent_not_found"


class ScheduleNotFound(NotFound):
    """No schedule of that id in this tenant."""

    code = "schedule_not_found"


class Conflict(OutlastError):
    """The request disagrees with what is recorded; nothing was changed."""

    code = "conflict"


class IdempotencyConflict(Conflict):
    """The idempotency key was used before for another request."""

    code = "idempotency_conflict"


class OperationConflict(Conflict):
    """The journal holds another request under this operation's id."""

    code = "operation_conflict"


class SettlementConflict(Conflict):
    """The operation is not open to that settlement. ``state`` says what is recorded."""

    code = "settlement_conflict"

    def __init__(self, message: str, *, state: str = "") -> None:
        super().__init__(message)
        self.state = state


class ApprovalConflict(Conflict):
    """The approval cannot be decided any more. ``state`` says what is recorded, ``by`` who decided it."""

    code = "approval_conflict"

    def __init__(self, message: str, *, state: str = "", by: str = "") -> None:
        super().__init__(message)
        self.state = state
        self.by = by


class FingerprintMismatch(Conflict):
    """The approval asks about something else than was seen; look again. ``current`` is its fingerprint."""

    code = "fingerprint_mismatch"

    def __init__(self, message: str, *, current: str = "") -> None:
        super().__init__(message)
        self.current = current


class SignalConflict(Conflict):
    """The signal's key was used before for other data."""

    code = "signal_conflict"


class CallbackOver(Conflict):
    """Nobody waits for this answer any more, and it was not stored. ``state`` is that of the wait: ``failed``
    where it has ended, ``running`` where its time is over and its task has yet to say so."""

    code = "callback_over"

    def __init__(self, message: str, *, state: str = "") -> None:
        super().__init__(message)
        self.state = state


class TaskEnded(Conflict):
    """The task is over. ``state`` says how it ended."""

    code = "task_ended"

    def __init__(self, message: str, *, state: str = "") -> None:
        super().__init__(message)
        self.state = state


class TaskNotEnded(Conflict):
    """The task lives, or has succeeded. ``state`` says which."""

    code = "task_not_ended"

    def __init__(self, message: str, *, state: str = "") -> None:
        super().__init__(message)
        self.state = state


class EffectsUndone(Conflict):
    """Effects of the task were undone, so that its journal no longer says what is outside."""

    code = "effects_undone"


class UnsettledPrefix(Conflict):
    """A fork cannot begin with operations that have not ended. ``keys`` names them."""

    code = "unsettled_prefix"

    def __init__(self, message: str, *, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys


class VersionInUse(Conflict):
    """The task runs under its version, or went on since it was looked at."""

    code = "version_in_use"


class AcceptanceConflict(Conflict):
    """Somebody else has judged the work since it was looked at, or it has this verdict already."""

    code = "acceptance_conflict"


class SessionTaken(Conflict):
    """Another live task holds that outside session."""

    code = "session_taken"


class NotAllowed(OutlastError):
    """Whoever asks may not do that; the text says what is missing."""

    code = "not_allowed"


class InvalidToken(OutlastError):
    """A signed link or callback token is altered, expired, or was made under another secret."""

    code = "invalid_token"


class InvalidSignature(OutlastError):
    """A message from outside is not signed as it has to be; nothing was stored."""

    code = "invalid_signature"


class ScheduleConflict(Conflict):
    """The schedule is not the revision that was seen. ``revision`` is what it is, 0 for none."""

    code = "schedule_conflict"

    def __init__(self, message: str, *, revision: int = 0) -> None:
        super().__init__(message)
        self.revision = revision


class AmbiguousOperation(OutlastError):
    """A counted name was used where its count is not repeatable; use ``gather`` or ``key=``."""

    code = "ambiguous_operation"


class Unavailable(OutlastError):
    """Try again later; nothing is lost. ``retry_after`` is in seconds."""

    code = "unavailable"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StoreUnavailable(Unavailable):
    """The database cannot be reached or refuses work."""

    code = "store_unavailable"


class Busy(Unavailable):
    """A twin of this request is still open elsewhere."""

    code = "busy"


class ScopeBusy(Unavailable):
    """Somebody else is in the scope, or was, and their lease has not run out yet."""

    code = "scope_busy"


class InboxFull(Unavailable):
    """Too many signals lie before the task without being taken."""

    code = "inbox_full"


class SchemaMismatch(OutlastError):
    """The database's schema is not the one this code knows."""

    code = "schema_mismatch"


class SchemaOutdated(SchemaMismatch):
    """The database's schema is older than this code; run ``outlast migrate``."""

    code = "schema_outdated"


class SchemaTooNew(SchemaMismatch):
    """The database's schema is newer than this code; upgrade Outlast."""

    code = "schema_too_new"


class ConfigurationError(OutlastError):
    """The app, its settings or its registrations are wrong."""

    code = "configuration_error"


class LeaseLost(OutlastError):
    """This worker no longer holds the task; its write changed nothing."""

    code = "lease_lost"


class DeadlineExceeded(OutlastError):
    """The time of the task or operation is over."""

    code = "deadline_exceeded"


class CallPending(OutlastError):
    """A ledger's call is not over: it has neither succeeded nor failed, and is not repeated.

    Enter the scope again and make the same call: it goes on from where it stands. ``operation`` is its id,
    ``retry_after`` in how many seconds it may have moved, None where only a person can move it.
    """

    code = "call_pending"

    def __init__(self, message: str, *, operation: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.operation = operation
        self.retry_after = retry_after


class Unsettled(CallPending):
    """The call was sent, and nobody knows yet whether it happened. ``why`` says what is known, ``plan`` what
    comes next: ``person`` (somebody settles it) or ``wait`` (the other side is asked again)."""

    code = "unsettled"

    def __init__(
        self, message: str, *, operation: str, why: str, plan: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message, operation=operation, retry_after=retry_after)
        self.why = why
        self.plan = plan


class ApprovalPending(CallPending):
    """People have to agree to the call first, and have not decided yet. ``approval`` is the question's id."""

    code = "approval_pending"

    def __init__(self, message: str, *, operation: str, approval: str) -> None:
        super().__init__(message, operation=operation)
        self.approval = approval


class CallHeld(CallPending):
    """The call may not be made now. ``reason`` is ``operator`` (a pause, or policy that cannot be asked),
    ``limit`` (its provider's wait, or another call under its business key) or ``timer`` (its own pause before
    another attempt)."""

    code = "call_held"

    def __init__(
        self, message: str, *, operation: str, reason: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message, operation=operation, retry_after=retry_after)
        self.reason = reason


class TaskFailed(OutlastError):
    """The task ended as failed; ``failure_code`` and the text say why."""

    code = "task_failed"

    def __init__(self, message: str, *, failure_code: str = "task_failed") -> None:
        super().__init__(message)
        self.failure_code = failure_code


class TaskCancelled(OutlastError):
    """The task ended as cancelled."""

    code = "task_cancelled"


class OperationError(OutlastError):
    """An operation did not succeed. ``operation`` is its id, ``reason`` the recorded kind.

    Agent code may catch it; it is raised the same on replay. ``retryable`` says whether the
    agent's retry policy may open the operation again.
    """

    code = "operation_failed"

    def __init__(
        self, message: str, *, operation: str = "", reason: str = "", retryable: bool = False
    ) -> None:
        super().__init__(message)
        self.operation = operation
        self.reason = reason
        self.retryable = retryable


class StepFailed(OperationError):
    """A step raised. ``reason`` is the name of the exception's class."""

    code = "step_failed"


class ToolRejected(OperationError):
    """The other side processed the call and declined it."""

    code = "tool_rejected"


class ToolFailed(OperationError):
    """The call was not processed, or failed for good."""

    code = "tool_failed"


class ResultUnstorable(OperationError):
    """The call was done, and its result cannot be stored; it is not repeated."""

    code = "result_unstorable"


class ApprovalDenied(OperationError):
    """Policy or a person said no, and nothing was sent. ``reason`` is ``policy``, ``rule``, ``person`` or
    ``too_large_to_show``."""

    code = "approval_denied"


class ApprovalExpired(OperationError):
    """Nobody decided in time, and nothing was sent."""

    code = "approval_expired"


class WaitTimeout(OperationError):
    """What was waited for did not come in time; recorded, so that a replay sees the same."""

    code = "wait_timeout"


class BudgetExceeded(OperationError):
    """The task has spent what it may; nothing was sent. ``reason`` names the bound."""

    code = "budget_exceeded"


class ChildFailed(OperationError):
    """A child task ended as failed. ``reason`` is the code that it failed with."""

    code = "child_failed"


class ChildCancelled(OperationError):
    """A child task ended as cancelled."""

    code = "child_cancelled"


class ToolVerdict(Exception):
    """How a tool's call ended, said by the tool itself."""

    code: ClassVar[str] = "tool_verdict"


class Rejected(ToolVerdict):
    """Processed and declined: a business failure, never retried."""

    code = "rejected"


class NotSent(ToolVerdict):
    """Never processed. ``retry_after`` (seconds) is how long the other side asked to wait."""

    code = "not_sent"

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Uncertain(ToolVerdict):
    """Nobody knows whether it happened. ``clue`` helps whoever settles it."""

    code = "uncertain"

    def __init__(self, clue: str = "") -> None:
        super().__init__(clue)
        self.clue = clue


class Invalid(ToolVerdict):
    """The arguments are wrong; never retried."""

    code = "invalid"


class Forbidden(ToolVerdict):
    """Not permitted; never retried, and never routed around."""

    code = "forbidden"
