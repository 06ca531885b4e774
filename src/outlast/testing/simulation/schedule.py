"""One schedule: a world of workers and clients, its misfortunes, its healing, and the judgement at its end.

Purpose: whatever falls on the workers, after the world has healed every accepted task ends, the store keeps
its promises, and the tool service's log holds what the ledger says.

Identity: the seed, with the numbers of workers and tasks, the faults and the order.

State: stormy, until every misfortune drawn has happened or its time is over; healed: who died is started
again, who is frozen thaws, store and tools behave, and an operator settles truthfully what waits for a
person; quiet: the workers have stopped, and everything that was under way has arrived.

Not covered: more than one version of the code; clients that die.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from outlast import telemetry
from outlast.app import Outlast
from outlast.core import values
from outlast.engine.settings import WorkerSettings
from outlast.engine.worker import Worker
from outlast.errors import StoreUnavailable
from outlast.store.records import Settlement, TaskRef
from outlast.store.rows import OperationFilter
from outlast.streams.tail import FINAL, Tail
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.checkers import CHECKERS, Evidence, Violation, check_all
from outlast.testing.simulation.agents import APP, MAY_FAIL, TOOL_TIMEOUT_S
from outlast.testing.simulation.loop import Node, Order, Stuck
from outlast.testing.simulation.weather import Faults
from outlast.testing.simulation.world import Member, World
from outlast.tools.call import ToolCall

SETTINGS = WorkerSettings(
    slots=4, lease_s=4.0, renew_s=1.5, poll_s=2.0, sweep_s=1.5, linger_s=0.5, grace_s=6.0
)
_MAX_STEPS = 300_000
_MAX_SECONDS = 300.0
_HEAL_AFTER_S = 25.0
_QUIET_S = 20.0
"""Longer than any request of the tool service, late ones included, is under way."""

_LOOKED_SHARE = 0.3
"""After what share of misfortunes every checker is asked at once; a look costs a tenth of a schedule."""
_WATCHED_SHARE = 0.03
"""Of how many schedules the quiet end is watched for a while."""

Verdict = Literal["happened", "did_not_happen", "send_again"]
Kind = Literal["crash", "freeze", "clock_step", "drain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of a schedule.

    violations: broken promises, none for a schedule that holds. digest: of everything that happened; two runs
    of one schedule have the same. effects: tickets made at the tool service. ended: states of the tasks.
    misfortunes: what fell on whom, and when. steps: handles run. seconds: virtual. lines: the trace.
    """

    seed: int
    workers: int
    tasks: int
    faults: Faults
    order: Order
    agents: tuple[str, ...]
    violations: tuple[str, ...]
    digest: str
    effects: int
    ended: tuple[str, ...]
    misfortunes: tuple[str, ...]
    steps: int
    seconds: float
    lines: tuple[str, ...]

    @property
    def replay(self) -> str:
        """The command that runs this very schedule again and shows its trace."""
        return (
            f"python -m outlast.testing.simulation --schedules 1 --seed {self.seed} --workers {self.workers}"
            f" --tasks {self.tasks} --agents {','.join(self.agents)} --faults {self.faults.spell()}"
            f" --order {self.order} --trace"
        )

    def __str__(self) -> str:
        """Say what broke and how to see it again."""
        found = "\n".join(f"  {each}" for each in self.violations) or "  nothing broke"
        return f"seed {self.seed}:\n{found}\n  replay: {self.replay}"


def run_schedule(
    seed: int,
    *,
    workers: int = 2,
    tasks: int = 1,
    faults: Faults | None = None,
    order: Order = "fifo",
    agents: Sequence[str] = ("refund",),
) -> Report:
    """Run the schedule of a seed to its end and judge it.

    faults: what may go wrong, one crash by default. order: see ``SimulationLoop``. agents: of which shape the
    tasks are; see ``outlast.testing.simulation.agents``. Raises nothing that the
    code under test raises: that is a violation in the report. Blocks, and needs no event loop.
    """
    drawn = Faults.one_crash() if faults is None else faults
    shapes = tuple(agents)
    span = _span(workers, tasks, shapes) if drawn.strikes else 0
    return _Schedule(seed, workers, tasks, drawn, order, shapes, span).run()


@lru_cache
def _span(workers: int, tasks: int, agents: tuple[str, ...]) -> int:
    """How many handles the workers run in a calm schedule: where misfortunes can fall."""
    calm = _Schedule(0, workers, tasks, Faults.calm(), "fifo", agents, 0)
    calm.run()
    return calm.ended_at


class _Schedule:
    def __init__(
        self,
        seed: int,
        workers: int,
        tasks: int,
        faults: Faults,
        order: Order,
        agents: tuple[str, ...],
        span: int,
    ) -> None:
        self.seed, self.workers, self.tasks = seed, workers, tasks
        self.faults, self.order, self.agents = faults, order, agents
        self.world = World(seed, faults=faults, order=order)
        self.fate = self.world.random("fate")
        self.ended_at = 0
        self.healed = self.done = False
        self.violations = self.world.violations
        self.misfortunes: list[str] = []
        self.accepted: list[tuple[str, str]] = []
        self.shapes: dict[str, str] = {}
        self.states: list[str] = []
        self.serving: dict[str, tuple[Member, Worker, asyncio.Task[None]]] = {}
        self.members: dict[Node, Member] = {}
        self.earlier: dict[str, list[dict[str, Any]]] | None = None
        self.due = self._drawn(span)

    def _drawn(self, span: int) -> list[tuple[int, Kind]]:
        """Draw at which handle of the workers each misfortune falls, the last one first."""
        kinds: list[Kind] = ["crash"] * self.faults.crashes
        kinds += ["freeze"] * self.faults.freezes
        kinds += ["clock_step"] * self.faults.clock_steps
        kinds += ["drain"] * self.faults.drains
        return sorted(((self.fate.randrange(1, span + 1), kind) for kind in kinds), reverse=True)

    # -- the whole ------------------------------------------------------------------------------------------

    def run(self) -> Report:
        world, loop = self.world, self.world.loop
        unsubscribe = telemetry.subscribe(self._listen)
        loop.on_alarm = self._misfortune
        world.service.on_departure = self._departs
        self._set_alarm()
        dump: dict[str, list[dict[str, Any]]] | None = None
        try:
            main = world.start(loop.root, self._script(), name="script")
            dump = loop.run(main, max_steps=_MAX_STEPS, max_seconds=_MAX_SECONDS)
        except Stuck as error:
            self.violations.append(f"the world did not come to rest: {error}; ended: {self.states}")
        # What a client is told that it should not be told is a finding, whatever it is.
        except Exception as error:
            self.violations.append(f"a client or the script failed: {error!r}")
        finally:
            unsubscribe()
        if dump is not None:
            self._judge(dump)
        self.violations += [f"accident: {each}" for each in loop.accidents]
        report = Report(
            seed=self.seed,
            workers=self.workers,
            tasks=self.tasks,
            faults=self.faults,
            order=self.order,
            agents=self.agents,
            violations=tuple(self.violations),
            digest=world.digest(),
            effects=sum(entry.effect_id is not None for entry in world.service.log),
            ended=tuple(self.states),
            misfortunes=tuple(self.misfortunes),
            steps=loop.steps,
            seconds=loop.time(),
            lines=tuple(world.lines),
        )
        world.close()
        return report

    async def _script(self) -> dict[str, list[dict[str, Any]]]:
        world = self.world
        await world.open()
        for number in range(1, self.workers + 1):
            self._boot(f"w{number}")
        clients = [
            world.start(member.node, self._client(member, number), name=f"client {number}")
            for number in range(1, self.tasks + 1)
            for member in (world.add(f"client{number}"),)
        ]
        healing = world.loop.call_later(_HEAL_AFTER_S + self.faults.spell_s, self._heal)
        await asyncio.gather(*clients)
        healing.cancel()
        self.ended_at = world.loop.counted
        self._heal()
        if self.fate.random() < _WATCHED_SHARE:
            await self._watch_quiet()
        await self._stop()
        self.done = True
        # What is still on its way to the tool service arrives before anything is judged.
        await asyncio.sleep(_QUIET_S)
        return await world.database.dump()

    async def _watch_quiet(self) -> None:
        """Let the workers run on with nothing to do, and look whether anything grows."""
        database = self.world.database
        await asyncio.sleep(_QUIET_S)
        earlier = await database.dump()
        await asyncio.sleep(3.0 * SETTINGS.lease_s)
        self._ask(check_all(await database.dump(), earlier=earlier, quiet=True))

    # -- workers --------------------------------------------------------------------------------------------

    def _boot(self, name: str) -> None:
        member = self.world.add(name, counted=True)
        self.members[member.node] = member
        # Made in the node's context, since it takes ids as it is made.
        worker: Worker = member.node.context.run(Worker, APP.registry, member.store, SETTINGS)
        task = self.world.start(member.node, worker.run(), name=f"worker {name}")
        self.serving[name] = (member, worker, task)
        self.world.note(f"{name} started")

    async def _stop(self) -> None:
        for member, worker, _ in self.serving.values():
            member.node.context.copy().run(worker.stop)
        for name, (_, _, task) in list(self.serving.items()):
            await asyncio.wait({task})
            self._reap(name, task)

    def _reap(self, name: str, task: asyncio.Task[None]) -> None:
        error = task.exception()
        if error is not None:
            self.violations.append(f"worker {name} died by itself: {error!r}")

    def _listen(self, signal: telemetry.Signal) -> None:
        if isinstance(signal, telemetry.Warned):
            self.violations.append(f"warned: {signal.about}: {signal.advice}")

    # -- misfortunes ----------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        loop = self.world.loop
        loop.alarm = max(self.due[-1][0], loop.counted + 1) if self.due else -1

    def _misfortune(self, node: Node) -> None:
        """Let what is due fall on the node that ran just now: at an await of its own."""
        _, kind = self.due.pop()
        self._set_alarm()
        if self.healed:
            return
        world, loop = self.world, self.world.loop
        if kind == "crash":
            loop.crash(node)
            if self.fate.random() < 0.7:
                self._later(self.fate.uniform(0.0, 2.0 * SETTINGS.lease_s), self._restart, node.name)
        elif kind == "freeze":
            loop.freeze(node)
            self._later(self.fate.uniform(0.0, 3.0 * SETTINGS.lease_s), self._thaw, node)
        elif kind == "drain":
            loop.start(node, self._drain(node), name=f"drain {node.name}")
        else:
            self.members[node].seams.step_us += int(self.fate.uniform(-3600e6, 3600e6))
        if self.fate.random() < _LOOKED_SHARE:
            self._look_now()
        self.misfortunes.append(f"{kind} of {node.name} after {loop.counted} handles")
        world.note(f"{node.name} {kind}")

    async def _drain(self, node: Node) -> None:
        """Stop a worker in good order, and start another in its place."""
        member, worker, task = self.serving[node.name]
        if member.node is not node:
            return
        worker.stop()
        await asyncio.wait({task})
        self.world.note(f"{node.name} drained")
        self._later(0.0, self._succeed, node)

    def _succeed(self, node: Node) -> None:
        member, _, task = self.serving[node.name]
        if member.node is node:
            self._reap(node.name, task)
            self._boot(node.name)

    def _later(self, delay_s: float, call: Any, *args: Any) -> None:
        loop = self.world.loop
        loop.call_later(delay_s, call, *args, context=loop.root.context)

    def _restart(self, name: str) -> None:
        if self.serving[name][0].node.dead:
            self._boot(name)

    def _thaw(self, node: Node) -> None:
        if node.frozen and not node.dead:
            self.world.note(f"{node.name} thaw")
            self.world.loop.thaw(node)

    def _heal(self) -> None:
        if self.healed:
            return
        self.healed = True
        self.world.note("healed")
        self.world.weather.calm()
        for name in list(self.serving):
            self._restart(name)
        for node in list(self.members):
            self._thaw(node)
        operator = self.world.add("operator")
        self.world.start(operator.node, self._operate(operator), name="operator")

    # -- people ---------------------------------------------------------------------------------------------

    async def _client(self, member: Member, number: int) -> None:
        """Submit a task and follow its stream to the end, however often the store is away."""
        app = Outlast("client", store=member.store)
        app.registry = APP.registry
        tail = Tail(member.store, poll_s=SETTINGS.poll_s)
        await asyncio.sleep(self.fate.uniform(0.0, 1.5))
        task = await self._submit(app, number)
        seen: list[int] = []
        kind = ""
        async for event in tail.follow(DEFAULT_TENANT, task):
            seen.append(event.number)
            if event.kind in FINAL:
                kind = event.kind
        if seen != list(range(1, len(seen) + 1)):
            self.violations.append(f"the stream of {task} was {seen}")
        self.world.note(f"client{number} saw {kind}")
        self.states.append(kind.removeprefix("task."))
        await tail.close()
        await app.close()

    async def _submit(self, app: Outlast, number: int) -> str:
        shape = self.fate.choice(self.agents)
        given = {"invoice": f"inv-{number}", "amount": 100 + number}
        while True:
            try:
                await app.open()
                handle = await app.submit(shape, given, key=f"key-{number}")
            except StoreUnavailable:
                await asyncio.sleep(0.5)
                continue
            self.accepted.append((DEFAULT_TENANT, handle.id))
            self.shapes[handle.id] = shape
            return handle.id

    async def _operate(self, member: Member) -> None:
        """Settle what waits for a person, truthfully: once nothing of it is under way any more."""
        store, service = member.store, self.world.service
        query = OperationFilter(tenant=DEFAULT_TENANT, state="unknown")
        while not self.done:
            await asyncio.sleep(TOOL_TIMEOUT_S / 2)
            for row in await store.list_operations(query):
                key = f"{row.task}:{row.key}"
                if service.under_way[key]:
                    continue
                ticket = service.ticket_of(key)
                (head,) = await store.read_tasks([TaskRef(tenant=row.tenant, task=row.task)])
                absent: Verdict = "send_again" if head.ended_at is None else "did_not_happen"
                await store.settle(
                    [
                        Settlement(
                            tenant=row.tenant,
                            task=row.task,
                            key=row.key,
                            turn=row.turn,
                            verdict=absent if ticket is None else "happened",
                            by="person:operator",
                            reason="looked it up",
                            result=None if ticket is None else values.encode(ticket),
                        )
                    ]
                )

    # -- judgement ------------------------------------------------------------------------------------------

    def _departs(self, call: ToolCall) -> None:
        """Look whether the intent of a call is on disk at the moment when the call leaves."""
        key = call.idempotency_key.partition(":")[2]
        query = OperationFilter(tenant=call.tenant, task=call.task, key=key)
        rows = self.world.look(self.world.database.list_operations(query))
        if not rows or rows[0].attempt < call.attempt:
            self.violations.append(f"{call.idempotency_key}: attempt {call.attempt} left before its intent")

    def _look_now(self) -> None:
        """Ask every checker in the middle of it all, right after a misfortune."""
        dump = self.world.look(self.world.database.dump())
        log = self.world.service.log
        self._ask(check_all(dump, accepted=self.accepted, recorder=log, earlier=self.earlier))
        self.earlier = dump

    def _ask(self, found: list[Violation]) -> None:
        self.violations += [f"{each.promise}: {each.text}" for each in found]

    def _judge(self, dump: dict[str, list[dict[str, Any]]]) -> None:
        log = self.world.service.log
        self._ask(check_all(dump, accepted=self.accepted, recorder=log, quiet=True))
        if self.earlier is not None:
            stands = CHECKERS["results_never_change"](Evidence(dump=dump, earlier=self.earlier))
            self.violations += [f"results_never_change: {text}" for text in stands]
        made: dict[str, list[str]] = defaultdict(list)
        for entry in log:
            if entry.effect_id is not None:
                made[entry.key.partition(":")[0]].append(entry.effect_id)
        results = {row["task"]: row for row in dump["results"]}
        for _, task in self.accepted:
            row = results.get(task)
            if row is None:
                self.violations.append(f"{task}: has no end")
            elif row["state"] == "succeeded":
                said = values.decode(row["result"])["tickets"]
                if sorted(said) != sorted(made[task]):
                    self.violations.append(f"{task}: answered {said}; the service made {made[task]}")
            elif not self._may_fail(task):
                self.violations.append(f"{task}: ended as {row['state']}: {row['error']}")

    def _may_fail(self, task: str) -> bool:
        """Whether a failure of a task is no fault: tools that go on failing, too many deaths, a deadline."""
        faults = self.faults
        # A worker that is long cut off from the store dies like any other.
        deaths = SETTINGS.max_deaths if faults.store else faults.crashes + faults.freezes
        return self.shapes[task] in MAY_FAIL or faults.tools > 0 or deaths >= SETTINGS.max_deaths


__all__ = ["SETTINGS", "Report", "run_schedule"]
