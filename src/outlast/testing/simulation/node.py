"""What one node has of its own: clocks, randomness, a way to the store, and ears for hints.

Purpose: several processes on one database, in one thread. The database is one inline SQLite in memory, with
real SQL; each node reaches it through a ``NodeStore``.

Clock: a node's clocks run with the world's; its wall clock can be stepped. What the database's clock says is
the world's to say: verbs run in the world's context, not in the caller's.

Failure by failure: a verb has an await before and one after it, so that a crash can fall before the commit or
between the commit and its answer. It can be refused, applied and its answer lost, or applied only after its
caller was told that the connection broke.

Not covered: two transactions under way at once, since SQLite does one after the other; what can only go wrong
between the two is for tests on PostgreSQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import replace
from functools import cached_property
from random import Random
from typing import Any, Protocol, TypeVar

from outlast.errors import StoreUnavailable
from outlast.store.approving import (
    ApprovalFilter,
    ApprovalRow,
    Decided,
    Decision,
    Rule,
    Rules,
    VoteRow,
)
from outlast.store.changing import (
    Acceptance,
    AcceptanceRow,
    Accepted,
    Adopt,
    Adopted,
    Fork,
    Forked,
    OutsideEvent,
    OutsidePosted,
    OutsideRow,
    Retried,
    Retry,
    VersionRow,
)
from outlast.store.contract import Store, Wakes
from outlast.store.entries import Batch, CommitIntent, Flushed
from outlast.store.passing import Passage
from outlast.store.posting import (
    Cancel,
    CancelReply,
    Delivered,
    Heard,
    News,
    Posted,
    Signal,
)
from outlast.store.reconciling import (
    AuditRow,
    KeyHolder,
    OpenItem,
    OpenRequest,
    OpenState,
    Pause,
    Postponement,
    SettledCounts,
    UnknownCount,
)
from outlast.store.records import (
    Claimed,
    ClaimReply,
    ClaimRequest,
    Evidence,
    Held,
    InboxRow,
    Loaded,
    OperationRow,
    Renewed,
    SessionRenewal,
    Settled,
    Settlement,
    Submission,
    Submitted,
    SweepRequest,
    Swept,
    TaskRef,
)
from outlast.store.rows import (
    AttemptRow,
    EndRow,
    EventCursor,
    EventRow,
    EvidenceRow,
    Health,
    Message,
    OperationFilter,
    Publication,
    SessionRow,
    TaskFilter,
    TaskRow,
)
from outlast.store.scheduling import (
    DueRequest,
    DueSchedules,
    Fired,
    Firing,
    PutSchedule,
    SchedulePut,
    ScheduleRow,
    ScheduleSet,
    SetSchedule,
)
from outlast.testing.simulation.loop import SimulationLoop, give_way, resolve
from outlast.testing.simulation.weather import Weather

T = TypeVar("T")

EPOCH_US = 1_900_000_000_000_000
"""The database's clock at virtual second 0."""
_LATEST_S = 8.0
"""How long after its caller gave up a verb may still be carried out."""
_SLOWEST_S = 2.0
"""How long a slow verb is under way at most, and so its answer."""
_SILENCE_S = 20.0
"""How long a caller waits for an answer that will not come before its driver gives up."""


class NodeSeams:
    """Clocks and chance of one node; see ``outlast.clock.Seams``. step_us: how far its wall clock is off.

    random: makes its generator, when it is first needed: many nodes need none, and to make one takes time.
    """

    inline = True

    def __init__(self, loop: SimulationLoop, random: Callable[[], Random]) -> None:
        self._loop = loop
        self._make_random = random
        self.step_us = 0

    @cached_property
    def _random(self) -> Random:
        return self._make_random()

    def monotonic(self) -> float:
        return self._loop.time()

    def unix_us(self) -> int:
        return EPOCH_US + int(self._loop.time() * 1_000_000) + self.step_us

    def random_bits(self, bits: int) -> int:
        return self._random.getrandbits(bits)


class NodeWakes:
    """A node's ears for hints; see ``outlast.store.contract.Wakes``. The weather may take hints."""

    def __init__(self, weather: Weather, tell: Callable[[str], None]) -> None:
        self._weather = weather
        self._tell = tell
        self._heard: set[str] = set()
        self._waiting: dict[str, list[asyncio.Future[bool]]] = {}

    async def wait(self, topic: str, timeout: float) -> bool:
        if topic in self._heard:
            self._heard.discard(topic)
            return True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        waiting = self._waiting.setdefault(topic, [])
        waiting.append(future)
        timer = loop.call_later(timeout, resolve, future, False)
        try:
            return await future
        finally:
            timer.cancel()
            if future in waiting:
                waiting.remove(future)

    def hint(self, topic: str) -> None:
        self._tell(topic)

    def hear(self, topic: str) -> None:
        """Deliver a hint from somewhere in the world."""
        if self._weather.hint_lost():
            return
        waiting = self._waiting.pop(topic, None)
        if not waiting:
            self._heard.add(topic)
            return
        for future in waiting:
            resolve(future, True)


class Site(Protocol):
    """What a node's store needs of the world around it."""

    loop: SimulationLoop
    weather: Weather
    database: Store
    database_context: Context
    late: int
    """How many verbs, of which nobody waits for an answer, the database has still to come to."""
    caller: asyncio.Task[Any] | None
    """Who asked for the verb that the database carries out at this moment, None for whoever has gone."""

    def expect(self, seconds: float) -> None:
        """Note that something is under way, and arrives in so many virtual seconds."""
        ...

    def keep(self, seconds: float) -> None:
        """Note that a worker waits for so many virtual seconds, and is not to be stopped before."""
        ...

    def note(self, line: str) -> None:
        """Write a line into the schedule's trace."""
        ...

    def hint(self, topic: str) -> None:
        """Hint a topic to every node."""
        ...

    def read(self, sql: str, *bindings: Any) -> list[tuple[Any, ...]]:
        """Read rows of the database at this very moment."""
        ...

    on_intent: Callable[[str], None]
    """Told when the database has taken the intent of a worker of that name."""

    def first_answer(self, batch: Batch, verdicts: list[Flushed]) -> list[Flushed] | None:
        """Keep what a batch was answered; answer what it was answered before, None for the first time."""
        ...

    def accuse(self, violation: str) -> None:
        """Note that a promise was broken."""
        ...


class NodeStore:
    """One node's connection to the world's database; see ``outlast.store.contract.Store``."""

    url = "sqlite://:memory:"
    apart = True

    def __init__(self, site: Site, name: str) -> None:
        self._site = site
        self._name = name
        self.announces = False
        """Whether what is submitted from here is to be announced, for which the app has no word yet."""
        self.ears = NodeWakes(site.weather, site.hint)
        self.wakes: Wakes = self.ears

    async def _carry(self, verb: str, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """Carry a verb to the database and its answer back."""
        site = self._site
        fault = site.weather.store_fault()
        await _hop(site)
        if fault == "refused":
            site.note(f"{self._name} {verb} refused")
            raise StoreUnavailable(f"{verb}: no connection to the database")
        if fault == "late":
            delay = site.weather.between(0.0, _LATEST_S)
            site.loop.call_later(delay, self._carry_late, verb, work, context=site.database_context)
            site.expect(delay)
            site.late += 1
            await _hop(site)
            raise StoreUnavailable(f"{verb}: the connection broke while it was under way")
        if fault == "slow":
            await _dawdle(site)
        site.caller = asyncio.current_task()
        # The database is another process: nothing of the caller's context goes with the verb.
        try:
            answer = site.database_context.run(carry_out, work(site.database))
        except Exception as error:
            site.note(f"{self._name} {verb} raised {type(error).__name__}")
            await _hop(site)
            raise
        site.note(f"{self._name} {verb}" if fault == "none" else f"{self._name} {verb} {fault}")
        if fault == "silent":
            # Whoever waits, were it a person who has only just opened, is there until its driver gives up.
            site.expect(_SILENCE_S)
            if verb.startswith("flush"):
                # What it was to write may have to be written down another way.
                site.keep(_SILENCE_S)
            await asyncio.sleep(_SILENCE_S)
        elif fault == "slow":
            await _dawdle(site)
        else:
            await _hop(site)
        if fault not in ("none", "slow"):
            raise StoreUnavailable(f"{verb}: the connection broke before the answer came")
        return answer

    def _carry_late(self, verb: str, work: Callable[[Store], Coroutine[Any, Any, Any]]) -> None:
        """Carry out a verb that nobody waits for any more: the database had it, and only now comes to it."""
        self._site.late -= 1
        self._site.caller = None
        outcome = ""
        # It is told to nobody; a verb that comes too late may well be refused.
        try:
            carry_out(work(self._site.database))
        except Exception as error:
            outcome = f" raised {type(error).__name__}"
        self._site.note(f"{self._name} {verb} late{outcome}")

    async def open(self) -> None:
        await self._carry("open", lambda store: store.health())

    async def close(self) -> None:
        """Nothing to release: the database is the world's."""

    async def migrate(self) -> list[str]:
        return await self._carry("migrate", lambda store: store.migrate())

    async def submit(self, batch: Sequence[Submission], *, connection: Any = None) -> list[Submitted]:
        if self.announces:
            batch = [replace(one, announce=True) for one in batch]
        return await self._carry("submit", lambda store: store.submit(batch, connection=connection))

    async def renew(self, renewal: SessionRenewal, *, now: int | None = None) -> Renewed:
        return await self._carry("renew", lambda store: store.renew(renewal, now=now))

    async def retire(self, session: str) -> None:
        await self._carry("retire", lambda store: store.retire(session))

    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> ClaimReply:
        return await self._carry("claim", lambda store: store.claim(request, now=now))

    async def submit_and_claim(
        self, batch: Sequence[Submission], request: ClaimRequest, *, now: int | None = None
    ) -> tuple[list[Submitted], ClaimReply] | None:
        if self.announces:
            batch = [replace(one, announce=True) for one in batch]
        return await self._carry(
            "submit_and_claim", lambda store: store.submit_and_claim(batch, request, now=now)
        )

    async def reconcile(
        self, session: str, held: Sequence[Held], fence: int, *, now: int | None = None
    ) -> list[TaskRef]:
        return await self._carry(
            "reconcile", lambda store: store.reconcile(session, held, fence=fence, now=now)
        )

    async def load(self, tasks: Sequence[Claimed]) -> list[Loaded]:
        return await self._carry("load", lambda store: store.load(tasks))

    async def flush(self, batch: Batch, *, now: int | None = None) -> list[Flushed]:
        entries = ",".join(type(entry).__name__ for write in batch.writes for entry in write.entries)
        if CommitIntent.__name__ in entries and _weighs(batch) and self._site.weather.at_the_brink():
            self._site.note(f"{self._name} is at the brink")
            await _dawdle(self._site)
        return await self._carry(f"flush {entries}", lambda store: self._flush(store, batch, now))

    async def _flush(self, store: Store, batch: Batch, now: int | None) -> list[Flushed]:
        """Flush, and look with other eyes than the store's own whether only current epochs wrote."""
        heads = [
            self._site.read(
                "select epoch, state from tasks where tenant = ? and id = ?", write.tenant, write.task
            )
            for write in batch.writes
        ]
        verdicts = await store.flush(batch, now=now)
        # A batch that is sent again answers as it did the first time, whatever has come since.
        first = self._site.first_answer(batch, verdicts)
        if first is not None:
            # One that comes when its writer has retired is a stranger's, and finds every lease gone.
            if first != verdicts and any(verdict.kind != "stale" for verdict in verdicts):
                self._site.accuse(f"{self._name} sent batch {batch.number} again; it was answered otherwise")
            return verdicts
        for write, verdict, head in zip(batch.writes, verdicts, heads, strict=True):
            if verdict.kind == "accepted" and head != [(write.epoch, "running")]:
                self._site.accuse(
                    f"{self._name} wrote to {write.task} under epoch {write.epoch};"
                    f" its epoch and state were {head}"
                )
        if any(isinstance(entry, CommitIntent) for write in batch.writes for entry in write.entries):
            self._site.on_intent(self._name)
        return verdicts

    async def settle(self, settlements: Sequence[Settlement], *, now: int | None = None) -> list[Settled]:
        return await self._carry("settle", lambda store: self._settle(store, settlements, now))

    async def _settle(
        self, store: Store, settlements: Sequence[Settlement], now: int | None
    ) -> list[Settled]:
        """Settle, and look with other eyes whether nothing was settled by what was seen in another turn."""
        turns = [
            self._site.read(
                "select turn from operations where tenant = ? and task = ? and key = ?",
                *(one.tenant, one.task, one.key),
            )
            for one in settlements
        ]
        verdicts = await store.settle(settlements, now=now)
        for one, turn, verdict in zip(settlements, turns, verdicts, strict=True):
            if verdict.kind == "settled" and one.turn is not None and turn != [(one.turn,)]:
                self._site.accuse(
                    f"{self._name} settled {one.task}:{one.key} as it was in turn {one.turn}, in turn {turn}"
                )
        return verdicts

    async def note(self, evidence: Sequence[Evidence], *, now: int | None = None) -> None:
        await self._carry("note", lambda store: store.note(evidence, now=now))

    async def admit(self, notes: Sequence[Evidence], *, now: int | None = None) -> list[Passage | None]:
        return await self._carry("admit", lambda store: store.admit(notes, now=now))

    async def claim_open(self, request: OpenRequest, *, now: int | None = None) -> list[OpenItem]:
        return await self._carry("claim_open", lambda store: store.claim_open(request, now=now))

    async def postpone(self, postponements: Sequence[Postponement], *, now: int | None = None) -> list[bool]:
        return await self._carry("postpone", lambda store: store.postpone(postponements, now=now))

    async def post(self, signals: Sequence[Signal], *, now: int | None = None) -> list[Posted]:
        return await self._carry("post", lambda store: store.post(signals, now=now))

    async def cancel(self, requests: Sequence[Cancel], *, now: int | None = None) -> list[CancelReply]:
        return await self._carry("cancel", lambda store: store.cancel(requests, now=now))

    async def news(self, session: str, heard: Sequence[Heard], *, now: int | None = None) -> list[News]:
        return await self._carry("news", lambda store: store.news(session, heard, now=now))

    async def deliver(self, limit: int, *, now: int | None = None) -> Delivered:
        return await self._carry("deliver", lambda store: store.deliver(limit, now=now))

    async def decide(self, decisions: Sequence[Decision], *, now: int | None = None) -> list[Decided]:
        return await self._carry("decide", lambda store: store.decide(decisions, now=now))

    async def retry(self, requests: Sequence[Retry], *, now: int | None = None) -> list[Retried]:
        return await self._carry("retry", lambda store: store.retry(requests, now=now))

    async def fork(self, requests: Sequence[Fork], *, now: int | None = None) -> list[Forked]:
        return await self._carry("fork", lambda store: store.fork(requests, now=now))

    async def adopt(self, requests: Sequence[Adopt], *, now: int | None = None) -> list[Adopted]:
        return await self._carry("adopt", lambda store: store.adopt(requests, now=now))

    async def wake(self, ref: TaskRef, by: str, reason: str, *, now: int | None = None) -> bool:
        return await self._carry("wake", lambda store: store.wake(ref, by, reason, now=now))

    async def accept(self, verdicts: Sequence[Acceptance], *, now: int | None = None) -> list[Accepted]:
        return await self._carry("accept", lambda store: store.accept(verdicts, now=now))

    async def post_outside(
        self, events: Sequence[OutsideEvent], *, now: int | None = None
    ) -> list[OutsidePosted]:
        return await self._carry("post_outside", lambda store: store.post_outside(events, now=now))

    async def put_rule(self, rule: Rule, *, now: int | None = None) -> int:
        return await self._carry("put_rule", lambda store: store.put_rule(rule, now=now))

    async def withdraw_rule(
        self, tenant: str, number: int, by: str, reason: str, *, now: int | None = None
    ) -> bool:
        return await self._carry(
            "withdraw_rule", lambda store: store.withdraw_rule(tenant, number, by, reason, now=now)
        )

    async def pause(self, switch: Pause, *, now: int | None = None) -> None:
        await self._carry("pause", lambda store: store.pause(switch, now=now))

    async def resume(self, switch: Pause, *, now: int | None = None) -> bool:
        return await self._carry("resume", lambda store: store.resume(switch, now=now))

    async def sweep(self, request: SweepRequest, *, now: int | None = None) -> Swept:
        return await self._carry("sweep", lambda store: store.sweep(request, now=now))

    async def take_messages(self, limit: int, *, now: int | None = None) -> list[Message]:
        return await self._carry("take_messages", lambda store: store.take_messages(limit, now=now))

    async def confirm_messages(self, publications: Sequence[Publication]) -> None:
        await self._carry("confirm_messages", lambda store: store.confirm_messages(publications))

    async def read_tasks(self, refs: Sequence[TaskRef]) -> list[TaskRow]:
        return await self._carry("read_tasks", lambda store: store.read_tasks(refs))

    async def list_tasks(self, query: TaskFilter) -> list[TaskRow]:
        return await self._carry("list_tasks", lambda store: store.list_tasks(query))

    async def read_events(
        self, cursors: Sequence[EventCursor], limit: int = 500, *, room: int | None = None
    ) -> list[EventRow]:
        return await self._carry("read_events", lambda store: store.read_events(cursors, limit, room=room))

    async def read_ends(self, refs: Sequence[TaskRef]) -> list[EndRow]:
        return await self._carry("read_ends", lambda store: store.read_ends(refs))

    async def read_attempts(self, ref: TaskRef) -> list[AttemptRow]:
        return await self._carry("read_attempts", lambda store: store.read_attempts(ref))

    async def list_operations(self, query: OperationFilter) -> list[OperationRow]:
        return await self._carry("list_operations", lambda store: store.list_operations(query))

    async def read_evidence(self, tenant: str, task: str, key: str, **part: int | None) -> list[EvidenceRow]:
        return await self._carry(
            "read_evidence", lambda store: store.read_evidence(tenant, task, key, **part)
        )

    async def read_passage(
        self, tenant: str, task: str, key: str, *, now: int | None = None
    ) -> Passage | None:
        return await self._carry("read_passage", lambda store: store.read_passage(tenant, task, key, now=now))

    async def read_open(
        self, tenant: str, task: str, key: str, *, provider: str | None = None, now: int | None = None
    ) -> OpenState | None:
        return await self._carry(
            "read_open", lambda store: store.read_open(tenant, task, key, provider=provider, now=now)
        )

    async def list_pauses(self, tenant: str) -> list[Pause]:
        return await self._carry("list_pauses", lambda store: store.list_pauses(tenant))

    async def read_business_key(self, tenant: str, tool: str, value: str) -> KeyHolder | None:
        return await self._carry(
            "read_business_key", lambda store: store.read_business_key(tenant, tool, value)
        )

    async def read_settled_counts(self, tenant: str) -> list[SettledCounts]:
        return await self._carry("read_settled_counts", lambda store: store.read_settled_counts(tenant))

    async def read_audit(self, tenant: str, after: int = 0, limit: int = 100) -> list[AuditRow]:
        return await self._carry("read_audit", lambda store: store.read_audit(tenant, after, limit))

    async def list_versions(self, tenant: str | None = None) -> list[VersionRow]:
        return await self._carry("list_versions", lambda store: store.list_versions(tenant))

    async def read_acceptances(self, tenant: str, task: str) -> list[AcceptanceRow]:
        return await self._carry("read_acceptances", lambda store: store.read_acceptances(tenant, task))

    async def list_sessions(self) -> list[SessionRow]:
        return await self._carry("list_sessions", lambda store: store.list_sessions())

    async def count_unknown(self) -> list[UnknownCount]:
        return await self._carry("count_unknown", lambda store: store.count_unknown())

    async def read_outside(self, tenant: str, task: str) -> list[OutsideRow]:
        return await self._carry("read_outside", lambda store: store.read_outside(tenant, task))

    async def read_inbox(self, tenant: str, task: str, after: int = 0) -> list[InboxRow]:
        return await self._carry("read_inbox", lambda store: store.read_inbox(tenant, task, after))

    async def read_approvals(self, tenant: str, task: str) -> list[ApprovalRow]:
        return await self._carry("read_approvals", lambda store: store.read_approvals(tenant, task))

    async def read_approval(self, tenant: str, approval: str) -> ApprovalRow | None:
        return await self._carry("read_approval", lambda store: store.read_approval(tenant, approval))

    async def list_approvals(self, query: ApprovalFilter) -> list[ApprovalRow]:
        return await self._carry("list_approvals", lambda store: store.list_approvals(query))

    async def read_votes(self, tenant: str, approval: str) -> list[VoteRow]:
        return await self._carry("read_votes", lambda store: store.read_votes(tenant, approval))

    async def read_rules(self, tenant: str, tool: str) -> Rules:
        return await self._carry("read_rules", lambda store: store.read_rules(tenant, tool))

    async def list_rules(self, tenant: str) -> list[Rule]:
        return await self._carry("list_rules", lambda store: store.list_rules(tenant))

    async def put_schedule(self, asked: PutSchedule, *, now: int | None = None) -> SchedulePut:
        return await self._carry("put_schedule", lambda store: store.put_schedule(asked, now=now))

    async def set_schedule(self, asked: SetSchedule, *, now: int | None = None) -> ScheduleSet:
        return await self._carry("set_schedule", lambda store: store.set_schedule(asked, now=now))

    async def due_schedules(self, request: DueRequest, *, now: int | None = None) -> DueSchedules:
        return await self._carry("due_schedules", lambda store: store.due_schedules(request, now=now))

    async def fire_schedules(self, firings: Sequence[Firing], *, now: int | None = None) -> list[Fired]:
        return await self._carry("fire_schedules", lambda store: store.fire_schedules(firings, now=now))

    async def read_schedule(self, tenant: str, id: str) -> ScheduleRow | None:
        return await self._carry("read_schedule", lambda store: store.read_schedule(tenant, id))

    async def list_schedules(self, tenant: str, after: str = "", limit: int = 100) -> list[ScheduleRow]:
        return await self._carry("list_schedules", lambda store: store.list_schedules(tenant, after, limit))

    async def health(self) -> Health:
        try:
            return await self._carry("health", lambda store: store.health())
        except StoreUnavailable as error:
            return Health(reachable=False, detail=str(error))

    async def dump(self) -> dict[str, list[dict[str, Any]]]:
        return await self._carry("dump", lambda store: store.dump())


def _weighs(batch: Batch) -> bool:
    """Whether the gate of an intent in a batch looks at more than its worker may have heard of."""
    intents = (entry for write in batch.writes for entry in write.entries if isinstance(entry, CommitIntent))
    return any(entry.heard is not None or entry.consent is not None for entry in intents)


async def _dawdle(site: Site) -> None:
    """Be under way for seconds."""
    delay = site.weather.between(0.0, _SLOWEST_S)
    site.expect(delay)
    await asyncio.sleep(delay)


def _hop(site: Site) -> Awaitable[None]:
    """One way between two processes: an await at least, some milliseconds at times."""
    seconds = site.weather.hop()
    return asyncio.sleep(seconds) if seconds else give_way()


def carry_out(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the inline store, which never waits, to its end."""
    try:
        work.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    work.close()
    raise AssertionError("a verb of an inline store waited for something")
