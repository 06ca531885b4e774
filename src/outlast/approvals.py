"""Approvals and standing rules as people use them.

A decision is for exactly what was shown: it names the fingerprint that was seen, counts once, and is consumed
by one effect. A standing rule is policy, not a decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, Protocol

import jsonschema_rs

from outlast import linking
from outlast.backing import Backing
from outlast.core import canonical, ids, values
from outlast.core.approval import MAX_SHOWN_BYTES, check_bounds
from outlast.core.durations import Duration
from outlast.entrances import guarded
from outlast.errors import (
    ApprovalConflict,
    ApprovalNotFound,
    ConfigurationError,
    FingerprintMismatch,
    InvalidKey,
    InvalidRequest,
    NotAllowed,
    RuleNotFound,
)
from outlast.linking import APPROVER, EVERY_ROLE, EXPIRES, ApprovalLink, Holder, may_decide
from outlast.posting import check_reason
from outlast.store.approving import ApprovalFilter, ApprovalRow, ApprovalState, Decided, Decision, Rule
from outlast.submitting import DEFAULT_TENANT
from outlast.views import ApprovalView, RuleView, VoteView


class App(Backing, Protocol):
    """What approvals need of an app."""

    @property
    def secret(self) -> str:
        """What links are signed with."""
        ...

    @property
    def public_url(self) -> str | None:
        """Where the API is reached from outside."""
        ...


@guarded()
class Approvals:
    """Questions that wait for people, and their decisions."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def list(
        self,
        *,
        tenant: str = DEFAULT_TENANT,
        state: ApprovalState | None = "pending",
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[ApprovalView]:
        """List approvals, oldest first; those that wait for somebody by default. after: the id to go on
        behind. Raises ApprovalNotFound for an ``after`` that is none."""
        place = None if after is None else ((await self._row(after, tenant)).created_at, after)
        query = ApprovalFilter(tenant=tenant, state=state, task=task, after=place, limit=limit)
        return [ApprovalView.of(row) for row in await self._app.store.list_approvals(query)]

    async def get(self, approval: str, *, tenant: str = DEFAULT_TENANT) -> ApprovalView:
        """Read an approval. Raises ApprovalNotFound, also for one of another tenant."""
        return ApprovalView.of(await self._row(approval, tenant))

    async def votes(self, approval: str, *, tenant: str = DEFAULT_TENANT) -> Sequence[VoteView]:
        """Read who said what about an approval, oldest first."""
        await self._row(approval, tenant)
        return [VoteView.of(row) for row in await self._app.store.read_votes(tenant, approval)]

    async def decide(
        self,
        approval: str,
        verdict: Literal["approve", "reject"],
        *,
        fingerprint: str,
        by: str,
        reason: str = "",
        roles: Sequence[str] = EVERY_ROLE,
        arguments: Mapping[str, Any] | None = None,
        via: str = "python",
        tenant: str = DEFAULT_TENANT,
    ) -> ApprovalView:
        """Decide on a call, for exactly what was seen.

        fingerprint: of the approval as it was shown. by: a person's name; roles: theirs. arguments: an edit;
        the call is then made with these, under a new fingerprint that is decided in the same request.

        Answers the approval as it stands: approved, rejected, or still pending while more people have to
        agree. The same word of the same person again is answered alike. Raises ApprovalNotFound,
        FingerprintMismatch, ApprovalConflict (decided, withdrawn, used or expired, with what is recorded),
        NotAllowed, InvalidRequest. Atomic; a compare-and-set on the approval.
        """
        row = await self._row(approval, tenant)
        _check_roles(row, by, roles)
        if row.subject == "question" and verdict == "approve":
            raise InvalidRequest(f"approval {approval} is a question: answer it", pointer="/verdict")
        edit = None if arguments is None else self._edit(row, arguments, verdict)
        decision = Decision(
            tenant=tenant,
            approval=approval,
            verdict=_verdict(verdict),
            by=ids.person(by),
            fingerprint=_fingerprint(fingerprint),
            reason=check_reason(reason),
            roles=tuple(roles),
            via=via,
            arguments=None if edit is None else edit[0],
            shown=None if edit is None else edit[1],
            new_fingerprint=None if edit is None else edit[2],
        )
        return await self._decide(decision)

    async def answer(
        self,
        approval: str,
        answer: Any,
        *,
        fingerprint: str,
        by: str,
        reason: str = "",
        roles: Sequence[str] = EVERY_ROLE,
        via: str = "python",
        tenant: str = DEFAULT_TENANT,
    ) -> ApprovalView:
        """Answer a question that an agent asked. Raises as ``decide`` does, and InvalidRequest for an answer
        that is none of the choices, or does not fit the form."""
        row = await self._row(approval, tenant)
        _check_roles(row, by, roles)
        if row.subject != "question":
            raise InvalidRequest(
                f"approval {approval} is about a call: approve or reject it", pointer="/verdict"
            )
        plain = values.normalise(answer)
        _check_answer(values.decode(row.shown), plain)
        decision = Decision(
            tenant=tenant,
            approval=approval,
            verdict="approve",
            by=ids.person(by),
            fingerprint=_fingerprint(fingerprint),
            reason=check_reason(reason),
            roles=tuple(roles),
            via=via,
            answer=values.encode(plain, what="the answer"),
        )
        return await self._decide(decision)

    async def link(
        self,
        approval: str,
        *,
        to: str,
        by: str,
        roles: Sequence[str] = EVERY_ROLE,
        expires_in: Duration = EXPIRES,
        tenant: str = DEFAULT_TENANT,
    ) -> ApprovalLink:
        """Make a link by which one person sees an approval and decides on it, without a key.

        to: the person; the decision is theirs by name. by, roles: who makes it. Only an operator makes links
        for others. expires_in: 30 days at most, and never beyond the approval's own time. Raises
        ApprovalNotFound, NotAllowed, InvalidRequest, ConfigurationError without a secret.
        """
        row = await self._row(approval, tenant)
        return linking.make(
            self._app.secret,
            self._app.public_url,
            row,
            to=to,
            by=by,
            roles=roles,
            expires_in=expires_in,
        )

    def holder(self, token: str) -> Holder:
        """Answer whom a link was made for. Raises InvalidToken."""
        return linking.read(self._app.secret, token)

    async def _row(self, approval: str, tenant: str) -> ApprovalRow:
        row = await self._app.store.read_approval(tenant, approval)
        if row is None:
            raise _not_found(approval, tenant)
        return row

    async def _decide(self, decision: Decision) -> ApprovalView:
        (decided,) = await self._app.store.decide([decision])
        if decided.kind in ("decided", "counted", "repeated") and decided.approval is not None:
            return ApprovalView.of(decided.approval)
        _refuse(decision, decided)

    def _edit(self, row: ApprovalRow, arguments: Mapping[str, Any], verdict: str) -> tuple[str, str, str]:
        """Check an approver's arguments; answer them, what is shown of them, and their fingerprint."""
        if verdict != "approve":
            raise InvalidRequest("arguments can be changed only while approving", pointer="/arguments")
        tool = self._app.registry.tools.get(row.name)
        if tool is None:
            raise ConfigurationError(
                f"tool {row.name} is not known to this process, so its arguments cannot be checked; decide"
                " where the app is loaded"
            )
        shown = values.decode(row.shown)
        if tool.version != shown["version"]:
            raise ApprovalConflict(
                f"approval {row.id} is about version {shown['version']} of tool {tool.name}, and this process"
                f" has version {tool.version}",
                state=row.state,
            )
        plain = tool.signature.plain(tool.signature.check(arguments))
        shown["arguments"] = plain
        text = values.encode(shown)
        if len(text.encode()) > MAX_SHOWN_BYTES:
            raise InvalidRequest(f"more than {MAX_SHOWN_BYTES} bytes cannot be shown", pointer="/arguments")
        request = canonical.fingerprint(shown.get("kind", "tool"), tool.name, plain)
        target = None if row.target is None else values.decode(row.target)
        return (
            values.encode(plain, what="the arguments"),
            text,
            canonical.decision_digest(request, tool.version, target),
        )


@guarded()
class Rules:
    """Standing rules: what needs no question, or may never be done, for calls inside their bounds."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def put(
        self,
        tool: str,
        verdict: Literal["allow", "deny"],
        *,
        reason: str,
        by: str,
        bounds: Mapping[str, Any] | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> int:
        """Let a rule stand from the next intent on; answers its number.

        bounds: by argument, such as ``{"amount": {"max": 100}}``, with ``max``, ``min``, ``equals``,
        ``one_of``. An explicit decision on a call beats a rule, either way. Kept in the audit trail. Raises
        InvalidRequest.
        """
        if verdict not in ("allow", "deny"):
            raise InvalidRequest(f"a rule says allow or deny, not {verdict!r}", pointer="/verdict")
        rule = Rule(
            tenant=ids.check_name(tenant, "tenant"),
            tool=ids.check_name(tool, "tool name"),
            verdict=verdict,
            by=ids.person(by),
            reason=ids.check_key(reason, "reason"),
            bounds=values.encode(check_bounds({} if bounds is None else bounds), what="bounds"),
        )
        return await self._app.store.put_rule(rule)

    async def withdraw(self, number: int, *, reason: str, by: str, tenant: str = DEFAULT_TENANT) -> None:
        """Take a rule back, for every call that has not begun. Kept in the audit trail. Raises
        RuleNotFound."""
        ids.check_key(reason, "reason")
        if not await self._app.store.withdraw_rule(tenant, number, ids.person(by), reason):
            raise RuleNotFound(f"no rule {number} stands in tenant {tenant}")

    async def list(self, *, tenant: str = DEFAULT_TENANT) -> Sequence[RuleView]:
        """List the rules that stand, by tool."""
        return [RuleView.of(row) for row in await self._app.store.list_rules(tenant)]


def _not_found(approval: str, tenant: str) -> ApprovalNotFound:
    return ApprovalNotFound(f"no approval {approval} in tenant {tenant}")


def _refuse(decision: Decision, decided: Decided) -> NoReturn:
    row = decided.approval
    if row is None:
        raise _not_found(decision.approval, decision.tenant)
    if decided.kind == "forbidden":
        raise NotAllowed(f"{decision.by} may not decide approval {row.id}: {decided.detail}")
    if decided.kind == "fingerprint":
        raise FingerprintMismatch(
            f"approval {row.id} asks about {row.fingerprint}, and the decision names {decision.fingerprint};"
            " look at it again",
            current=row.fingerprint,
        )
    if decided.kind == "expired":
        raise ApprovalConflict(f"approval {row.id}: its time is over, nobody decided", state="expired")
    by = row.decided_by or ""
    raise ApprovalConflict(
        f"approval {row.id} is {row.state}" + (f", by {by}" if by else ""), state=row.state, by=by
    )


def _check_answer(shown: dict[str, Any], answer: Any) -> None:
    choices, form = shown.get("choices"), shown.get("form")
    if choices is not None and not any(type(answer) is type(one) and answer == one for one in choices):
        offered = ", ".join(repr(one) for one in choices[:20])
        raise InvalidRequest(f"the answer is none of the choices: {offered}", pointer="/answer")
    if form is not None:
        try:
            jsonschema_rs.validate(form, answer)
        except jsonschema_rs.ValidationError as error:
            where = "".join(f"/{part}" for part in error.instance_path)
            raise InvalidRequest(
                f"the answer does not fit the form: {error.message}", pointer=f"/answer{where}"
            ) from None


def _check_roles(row: ApprovalRow, by: str, roles: Sequence[str]) -> None:
    if not may_decide(row, roles):
        needed = ", ".join(row.roles or (APPROVER,))
        raise NotAllowed(f"{by} may not decide approval {row.id}: it takes one of the roles {needed}")


def _verdict(verdict: str) -> Literal["approve", "reject"]:
    if verdict == "approve":
        return "approve"
    if verdict == "reject":
        return "reject"
    raise InvalidRequest(f"a decision is approve or reject, not {verdict!r}", pointer="/verdict")


def _fingerprint(fingerprint: str) -> str:
    if not fingerprint:
        raise InvalidRequest("a decision names the fingerprint that was seen", pointer="/fingerprint")
    try:
        return ids.check_key(fingerprint, "fingerprint")
    except InvalidKey as error:
        raise InvalidRequest(str(error), pointer="/fingerprint") from None
