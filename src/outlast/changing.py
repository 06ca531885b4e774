"""Change as people use it: try again, fork, bind to another version, judge what was done.

Everything here is decided by compare-and-set on what is recorded, and kept with who and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from outlast import clock, probes
from outlast.backing import Backing
from outlast.core import canonical, ids, values
from outlast.core.durations import Duration, microseconds
from outlast.core.record import record
from outlast.engine.host import CallbackPlace
from outlast.engine.registry import AgentSpec
from outlast.engine.rehearsal import Rehearsed, rehearse
from outlast.entrances import guarded
from outlast.errors import (
    AcceptanceConflict,
    EffectsUndone,
    IdempotencyConflict,
    InboxFull,
    InvalidInput,
    InvalidRequest,
    NotFound,
    OperationNotFound,
    SignalConflict,
    TaskEnded,
    TaskNotEnded,
    TaskNotFound,
    UnsettledPrefix,
    VersionInUse,
)
from outlast.store.changing import Acceptance, AcceptanceRow, Adopt, Fork, OutsideEvent, OutsidePosted, Retry
from outlast.store.contract import Store
from outlast.store.records import Claimed, OperationRow, TaskRef
from outlast.store.rows import EventCursor, OperationFilter, TaskRow
from outlast.submitting import DEFAULT_TENANT
from outlast.views import instant

PAGE: Final = 500
"""Operations that are read at a time."""
RECENT: Final = 10
"""Events in which the reason of a wait for an operator is looked for."""


class App(Backing, Protocol):
    """What change needs of an app."""

    def callback_place(self, tenant: str, task: str, key: str, signed: bool) -> CallbackPlace:
        """Answer where a callback is answered."""
        ...


# -- rounds and forks --------------------------------------------------------------------------------------


async def retry(app: App, tenant: str, task: str, reason: str, by: str, deadline: Duration | None) -> int:
    """Open a task's next round; answer its number. See ``Outlast.retry``."""
    row = await _task(app.store, tenant, task)
    spec = app.registry.agents.get((row.agent, row.version))
    deadline_us = None if spec is None else spec.deadline_us
    if deadline is not None:
        deadline_us = microseconds(deadline, what="deadline")
    (answer,) = await app.store.retry(
        [
            Retry(
                tenant=tenant,
                task=task,
                by=ids.person(by),
                reason=_reason(reason),
                reopen=tuple([one.key async for one in _ledger(app.store, tenant, task) if _may_reopen(one)]),
                deadline_us=deadline_us,
            )
        ]
    )
    match answer.kind:
        case "not_found":
            raise _no_task(tenant, task)
        case "not_ended":
            raise TaskNotEnded(
                f"task {task} is {answer.state}: only one that failed or was cancelled is tried again",
                state=answer.state,
            )
        case "undone":
            raise EffectsUndone(
                f"effects of task {task} were undone, or may have been, and its journal says that they stand;"
                " settle what is unknown, fork it from before them, or submit a new task"
            )
    return answer.round


def _may_reopen(row: OperationRow) -> bool:
    return row.state == "failed" and bool(values.decode(row.error or "{}").get("retryable"))


async def fork(
    app: App,
    tenant: str,
    task: str,
    before: str | None,
    reason: str,
    by: str,
    input: Mapping[str, Any] | None,
    version: str | None,
    key: str | None,
) -> tuple[str, bool]:
    """Make a new task from a prefix of a task's journal; answer its id, and whether an earlier request made
    it. See ``Outlast.fork``."""
    who, why = ids.person(by), _reason(reason)
    row = await _task(app.store, tenant, task)
    # Without the agent's code, the worker that runs it is the first to see whether the input fits.
    spec = app.registry.agents.get((row.agent, version or row.version))
    plain = text = None
    if input is not None:
        if not isinstance(input, Mapping):
            raise InvalidInput("the input of a fork is an object of its agent's parameters by name")
        plain = values.normalise(dict(input))
        text = values.encode(plain, what="input")
        if spec is not None:
            spec.signature.check(plain)
    if version is not None:
        ids.check_name(version, "agent version")
    if before is not None:
        if not before:
            raise InvalidInput("before= is the key of an operation, or None")
        ids.check_operation_key(before)
    digest = ""
    if key is not None:
        ids.check_key(key, "idempotency key")
        # As the caller sent it.
        asked = {"fork": task, "before": before, "input": plain, "version": version, "reason": why}
        digest = canonical.digest(asked)
    new = clock.new_id(ids.TASK)
    (answer,) = await app.store.fork(
        [
            Fork(
                tenant=tenant,
                task=task,
                new=new,
                before=before,
                by=who,
                reason=why,
                input=text,
                version=version,
                deadline_us=None if spec is None else spec.deadline_us,
                key=key,
                digest=digest,
            )
        ]
    )
    probes.reach("fork.after_commit")
    match answer.kind:
        case "not_found":
            raise _no_task(tenant, task)
        case "no_operation":
            raise OperationNotFound(f"task {task} has no operation {before!r} in its journal")
        case "unsettled":
            raise UnsettledPrefix(
                f"task {task} cannot be forked there: {', '.join(answer.keys[:5])} have not ended; settle"
                " them first, or fork from before them",
                keys=answer.keys,
            )
        case "conflict":
            raise IdempotencyConflict(
                f"idempotency key {key!r} was used for another request, by task {answer.task}"
            )
    return answer.task or new, answer.kind == "replayed"


# -- versions ----------------------------------------------------------------------------------------------


@record
class VersionView:
    """How many live tasks need an agent version; ``version`` is None for those not bound yet. served_by:
    living workers that serve it; with none, its tasks wait and cost nothing."""

    agent: str
    version: str | None
    queued: int
    running: int
    waiting: int
    served_by: int


@record
class Rehearsal:
    """What other code would make of a task.

    version: the code's. fits: whether it can take the journal over. met: operations that the journal
    answered. differences: where the code asks for other ones than the journal holds. left_over: keys of those
    that it was past and did not ask for. not_reached: keys of those behind the place where it goes on, which
    it may ask for yet, or never. effects_left: among all that it did not ask for, the calls that may have
    acted outside. goes_on_at: keys of what it would do next. ended: it came to its end, be it by a failure
    that the journal holds. failed: what it raised by itself. adopted: the task is bound to this version now.
    """

    task: str
    from_version: str
    version: str
    fits: bool
    met: int
    differences: tuple[str, ...]
    left_over: tuple[str, ...]
    not_reached: tuple[str, ...]
    effects_left: tuple[str, ...]
    goes_on_at: tuple[str, ...]
    ended: bool
    failed: str | None
    adopted: bool = False


@guarded()
class Versions:
    """Which versions tasks need, and how they come to another one."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def list(self, *, tenant: str | None = None) -> Sequence[VersionView]:
        """Count live tasks by the version that they need; of all tenants without one."""
        return [
            VersionView(
                agent=row.agent,
                version=row.version or None,
                queued=row.queued,
                running=row.running,
                waiting=row.waiting,
                served_by=row.served_by,
            )
            for row in await self._app.store.list_versions(tenant)
        ]

    async def rehearse(
        self, task: str, *, version: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> Rehearsal:
        """Run a version's code against a task's journal; nothing is written, nothing is sent.

        version: one that this app has; its latest by default. Raises TaskNotFound, TaskEnded, AgentNotFound.
        """
        row = await _task(self._app.store, tenant, task)
        rehearsal, _ = await self._rehearse(row, version)
        return rehearsal

    async def adopt(
        self,
        task: str,
        *,
        version: str | None = None,
        leave_effects: bool = False,
        reason: str,
        by: str,
        tenant: str = DEFAULT_TENANT,
    ) -> Rehearsal:
        """Rehearse a version's code against a task's journal, and bind the task to it if it fits.

        leave_effects: bind it although there are ``effects_left``: somebody has looked whether the code makes
        them once more. Answers the rehearsal, which says with ``adopted`` whether the task was bound. Raises
        as ``rehearse`` does, and VersionInUse when a worker runs it, or it went on since it was read.
        Compare-and-set.
        """
        who, why = ids.person(by), _reason(reason)
        row = await _task(self._app.store, tenant, task)
        if row.state == "running":
            raise _in_use(row)
        rehearsal, spec = await self._rehearse(row, version)
        if not rehearsal.fits or (rehearsal.effects_left and not leave_effects):
            return rehearsal
        (answer,) = await self._app.store.adopt(
            [
                Adopt(
                    tenant=tenant,
                    task=task,
                    version=spec.version,
                    seen_version=row.version,
                    seen_epoch=row.epoch,
                    seen_event=row.last_event,
                    by=who,
                    reason=why,
                )
            ]
        )
        match answer.kind:
            case "not_found":
                raise _no_task(tenant, task)
            case "ended":
                raise TaskEnded(f"task {task} has ended: {answer.state}", state=answer.state)
            case "running":
                raise _in_use(row)
            case "moved":
                raise VersionInUse(f"task {task} went on since it was looked at; try again")
        return replace(rehearsal, adopted=True)

    async def _rehearse(self, row: TaskRow, version: str | None) -> tuple[Rehearsal, AgentSpec]:
        if row.ended_at is not None:
            raise TaskEnded(f"task {row.task} has ended: {row.state}", state=row.state)
        spec = self._app.registry.agent(row.agent, version)
        store = self._app.store
        claimed = Claimed(
            tenant=row.tenant,
            task=row.task,
            epoch=row.epoch,
            round=row.round,
            agent=row.agent,
            version=spec.version,
            facts=0,
            deadline_at=None,
        )
        (loaded,) = await store.load([claimed])
        now = (await store.health()).now
        found: Rehearsed = await rehearse(
            self._app.registry, spec, claimed, loaded, now=now, place_of=self._app.callback_place
        )
        return (
            Rehearsal(
                task=row.task,
                from_version=row.version,
                version=spec.version,
                fits=found.fits,
                met=found.met,
                differences=found.differences,
                left_over=found.left_over,
                not_reached=found.not_reached,
                effects_left=found.effects_left,
                goes_on_at=found.goes_on_at,
                ended=found.ended,
                failed=found.failed,
            ),
            spec,
        )


async def complaint(store: Store, row: TaskRow) -> str | None:
    """Answer what a task said last before it began to wait for an operator: why."""
    after = max(0, row.last_event - RECENT)
    events = await store.read_events([EventCursor(tenant=row.tenant, task=row.task, after=after)], RECENT)
    for event in reversed(events):
        said = values.decode(event.data)
        if event.kind == "log" and isinstance(said, dict) and said.get("level") == "error":
            return str(said.get("message", ""))
    return None


async def wake(app: App, tenant: str, task: str, reason: str, by: str) -> bool:
    """Let a task that waits for an operator try again. See ``Outlast.wake``."""
    await _task(app.store, tenant, task)
    return await app.store.wake(TaskRef(tenant=tenant, task=task), ids.person(by), _reason(reason))


# -- acceptance --------------------------------------------------------------------------------------------


@record
class AcceptanceView:
    """A verdict on finished work; the last of a round stands."""

    round: int
    number: int
    verdict: str
    by: str
    reason: str
    evidence: Any
    at: datetime

    @classmethod
    def of(cls, row: AcceptanceRow) -> AcceptanceView:
        """Read a stored verdict."""
        at = instant(row.at)
        assert at is not None
        return cls(
            round=row.round,
            number=row.number,
            verdict=row.verdict,
            by=row.by,
            reason=row.reason,
            evidence=values.decode(row.evidence),
            at=at,
        )


async def accept(
    app: App,
    tenant: str,
    task: str,
    verdict: Literal["accepted", "rejected"],
    reason: str,
    by: str,
    evidence: Any,
    seen: int | None,
) -> AcceptanceView:
    """Judge a task's work. See ``Outlast.accept``."""
    if verdict not in ("accepted", "rejected"):
        raise InvalidRequest(f"work is accepted or rejected, not {verdict!r}", pointer="/verdict")
    row = await _task(app.store, tenant, task)
    if seen is None:
        given = await app.store.read_acceptances(tenant, task)
        seen = sum(1 for one in given if one.round == row.round)
    (answer,) = await app.store.accept(
        [
            Acceptance(
                tenant=tenant,
                task=task,
                verdict=verdict,
                by=ids.person(by),
                reason=_reason(reason),
                evidence=values.encode(
                    values.normalise({} if evidence is None else evidence), what="evidence"
                ),
                seen=seen,
            )
        ]
    )
    match answer.kind:
        case "not_found":
            raise _no_task(tenant, task)
        case "not_ended":
            raise TaskNotEnded(
                f"task {task} is {answer.state}: only work that succeeded is judged", state=answer.state
            )
        case "conflict":
            raise AcceptanceConflict(
                f"task {task} has {answer.number} verdicts, and {seen} were seen; look at them first"
            )
    given = await app.store.read_acceptances(tenant, task)
    return next(AcceptanceView.of(one) for one in reversed(given) if one.number == answer.number)


async def acceptances(app: App, tenant: str, task: str) -> list[AcceptanceView]:
    """List the verdicts on a task's work, oldest first."""
    await _task(app.store, tenant, task)
    return [AcceptanceView.of(row) for row in await app.store.read_acceptances(tenant, task)]


# -- outside sessions --------------------------------------------------------------------------------------


async def outside(
    store: Store, tenant: str, provider: str, session: str, run: str, event: str, data: Any
) -> OutsidePosted:
    """Bring an event of an outside session to the task that holds it. See ``Outlast.outside``."""
    ids.check_name(provider, "provider")
    ids.check_key(session, "session")
    ids.check_key(event, "event id")
    if run:
        ids.check_key(run, "run")
    plain = values.normalise(data)
    (posted,) = await store.post_outside(
        [
            OutsideEvent(
                tenant=tenant,
                provider=provider,
                session=session,
                run=run,
                event=event,
                data=values.encode(
                    {"session": session, "run": run, "event": event, "data": plain},
                    what=f"the data of event {event}",
                ),
                digest=canonical.digest(plain),
            )
        ]
    )
    named = f"session {session} of {provider}" + (f", run {run}" if run else "")
    match posted.kind:
        case "not_found":
            raise NotFound(f"no task holds {named}")
        case "ended":
            raise TaskEnded(f"the task that held {named} has ended")
        case "conflict":
            raise SignalConflict(f"event {event} of {named} came before with other data")
        case "full":
            raise InboxFull(f"too many signals lie before the task that holds {named}")
    return posted


# -- inside ------------------------------------------------------------------------------------------------


async def _task(store: Store, tenant: str, task: str) -> TaskRow:
    rows = await store.read_tasks([TaskRef(tenant=tenant, task=task)])
    if not rows:
        raise _no_task(tenant, task)
    return rows[0]


async def _ledger(store: Store, tenant: str, task: str) -> Any:
    """Read a task's ledger in order, without arguments and results."""
    after: str | None = None
    page = PAGE
    while page == PAGE:
        query = OperationFilter(tenant=tenant, task=task, after=after, limit=PAGE, values=False)
        rows = await store.list_operations(query)
        for row in rows:
            yield row
        page = len(rows)
        after = rows[-1].key if rows else after


def _no_task(tenant: str, task: str) -> TaskNotFound:
    return TaskNotFound(f"no task {task} in tenant {tenant}")


def _in_use(row: TaskRow) -> VersionInUse:
    return VersionInUse(
        f"task {row.task} runs under version {row.version}; stop the workers that serve it, or wait until it"
        " waits"
    )


def _reason(reason: str) -> str:
    return ids.check_key(reason, "reason")
