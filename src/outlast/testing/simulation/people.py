"""Everybody who is no worker: clients, an operator, those who decide, and those who meddle.

Purpose: what people do falls on tasks at any moment, as misfortunes do: they send signals, decide, answer,
change what is asked, let time pass, cancel, try again and fork.

Identity: each has a node of their own, with its own way to the store, which may be away for them too.

State: what was acknowledged to them, which is what the judgement holds the system to.

Failure by failure: the store is away: they try again, with the same key where there is one. Somebody else was
first: they live with it. Once the world has healed whoever is asked answers, so that no task waits for ever.

Not covered: people who die; links and HTTP.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, Literal

from outlast.app import Outlast
from outlast.approvals import Approvals
from outlast.core import ids, values
from outlast.core.transitions import TASK
from outlast.engine.offers import Offer, Offers
from outlast.errors import OutlastError, StoreUnavailable, TaskEnded, UnsettledPrefix
from outlast.store.records import OperationRow, Settlement, Submission, TaskRef
from outlast.store.rows import OperationFilter, TaskRow
from outlast.streams.tail import FINAL, Tail
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.simulation.agents import LISTENERS, SIGNAL, TOOL_TIMEOUT_S, open_app
from outlast.testing.simulation.weather import Faults
from outlast.testing.simulation.world import Member, World
from outlast.views import ApprovalView

Verdict = Literal["happened", "did_not_happen", "send_again"]
POLL_S = 4.0
MEDDLE_S = 9.0
"""How long after the start people may begin to meddle."""
HEARING = 0.4
"""Share of clients whom hints of events reach; each hint costs a look, whosever event it is."""
PATIENCE = 12
"""How often somebody looks for a task to meddle with."""
ASKS_AGAIN = 5
"""One client in how many submits its task twice, under one key."""
INSISTS = 4
"""How often the operator wants one attempt sent again before they say that it did not happen."""
UNDOES, UNDOES_MORE = 0.4, 0.9
"""Share of cancels that are to be undone; more where undos are held up on their way to the gate."""
LEAVES = 0.4
"""Share of questions that somebody leaves for later, as long as the world has not healed."""


class People:
    """The people of one world. fate: their dice. agents: of which shape the tasks are that clients submit."""

    def __init__(self, world: World, fate: Random, faults: Faults, agents: tuple[str, ...]) -> None:
        self.world, self.faults, self.agents = world, faults, agents
        self._fate = fate
        self.healed = self.done = False
        self.staying: list[asyncio.Task[Any]] = []
        """Those who go on until all is over."""
        self.accepted: list[tuple[str, str]] = []
        self.shapes: dict[str, str] = {}
        self.states: list[str] = []
        self.cancelled: set[str] = set()
        """Tasks of which somebody was told that they end as cancelled."""
        self.touched: set[str] = set()
        """Tasks that somebody has tried to cancel, whatever they were told."""
        self.retried: set[str] = set()
        self.posted: dict[str, list[Any]] = {}
        """What was sent to each task as a signal, told or not."""
        self.on_meddled: Callable[[], None] = lambda: None
        """Told when somebody who meddles has been told that it is done."""
        self.neighbour: Callable[[int], Member | None] = lambda number: None
        """Answers the worker in whose process a client is, by the client's number."""
        self.forked: dict[str, str] = {}
        """Which task each fork was made from."""
        self.denied: set[tuple[str, str]] = set()
        """Calls, by task and key, of which the operator has found that they did not happen."""
        self._resent: Counter[tuple[str, str, int]] = Counter()
        """How often the operator wanted a call sent again, by task, key and attempt."""
        self.said: dict[tuple[str, str], set[str]] = {}
        """What each person has decided on, by question: fingerprints that they saw; ``*`` for an edit."""

    def start(self, tasks: int) -> list[asyncio.Task[Any]]:
        """Let everybody begin; answer those who come to an end."""
        faults = self.faults
        ending = [
            self._begin(f"client{number}", self._client, number, hears=self._ears())
            for number in range(1, tasks + 1)
        ]
        for name, count, work in (
            ("canceller", faults.cancels, self._cancel),
            ("retrier", faults.retries, self._retry),
            ("forker", faults.forks, self._fork),
        ):
            ending += [self._begin(f"{name}{number}", work, number) for number in range(1, count + 1)]
        self.staying.append(self._begin("operator", self._operate, 1))
        if "asker" in self.agents or faults.rules:
            for number in (1, 2):
                self.staying.append(self._begin(f"approver{number}", self._decide, number))
        if LISTENERS & set(self.agents):
            self.staying.append(self._begin("sender", self._send, 1))
        return ending

    def leave(self) -> None:
        """Look whether those who stay to the end have: whoever is gone earlier has judged nothing since."""
        for task in self.staying:
            if not task.done():
                self.world.accuse(f"the {task.get_name()} never came to an end")
        self.world.accuse_failed(self.staying)

    def heal(self) -> None:
        """From now on nobody leaves anything for later, and the operator settles whatever waits."""
        self.healed = True

    def _begin(self, name: str, work: Any, number: int, *, hears: tuple[str, ...] = ()) -> asyncio.Task[Any]:
        member = self.world.add(name, hears=hears)
        doing: Coroutine[Any, Any, None] = work(member, number)
        task: asyncio.Task[Any] = self.world.start(member.node, doing, name=name)
        return task

    # -- clients --------------------------------------------------------------------------------------------

    def _ears(self) -> tuple[str, ...]:
        """Draw whether a client hears of every event at once, or looks from time to time."""
        return ("events",) if self._fate.random() < HEARING else ()

    async def _client(self, member: Member, number: int) -> None:
        """Submit a task and follow its stream to the end, however often the store is away."""
        tail = Tail(member.store, poll_s=POLL_S)
        await asyncio.sleep(self._fate.uniform(0.0, 1.5))
        app = await open_app(member, _Shared(lambda: self.neighbour(number)))
        # Every third one asks for silence.
        member.store.announces = self.world.announces and number % 3 > 0
        task = await self._submit(app, number)
        seen: list[int] = []
        kind = ""
        async for event in tail.follow(DEFAULT_TENANT, task):
            seen.append(event.number)
            if event.kind in FINAL:
                kind = event.kind
        if seen != list(range(1, len(seen) + 1)):
            self.world.accuse(f"the stream of {task} was {seen}")
        self.world.note(f"client{number} saw {kind}")
        self.states.append(kind.removeprefix("task."))
        await tail.close()
        await app.close()

    async def _submit(self, app: Outlast, number: int) -> str:
        shape = self._fate.choice(self.agents)
        given = {"invoice": f"inv-{number}", "amount": 100 + self._fate.randrange(20)}
        while True:
            try:
                handle = await app.submit(shape, given, key=f"key-{number}")
            except StoreUnavailable:
                await asyncio.sleep(0.5)
                continue
            self.took(handle.id, shape)
            break
        # Some ask once more, as whoever does not remember does.
        while (self.world.seed + number) % ASKS_AGAIN == 0:
            try:
                again = await app.submit(shape, given, key=f"key-{number}")
            except StoreUnavailable:
                await asyncio.sleep(0.5)
                continue
            if again.id != handle.id:
                self.world.accuse(f"client{number} asked again for {handle.id} and was told of {again.id}")
            break
        return handle.id

    def took(self, task: str, shape: str) -> None:
        """Keep that a task was accepted, and of which shape it is."""
        self.accepted.append((DEFAULT_TENANT, task))
        self.shapes[task] = shape

    # -- those who decide -----------------------------------------------------------------------------------

    async def _decide(self, member: Member, number: int) -> None:
        """Decide on what is asked: agree, refuse, change it, or leave it for later."""
        approvals = Approvals(await open_app(member))
        while not self.done:
            await asyncio.sleep(self._fate.uniform(0.2, 1.5))
            if not self.world.there_is("approvals where state = 'pending'"):
                continue
            try:
                for view in await approvals.list():
                    # People think, and what they saw may be another question by then.
                    await asyncio.sleep(self._fate.choice((0.0, 0.0, 0.5, 1.0)))
                    await self._answer(approvals, view, f"approver{number}")
            except StoreUnavailable:
                continue

    async def _answer(self, approvals: Approvals, view: ApprovalView, who: str) -> None:
        fate = self._fate
        if not self.healed and fate.random() < LEAVES:
            return
        seen: dict[str, Any] = {"fingerprint": view.fingerprint, "by": who}
        refuses, changes = fate.random() < 0.2, fate.random() < 0.2
        edits = changes and not refuses and view.subject == "call"
        said = self.said.setdefault((view.id, f"person:{who}"), set())
        said.add("*" if edits else view.fingerprint)
        # Somebody else may have been first, and its time may be over.
        try:
            if refuses:
                await approvals.decide(view.id, "reject", reason="no", **seen)
            elif view.subject == "question":
                await approvals.answer(view.id, fate.choice(["travel", "office"]), **seen)
            elif changes:
                arguments = {**view.shown["arguments"], "amount": 300 + fate.randrange(4)}
                await approvals.decide(view.id, "approve", arguments=arguments, **seen)
            else:
                await approvals.decide(view.id, "approve", **seen)
                if fate.random() < 0.3:
                    await approvals.decide(view.id, "approve", **seen)
        except StoreUnavailable:
            raise
        except OutlastError as error:
            self.world.note(f"{who} was refused: {error.code}")

    async def _send(self, member: Member, number: int) -> None:
        """Send signals to those who may wait for them, some of them twice."""
        app = await open_app(member)
        sent = 0
        while not self.done:
            await asyncio.sleep(self._fate.uniform(0.2, 2.0))
            listening = [task for task, shape in self.shapes.items() if shape in LISTENERS]
            if not listening:
                continue
            task, sent = self._fate.choice(listening), sent + 1
            self.posted.setdefault(task, []).append(sent)
            for _ in range(self._fate.choice((1, 1, 2))):
                # Whoever was not told whether it came may send it again.
                try:
                    await app.signal(task, SIGNAL, sent, key=f"signal-{sent}")
                    self.world.acknowledged.setdefault((task, sent), self.world.loop.time())
                except (TaskEnded, StoreUnavailable) as error:
                    self.world.note(f"signal {sent} was refused: {error.code}")
                except OutlastError as error:
                    self.world.accuse(f"signal {sent} of {task} was refused: {error!r}")

    # -- those who meddle -----------------------------------------------------------------------------------

    async def _cancel(self, member: Member, number: int) -> None:
        """Cancel a task at some moment, as often as it takes to be told."""
        await asyncio.sleep(self._fate.uniform(0.0, MEDDLE_S))
        app = await open_app(member)
        for _ in range(PATIENCE):
            if self.accepted:
                break
            await asyncio.sleep(1.0)
        else:
            return
        _, task = self._fate.choice(self.accepted)
        undo = self._fate.random() < (UNDOES_MORE if self.faults.brink else UNDOES)
        self.touched.add(task)
        while True:
            try:
                reply = await app.cancel(task, reason="not needed", by=f"person:canceller{number}", undo=undo)
            except StoreUnavailable:
                await asyncio.sleep(0.5)
                continue
            except OutlastError as error:
                self.world.note(f"cancel was refused: {error.code}")
                return
            self.world.note(f"cancel was answered {reply.kind}")
            self.cancelled.add(task)
            self.on_meddled()
            return

    async def _retry(self, member: Member, number: int) -> None:
        """Try a task again that has ended badly."""
        app = await open_app(member)
        for _ in range(PATIENCE):
            await asyncio.sleep(self._fate.uniform(0.5, 2.0))
            rows: list[TaskRow] = []
            try:
                rows = await member.store.read_tasks(self._refs())
                bad = [row.task for row in rows if row.state in ("failed", "cancelled")]
                if bad:
                    task = self._fate.choice(bad)
                    self.retried.add(task)
                    await app.retry(task, reason="once more", by=f"person:retrier{number}", deadline=30)
                    self.world.note("tried again")
                    self.on_meddled()
                    return
            except StoreUnavailable:
                continue
            except OutlastError as error:
                self.world.note(f"retry was refused: {error.code}")
            if rows and len(rows) == len(self.shapes) and all(row.state == "succeeded" for row in rows):
                return

    async def _fork(self, member: Member, number: int) -> None:
        """Fork a task somewhere in its journal."""
        await asyncio.sleep(self._fate.uniform(0.5, MEDDLE_S))
        app = await open_app(member)
        for _ in range(PATIENCE):
            await asyncio.sleep(1.0)
            if not self.accepted:
                continue
            _, task = self._fate.choice(self.accepted)
            try:
                query = OperationFilter(tenant=DEFAULT_TENANT, task=task)
                keys = [row.key for row in await member.store.list_operations(query)]
                before = self._fate.choice([None, *keys])
                handle = await app.fork(
                    task, before=before, reason="another way", by=f"person:forker{number}"
                )
            except (StoreUnavailable, UnsettledPrefix):
                continue
            except OutlastError as error:
                self.world.note(f"fork was refused: {error.code}")
                return
            self.world.note(f"forked before {before}")
            self.forked[handle.id] = task
            self.took(handle.id, self.shapes[task])
            self.on_meddled()
            return

    def sent(self, task: str) -> set[Any]:
        """Answer what a task may have heard: a fork, what was sent to the task that it was made from too."""
        found = set(self.posted.get(task, ()))
        while task in self.forked:
            task = self.forked[task]
            found.update(self.posted.get(task, ()))
        return found

    def _refs(self) -> list[TaskRef]:
        return [TaskRef(tenant=tenant, task=task) for tenant, task in self.accepted]

    # -- the operator ---------------------------------------------------------------------------------------

    async def _operate(self, member: Member, number: int) -> None:
        """Settle truthfully: at any time what has happened; what has not, once nothing can be under way."""
        query = OperationFilter(tenant=DEFAULT_TENANT, state="unknown")
        while not self.done:
            await asyncio.sleep(TOOL_TIMEOUT_S / 2 if self.healed else self._fate.uniform(0.5, 4.0))
            if not self.world.there_is("operations where state = 'unknown'"):
                continue
            try:
                for row in await member.store.list_operations(query):
                    await self._settle(member, row)
            except StoreUnavailable:
                continue

    async def _settle(self, member: Member, row: OperationRow) -> None:
        service = self.world.service
        key = ids.sent_key(row.task, row.key, row.idempotency_key)
        ticket = service.ticket_of(key)
        if service.under_way[key] or (ticket is None and not self.healed):
            return
        (head,) = await member.store.read_tasks([TaskRef(tenant=row.tenant, task=row.task)])
        # Of two tasks that go on under one key, the one that sent first may send again.
        own = row.idempotency_key in (None, f"{row.task}:{row.key}")
        # Where a rule denies it by now, no word of the operator's makes it go.
        resent = (row.task, row.key, row.attempt)
        again = own and head.state not in TASK.final and self._resent[resent] < INSISTS
        absent: Verdict = "send_again" if again else "did_not_happen"
        settlement = Settlement(
            tenant=row.tenant,
            task=row.task,
            key=row.key,
            turn=row.turn,
            verdict=absent if ticket is None else "happened",
            by="person:operator",
            reason="looked it up",
            result=None if ticket is None else values.encode(ticket),
        )
        denies = settlement.verdict == "did_not_happen" and (row.task, row.key) not in self.denied
        if denies:
            # Before it is known: an answer may be lost.
            self.denied.add((row.task, row.key))
        (answer,) = await member.store.settle([settlement])
        if answer.kind == "settled":
            self._resent[resent] += settlement.verdict == "send_again"
        elif denies:
            self.denied.discard((row.task, row.key))


class _Shared(Offers):
    """The offers of whichever worker a client shares its process with at this moment."""

    def __init__(self, neighbour: Callable[[], Member | None]) -> None:
        super().__init__()
        self._neighbour = neighbour

    def take(self, batch: Sequence[Submission]) -> Offer | None:
        """Take an offer of that worker."""
        member = self._neighbour()
        return None if member is None else member.offers.take(batch)
