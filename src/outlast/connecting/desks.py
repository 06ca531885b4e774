"""What operators and approvers do with an app that runs elsewhere: the ledger, approvals, rules, switches,
schedules, versions. The methods are those of the same names in process, and say what they do there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from outlast.changing import Rehearsal, VersionView
from outlast.connecting.reading import instant, view
from outlast.connecting.wire import Wire
from outlast.connecting.writing import part, revision_header, seconds, task_path
from outlast.core.durations import Duration
from outlast.core.schedule import Missed, Overlap
from outlast.entrances import guarded
from outlast.errors import InvalidRequest, InvalidSchedule, NotFound
from outlast.ledger import PlanView, ToolStats
from outlast.linking import EXPIRES, ApprovalLink
from outlast.schedules import ScheduleView
from outlast.store.approving import ApprovalState
from outlast.views import (
    ApprovalView,
    AuditView,
    EventView,
    EvidencePage,
    EvidenceView,
    OperationView,
    PauseView,
    QueueView,
    RuleView,
    VoteView,
)

PAGE: Final = 200
"""Operations that are read at a time: the API gives no more."""
NO_VALUES: Final[dict[str, Any]] = {"arguments": None, "result": None}


@guarded()
class Operations:
    """The ledger and the reconciliation queue; see ``outlast.Operations``."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def list(
        self,
        *,
        task: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[OperationView]:
        """List a task's operations in order, or, without a task, at most 200 unknown ones of the tenant.

        Without their arguments and results, which ``show`` has. after: the id of the one to go on behind; of
        a task's its key will do. A task's are read in as many pages as it takes.
        """
        if task is None:
            page = await self._wire.get("/v1/operations", state=state or "unknown", after=after, limit=limit)
            return [view(OperationView, body, **NO_VALUES) for body in page["items"]]
        if after is not None and not after.startswith(f"{task}:"):
            after = f"{task}:{after}"
        found: list[OperationView] = []
        while True:
            size = min(limit - len(found), PAGE)
            page = await self._wire.get(f"{task_path(task)}/operations", state=state, after=after, limit=size)
            found += [view(OperationView, body, **NO_VALUES) for body in page["items"]]
            after = page["next"]
            if after is None or len(found) >= limit:
                return found

    async def show(
        self, operation: str, *, evidence_before: int | None = None
    ) -> tuple[OperationView, EvidencePage]:
        """Read one operation by its id with its evidence: the newest 200 pieces, or fewer that are some
        megabytes together.

        evidence_before: the ``earlier`` of what was read last, for what came before that. Raises
        OperationNotFound.
        """
        body = await self._wire.get(_operation(operation), evidence_before=evidence_before)
        return view(OperationView, body), EvidencePage(view(EvidenceView, one) for one in body["evidence"])

    async def places(self, operations: Sequence[str]) -> Sequence[QueueView | None]:
        """Read the places of operations in the reconciliation queue, in their order; None for one that is
        not in it. Raises OperationNotFound."""
        bodies = [await self._wire.get(_operation(operation)) for operation in operations]
        return [None if body["queue"] is None else view(QueueView, body["queue"]) for body in bodies]

    async def timeline(self, operation: str) -> Sequence[EventView]:
        """Read the events of one operation, oldest first. Raises OperationNotFound."""
        return [view(EventView, one) for one in (await self._wire.get(_operation(operation)))["timeline"]]

    async def settle(
        self,
        operation: str,
        verdict: Literal["happened", "did_not_happen", "send_again"],
        *,
        reason: str,
        by: str | None = None,
        result: Any = None,
        turn: int | None = None,
        forced: bool = False,
    ) -> OperationView:
        """Settle an unknown operation; its task resumes.

        by: believed on one machine, without keys. Raises OperationNotFound, SettlementConflict (with what is
        recorded), InvalidRequest, NotAllowed, Unavailable. Atomic; not repeated by itself.
        """
        body = {"verdict": verdict, "reason": reason, "by": by, "turn": turn, "forced": forced}
        if verdict == "happened":
            body["result"] = result
        answer = await self._wire.ask("POST", f"{_operation(operation)}/settle", body=body, again=False)
        return view(OperationView, answer.body)

    async def plan(self, operation: str) -> PlanView:
        """Say what would happen next to an operation, and why. Raises OperationNotFound."""
        return view(PlanView, await self._wire.get(f"{_operation(operation)}/plan"))

    async def stats(self) -> Sequence[ToolStats]:
        """Say how the tenant's unknowns ended, tool by tool."""
        return [view(ToolStats, body) for body in (await self._wire.get("/v1/operations/stats"))["items"]]


@guarded()
class Approvals:
    """Questions that wait for people, and their decisions; see ``outlast.Approvals``."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def list(
        self,
        *,
        state: ApprovalState | None = "pending",
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[ApprovalView]:
        """List approvals, oldest first, at most 200; those that wait for somebody by default."""
        page = await self._wire.get("/v1/approvals", state=state, task=task, after=after, limit=limit)
        return [view(ApprovalView, body) for body in page["items"]]

    async def get(self, approval: str) -> ApprovalView:
        """Read an approval. Raises ApprovalNotFound, also for one of another tenant."""
        return view(ApprovalView, await self._wire.get(_approval(approval)))

    async def votes(self, approval: str) -> Sequence[VoteView]:
        """Read who said what about an approval, oldest first. Raises ApprovalNotFound."""
        return [view(VoteView, one) for one in (await self._wire.get(_approval(approval)))["votes_cast"]]

    async def decide(
        self,
        approval: str,
        verdict: Literal["approve", "reject"],
        *,
        fingerprint: str,
        reason: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> ApprovalView:
        """Decide on a call, for exactly what was seen, by the key's name and roles.

        Raises ApprovalNotFound, FingerprintMismatch, ApprovalConflict (with what is recorded), NotAllowed,
        InvalidRequest, Unavailable. Atomic; the same word of the same person again is answered alike.
        """
        edit = None if arguments is None else dict(arguments)
        return await self._say(
            approval,
            {"verdict": verdict, "fingerprint": fingerprint, "reason": reason, "arguments": edit},
        )

    async def answer(self, approval: str, answer: Any, *, fingerprint: str, reason: str = "") -> ApprovalView:
        """Answer a question that an agent asked. Raises as ``decide`` does."""
        return await self._say(
            approval,
            {"verdict": "answer", "fingerprint": fingerprint, "reason": reason, "answer": answer},
        )

    async def link(self, approval: str, *, to: str, expires_in: Duration = EXPIRES) -> ApprovalLink:
        """Make a link by which one person sees an approval and decides on it, without a key.

        Raises ApprovalNotFound, NotAllowed, InvalidRequest, ConfigurationError, Unavailable.
        """
        body = {"to": to, "expires_in": seconds(expires_in, "expires_in")}
        made = (await self._wire.ask("POST", f"{_approval(approval)}/links", body=body, again=True)).body
        return view(ApprovalLink, made, token=made["url"].rpartition("/")[2])

    async def _say(self, approval: str, body: dict[str, Any]) -> ApprovalView:
        answer = await self._wire.ask("POST", f"{_approval(approval)}/decision", body=body, again=True)
        return view(ApprovalView, answer.body)


@guarded()
class Rules:
    """Standing rules; see ``outlast.Rules``."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def put(
        self,
        tool: str,
        verdict: Literal["allow", "deny"],
        *,
        reason: str,
        bounds: Mapping[str, Any] | None = None,
    ) -> int:
        """Let a rule stand from the next intent on; answers its number. Raises InvalidRequest, NotAllowed,
        Unavailable. Not repeated by itself."""
        body = {"tool": tool, "verdict": verdict, "reason": reason, "bounds": dict(bounds or {})}
        return int((await self._wire.ask("POST", "/v1/rules", body=body, again=False)).body["number"])

    async def withdraw(self, number: int, *, reason: str) -> None:
        """Take a rule back, for every call that has not begun. Raises RuleNotFound, NotAllowed, Unavailable.
        Not repeated by itself."""
        await self._wire.ask("DELETE", f"/v1/rules/{number}", query={"reason": reason}, again=False)

    async def list(self) -> Sequence[RuleView]:
        """List the rules that stand, by tool."""
        return [view(RuleView, body) for body in (await self._wire.get("/v1/rules"))["items"]]


@guarded()
class Pauses:
    """Switches that stop new intents; see ``outlast.Pauses``. Those for everybody are shown only."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def set(self, scope: str, *, reason: str, by: str | None = None) -> None:
        """Stop the tenant's new intents of a scope: ``all``, or ``tool:<name>``. by: believed on one machine,
        without keys. Raises InvalidRequest, NotAllowed, Unavailable. Idempotent."""
        body = {"reason": reason, "by": by}
        await self._wire.ask("PUT", f"/v1/pauses/{part(scope)}", body=body, again=True)

    async def clear(self, scope: str, *, reason: str, by: str | None = None) -> bool:
        """Take the tenant's switch back; answers whether it stood. Raises InvalidRequest, NotAllowed,
        Unavailable. Idempotent."""
        query = {"reason": reason, "by": by}
        try:
            await self._wire.ask("DELETE", f"/v1/pauses/{part(scope)}", query=query, again=True)
        except NotFound:
            return False
        return True

    async def list(self) -> Sequence[PauseView]:
        """List the switches that stand for the tenant, those for everybody included."""
        return [view(PauseView, body) for body in (await self._wire.get("/v1/pauses"))["items"]]

    async def audit(self, *, after: int = 0, limit: int = 100) -> Sequence[AuditView]:
        """Read who decided what, and why, oldest first, at most 1,000. after: the number to go on above."""
        page = await self._wire.get("/v1/audit", after=after, limit=limit)
        return [view(AuditView, body) for body in page["items"]]


@guarded(refusal=InvalidSchedule)
class Schedules:
    """What fires tasks by the clock; see ``outlast.Schedules``."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def put(
        self,
        id: str,
        agent: str,
        input: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        zone: str | None = None,
        every: Duration | None = None,
        at: datetime | None = None,
        missed: Missed = "once",
        max_missed: int = 100,
        overlap: Overlap = "allow",
        jitter: Duration | None = None,
        user: str | None = None,
        pool: str | None = None,
        priority: int = 0,
        deadline: Duration | None = None,
        version: str | None = None,
        by: str | None = None,
        reason: str = "",
        revision: int | None = None,
    ) -> ScheduleView:
        """Make a schedule, or put this one in the place of another of its id, as ``outlast.Schedules.put``
        says. by: believed on one machine, without keys.

        Raises InvalidSchedule and the rest of the InvalidRequest family, AgentNotFound, ScheduleConflict,
        NotAllowed, Unavailable. Atomic, idempotent; repeated by itself where no revision was seen.
        """
        body = {
            "agent": agent,
            "input": None if input is None else dict(input),
            "cron": cron,
            "zone": zone,
            "every": seconds(every, "every"),
            "at": None if at is None else at.isoformat(),
            "missed": missed,
            "max_missed": max_missed,
            "overlap": overlap,
            "jitter": seconds(jitter, "jitter"),
            "user": user,
            "pool": pool,
            "priority": priority,
            "deadline": seconds(deadline, "deadline"),
            "version": version,
            "by": by,
            "reason": reason or None,
        }
        return await self._change("PUT", _schedule(id), revision, body)

    async def get(self, id: str) -> ScheduleView:
        """Read a schedule. Raises ScheduleNotFound."""
        return view(ScheduleView, await self._wire.get(_schedule(id)))

    async def list(self, *, after: str = "", limit: int = 100) -> Sequence[ScheduleView]:
        """List schedules by id, at most 200. after: the id to go on above."""
        page = await self._wire.get("/v1/schedules", after=after, limit=limit)
        return [view(ScheduleView, body) for body in page["items"]]

    async def delete(
        self, id: str, *, by: str | None = None, reason: str = "", revision: int | None = None
    ) -> None:
        """Delete a schedule; tasks that it fired go on. Raises ScheduleNotFound, ScheduleConflict,
        NotAllowed, Unavailable. Not repeated by itself."""
        query = {"by": by, "reason": reason or None}
        headers = revision_header(revision)
        await self._wire.ask("DELETE", _schedule(id), query=query, headers=headers, again=False)

    async def pause(
        self, id: str, *, reason: str, by: str | None = None, revision: int | None = None
    ) -> ScheduleView:
        """Fire no more, from now on until ``resume``. Raises ScheduleNotFound, ScheduleConflict, NotAllowed,
        Unavailable. Idempotent."""
        body = {"reason": reason, "by": by}
        return await self._change("POST", f"{_schedule(id)}/pause", revision, body)

    async def resume(
        self, id: str, *, reason: str, by: str | None = None, revision: int | None = None
    ) -> ScheduleView:
        """Fire again, from the first instant ahead. Raises ScheduleNotFound, ScheduleConflict, NotAllowed,
        Unavailable. Idempotent."""
        body = {"reason": reason, "by": by}
        return await self._change("POST", f"{_schedule(id)}/resume", revision, body)

    async def preview(self, id: str, *, count: int = 5) -> Sequence[datetime]:
        """Answer the next instants of a schedule, as if it were not paused. Raises ScheduleNotFound,
        InvalidRequest."""
        return [instant(at) for at in (await self._wire.get(f"{_schedule(id)}/next", count=count))["items"]]

    async def _change(
        self, method: str, path: str, revision: int | None, body: dict[str, Any]
    ) -> ScheduleView:
        headers = revision_header(revision)
        # One that was bound to a revision has moved it on, and a repeat would be refused for that.
        answer = await self._wire.ask(method, path, body=body, headers=headers, again=revision is None)
        return view(ScheduleView, answer.body)


@guarded()
class Versions:
    """Versions of agents that live tasks need; see ``outlast.Outlast.versions``."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def list(self) -> Sequence[VersionView]:
        """Count the tenant's live tasks by the version that they need, and who serves it."""
        return [view(VersionView, body) for body in (await self._wire.get("/v1/versions"))["items"]]

    async def rehearse(self, task: str, *, version: str | None = None) -> Rehearsal:
        """Run a version's code, which the service has, against a task's journal; changes nothing.

        Raises TaskNotFound, TaskEnded, AgentNotFound, NotAllowed, Unavailable.
        """
        body = {"version": version, "reason": "a rehearsal", "dry_run": True}
        return view(
            Rehearsal, (await self._wire.ask("POST", f"{task_path(task)}/adopt", body=body, again=True)).body
        )

    async def adopt(
        self, task: str, *, version: str | None = None, leave_effects: bool = False, reason: str
    ) -> Rehearsal:
        """Rehearse a version's code, and bind the task to it if it fits.

        leave_effects: bind it although there are ``effects_left``. Raises as ``rehearse`` does, and
        VersionInUse. Compare-and-set; not repeated by itself.
        """
        body = {"version": version, "leave_effects": leave_effects, "reason": reason}
        answer = await self._wire.ask("POST", f"{task_path(task)}/adopt", body=body, again=False)
        return view(Rehearsal, answer.body)


def _operation(operation: str) -> str:
    return f"/v1/operations/{part(operation)}"


def _approval(approval: str) -> str:
    return f"/v1/approvals/{part(approval)}"


def _schedule(id: str) -> str:
    if not id:
        raise InvalidRequest("a schedule has an id")
    return f"/v1/schedules/{part(id)}"
