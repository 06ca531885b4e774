"""The frozen records of approvals: questions to people, their decisions, and standing rules.

Units and payloads are those of ``outlast.store.records``.
"""

from __future__ import annotations

from typing import Literal

from outlast.core.record import record

ApprovalState = Literal["pending", "approved", "rejected", "expired", "withdrawn", "used"]
Subject = Literal["call", "question"]
"""``call``: may this be done? ``question``: what is the answer? An answered question is ``approved``."""


@record
class ApprovalRow:
    """One question, bound to exact parameters.

    id: ``<task>:<key>~<number>``, stable over restarts; number counts the questions about one operation.
    fingerprint: the decision digest (call) or the question's digest; a decision names the one that it saw.
    shown: JSON text of what people are shown: everything that will be sent. target: JSON text of the object
    and its version, or None. roles: who may decide, empty for every approver. quorum: how many have to agree.
    four_eyes: whether the requester may not decide; requester: named as a decision's ``by``. policy: the
    policy's version. decided_by, decided_at, decision_reason: the word by which it was approved or rejected,
    None until then. edited: whether an approver changed the arguments; ``arguments`` then holds them (JSON
    text of the tool's arguments, else None). answer: JSON text, of a question: the one that was agreed to
    last; one that is answered stays ``approved`` for good. votes: people who have agreed since an edit or
    another answer last changed what they agree to. spent: it says nothing of a resend any more, neither for
    nor against it, since a person settled its operation.
    """

    tenant: str
    task: str
    key: str
    number: int
    id: str
    subject: Subject
    state: ApprovalState
    name: str
    fingerprint: str
    shown: str
    reason: str
    policy: str
    target: str | None = None
    roles: tuple[str, ...] = ()
    quorum: int = 1
    four_eyes: bool = False
    requester: str | None = None
    votes: int = 0
    arguments: str | None = None
    edited: bool = False
    answer: str | None = None
    created_at: int = 0
    expires_at: int | None = None
    decided_at: int | None = None
    decided_by: str | None = None
    decision_reason: str | None = None
    used_at: int | None = None
    spent: bool = False


@record
class Decision:
    """What one person decides.

    fingerprint: the one that they saw. by: ``person:<who>``. roles: theirs; ``*`` has every role. arguments,
    shown, new_fingerprint: an approver's edit, decided in the same request (verdict ``approve`` only).
    answer: JSON text (verdict ``approve`` of a question). via: ``api``, ``link``, ``python``, ``cli``.
    """

    tenant: str
    approval: str
    verdict: Literal["approve", "reject"]
    by: str
    fingerprint: str
    reason: str = ""
    roles: tuple[str, ...] = ("*",)
    via: str = "python"
    arguments: str | None = None
    shown: str | None = None
    new_fingerprint: str | None = None
    answer: str | None = None


@record
class Decided:
    """The verdict on a decision, with the approval as it stands now (None only for ``not_found``).

    kind ``decided``: it is approved or rejected now. ``counted``: agreed, and more people have to.
    ``repeated``: this person's word stands already, and it is the very same (an edit: the fingerprint that it
    led to). ``conflict``: it was decided, withdrawn or used before. ``expired``: its time is over (and it is
    recorded as expired). ``fingerprint``: it asks about something else than was seen. ``forbidden``: this
    person may not decide it, or an edit would change what was sent before (``detail`` says why).
    """

    kind: Literal[
        "decided", "counted", "repeated", "conflict", "expired", "fingerprint", "forbidden", "not_found"
    ]
    approval: ApprovalRow | None = None
    detail: str = ""


@record
class ApprovalFilter:
    """Which approvals to list, oldest first. after: id to go on behind, with its ``created_at``."""

    tenant: str
    state: ApprovalState | None = "pending"
    task: str | None = None
    after: tuple[int, str] | None = None
    limit: int = 100


@record
class VoteRow:
    """One person's word on an approval."""

    approval: str
    who: str
    verdict: str
    fingerprint: str
    reason: str
    via: str
    at: int


@record
class Rule:
    """A standing rule for a tool's calls: policy, not a decision.

    bounds: JSON text ``{"<argument>": {"max": 100, "min": 0, "equals": …}}``; a call outside them is not
    covered by the rule. number: given by the store.
    """

    tenant: str
    tool: str
    verdict: Literal["allow", "deny"]
    by: str
    reason: str
    bounds: str = "{}"
    number: int = 0
    at: int = 0


@record
class Rules:
    """The rules that stand for a tool, and the version of that list: it grows with every change."""

    version: int
    rules: tuple[Rule, ...]
