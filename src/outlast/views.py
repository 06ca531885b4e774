"""What callers see: tasks, events, operations and attempts as frozen records with Python values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from outlast.core import ids, values
from outlast.core.record import record
from outlast.store.approving import ApprovalRow, Rule, VoteRow
from outlast.store.reconciling import AuditRow, OpenState, Pause
from outlast.store.records import OperationRow
from outlast.store.rows import (
    AttemptRow,
    EventRow,
    EvidenceRow,
    TaskRow,
)


def instant(us: int | None) -> datetime | None:
    """Answer microseconds since the epoch as an instant in UTC."""
    return None if us is None else datetime.fromtimestamp(us / 1_000_000, UTC)


def _instant(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1_000_000, UTC)


def _value(text: str | None) -> Any:
    return None if text is None else values.decode(text)


@record
class TaskView:
    """A task as it stands.

    reason: why it waits. error: code and message of a failure. cancelling: a cancel stands, and it ends as
    cancelled. input, result: None in lists. parent: whose child it is. children: those that it has spawned.
    asks: questions to people that are open. forked_from: the task whose journal it began with. accepted: the
    verdict that stands on its work, ``accepted`` or ``rejected``. budget: the bounds on what it may spend.
    detail: what an operator is to know of a task that waits for one; not in lists.
    """

    id: str
    tenant: str
    agent: str
    version: str
    pool: str
    priority: int
    state: str
    reason: str | None
    epoch: int
    round: int
    attempts: int
    last_event: int
    effects_open: int
    key: str | None
    user: str | None
    input: Any
    result: Any
    error: dict[str, Any] | None
    submitted_at: datetime
    ended_at: datetime | None
    deadline_at: datetime | None
    cancelling: bool = False
    parent: str | None = None
    children: int = 0
    asks: int = 0
    forked_from: str | None = None
    accepted: str | None = None
    budget: Any = None
    detail: str | None = None

    @classmethod
    def of(cls, row: TaskRow) -> TaskView:
        """Read a stored task."""
        return cls(
            id=row.task,
            tenant=row.tenant,
            agent=row.agent,
            version=row.version,
            pool=row.pool,
            priority=row.priority,
            state=row.state,
            reason=row.reason,
            epoch=row.epoch,
            round=row.round,
            attempts=row.attempts,
            last_event=row.last_event,
            effects_open=row.effects_open,
            key=row.key,
            user=row.user,
            input=_value(row.input),
            result=_value(row.result),
            error=_value(row.error),
            submitted_at=_instant(row.submitted_at),
            ended_at=instant(row.ended_at),
            deadline_at=instant(row.deadline_at),
            cancelling=row.cancelling,
            parent=row.parent,
            children=row.children,
            asks=row.asks,
            forked_from=row.forked_from,
            accepted=row.accepted,
            budget=_value(row.budget),
        )


@record
class EventView:
    """An event of a task's stream; ``number`` is dense and increasing within the task."""

    task: str
    number: int
    kind: str
    epoch: int
    data: Any
    at: datetime

    @classmethod
    def of(cls, row: EventRow) -> EventView:
        """Read a stored event."""
        return cls(
            task=row.task,
            number=row.number,
            kind=row.kind,
            epoch=row.epoch,
            data=_value(row.data),
            at=_instant(row.at),
        )


@record
class OperationView:
    """An operation of the ledger.

    arguments, result: None in lists. idempotency_key: what was sent; the operation's id, unless a fork took
    it over from the task that it was made from. usage: tokens and cost that its attempts have spent, where
    they said so.
    """

    id: str
    task: str
    key: str
    position: int
    kind: str
    name: str
    state: str
    effect: str | None
    attempt: int
    turn: int
    epoch: int
    fingerprint: str
    business_key: str | None
    arguments: Any
    result: Any
    error: dict[str, Any] | None
    settled_by: str | None
    created_at: datetime
    intent_at: datetime | None
    deadline_at: datetime | None
    visible_at: datetime | None
    due_at: datetime | None
    ended_at: datetime | None
    idempotency_key: str = ""
    usage: dict[str, Any] | None = None

    @classmethod
    def of(cls, row: OperationRow) -> OperationView:
        """Read a stored operation."""
        return cls(
            id=ids.operation_id(row.task, row.key),
            task=row.task,
            key=row.key,
            position=row.position,
            kind=row.kind,
            name=row.name,
            state=row.state,
            effect=row.effect,
            attempt=row.attempt,
            turn=row.turn,
            epoch=row.epoch,
            fingerprint=row.request,
            business_key=row.business_key,
            arguments=_value(row.arguments),
            result=_value(row.result),
            error=_value(row.error),
            settled_by=row.settled_by,
            created_at=_instant(row.created_at),
            intent_at=instant(row.intent_at),
            deadline_at=instant(row.deadline_at),
            visible_at=instant(row.visible_at),
            due_at=instant(row.due_at),
            ended_at=instant(row.ended_at),
            idempotency_key=ids.sent_key(row.task, row.key, row.idempotency_key),
            usage=_value(row.usage),
        )


@record
class EvidenceView:
    """A piece of evidence about an operation: what was asked, answered, came late, or was said by a
    person."""

    number: int
    attempt: int
    source: str
    data: Any
    at: datetime

    @classmethod
    def of(cls, row: EvidenceRow) -> EvidenceView:
        """Read stored evidence."""
        return cls(
            number=row.number,
            attempt=row.attempt,
            source=row.source,
            data=_value(row.data),
            at=_instant(row.at),
        )


class EvidencePage(tuple[EvidenceView, ...]):
    """Evidence of an operation, oldest first; if it is not all of it, the newest."""

    __slots__ = ()

    @property
    def earlier(self) -> int | None:
        """What to read before to have what came earlier; None where there is nothing more."""
        return self[0].number if self and self[0].number > 1 else None


@record
class QueueView:
    """An operation's place in the reconciliation queue.

    since: when it became unknown. asked: questions to the other side so far; unusable: those in a row that
    brought no evidence. ask_at: when it is asked about next, None where nobody asks any more. sender_gone:
    whoever made the last attempt cannot send any more. why: the plan, for people. resend: settled as to be
    sent again, which its task is to do. needs_person: nobody but a person can settle it.
    """

    since: datetime
    asked: int
    unusable: int
    ask_at: datetime | None
    sender_gone: bool
    why: str
    resend: bool
    needs_person: bool

    @classmethod
    def of(cls, row: OpenState) -> QueueView:
        """Read a stored place."""
        return cls(
            since=_instant(row.since),
            asked=row.asked,
            unusable=row.unusable,
            ask_at=instant(row.ask_at),
            sender_gone=row.sender_gone,
            why=row.why,
            resend=row.resend,
            needs_person=row.needs_person,
        )


@record
class PauseView:
    """A switch that stops new intents. tenant: ``*`` for one that stands for everybody."""

    tenant: str
    scope: str
    reason: str
    by: str
    at: datetime

    @classmethod
    def of(cls, row: Pause) -> PauseView:
        """Read a stored switch."""
        return cls(tenant=row.tenant, scope=row.scope, reason=row.reason, by=row.by, at=_instant(row.at))


@record
class AuditView:
    """Who did what to what, and why."""

    number: int
    at: datetime
    who: str
    what: str
    subject: str
    reason: str
    data: Any

    @classmethod
    def of(cls, row: AuditRow) -> AuditView:
        """Read a stored decision."""
        return cls(
            number=row.number,
            at=_instant(row.at),
            who=row.who,
            what=row.what,
            subject=row.subject,
            reason=row.reason,
            data=_value(row.data),
        )


@record
class AttemptView:
    """One attempt; ``end`` is None while it runs."""

    epoch: int
    round: int
    worker: str
    session: str
    version: str
    started_at: datetime
    ended_at: datetime | None
    end: str | None

    @classmethod
    def of(cls, row: AttemptRow) -> AttemptView:
        """Read a stored attempt."""
        return cls(
            epoch=row.epoch,
            round=row.round,
            worker=row.worker,
            session=row.session,
            version=row.version,
            started_at=_instant(row.started_at),
            ended_at=instant(row.ended_at),
            end=row.end,
        )


@record
class ApprovalView:
    """A question to people. shown: all that will be done, or all that is asked.

    subject: ``call`` or ``question``. operation: the id of what waits for it. fingerprint: what a decision
    has to name. votes: people who agreed so far, of ``quorum``. edited: an approver changed the arguments.
    """

    id: str
    tenant: str
    task: str
    operation: str
    subject: str
    state: str
    name: str
    fingerprint: str
    shown: Any
    reason: str
    roles: tuple[str, ...]
    quorum: int
    votes: int
    four_eyes: bool
    requester: str | None
    policy: str
    edited: bool
    answer: Any
    created_at: datetime
    expires_at: datetime | None
    decided_at: datetime | None
    decided_by: str | None
    decision_reason: str | None
    used_at: datetime | None

    @classmethod
    def of(cls, row: ApprovalRow) -> ApprovalView:
        """Read a stored approval."""
        return cls(
            id=row.id,
            tenant=row.tenant,
            task=row.task,
            operation=ids.operation_id(row.task, row.key),
            subject=row.subject,
            state=row.state,
            name=row.name,
            fingerprint=row.fingerprint,
            shown=_value(row.shown),
            reason=row.reason,
            roles=row.roles,
            quorum=row.quorum,
            votes=row.votes,
            four_eyes=row.four_eyes,
            requester=row.requester,
            policy=row.policy,
            edited=row.edited,
            answer=_value(row.answer),
            created_at=_instant(row.created_at),
            expires_at=instant(row.expires_at),
            decided_at=instant(row.decided_at),
            decided_by=row.decided_by,
            decision_reason=row.decision_reason,
            used_at=instant(row.used_at),
        )


@record
class VoteView:
    """One person's word on an approval, about the fingerprint that they saw."""

    who: str
    verdict: str
    fingerprint: str
    reason: str
    via: str
    at: datetime

    @classmethod
    def of(cls, row: VoteRow) -> VoteView:
        """Read a stored vote."""
        return cls(
            who=row.who,
            verdict=row.verdict,
            fingerprint=row.fingerprint,
            reason=row.reason,
            via=row.via,
            at=_instant(row.at),
        )


@record
class RuleView:
    """A standing rule: policy for a tool's calls inside its bounds, not a decision on any of them."""

    number: int
    tenant: str
    tool: str
    verdict: str
    bounds: Any
    by: str
    reason: str
    at: datetime

    @classmethod
    def of(cls, row: Rule) -> RuleView:
        """Read a stored rule."""
        return cls(
            number=row.number,
            tenant=row.tenant,
            tool=row.tool,
            verdict=row.verdict,
            bounds=_value(row.bounds),
            by=row.by,
            reason=row.reason,
            at=_instant(row.at),
        )
