"""Questions to people: asked and expired under a lease, decided without one, used up by intents.

The verb ``decide`` and the views of approvals. A decision is judged under the file's one writer lock, against
the approval as it stands then; the first that decides wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import orjson

from outlast.core.operation import OperationState
from outlast.store.approving import ApprovalFilter, ApprovalRow, Decided, Decision, VoteRow
from outlast.store.entries import AskApproval, CommitIntent, Consent, ExpireApproval
from outlast.store.sqlite import switches
from outlast.store.sqlite.heads import Head, json_text
from outlast.store.sqlite.transaction import Row, Transaction

EVERY_ROLE = "*"
OPEN = ("pending", "approved")
SENT = "it was sent before, and what was sent is not changed; it can be approved as it is, or rejected"


def approval_id(task: str, key: str, number: int) -> str:
    """Name a question about an operation."""
    return f"{task}:{key}~{number}"


# -- under a lease -----------------------------------------------------------------------------------------


def ask(tx: Transaction, head: Head, entry: AskApproval) -> None:
    """Put an operation on record and a question about it before people; nothing where it was asked before."""
    at, name = head.at, (head.tenant, head.task, entry.key)
    approval = approval_id(head.task, entry.key, entry.number)
    if tx.row("read_approval_state", (head.tenant, approval)) is not None:
        return
    expires_at = None if entry.expires_in_us is None else at + entry.expires_in_us
    question = entry.subject == "question"
    state: OperationState = "running" if question else "planned"
    due_at = expires_at if question else None
    recorded = tx.run(
        "record_operations",
        (
            *name,
            entry.position,
            entry.kind,
            entry.name,
            state,
            entry.request,
            head.epoch,
            entry.arguments,
            None,
            None,
            at,
            due_at,
            None,
            False,
        ),
    ) or tx.run(
        "replace_operation",
        (
            entry.kind,
            entry.name,
            state,
            entry.request,
            head.epoch,
            entry.arguments,
            None,
            None,
            due_at,
            None,
            False,
            *name,
        ),
    )
    if not recorded:
        # What was sent stays as it was sent, and may be asked about as long as nobody knows of it.
        found = tx.row("read_operation", name)
        if found is None or found[0] != "unknown":
            return
    head.say(entry.events)
    head.withdraw_approvals(entry.key, epoch=head.epoch)
    tx.run(
        "keep_approval",
        (
            head.tenant,
            approval,
            head.task,
            entry.key,
            entry.number,
            entry.subject,
            entry.name,
            entry.fingerprint,
            entry.shown,
            entry.reason,
            entry.policy,
            entry.target,
            json_text(entry.roles),
            entry.quorum,
            entry.four_eyes,
            entry.requester,
            at,
            expires_at,
        ),
    )
    said = {"approval": approval, "operation": entry.key, "tool": entry.name, "reason": entry.reason}
    head.append("approval.requested", json_text(said), epoch=head.epoch)


def expire(tx: Transaction, head: Head, entry: ExpireApproval) -> str | None:
    """Record that the time of a question is over; answer None, or the name of the refusal."""
    approval = approval_id(head.task, entry.key, entry.number)
    found = tx.row("read_approval_state", (head.tenant, approval))
    if found is None:
        return "not_expired"
    state, subject, expires_at = found
    if state == "expired":
        head.say(entry.events)
        return None
    answered = state == "approved" and subject == "question"
    if state not in OPEN or answered or expires_at is None or expires_at > head.at:
        return "not_expired"
    head.say(entry.events)
    _expire(tx, head, approval, head.epoch)
    return None


def _expire(tx: Transaction, head: Head, approval: str, epoch: int = 0) -> None:
    tx.run("expire_approval", (head.tenant, approval))
    head.append("approval.expired", json_text({"approval": approval}), epoch=epoch)


def covers(tx: Transaction, head: Head, entry: CommitIntent, consent: Consent) -> bool:
    """Say whether the decision that an intent names covers it: one that is approved, or, for a later attempt,
    one that an earlier attempt used and that may still be relied on."""
    assert consent.approval is not None
    approval = approval_id(head.task, entry.key, consent.approval)
    found = tx.row("read_consent", (head.tenant, approval, consent.fingerprint, consent.policy, head.at))
    if found is None:
        return False
    state, spent = found
    return state == "approved" or (state == "used" and entry.attempt > 0 and not spent)


def refuses(tx: Transaction, head: Head, entry: CommitIntent, consent: Consent) -> bool:
    """Say whether a person has refused exactly this call, and nobody has settled it since: whatever else
    allows it has not heard of that."""
    name = (head.tenant, head.task, entry.key)
    return tx.row("read_refusal", (*name, entry.decision, consent.policy)) is not None


def use(tx: Transaction, head: Head, entry: CommitIntent, number: int) -> None:
    """Use up the decision that an admitted intent was made under."""
    tx.run("use_approval", (head.at, head.tenant, approval_id(head.task, entry.key, number)))


def spend(tx: Transaction, operation: tuple[str, str, str]) -> None:
    """Let what was decided of an operation say nothing of a further send, since a person has settled it."""
    tx.run("spend_approvals", operation)


# -- decisions ---------------------------------------------------------------------------------------------


def decide(tx: Transaction, decisions: Sequence[Decision], now: int | None) -> list[Decided]:
    """Decide approvals; see ``Store.decide``."""
    at = tx.now(now)
    verdicts = [_decide_one(tx, one, at) for one in decisions]
    tx.write_events()
    return verdicts


def _decide_one(tx: Transaction, one: Decision, at: int) -> Decided:
    row = read_approval(tx, one.tenant, one.approval)
    if row is None:
        return Decided(kind="not_found")
    edit = one.new_fingerprint if one.verdict == "approve" else None
    about = edit or one.fingerprint
    if _stands(tx, row, one, about):
        return Decided(kind="repeated", approval=row)
    if row.state != "pending":
        return Decided(kind="expired" if row.state == "expired" else "conflict", approval=row)
    head = Head.read(tx, row.tenant, row.task, at)
    assert head is not None, "an approval has a task"
    kind: Literal["expired", "forbidden", "fingerprint", "decided", "counted"]
    if row.expires_at is not None and row.expires_at <= at:
        kind = "expired"
        _expire(tx, head, row.id)
    elif barred := _barred(row, one):
        return Decided(kind="forbidden", approval=row, detail=barred)
    elif one.fingerprint != row.fingerprint:
        return Decided(kind="fingerprint", approval=row)
    elif edit is not None and _was_sent(tx, row):
        return Decided(kind="forbidden", approval=row, detail=SENT)
    else:
        if edit is not None:
            tx.run("edit_approval", (edit, one.arguments, one.shown, row.tenant, row.id))
        kind = _count(tx, head, row, one, edit)
    head.facts += 1
    head.tell()
    head.save()
    return Decided(kind=kind, approval=read_approval(tx, row.tenant, row.id))


def _stands(tx: Transaction, row: ApprovalRow, one: Decision, about: str) -> bool:
    """Say whether somebody has said the very same, and it counts still: a rejection, or one of the last who
    agreed."""
    words = tx.rows("read_words", (row.tenant, row.id, one.verdict))
    if one.verdict == "approve":
        words = words[: row.votes] if one.answer == row.answer else []
    return (one.by, about) in words


def _barred(row: ApprovalRow, one: Decision) -> str:
    """Say why somebody may not decide a question, nothing where they may."""
    if row.roles and EVERY_ROLE not in one.roles and not set(row.roles) & set(one.roles):
        return f"it takes one of the roles {', '.join(row.roles)}"
    if row.four_eyes and one.by == row.requester:
        return "whoever asked for it may not decide it"
    return ""


def _was_sent(tx: Transaction, row: ApprovalRow) -> bool:
    """Say whether the call that is asked about was ever sent: its key carries no other arguments any more."""
    found = tx.row("read_operation", (row.tenant, row.task, row.key))
    return found is not None and found[1] > 0


def _count(
    tx: Transaction, head: Head, row: ApprovalRow, one: Decision, edit: str | None
) -> Literal["decided", "counted"]:
    """Keep somebody's word on a question and what comes of it. edit: the fingerprint that it has now, where
    that is another."""
    name = (row.tenant, row.id)
    about = edit or row.fingerprint
    tx.run("keep_vote", (*name, one.by, one.verdict, about, one.reason, one.via, head.at))
    votes, answer = row.votes, row.answer
    if one.verdict == "reject":
        state = "rejected"
    else:
        # An edit, or another answer than was agreed to so far, asks something new: nobody has agreed to it.
        votes = 1 if edit is not None or one.answer != answer else votes + 1
        answer = one.answer
        state = "approved" if votes >= row.quorum else "pending"
    # A vote that decides nothing yet is no decision.
    said_by = (None, None, None) if state == "pending" else (head.at, one.by, one.reason)
    tx.run("decide_approval", (state, votes, answer, *said_by, *name))
    if state == "approved" and row.subject == "call":
        tx.run("approve_operation", (row.tenant, row.task, row.key))
    edited = row.edited or edit is not None
    said = {"approval": row.id, "by": one.by, "fingerprint": about, "edited": edited}
    head.append("approval.voted" if state == "pending" else f"approval.{state}", json_text(said))
    switches.audit(
        tx,
        row.tenant,
        who=one.by,
        what=one.verdict,
        subject=row.id,
        reason=one.reason,
        at=head.at,
        data=json_text({"fingerprint": about, "edited": edited, "via": one.via}),
    )
    return "counted" if state == "pending" else "decided"


# -- views -------------------------------------------------------------------------------------------------


def read_approval(tx: Transaction, tenant: str, approval: str) -> ApprovalRow | None:
    """Read an approval; see ``Store.read_approval``."""
    found = tx.row("read_approval", (tenant, approval))
    return None if found is None else _approval_row(found)


def read_approvals(tx: Transaction, tenant: str, task: str) -> list[ApprovalRow]:
    """Read a task's approvals; see ``Store.read_approvals``."""
    return [_approval_row(row) for row in tx.rows("read_approvals", (tenant, task))]


def list_approvals(tx: Transaction, query: ApprovalFilter) -> list[ApprovalRow]:
    """List a tenant's approvals; see ``Store.list_approvals``."""
    after = query.after or (-1, "")
    if query.task is not None:
        # There are few of one task.
        rows = [
            row
            for row in read_approvals(tx, query.tenant, query.task)
            if query.state in (None, row.state) and (row.created_at, row.id) > after
        ]
        return sorted(rows, key=lambda row: (row.created_at, row.id))[: query.limit]
    if query.state == "pending":
        found = tx.rows("list_pending_approvals", (query.tenant, *after, query.limit))
    else:
        found = tx.rows("list_approvals", (query.tenant, *after, query.state, query.limit))
    return [_approval_row(row) for row in found]


def read_votes(tx: Transaction, tenant: str, approval: str) -> list[VoteRow]:
    """Read who said what about an approval; see ``Store.read_votes``."""
    return [
        VoteRow(
            approval=approval,
            who=who,
            verdict=verdict,
            fingerprint=fingerprint,
            reason=reason,
            via=via,
            at=at,
        )
        for who, verdict, fingerprint, reason, via, at in tx.rows("read_votes", (tenant, approval))
    ]


def _approval_row(row: Row) -> ApprovalRow:
    """Make the record of an approval from its columns in the order of the table."""
    return ApprovalRow(
        tenant=row[0],
        id=row[1],
        task=row[2],
        key=row[3],
        number=row[4],
        subject=row[5],
        state=row[6],
        name=row[7],
        fingerprint=row[8],
        shown=row[9],
        reason=row[10],
        policy=row[11],
        target=row[12],
        roles=tuple(orjson.loads(row[13])),
        quorum=row[14],
        four_eyes=bool(row[15]),
        requester=row[16],
        votes=row[17],
        arguments=row[18],
        edited=bool(row[19]),
        answer=row[20],
        created_at=row[21],
        expires_at=row[22],
        decided_at=row[23],
        decided_by=row[24],
        decision_reason=row[25],
        used_at=row[26],
        spent=bool(row[27]),
    )
