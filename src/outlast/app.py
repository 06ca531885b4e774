"""``Outlast``: where agents and tools are registered, and where tasks are submitted, followed and settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, Self, TypeVar

from outlast import changing, connecting, posting, tokens
from outlast.alone import ENTER_S, Ledger
from outlast.approvals import Approvals, Rules
from outlast.changing import AcceptanceView, Versions
from outlast.core import ids, values
from outlast.core.durations import Duration, microseconds
from outlast.core.webhooks import SignedBody
from outlast.declarations import Declarations
from outlast.engine.host import CallbackPlace, GatewayPlace
from outlast.engine.offers import Offers
from outlast.engine.settings import WorkerSettings
from outlast.engine.worker import Worker
from outlast.entrances import guarded
from outlast.errors import (
    Busy,
    ConfigurationError,
    IdempotencyConflict,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
)
from outlast.handle import TaskHandle
from outlast.ledger import Operations, Pauses
from outlast.opening import store_for
from outlast.schedules import Schedules
from outlast.settings import Settings
from outlast.store.changing import OutsidePosted
from outlast.store.contract import Store
from outlast.store.posting import CancelReply, Posted
from outlast.store.records import Submitted, TaskRef
from outlast.store.rows import EVENTS_ROOM, EndRow, EventCursor, TaskFilter
from outlast.streams.tail import Tail
from outlast.submitting import DEFAULT_TENANT, Request, Submitter, submission_for
from outlast.tools.passing import Pass
from outlast.views import AttemptView, EventView, TaskView

F = TypeVar("F", bound=Callable[..., Any])


@guarded()
class Outlast(Declarations):
    """An app: its agents and tools, and a store to run them from.

    name: for people. database_url: where the store is; by default ``OUTLAST_DATABASE_URL``, or a SQLite file
    in ``.outlast/``. store: a store made by the caller instead. secret: what callbacks and links are signed
    with, by default ``OUTLAST_SECRET``; all processes of an app need the same. public_url: where the API is
    reached from outside, by default ``OUTLAST_PUBLIC_URL``. gateway_url: where the gateway is reached, by
    default ``OUTLAST_GATEWAY_URL``.
    """

    def __init__(
        self,
        name: str,
        *,
        database_url: str | None = None,
        store: Store | None = None,
        secret: str | None = None,
        public_url: str | None = None,
        gateway_url: str | None = None,
    ) -> None:
        super().__init__()
        self.name = ids.check_name(name, "app name")
        self._offers = Offers()
        self.operations = Operations(self)
        self.pauses = Pauses(self)
        self.approvals = Approvals(self)
        self.rules = Rules(self)
        self.schedules = Schedules(self)
        self.versions = Versions(self)
        self._database_url = database_url
        self._store = store
        self._secret = secret
        self._public_url = public_url
        self._gateway_url = gateway_url
        self._opened = False
        self._tail: Tail | None = None
        self._submitter: Submitter | None = None

    @staticmethod
    def connect(
        url: str, *, api_key: str | None = None, patience: Duration = connecting.PATIENCE_S
    ) -> connecting.Client:
        """Answer an app that runs elsewhere, by its HTTP API: ``async with Outlast.connect(…) as app:``.

        url: where the API is, such as ``https://agents.example``. api_key: it says the tenant, the name and
        the roles by which everything is asked. patience: how long the service may be away, in a row, before a
        call gives up. The methods are those of an app in process, and so are what they answer and raise.
        """
        return connecting.Client(url, api_key=api_key, patience=patience)

    # -- opening --------------------------------------------------------------------------------------------

    @property
    def secret(self) -> str:
        """What callbacks and links are signed with; empty where none is set."""
        return Settings().secret.get_secret_value() if self._secret is None else self._secret

    @property
    def public_url(self) -> str | None:
        """Where the API is reached from outside, without a slash at the end; None where nobody said."""
        url = self._public_url or Settings().public_url
        return url.rstrip("/") or None

    @property
    def gateway_url(self) -> str | None:
        """Where the gateway is reached, without a slash at the end; None where nobody said."""
        url = self._gateway_url or Settings().gateway_url
        return url.rstrip("/") or None

    @property
    def store(self) -> Store:
        """The store; made on first use, opened by ``open``."""
        if self._store is None:
            self._store = store_for(self._database_url or Settings().database_url)
        return self._store

    async def open(self, *, migrate: bool = False) -> None:
        """Connect; an app that was closed can be opened again, in another event loop too.

        migrate: bring the schema up to date first (for development; use ``outlast migrate`` in production).

        Raises StoreUnavailable, SchemaOutdated, SchemaTooNew. Idempotent.
        """
        if self._opened:
            return
        if migrate:
            await self.store.migrate()
        await self.store.open()
        self._opened = True
        self._tail = Tail(self.store)
        self._submitter = Submitter(self.store, self._offers)

    async def close(self) -> None:
        """Release everything; what was in a database in memory is gone then. Idempotent."""
        if self._tail is not None:
            await self._tail.close()
        self._opened = False
        if self._store is not None:
            await self._store.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def worker(self, settings: WorkerSettings | None = None) -> Worker:
        """Make a worker of this app's agents; ``await worker.run()`` serves until ``worker.stop()``.

        Raises ConfigurationError when a tool goes through a gateway and nobody said where that is.
        """
        return Worker(
            self.registry,
            self.store,
            settings,
            callback=self.callback_place,
            gateway=self.gateway_place(),
            ended=self._told_end,
            offers=self._offers,
        )

    def gateway_place(self) -> GatewayPlace:
        """Answer the gateway that tools go through. Raises ConfigurationError when one of them does, and
        nobody said where it is."""
        gateway = GatewayPlace(url=self.gateway_url, sign=self._sign_pass)
        through = sorted(tool.name for tool in self.registry.tools.values() if tool.gateway)
        if through and gateway.url is None:
            raise ConfigurationError(
                f"tool {through[0]} goes through a gateway: say where it is with OUTLAST_GATEWAY_URL"
            )
        return gateway

    def _sign_pass(self, pass_: Pass) -> str:
        token = tokens.sign(self.secret, "gateway", pass_.parts())
        if len(token) > tokens.MAX_TOKEN:
            raise ConfigurationError("a token for so many hosts is too long to be sent; name fewer")
        return token

    def callback_place(self, tenant: str, task: str, key: str, signed: bool) -> CallbackPlace:
        """Answer where a callback of a task's operation is answered. Raises ConfigurationError without a
        secret."""
        token, url = posting.callback_token(self.secret, tenant, task, key, signed=signed), self.public_url
        return CallbackPlace(
            token=token,
            url=None if url is None else f"{url}/v1/callbacks/{token}",
            secret=posting.signing_secret(self.secret, token) if signed else None,
        )

    # -- the ledger alone -----------------------------------------------------------------------------------

    def ledger(
        self,
        scope: str,
        *,
        tenant: str = DEFAULT_TENANT,
        user: str | None = None,
        timeout: Duration = ENTER_S,
        wait: Duration = 0,
        final: bool = False,
        deadline: Duration | None = None,
        settings: WorkerSettings | None = None,
    ) -> Ledger:
        """Answer the ledger of a scope, for code that is no agent: ``async with app.ledger("order-7") as
        ledger: await ledger.call(tool, …)``.

        scope: names the piece of work (1 to 255 characters); the same scope entered again answers the calls
        that it has finished. timeout: how long entering waits while somebody else is in it. wait: how long
        its calls wait for people, settlements and switches before they raise. final: to leave the block
        without an error ends the scope as succeeded. user: on whose behalf it calls; deadline: how long after
        its first entry it must be closed; both count where the scope is new. settings: lengths of lease and
        grace time.

        Entering raises ScopeBusy, TaskCancelled, TaskEnded (it failed, such as by its deadline), InvalidKey,
        StoreUnavailable.
        """
        return Ledger(
            self,
            scope,
            tenant=tenant,
            user=user,
            timeout=timeout,
            wait=wait,
            final=final,
            deadline=deadline,
            settings=settings,
        )

    def check_open(self) -> None:
        """Raise ConfigurationError unless this app is open."""
        self._ready()

    # -- tasks ----------------------------------------------------------------------------------------------

    async def submit(
        self,
        agent: Callable[..., Any] | str,
        input: Any = None,
        *,
        key: str | None = None,
        tenant: str = DEFAULT_TENANT,
        user: str | None = None,
        pool: str | None = None,
        priority: int = 0,
        deadline: Duration | None = None,
        run_at: datetime | None = None,
        version: str | None = None,
        budget: Mapping[str, Any] | None = None,
        connection: Any = None,
        trace: str | None = None,
    ) -> TaskHandle:
        """Accept a task; when this returns, it is stored.

        agent: the decorated function or its name. input: its parameters by name. key: idempotency key (1 to
        255 characters); the same key with the same request answers the first task. budget: bounds on what it
        may spend: ``operations``, ``tokens``, ``cost``, and ``depth`` of children. connection: an asyncpg or
        apsw connection in a transaction of the caller's; the task then commits with it, or not at all.

        Raises InvalidInput and its family, AgentNotFound, IdempotencyConflict, Busy, StoreUnavailable.
        Atomic; idempotent by key.
        """
        request = Request(
            agent=agent if isinstance(agent, str) else self.registry.name_of(agent),
            input=input,
            key=key,
            tenant=tenant,
            user=user,
            pool=pool,
            priority=priority,
            deadline=deadline,
            run_at=run_at,
            version=version,
            trace=trace,
            budget=budget,
        )
        submission = submission_for(self.registry, request)
        if connection is not None:
            (submitted,) = await self.store.submit([submission], connection=connection)
        else:
            submitted = await self._ready().one(submission)
        return self._handle(request, submitted)

    async def submit_many(self, requests: Sequence[Request]) -> Sequence[TaskHandle]:
        """Accept many tasks in few transactions; answer their handles in order.

        Every request is checked before anything is stored. Raises as ``submit`` does; a conflict of one
        request is raised after the others were stored. Atomic per thousand, or per 8 MiB of their inputs;
        idempotent by key.
        """
        submissions = [submission_for(self.registry, request) for request in requests]
        answers = await self._ready().many(submissions)
        return [self._handle(request, answer) for request, answer in zip(requests, answers, strict=True)]

    async def get(self, task: str, *, tenant: str = DEFAULT_TENANT) -> TaskView:
        """Read a task. Raises TaskNotFound, also for a task of another tenant."""
        rows = await self.store.read_tasks([TaskRef(tenant=tenant, task=task)])
        if not rows:
            raise _not_found(task, tenant)
        view = TaskView.of(rows[0])
        if (view.state, view.reason) == ("waiting", "operator"):
            return replace(view, detail=await changing.complaint(self.store, rows[0]))
        return view

    async def list(
        self,
        *,
        tenant: str = DEFAULT_TENANT,
        state: str | None = None,
        agent: str | None = None,
        parent: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[TaskView]:
        """List tasks, newest first, without their inputs and results; ``get`` has them. parent: its children
        only. before: the id to go on below."""
        query = TaskFilter(tenant=tenant, state=state, agent=agent, parent=parent, before=before, limit=limit)
        return [TaskView.of(row) for row in await self.store.list_tasks(query)]

    async def signal(
        self,
        task: str,
        name: str,
        data: Any = None,
        *,
        key: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Posted:
        """Send a task a signal; when this returns, it is stored, whether the task waits for it yet or not.

        key: the same key with the same data is stored once. Raises the InvalidRequest family, TaskNotFound,
        TaskEnded, SignalConflict (the key was used for other data), InboxFull, StoreUnavailable. Atomic;
        idempotent by key.
        """
        return await posting.signal(self.store, tenant, task, name, data, key)

    async def answer_callback(
        self, token: str, data: Any = None, *, message: str | None = None, signed: SignedBody | None = None
    ) -> Posted:
        """Answer a callback by its token; the same answer again changes nothing.

        message: the sender's id of what it sends; a repeat has the same one. Without, a repeat has the same
        data. signed: the body as it came and the headers that sign it (Standard Webhooks), where the callback
        asks for that.

        Raises InvalidToken, InvalidSignature, SignalConflict (it was answered otherwise), CallbackOver (its
        time is over by the database's clock, or another branch was first), TaskNotFound, TaskEnded, the
        InvalidRequest family.
        """
        return await posting.answer(self.store, self.secret, token, data, message, signed)

    async def cancel(
        self,
        task: str,
        *,
        reason: str = "",
        by: str = "app",
        undo: bool = False,
        tenant: str = DEFAULT_TENANT,
    ) -> CancelReply:
        """Cancel a task; what is answered agrees with how it ends.

        ``cancelled``: it has ended. ``requested``: it runs, no new call starts from now on, and it ends as
        cancelled as soon as what is under way has ended, within its worker's grace time. ``already``: it was
        cancelled before. by: who wants it, for the audit trail. undo: what it has done, and what tools can
        undo, is undone first, so that a task that has begun is ``requested`` whether it runs or waits. Raises
        TaskNotFound, and TaskEnded with the state for a task that ended otherwise. Idempotent.
        """
        return await posting.cancel(self.store, tenant, task, reason, by, undo=undo)

    async def attempts(self, task: str, *, tenant: str = DEFAULT_TENANT) -> Sequence[AttemptView]:
        """List a task's attempts, oldest first."""
        return [
            AttemptView.of(row) for row in await self.store.read_attempts(TaskRef(tenant=tenant, task=task))
        ]

    async def result(
        self, task: str, *, tenant: str = DEFAULT_TENANT, timeout: Duration | None = None
    ) -> Any:
        """Wait for a task's end and answer its result.

        timeout: how long to wait, for ever by default. A store that goes away meanwhile is waited for. Raises
        TaskNotFound, TaskFailed, TaskCancelled, TimeoutError, and StoreUnavailable where it is away from the
        start.
        """
        return await self._result(task, tenant, timeout)

    async def _result(self, task: str, tenant: str, timeout: Duration | None, *, new: bool = False) -> Any:
        """See ``result``. new: the task was accepted here a moment ago."""
        async with asyncio.timeout(_seconds(timeout)):
            end = await self._end(task, tenant, new=new)
        if end.state == "succeeded":
            result = None if end.result is None else values.decode(end.result)
            spec = self.registry.agents.get((end.agent, end.version))
            return result if spec is None else spec.signature.restore(result)
        error = {} if end.error is None else values.decode(end.error)
        if end.state == "cancelled":
            raise TaskCancelled(f"task {task} was cancelled: {error.get('message', '')}")
        raise TaskFailed(
            f"task {task} failed: {error.get('message', '')}", failure_code=error.get("code", "task_failed")
        )

    async def wait(
        self, task: str, *, tenant: str = DEFAULT_TENANT, timeout: Duration | None = None
    ) -> TaskView:
        """Wait for a task's end and answer the task as it stands then. Raises TaskNotFound, TimeoutError,
        StoreUnavailable.

        Where its next round has begun in the very moment of its end, it is that one's end that is waited for.
        """
        async with asyncio.timeout(_seconds(timeout)):
            while True:
                await self._end(task, tenant)
                view = await self.get(task, tenant=tenant)
                if view.ended_at is not None:
                    return view

    async def retry(
        self,
        task: str,
        *,
        reason: str,
        by: str = "app",
        deadline: Duration | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> int:
        """Try a failed or cancelled task again in its next round; answers the round's number.

        The journal stands: what succeeded is not done again, failed operations that may be made again are,
        under the same id and key. deadline: how long the round may take, by default as its agent declares.
        Raises TaskNotFound, TaskNotEnded, EffectsUndone. Atomic; audited.
        """
        return await changing.retry(self, tenant, task, reason, by, deadline)

    async def fork(
        self,
        task: str,
        *,
        before: str | None = None,
        reason: str,
        by: str = "app",
        input: Mapping[str, Any] | None = None,
        version: str | None = None,
        key: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> TaskHandle:
        """Make a new task from a prefix of a task's journal.

        before: key of the operation from which on the fork goes its own way; None copies all that has ended.
        input: another input for it. version: another version of its agent. Calls that the task has made
        behind that point are taken over with the keys that were sent, as unknown: evidence says what they
        have done, and the fork does not act twice. key: asked again with the same one, the first fork is
        answered, as by ``submit``; without one each call makes another. Raises TaskNotFound,
        OperationNotFound, UnsettledPrefix, IdempotencyConflict. Atomic; audited.
        """
        new, replayed = await changing.fork(self, tenant, task, before, reason, by, input, version, key)
        return TaskHandle(self, tenant, new, replayed=replayed)

    async def wake(self, task: str, *, reason: str, by: str = "app", tenant: str = DEFAULT_TENANT) -> bool:
        """Let a task that waits for an operator try again; answers whether it waited so. Audited."""
        return await changing.wake(self, tenant, task, reason, by)

    async def accept(
        self,
        task: str,
        verdict: Literal["accepted", "rejected"] = "accepted",
        *,
        reason: str,
        by: str = "app",
        evidence: Any = None,
        seen: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> AcceptanceView:
        """Judge the work of a task that succeeded; the last verdict stands.

        seen: how many verdicts were seen, so that two people cannot overwrite each other. Raises
        TaskNotFound, TaskNotEnded, AcceptanceConflict. Compare-and-set; audited.
        """
        return await changing.accept(self, tenant, task, verdict, reason, by, evidence, seen)

    async def acceptances(self, task: str, *, tenant: str = DEFAULT_TENANT) -> Sequence[AcceptanceView]:
        """List the verdicts on a task's work, oldest first."""
        return await changing.acceptances(self, tenant, task)

    async def outside(
        self,
        provider: str,
        session: str,
        *,
        event_id: str,
        run: str = "",
        data: Any = None,
        tenant: str = DEFAULT_TENANT,
    ) -> OutsidePosted:
        """Bring an event of an outside session, or of one of its runs, to the task that holds it, as signal
        ``outside:<provider>``; when this returns, it is stored.

        event_id: the provider's own id of it, whichever way it came; the same one is stored once. Raises the
        InvalidRequest family, NotFound when no task holds the session, TaskEnded, SignalConflict (that event
        came with other data), InboxFull. Atomic; idempotent.
        """
        return await changing.outside(self.store, tenant, provider, session, run, event_id, data)

    async def events(
        self, task: str, *, tenant: str = DEFAULT_TENANT, after: int = 0
    ) -> AsyncIterator[EventView]:
        """Follow a task's events above ``after`` until its end; first what is kept, then what comes.

        A task that is tried again goes on: the end of a round is the end of the stream only while no other
        round was opened. Raises TaskNotFound. Ends at once when nothing above ``after`` is kept of a task
        that has ended.
        """
        view = await self.get(task, tenant=tenant)
        ended = view.ended_at is not None
        if ended and after >= view.last_event:
            return
        follow = self._following().follow
        async with aclosing(follow(tenant, task, after, ended=ended, beyond=after > view.last_event)) as rows:
            async for row in rows:
                yield EventView.of(row)

    async def stored_events(
        self, task: str, *, tenant: str = DEFAULT_TENANT, after: int = 0, limit: int = 500
    ) -> Sequence[EventView]:
        """Read a page of a task's kept events above ``after``: at most ``limit``, and fewer where they are
        large. A page is empty where nothing more is kept."""
        cursor = EventCursor(tenant=tenant, task=task, after=after)
        rows = await self.store.read_events([cursor], limit, room=EVENTS_ROOM)
        return [EventView.of(row) for row in rows]

    # -- inside ---------------------------------------------------------------------------------------------

    def _ready(self) -> Submitter:
        if self._submitter is None or not self._opened:
            raise ConfigurationError(
                f"app {self.name} is not open: use 'async with app:' or 'await app.open()'"
            )
        return self._submitter

    def _following(self) -> Tail:
        if self._tail is None or not self._opened:
            raise ConfigurationError(
                f"app {self.name} is not open: use 'async with app:' or 'await app.open()'"
            )
        return self._tail

    def _told_end(self, end: EndRow) -> None:
        """Take in a success that a worker of this app has just brought to disk."""
        if self._tail is not None:
            self._tail.told(end)

    async def _end(self, task: str, tenant: str, *, new: bool = False) -> EndRow:
        """Wait for a task's end. Raises TaskNotFound."""
        end = await self._following().end(tenant, task, new=new)
        if end is None:
            raise _not_found(task, tenant)
        return end

    def _handle(self, request: Request, submitted: Submitted) -> TaskHandle:
        if submitted.kind == "conflict":
            raise IdempotencyConflict(
                f"idempotency key {request.key!r} was used for another request, by task {submitted.task}"
            )
        if submitted.kind == "busy":
            raise Busy(
                f"a request with idempotency key {request.key!r} is being stored at this moment; try again"
            )
        return TaskHandle(self, request.tenant, submitted.task, replayed=submitted.kind == "replayed")


def _not_found(task: str, tenant: str) -> TaskNotFound:
    return TaskNotFound(f"no task {task} in tenant {tenant}")


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else microseconds(timeout, what="timeout", zero=True) / 1_000_000
