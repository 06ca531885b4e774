"""Submitting: from what a caller says to a stored task, many callers in one transaction.

Purpose: accepted means stored. While one transaction is under way the next group collects; there is no timer.
A group is bounded, in tasks and in bytes, so that nobody waits long for what others bring along, and no
transaction takes longer than a database allows.

Identity: the task's id is made before the store is asked, so an answer that was lost is asked for again with
the very same record and cannot make a second task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from outlast import clock, probes
from outlast.core import canonical, ids, values
from outlast.core.budget import read_budget
from outlast.core.durations import Duration, microseconds
from outlast.core.record import record
from outlast.engine.offers import Offer, Offers
from outlast.engine.registry import Registry
from outlast.errors import InvalidInput, InvalidRequest, StoreUnavailable, Unserializable
from outlast.store.contract import FEW_TASKS, SHORT_BYTES, Store
from outlast.store.records import ANY_VERSION, Submission, Submitted

GROUP = 1_000
"""Tasks that are stored in one transaction."""
GROUP_BYTES = 8 << 20
"""How much of inputs is stored in one transaction, unless one alone is more."""
ALONG_BYTES = FEW_TASKS * SHORT_BYTES
"""How much of inputs goes into a transaction that claims as well."""
RETRIES = 3
DEFAULT_TENANT = "default"


@record
class Request:
    """What a caller asks for, as it was sent.

    agent: name of a registered agent. input: its parameters by name. key: idempotency key. deadline: how long
    after acceptance the task must have ended. run_at: instant before which it does not start. priority:
    higher goes first among the tenant's own. version: a version to bind to; the latest that a worker serves
    by default. budget: bounds on what it may spend, any of ``operations``, ``tokens``, ``cost`` and
    ``depth``.
    """

    agent: str
    input: Any = None
    key: str | None = None
    tenant: str = DEFAULT_TENANT
    user: str | None = None
    pool: str | None = None
    priority: int = 0
    deadline: Duration | None = None
    run_at: datetime | None = None
    version: str | None = None
    trace: str | None = None
    budget: Mapping[str, Any] | None = None


def submission_for(registry: Registry, request: Request) -> Submission:
    """Check a request and make the record to store. Raises the InvalidRequest family and AgentNotFound."""
    registry.check()
    ids.check_name(request.tenant, "tenant")
    key = None if request.key is None else ids.check_key(request.key, "idempotency key")
    spec = registry.agent(request.agent, request.version)
    given = {} if request.input is None else request.input
    if type(given) is not dict and not isinstance(given, Mapping):
        raise InvalidInput(f"the input of agent {spec.name} must be an object of its parameters by name")
    plain = values.normalise(dict(given))
    text = values.encode(plain, what="input")
    spec.signature.check(plain)
    if not -1000 <= request.priority <= 1000:
        raise InvalidRequest("priority must be from -1000 to 1000", pointer="/priority")
    if request.user is not None:
        ids.check_key(request.user, "user")
    deadline_us = spec.deadline_us
    if request.deadline is not None:
        deadline_us = microseconds(request.deadline, what="deadline")
    bounds = None if request.budget is None else read_budget(request.budget).stored()
    run_at = None
    if request.run_at is not None:
        if request.run_at.tzinfo is None:
            raise InvalidRequest("run_at needs an instant with a time zone", pointer="/run_at")
        run_at = (request.run_at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return Submission(
        tenant=request.tenant,
        task=clock.new_id(ids.TASK),
        key=key,
        request_digest=_digest(request, plain, bounds) if key is not None else "",
        agent=spec.name,
        version=ANY_VERSION if request.version is None else request.version,
        pool=spec.pool if request.pool is None else ids.check_name(request.pool, "pool"),
        priority=request.priority,
        input=text,
        user=request.user,
        deadline_us=deadline_us,
        run_at=run_at,
        trace=request.trace,
        budget=None if bounds is None else values.encode(bounds, what="budget"),
    )


def _digest(request: Request, plain: Any, bounds: dict[str, Any] | None) -> str:
    """Digest the request as the caller sent it, before defaults and clocks (RFC 8785, SHA-256)."""
    options = {
        "user": request.user,
        "pool": request.pool,
        "priority": request.priority,
        "deadline": None if request.deadline is None else str(request.deadline),
        "run_at": None if request.run_at is None else request.run_at.isoformat(),
        "budget": bounds,
    }
    try:
        return canonical.digest(
            {"agent": request.agent, "version": request.version, "input": plain, "options": options}
        )
    except Unserializable as error:
        # Into the input, as in every other refusal of one.
        error.pointer = error.pointer.removeprefix("/input")
        raise


class Submitter:
    """Group concurrent submissions into few transactions."""

    def __init__(self, store: Store, offers: Offers) -> None:
        self._store = store
        self._offers = offers
        self._pending: list[tuple[Submission, asyncio.Future[Submitted]]] = []
        self._busy: asyncio.Task[None] | None = None

    async def one(self, submission: Submission) -> Submitted:
        """Store one submission, together with whatever else is submitted now. Raises StoreUnavailable."""
        future: asyncio.Future[Submitted] = asyncio.get_running_loop().create_future()
        self._pending.append((submission, future))
        if self._busy is None or self._busy.done():
            self._busy = asyncio.get_running_loop().create_task(self._work())
        return await future

    async def many(self, batch: list[Submission]) -> list[Submitted]:
        """Store a batch in groups, in order. Raises StoreUnavailable; what was stored by then stands."""
        answers: list[Submitted] = []
        while len(answers) < len(batch):
            start = len(answers)
            group = batch[start : start + GROUP]
            answers.extend(await self._store_group(group[: _together(group)]))
        return answers

    async def _work(self) -> None:
        # Callers that are runnable now join the first group.
        await asyncio.sleep(0)
        while self._pending:
            count = _together([submission for submission, _ in self._pending[:GROUP]])
            group, self._pending = self._pending[:count], self._pending[count:]
            try:
                answers = await self._store_group([submission for submission, _ in group])
            # Every caller of the group gets the fault, whatever it is, and the next group goes on.
            except Exception as error:
                for _, future in group:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), answer in zip(group, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def _store_group(self, group: list[Submission]) -> list[Submitted]:
        probes.reach("submit.before_commit")
        # A transaction that claims as well is a short one: others wait for the claimers' lock.
        small = len(group) <= FEW_TASKS and sum(len(one.input) for one in group) <= ALONG_BYTES
        offer = self._offers.take(group) if small else None
        if offer is not None and (answered := await self._store_and_claim(group, offer)) is not None:
            probes.reach("submit.after_commit")
            return answered
        for left in range(RETRIES, -1, -1):
            try:
                answers = await self._store.submit(group)
            except StoreUnavailable:
                # The same records again: if the first try was stored after all, it is recognised by its task
                # ids.
                if not left:
                    raise
                await asyncio.sleep(0.2)
                continue
            probes.reach("submit.after_commit")
            return answers
        raise AssertionError("unreachable")

    async def _store_and_claim(self, group: list[Submission], offer: Offer) -> list[Submitted] | None:
        """Store a group and claim for the worker that offers to; None where that may not have come about."""
        try:
            answer = await self._store.submit_and_claim(group, offer.request)
        except BaseException as error:
            # Whatever it was, it may have been behind the commit.
            offer.lose(error)
            if isinstance(error, StoreUnavailable):
                return None
            raise
        verdicts, reply = answer or (None, None)
        offer.answer(reply)
        return verdicts


def _together(batch: Sequence[Submission]) -> int:
    """Answer how many of a batch, from its first one on, are stored in one transaction."""
    size = 0
    for count, submission in enumerate(batch):
        size += len(submission.input)
        if count and size > GROUP_BYTES:
            return count
    return len(batch)
