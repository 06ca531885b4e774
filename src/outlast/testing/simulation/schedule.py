"""One schedule: a world of workers and clients, its misfortunes, its healing, and the judgement at its end.

Purpose: whatever falls on the workers, after the world has healed every accepted task ends, the store keeps
its promises, and the tool service's log holds what the ledger says.

Identity: the seed, with the numbers of workers and tasks, the faults and the order.

State: stormy, until every misfortune drawn has happened or its time is over; healed: who died is started
again, who is frozen thaws, store and tools behave, and an operator settles truthfully what waits for a
person; quiet: the workers have stopped, and everything that was under way has arrived.

Not covered: people who die. What not every schedule has is in ``ingredients``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from outlast import telemetry
from outlast.core.transitions import TASK
from outlast.engine.settings import WorkerSettings
from outlast.engine.worker import Worker
from outlast.store.rows import TaskFilter
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.simulation.agents import (
    APP,
)
from outlast.testing.simulation.coverage import Move, moves_of
from outlast.testing.simulation.ingredients import ingredients_of
from outlast.testing.simulation.judging import Judge
from outlast.testing.simulation.loop import Node, Order, Stuck
from outlast.testing.simulation.people import POLL_S, People
from outlast.testing.simulation.weather import Faults, Kind
from outlast.testing.simulation.world import Member, World

SETTINGS = WorkerSettings(
    slots=4, lease_s=4.0, renew_s=1.9, poll_s=POLL_S, sweep_s=3.0, linger_s=0.5, grace_s=6.0
)
"""Polls are for lost hints. Settler and sweeper look often, so that they meet others at their work."""
HINTED = ("queue", "facts", "posts")
"""What workers wait for."""
_MAX_STEPS = 60_000
_MAX_SECONDS = 300.0
_HEAL_AFTER_S = 25.0
_STAYS_S = 20.0
"""For how long the world waits for what does not go on, before it is left to whoever judges."""

_LOOKED_SHARE = 0.3
"""After what share of misfortunes, and of what those who meddle do, every checker is asked at once; a look
costs a tenth of a schedule."""
_WATCHED_SHARE = 0.02
"""Of how many schedules the quiet end is watched for a while."""


_AIMED_AT = 3
"""Near which intent of a schedule an aimed misfortune falls at the latest."""
_AIMED_WITHIN = 12
"""Within how many handles after an intent is on disk: about as many as there are until its outcome is."""

_Due = tuple[int, Kind, Node | None]
"""A misfortune that is due: after how many handles of the workers, its kind, and whom it falls on, None for
whoever runs then."""


def _when(due: _Due) -> int:
    return due[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of a schedule.

    violations: broken promises, none for a schedule that holds. digest: of everything that happened; two runs
    of one schedule have the same. effects: tickets made at the tool service. ended: states of the tasks.
    misfortunes: what fell on whom, and when. moves: of the transition tables, that were made. played: faults,
    by kind. steps: handles run. seconds: virtual. lines: the trace.
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
    moves: frozenset[Move]
    played: frozenset[str]
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


@cache
def _span(workers: int, tasks: int, agents: tuple[str, ...]) -> int:
    """How many handles the workers run in a calm schedule: where misfortunes can fall."""
    calm = _Schedule(0, workers, tasks, Faults.calm(), "fifo", agents, 0)
    calm.run()
    # What does not even end in good weather is broken wherever misfortunes fall.
    return max(1, calm.ended_at)


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
        self.people = People(self.world, self.world.random("people"), faults, agents)
        self.ingredients = ingredients_of(self.world, faults, self.people)
        self.judge = Judge(
            self.world,
            self.people,
            faults,
            ingredients=self.ingredients,
            max_deaths=SETTINGS.max_deaths,
        )
        self.violations = self.world.violations
        self.misfortunes: list[str] = []
        self.serving: dict[str, tuple[Member, Worker, asyncio.Task[None]]] = {}
        self.members: dict[Node, Member] = {}
        self.intents = 0
        """How many intents the workers have committed."""
        self.aimed: list[tuple[int, int, Kind]] = []
        """Misfortunes that fall near an intent: after which one, and after how many handles, with their
        kind."""
        self.due = self._drawn(span)

    def _drawn(self, span: int) -> list[_Due]:
        """Draw at which handle of the workers each misfortune falls, the last one first; put aside those that
        wait for an intent."""
        kinds: list[Kind] = ["crash"] * self.faults.crashes
        kinds += ["freeze"] * self.faults.freezes
        kinds += ["clock_step"] * self.faults.clock_steps
        kinds += ["drain"] * self.faults.drains
        due: list[_Due] = []
        for kind in kinds:
            if self.faults.aimed and self.fate.random() < self.faults.aimed:
                self.aimed.append(
                    (self.fate.randint(1, _AIMED_AT), self.fate.randint(1, _AIMED_WITHIN), kind)
                )
            else:
                due.append((self.fate.randrange(1, span + 1), kind, None))
        return sorted(due, key=_when, reverse=True)

    # -- the whole ------------------------------------------------------------------------------------------

    def run(self) -> Report:
        world, loop = self.world, self.world.loop
        unsubscribe = telemetry.subscribe(self._listen)
        loop.on_alarm = self._misfortune
        world.service.on_departure = self.judge.departs
        world.service.on_beginning = self.judge.begins
        world.on_intent = self._aim
        self.people.on_meddled = self._look_perhaps
        self.people.neighbour = self._neighbour
        self._set_alarm()
        dump: dict[str, list[dict[str, Any]]] | None = None
        try:
            main = world.start(loop.root, self._script(), name="script")
            dump = loop.run(main, max_steps=_MAX_STEPS, max_seconds=_MAX_SECONDS)
        except Stuck as error:
            self.violations.append(f"the world did not come to rest: {error}; ended: {self.people.states}")
        # What a client is told that it should not be told is a finding, whatever it is.
        except Exception as error:
            self.violations.append(f"a client or the script failed: {error!r}")
        finally:
            unsubscribe()
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
            ended=tuple(self.people.states),
            misfortunes=tuple(self.misfortunes),
            moves=frozenset() if dump is None else moves_of(dump) | world.moves,
            played=frozenset(world.weather.played),
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
        ending = self.people.start(self.tasks)
        for each in self.ingredients:
            ending += each.start()
        healing = world.loop.call_later(_HEAL_AFTER_S + self.faults.spell_s, self._heal)
        await asyncio.gather(*ending)
        healing.cancel()
        self.ended_at = world.loop.counted
        self._heal()
        for each in self.ingredients:
            await each.rest()
        await self._rest()
        for each in self.ingredients:
            await each.rest()
        if self.fate.random() < _WATCHED_SHARE:
            await self._watch_quiet()
        await self._stop()
        self.people.done = True
        # What is still under way arrives before anything is judged, and everybody comes home.
        await self._arrivals()
        if self.people.staying:
            await asyncio.wait(self.people.staying, timeout=_STAYS_S)
        await self._arrivals()
        self.people.leave()
        for each in self.ingredients:
            each.leave()
        dump = await world.database.dump()
        # At this very moment: whoever keeps something is still at it, and is told more than was there.
        living = {member.node for member, _, _ in self.serving.values() if not member.node.dead}
        self.judge.judge(dump, living)
        return dump

    async def _rest(self) -> None:
        """Wait until those tasks have ended too that no client follows (children and forks, some of them made
        late), and until the end of each child is told: a worker that stops leaves that to the next one.

        Where all have ended and what is posted stays for long, it is left to whoever judges."""
        query = TaskFilter(tenant=DEFAULT_TENANT, limit=1000)
        stays: list[dict[str, Any]] | None = None
        since = 0.0
        for _ in range(int(_MAX_SECONDS)):
            rows = await self.world.database.list_tasks(query)
            ended = all(row.state in TASK.final for row in rows) and not self.world.late
            family = any(row.parent is not None for row in rows)
            posted = await self._posted() if ended and family and self.world.there_is("posts") else []
            if ended and not posted:
                return
            if not ended or posted != stays:
                stays, since = posted if ended else None, self.world.loop.time()
            elif self.world.loop.time() - since > _STAYS_S:
                return
            await asyncio.sleep(0.5)

    async def _posted(self) -> list[dict[str, Any]]:
        """Answer what is posted and not delivered yet."""
        return (await self.world.database.dump())["posts"]

    async def _arrivals(self) -> None:
        """Wait until nothing is under way any more."""
        await asyncio.sleep(max(0.0, self.world.arrived_at - self.world.loop.time()))

    async def _watch_quiet(self) -> None:
        """Let the workers run on with nothing to do, and look whether anything grows."""
        database = self.world.database
        # Those who are started again late are there; whoever waited for an answer that does not come has
        # given it up, and has another session; sessions of the dead are swept.
        await asyncio.sleep(_STAYS_S + 2.0 * SETTINGS.lease_s)
        earlier = await database.dump()
        await asyncio.sleep(3.0 * SETTINGS.lease_s)
        self.judge.look_on(await database.dump(), earlier=earlier)

    def _look_perhaps(self) -> None:
        """Have it judged in the middle of it all, right after a misfortune or what people did."""
        if self.fate.random() < _LOOKED_SHARE:
            self.judge.look(self.world.look(self.world.database.dump()))

    # -- workers --------------------------------------------------------------------------------------------

    def _boot(self, name: str) -> None:
        member = self.world.add(name, counted=True, hears=HINTED)
        self.members[member.node] = member
        # Made in the node's context, since it takes ids as it is made.
        make = partial(Worker, APP.registry, member.store, SETTINGS, offers=member.offers)
        worker: Worker = member.node.context.run(make)
        task = self.world.start(member.node, worker.run(), name=f"worker {name}")
        self.serving[name] = (member, worker, task)
        self.world.note(f"{name} started")

    def _neighbour(self, client: int) -> Member | None:
        """Answer the worker whose process a client shares; every second one has a process to itself."""
        if client % 2:
            return None
        serving = self.serving.get(f"w{client // 2 % self.workers + 1}")
        if serving is None or serving[0].node.dead or serving[0].node.frozen:
            return None
        return serving[0]

    async def _stop(self) -> None:
        await asyncio.sleep(max(0.0, self.world.kept_until - self.world.loop.time()))
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
        when, kind, aimed = self.due.pop()
        if aimed is not None and aimed is not node and not (aimed.dead or aimed.frozen):
            # It falls on another, who runs in a moment.
            self._put_due((when + 1, kind, aimed))
            return
        self._set_alarm()
        if self.people.healed:
            return
        world, loop = self.world, self.world.loop
        world.weather.played.add(f"worker {kind}")
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
        self._look_perhaps()
        self.misfortunes.append(f"{kind} of {node.name} after {loop.counted} handles")
        world.note(f"{node.name} {kind}")

    def _aim(self, name: str) -> None:
        """Let what was aimed at this intent fall on its worker."""
        self.intents += 1
        for intent, handles, kind in self.aimed:
            if intent == self.intents:
                self._put_due((self.world.loop.counted + handles, kind, self.serving[name][0].node))

    def _put_due(self, due: _Due) -> None:
        self.due.append(due)
        self.due.sort(key=_when, reverse=True)
        self._set_alarm()

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
        if self.people.healed:
            return
        self.world.note("healed")
        self.world.weather.calm()
        for name in list(self.serving):
            self._restart(name)
        for node in list(self.members):
            self._thaw(node)
        self.people.heal()
        for each in self.ingredients:
            each.heal()


__all__ = ["SETTINGS", "Report", "run_schedule"]
