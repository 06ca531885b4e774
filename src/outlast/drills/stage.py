"""The stage on which windows are played: processes, the ticket service, the store, and notes of all."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from outlast.app import Outlast
from outlast.drills import looking
from outlast.drills.demo_app import (
    ASKS,
    ATTACHES,
    CALM,
    EFFECT,
    TICKETS_URL,
    TIMEOUT,
    TIMEOUT_S,
    WANTED,
    DemoEffect,
)
from outlast.drills.fleet import Fleet, Process
from outlast.drills.timeline import Line, merged, of_call, of_event, of_evidence
from outlast.store.posting import CancelReply
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.probes import Trigger
from outlast.testing.recorder import Call, Recorder
from outlast.views import ApprovalView, OperationView, QueueView, TaskView

__all__ = ["Check", "Played", "Seen", "Stage"]

T = TypeVar("T")
PATIENCE_S = 20.0
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that a window promises, and what was seen of it."""

    what: str
    expected: Any
    seen: Any

    @property
    def holds(self) -> bool:
        """Whether it was kept."""
        return bool(self.expected == self.seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a window left behind.

    checks: those of its own, on top of what all windows promise. end: of its task. also: other tasks of the
    window, which make no ticket.
    """

    task: str
    most_posts: int = 1
    end: str = "succeeded"
    also: Sequence[str] = ()
    checks: Sequence[Check] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A window as the ticket service, the store and the drill saw it."""

    tickets: int
    posts: int
    task_state: str
    attempts: int
    checks: Sequence[Check]
    lines: Sequence[Line]


@dataclass(slots=True)
class Stage:
    """Everything that a window plays with.

    effect: what the tool is declared as. invoice: what the window's ticket is about. environ: what the
    processes need to find the store and the ticket service. tell: shows the latest step. accepted: tenant and
    task of everything that was acknowledged, in this window and before.
    """

    fleet: Fleet
    recorder: Recorder
    app: Outlast
    effect: DemoEffect
    invoice: str
    window: str
    environ: dict[str, str]
    tell: Callable[[str], None]
    accepted: set[tuple[str, str]]
    lines: list[Line] = field(default_factory=list)
    first_call: int = 0

    # -- what windows do -------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The idempotency key that the window's task is submitted under."""
        return f"{self.invoice}-{self.window}"

    def operation(self, task: str) -> str:
        """Answer the id of a task's tool call, which is the key that it is sent under."""
        return f"{task}:create_ticket#1"

    async def begin(self) -> None:
        """Begin the window: an honest ticket service of its kind, and nothing noted yet."""
        await self.recorder.plan(instead=True)
        await self.recorder.configure(dedupe=self.effect == "keyed")
        calls = await self.recorder.log()
        self.first_call = calls[-1].number if calls else 0
        self.lines = []

    def note(self, who: str, what: str, *, at: float | None = None, tone: str = "") -> None:
        """Note what the drill itself did or saw."""
        self.lines.append(Line(at=time.time() if at is None else at, who=who, what=what, tone=tone))
        self.tell(f"{who}: {what}")

    async def worker(
        self,
        name: str,
        *probe: Trigger,
        timeout_s: float = TIMEOUT_S,
        calm: bool = False,
        asks: bool = False,
        wanted: str = "",
        attaches: bool = False,
    ) -> Process:
        """Start a worker process and wait until it serves.

        timeout_s: of one call to the ticket service. calm: write nothing but the task at hand for a while; on
        SQLite a process that is frozen inside a transaction stops every other writer of the file. asks:
        whether the supervisor is asked. wanted: the amount that its agent wants instead of the invoice's.
        attaches: whether its agent attaches the invoice to the ticket, and undoes when it fails.
        """
        process = self.fleet.start(
            name,
            "outlast.drills.demo_worker",
            name,
            self.window,
            probe=probe,
            environ={
                **self.environ,
                TIMEOUT: str(timeout_s),
                CALM: "1" if calm else "",
                ASKS: "1" if asks else "",
                WANTED: wanted,
                ATTACHES: "1" if attaches else "",
            },
        )
        ready = await process.says("ready")
        self.note(name, f"serves, process {process.pid}", at=ready.at)
        return process

    async def client(self, name: str, key: str) -> Process:
        """Start a process that submits the task when it is told to."""
        process = self.fleet.start(
            name, "outlast.drills.demo_client", key, self.window, self.invoice, environ=self.environ
        )
        await process.says("ready")
        return process

    async def submit(self, *, run: int = 1) -> str:
        """Submit the window's task from here; answer its id. run: which one, where there are several."""
        key = self.key if run == 1 else f"{self.key}-{run}"
        handle = await self.app.submit("reimburse", {"invoice": self.invoice}, key=key, pool=self.window)
        self.accepted.add((DEFAULT_TENANT, handle.id))
        self.note("client", f"202, task {handle.id} is stored")
        return handle.id

    async def killed(self, process: Process, point: str) -> Check:
        """Wait for a process's death at a named point; answer the check that it was one."""
        await process.says(point)
        await process.exited()
        self.note(process.name, f"dies: {process.ending} at {point}", at=process.ended_at, tone="bad")
        return Check(what=f"how {process.name} ended", expected="SIGKILL", seen=process.ending)

    async def frozen(self, process: Process, point: str) -> None:
        """Wait until a process stands still at a named point."""
        said = await process.says(point)
        await process.stopped()
        self.note(process.name, f"freezes: SIGSTOP at {point}", at=said.at, tone="bad")

    async def ended(self, task: str) -> None:
        """Wait until a task has ended. Raises TimeoutError."""
        self.tell("waiting for the task's end")
        await self.app.wait(task, timeout=PATIENCE_S)

    async def ends(self, task: str) -> list[str]:
        """Answer how the task's attempts ended, in order."""
        return [attempt.end or "running" for attempt in await self.app.attempts(task)]

    # -- people ----------------------------------------------------------------------------------------------

    async def asked(self, task: str) -> ApprovalView:
        """Wait until the supervisor is asked about a task's call, and show what is asked."""
        self.tell("waiting for the question")

        async def look() -> ApprovalView | None:
            return next(iter(await self.app.approvals.list(task=task)), None)

        approval = await self._until(look, "nobody was asked")
        shown = approval.shown["arguments"]
        what = f"is shown {approval.name}: {shown['invoice']}, {shown['amount']}"
        self.note("supervisor", f"{what} ({approval.reason})")
        return approval

    async def decided(
        self, approval: ApprovalView, verdict: Literal["approve", "reject"], reason: str
    ) -> None:
        """Be the supervisor, and decide on exactly what was shown."""
        self.note("supervisor", f"says: {reason}", tone="good" if verdict == "approve" else "bad")
        await self.app.approvals.decide(
            approval.id, verdict, fingerprint=approval.fingerprint, by="supervisor", reason=reason
        )

    async def cancelled(self, task: str, reason: str) -> CancelReply:
        """Be the employee, and cancel a task."""
        reply = await self.app.cancel(task, reason=reason, by="employee")
        self.note("client", f"cancels: {reason}; answered {reply.kind}", tone="bad")
        return reply

    async def settled(self, task: str) -> OperationView:
        """Wait until a task's call is settled."""
        self.tell("waiting for the settlement")

        async def look() -> OperationView | None:
            view, _ = await self.app.operations.show(self.operation(task))
            return None if view.settled_by is None else view

        return await self._until(look, "its call was never settled")

    # -- what is unknown -------------------------------------------------------------------------------------

    async def unknown(self, task: str) -> None:
        """Wait until a task waits for its call to be settled, and it is not asked about at this moment."""
        place = await self._queued(task, lambda place: place.asked > 0 or place.needs_person)
        self.note("queue", f"create_ticket waits as unknown: {place.why}", tone="bad")

    async def person(self, task: str) -> None:
        """Wait until a task's call needs a person, and be that person: look at the tickets, and say.

        People are slow: the task has given up its worker by then.
        """
        place = await self._queued(task, lambda place: place.needs_person)

        async def waits() -> bool | None:
            return (await self.app.get(task)).state == "waiting" or None

        await self._until(waits, "the task never gave up its worker")
        self.note("queue", f"create_ticket waits as unknown for a person: {place.why}", tone="bad")
        (ticket,) = [one for one in await self.recorder.tickets() if one["invoice"] == self.invoice]
        self.note("person", f"looks at the tickets of {self.invoice} and finds {ticket['id']}")
        await self.app.operations.settle(
            self.operation(task),
            "happened",
            reason=f"{ticket['id']} is on the ticket service's list",
            by="demo",
            result=ticket,
        )

    async def settled_by(self, task: str) -> str | None:
        """Answer who settled a task's call."""
        view, _ = await self.app.operations.show(self.operation(task))
        return view.settled_by

    async def _queued(self, task: str, fits: Callable[[QueueView], bool]) -> QueueView:
        self.tell("waiting for the reconciliation queue")

        async def look() -> QueueView | None:
            (place,) = await self.app.operations.places([self.operation(task)])
            return place if place is not None and fits(place) else None

        return await self._until(look, "its call never waited to be settled like that")

    async def _until(self, look: Callable[[], Awaitable[T | None]], otherwise: str) -> T:
        return await looking.until(look, otherwise, patience_s=PATIENCE_S, every_s=_LOOK_S)

    # -- what is seen of it ----------------------------------------------------------------------------------

    async def calls(self) -> list[Call]:
        """Answer the ticket service's log of this window."""
        return await self.recorder.log(after=self.first_call)

    async def seen(self, played: Played) -> Seen:
        """Judge the window by the ticket service's log, and the task by the store."""
        calls = await self.calls()
        posts = [call for call in calls if _creates(call)]
        made = [call for call in posts if call.effect == "created"]
        task = await self.app.get(played.task)
        key = self.operation(played.task)
        checks = [
            Check(what="tickets made", expected=1, seen=len(made)),
            Check(
                what=f"POSTs, at most {played.most_posts}",
                expected=True,
                seen=1 <= len(posts) <= played.most_posts,
            ),
            Check(what="keys of the POSTs", expected={key}, seen={call.key for call in posts}),
            Check(what="the task's end", expected=played.end, seen=task.state),
            *played.checks,
        ]
        if played.end == "succeeded":
            got = [call.ticket for call in made]
            checks.append(Check(what="the ticket that the agent got", expected=got, seen=[_ticket(task)]))
        return Seen(
            tickets=len(made),
            posts=len(posts),
            task_state=task.state,
            attempts=task.attempts,
            checks=checks,
            lines=await self._told(played.task, calls, also=played.also),
        )

    async def partly_seen(self, problem: str) -> Seen:
        """Answer what can be said of a window that did not get to its end."""
        calls = await self.calls()
        posts = [call for call in calls if _creates(call)]
        tasks = [task for task in await self.app.list() if task.key == self.key]
        lines = [line for task in tasks for line in await self._told(task.id, [])]
        return Seen(
            tickets=sum(call.effect == "created" for call in posts),
            posts=len(posts),
            task_state=tasks[0].state if tasks else "none",
            attempts=tasks[0].attempts if tasks else 0,
            checks=[Check(what="the window", expected="played to its end", seen=problem)],
            lines=merged([*lines, *(line for call in calls for line in of_call(call))]),
        )

    async def _told(self, task: str, calls: Sequence[Call], *, also: Sequence[str] = ()) -> list[Line]:
        skew_s = (await self.app.store.health()).now / 1_000_000 - time.time()
        # The clocks of one machine are one; the difference is only what asking took.
        skew_s = 0.0 if abs(skew_s) < 0.25 else skew_s
        lines = list(self.lines)
        for number, one in enumerate((task, *also), 1):
            lines += [
                of_event(event, skew_s, who="task" if number == 1 else f"task {number}")
                for event in await self.app.stored_events(one)
                # Said once more by the task's own event right after it.
                if event.kind not in ("attempt.succeeded", "attempt.failed", "attempt.cancelled")
            ]
        lines += [line for call in calls for line in of_call(call)]
        for operation in await self.app.operations.list(task=task):
            _, evidence = await self.app.operations.show(operation.id)
            lines += [of_evidence(one, skew_s) for one in evidence]
        return merged(lines)


def _creates(call: Call) -> bool:
    """Whether a call is to make a ticket; withdrawing one is a POST as well."""
    return call.method == "POST" and call.path == "/tickets"


def _ticket(task: TaskView) -> Any:
    return task.result.get("ticket") if isinstance(task.result, dict) else None


def environ_of(database_url: str, tickets_url: str, effect: DemoEffect) -> dict[str, str]:
    """Answer the variables by which the demo's processes find the store and the ticket service."""
    return {"OUTLAST_DATABASE_URL": database_url, TICKETS_URL: tickets_url, EFFECT: effect}
