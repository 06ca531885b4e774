"""``Client``: tasks of an app that runs elsewhere, submitted and followed over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final, Literal, Self

from outlast.changing import AcceptanceView
from outlast.connecting.desks import Approvals, Operations, Pauses, Rules, Schedules, Versions
from outlast.connecting.reading import view
from outlast.connecting.wire import Wire
from outlast.connecting.writing import content, key_header, part, seconds, task_path
from outlast.core import ids
from outlast.core.durations import Duration, microseconds
from outlast.core.webhooks import SignedBody
from outlast.entrances import guarded
from outlast.errors import InvalidRequest, TaskCancelled, TaskFailed
from outlast.store.changing import OutsidePosted
from outlast.store.posting import CancelReply, Posted
from outlast.store.records import TaskRef
from outlast.submitting import DEFAULT_TENANT, Request
from outlast.views import AttemptView, EventView, TaskView

HOLD_S: Final = 20
"""How long the service holds an answer that a caller waits for; then it is asked again."""
TOGETHER: Final = 16
"""Requests of ``submit_many`` that are under way at a time."""
NO_VALUES: Final[dict[str, Any]] = {"input": None, "result": None}
"""What lists of tasks leave out."""
PATIENCE_S: Final = 60.0


@guarded()
class ClientTask:
    """A submitted task."""

    def __init__(self, client: Client, task: str, *, tenant: str, replayed: bool) -> None:
        self._client = client
        self.id = task
        self.tenant = tenant
        self.replayed = replayed
        """Whether this is an earlier task of the same key and request."""

    def __repr__(self) -> str:
        return f"ClientTask({self.id!r}, tenant={self.tenant!r})"

    async def get(self) -> TaskView:
        """Read the task as it stands."""
        return await self._client.get(self.id)

    async def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the task's end; see ``Client.result``."""
        return await self._client.result(self.id, timeout=timeout)

    async def signal(self, name: str, data: Any = None, *, key: str | None = None) -> Posted:
        """Send the task a signal; see ``Client.signal``."""
        return await self._client.signal(self.id, name, data, key=key)

    async def cancel(self, reason: str = "", *, undo: bool = False) -> CancelReply:
        """Cancel the task; see ``Client.cancel``."""
        return await self._client.cancel(self.id, reason=reason, undo=undo)

    def events(self, after: int = 0) -> AsyncIterator[EventView]:
        """Follow the task's stream; see ``Client.events``."""
        return self._client.events(self.id, after=after)


@guarded()
class Client:
    """An app that runs elsewhere, by its HTTP API; see ``outlast.connecting``.

    url: where the API is, without ``/v1``. api_key: whose tenant, name and roles count. patience: how long
    the service may be away, in a row, before a call gives up.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        patience: Duration = PATIENCE_S,
    ) -> None:
        patience_s = microseconds(patience, what="patience", zero=True) / 1_000_000
        self._wire = Wire(url, api_key, patience_s)
        self.operations = Operations(self._wire)
        self.approvals = Approvals(self._wire)
        self.rules = Rules(self._wire)
        self.pauses = Pauses(self._wire)
        self.schedules = Schedules(self._wire)
        self.versions = Versions(self._wire)

    def __repr__(self) -> str:
        return f"Client({self._wire.url!r})"

    async def open(self) -> None:
        """Be ready to ask; sends nothing. Idempotent."""
        await self._wire.open()

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        await self._wire.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def submit(
        self,
        agent: str,
        input: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        user: str | None = None,
        pool: str | None = None,
        priority: int = 0,
        deadline: Duration | None = None,
        run_at: datetime | None = None,
        version: str | None = None,
        trace: str | None = None,
        budget: Mapping[str, Any] | None = None,
    ) -> ClientTask:
        """Accept a task; when this returns, it is stored. As ``Outlast.submit``, by the agent's name.

        key: idempotency key, without characters outside ASCII; one is made where none is given, so that what
        is sent twice because an answer was lost is one task. Raises the InvalidRequest family, AgentNotFound,
        IdempotencyConflict, NotAllowed, Unavailable. Atomic; idempotent by key.
        """
        body = {
            "agent": agent,
            "input": None if input is None else dict(input),
            "user": user,
            "pool": pool,
            "priority": priority,
            "deadline": seconds(deadline, "deadline"),
            "run_at": None if run_at is None else run_at.isoformat(),
            "version": version,
            "budget": budget,
        }
        headers = key_header(key)
        if trace is not None:
            headers["traceparent"] = trace
        answer = await self._wire.ask("POST", "/v1/tasks", body=body, headers=headers, again=True)
        replayed = key is not None and answer.headers.get("idempotent-replayed") == "true"
        return ClientTask(self, answer.body["id"], tenant=answer.body["tenant"], replayed=replayed)

    async def submit_many(self, requests: Sequence[Request]) -> Sequence[ClientTask]:
        """Accept many tasks, some at a time; answer their handles in order.

        Raises as ``submit`` does, after the others were stored: unlike in process, nothing is checked before.
        """
        turns = asyncio.Semaphore(TOGETHER)

        async def one(request: Request) -> ClientTask:
            if request.tenant != DEFAULT_TENANT:
                raise InvalidRequest("the key says of which tenant a task is")
            async with turns:
                return await self.submit(
                    request.agent,
                    request.input,
                    key=request.key,
                    user=request.user,
                    pool=request.pool,
                    priority=request.priority,
                    deadline=request.deadline,
                    run_at=request.run_at,
                    version=request.version,
                    trace=request.trace,
                    budget=request.budget,
                )

        answers = await asyncio.gather(*map(one, requests), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if isinstance(answer, ClientTask)]

    async def get(self, task: str) -> TaskView:
        """Read a task. Raises TaskNotFound, also for a task of another tenant."""
        return view(TaskView, await self._wire.get(task_path(task)))

    async def list(
        self,
        *,
        state: str | None = None,
        agent: str | None = None,
        parent: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[TaskView]:
        """List tasks, newest first, at most 200; without their inputs and results."""
        page = await self._wire.get(
            "/v1/tasks", state=state, agent=agent, parent=parent, before=before, limit=limit
        )
        return [view(TaskView, body, **NO_VALUES) for body in page["items"]]

    async def wait(self, task: str, *, timeout: Duration | None = None) -> TaskView:
        """Wait for a task's end and answer the task as it stands then. Raises TaskNotFound, TimeoutError,
        Unavailable."""
        timeout_s = None if timeout is None else microseconds(timeout, what="timeout", zero=True) / 1_000_000
        async with asyncio.timeout(timeout_s):
            while True:
                found = view(TaskView, await self._wire.get(task_path(task), wait=HOLD_S))
                if found.ended_at is not None:
                    return found

    async def result(self, task: str, *, timeout: Duration | None = None) -> Any:
        """Wait for a task's end and answer its result, as plain values.

        timeout: how long to wait, for ever by default. Raises TaskNotFound, TaskFailed, TaskCancelled,
        TimeoutError, Unavailable.
        """
        found = await self.wait(task, timeout=timeout)
        if found.state == "succeeded":
            return found.result
        error = found.error or {}
        if found.state == "cancelled":
            raise TaskCancelled(f"task {task} was cancelled: {error.get('message', '')}")
        raise TaskFailed(
            f"task {task} failed: {error.get('message', '')}", failure_code=error.get("code", "task_failed")
        )

    async def events(self, task: str, *, after: int = 0) -> AsyncIterator[EventView]:
        """Follow a task's events above ``after`` until its end: first what is kept, then what comes.

        A stream that breaks goes on behind the last number, without gap or repeat. Raises TaskNotFound,
        Unavailable.
        """
        async with aclosing(self._wire.events(f"{task_path(task)}/events", after)) as bodies:
            async for body in bodies:
                yield view(EventView, body)

    async def stored_events(self, task: str, *, after: int = 0, limit: int = 500) -> Sequence[EventView]:
        """Read a page of a task's kept events above ``after``: at most ``limit``, which is up to 1,000, and
        fewer where they are large. A page is empty where nothing more is kept. Raises TaskNotFound."""
        page = await self._wire.get(f"{task_path(task)}/events", after=after, limit=limit)
        return [view(EventView, body) for body in page["items"]]

    async def attempts(self, task: str) -> Sequence[AttemptView]:
        """List a task's attempts, oldest first. Raises TaskNotFound."""
        return [
            view(AttemptView, body) for body in (await self._wire.get(f"{task_path(task)}/attempts"))["items"]
        ]

    async def signal(self, task: str, name: str, data: Any = None, *, key: str | None = None) -> Posted:
        """Send a task a signal; when this returns, it is stored, whether the task waits for it yet or not.

        key: the same key with the same data is stored once; without one a key is made, so that what is sent
        twice because an answer was lost is one signal. Raises the InvalidRequest family, TaskNotFound,
        TaskEnded, SignalConflict, InboxFull, NotAllowed, Unavailable. Atomic; idempotent by key.
        """
        headers = key_header(key)
        path = f"{task_path(task)}/signals/{ids.check_name(name, 'signal name')}"
        answer = await self._wire.ask(
            "POST", path, content=content(data, "the data"), headers=headers, again=True
        )
        repeated = key is not None and answer.headers.get("idempotent-replayed") == "true"
        return Posted(kind="replayed" if repeated else "accepted", number=answer.body["number"])

    async def answer_callback(
        self, token: str, data: Any = None, *, message: str | None = None, signed: SignedBody | None = None
    ) -> Posted:
        """Answer a callback by its token; the same answer again changes nothing. Its number is not told.

        message: the sender's id of what it sends. signed: the body and the headers that sign it. Raises
        InvalidToken, InvalidSignature, Conflict (it was answered otherwise), CallbackOver, TaskEnded,
        Unavailable.
        """
        headers = {} if message is None else {"webhook-id": message}
        sent = content(data, "the answer") if signed is None else signed.body
        if signed is not None:
            headers = {
                "webhook-id": signed.id,
                "webhook-timestamp": signed.timestamp,
                "webhook-signature": signed.signature,
            }
        answer = await self._wire.ask(
            "POST", f"/v1/callbacks/{part(token)}", content=sent, headers=headers, again=True
        )
        return Posted(kind="replayed" if answer.body["status"] == "repeated" else "accepted")

    async def cancel(self, task: str, *, reason: str = "", undo: bool = False) -> CancelReply:
        """Cancel a task; what is answered agrees with how it ends, as ``Outlast.cancel`` says.

        Raises TaskNotFound, NotAllowed, Unavailable, and TaskEnded with the state for a task that ended
        otherwise. Idempotent.
        """
        body = {"reason": reason, "undo": undo}
        answer = await self._wire.ask("POST", f"{task_path(task)}/cancel", body=body, again=True)
        state = answer.body["state"]
        if answer.status == 202:
            return CancelReply(kind="requested", state=state)
        repeated = answer.headers.get("idempotent-replayed") == "true"
        return CancelReply(kind="already" if repeated else "cancelled", state=state)

    async def retry(self, task: str, *, reason: str, deadline: Duration | None = None) -> int:
        """Try a failed or cancelled task again in its next round; answers the round's number.

        Raises TaskNotFound, TaskNotEnded, EffectsUndone, NotAllowed, Unavailable. Not repeated by itself.
        """
        body = {"reason": reason, "deadline": seconds(deadline, "deadline")}
        return int(
            (await self._wire.ask("POST", f"{task_path(task)}/retry", body=body, again=False)).body["round"]
        )

    async def fork(
        self,
        task: str,
        *,
        before: str | None = None,
        reason: str,
        input: Mapping[str, Any] | None = None,
        version: str | None = None,
        key: str | None = None,
    ) -> ClientTask:
        """Make a new task from a prefix of a task's journal, as ``Outlast.fork`` says.

        key: idempotency key, without characters outside ASCII; one is made where none is given, so that what
        is sent twice because an answer was lost is one fork. Raises TaskNotFound, OperationNotFound,
        UnsettledPrefix, IdempotencyConflict, NotAllowed, Unavailable. Atomic; idempotent by key.
        """
        given = None if input is None else dict(input)
        body = {"before": before, "reason": reason, "input": given, "version": version}
        answer = await self._wire.ask(
            "POST", f"{task_path(task)}/fork", body=body, headers=key_header(key), again=True
        )
        replayed = key is not None and answer.headers.get("idempotent-replayed") == "true"
        return ClientTask(self, answer.body["id"], tenant=answer.body["tenant"], replayed=replayed)

    async def wake(self, task: str, *, reason: str) -> bool:
        """Let a task that waits for an operator try again; answers whether it waited so."""
        answer = await self._wire.ask("POST", f"{task_path(task)}/wake", body={"reason": reason}, again=False)
        return answer.status == 202

    async def accept(
        self,
        task: str,
        verdict: Literal["accepted", "rejected"] = "accepted",
        *,
        reason: str,
        evidence: Any = None,
        seen: int | None = None,
    ) -> AcceptanceView:
        """Judge the work of a task that succeeded; the last verdict stands.

        seen: how many verdicts were seen. Raises TaskNotFound, TaskNotEnded, AcceptanceConflict, NotAllowed,
        Unavailable. Not repeated by itself.
        """
        body = {"verdict": verdict, "reason": reason, "evidence": evidence, "seen": seen}
        answer = await self._wire.ask("POST", f"{task_path(task)}/acceptance", body=body, again=False)
        return view(AcceptanceView, answer.body)

    async def acceptances(self, task: str) -> Sequence[AcceptanceView]:
        """List the verdicts on a task's work, oldest first. Raises TaskNotFound."""
        page = await self._wire.get(f"{task_path(task)}/acceptance")
        return [view(AcceptanceView, body) for body in page["items"]]

    async def outside(
        self, provider: str, session: str, *, event_id: str, run: str = "", data: Any = None
    ) -> OutsidePosted:
        """Bring an event of an outside session to the task that holds it, as ``Outlast.outside`` says.

        Raises the InvalidRequest family, NotFound, TaskEnded, SignalConflict, InboxFull, Unavailable.
        Idempotent by the event's id.
        """
        body = {"event": event_id, "run": run or None, "data": data}
        path = f"/v1/outside/{ids.check_name(provider, 'provider')}/{part(session)}/events"
        answer = await self._wire.ask("POST", path, body=body, again=True)
        # The service says no tenant here: it is the key's.
        task = TaskRef(tenant="", task=answer.body["task"])
        return OutsidePosted(kind="replayed" if answer.status == 200 else "accepted", task=task)
