"""A world: one database, one tool service, one virtual clock, and the nodes that live there.

Purpose: everything that a schedule needs in one place, made from one seed.

Identity: the seed. Every generator in the world is made from it, so the same code under the same seed does
the same things in the same order, in every process.

Clock: the loop's. The database's clock is the world's; each node's wall clock can be stepped.

Not covered: a world ends with ``close``; until then it keeps every coroutine that was started in it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from functools import partial
from random import Random
from typing import Any, TypeVar

from outlast import clock
from outlast.engine.offers import Offers
from outlast.store.contract import Store
from outlast.store.entries import Batch, Flushed
from outlast.store.sqlite import SqliteStore
from outlast.testing.simulation.database import lend
from outlast.testing.simulation.loop import Node, Order, SimulationLoop
from outlast.testing.simulation.node import NodeSeams, NodeStore, carry_out
from outlast.testing.simulation.service import TicketService
from outlast.testing.simulation.weather import Faults, Weather

T = TypeVar("T")

_world: ContextVar[World] = ContextVar("outlast_simulation_world")


def current_world() -> World:
    """Answer the world whose code is running. Raises LookupError outside one."""
    return _world.get()


class Member:
    """A node with what is its own: seams and a store. counted: see ``SimulationLoop.add_node``."""

    __slots__ = ("node", "offers", "seams", "store")

    def __init__(self, node: Node, seams: NodeSeams, store: NodeStore) -> None:
        self.node = node
        self.seams = seams
        self.store = store
        self.offers = Offers()


class World:
    """Make a world from a seed. faults: what may go wrong. order: see ``SimulationLoop``."""

    def __init__(self, seed: int, *, faults: Faults | None = None, order: Order = "fifo") -> None:
        self.seed = seed
        self.loop = SimulationLoop(self.random("order"), order=order)  # type: ignore[abstract]
        dice = (self.random(purpose) for purpose in ("weather", "waits", "brink"))
        self.weather = Weather(faults or Faults.calm(), *dice)
        self.lines: list[str] = []
        self.violations: list[str] = []
        self.late = 0
        """How many verbs, of which nobody waits for an answer, the database has still to come to."""
        self.arrived_at = 0.0
        self.kept_until = 0.0
        """The virtual second by which everything will have arrived that is under way."""
        self.caller: asyncio.Task[Any] | None = None
        """Who asked for the verb that the database carries out at this moment, None for whoever has gone."""
        self.moves: set[tuple[str, str, str]] = set()
        """Moves of the transition tables that the dump of the end does not show."""
        self.announces = False
        """Whether clients ask for their tasks to be announced."""
        self.code: Callable[[], bool] = lambda: False
        """Whether the node that runs has loaded other code under the same version."""
        self.policy_answers: Callable[[str, str], bool] = lambda task, operation: True
        """Whether policy can be asked about an operation of a task."""
        self.acknowledged: dict[tuple[str, Any], float] = {}
        """When people were first told that a signal is there, by its task and what was sent."""
        self.on_waiting: Callable[[str], None] = lambda task: None
        """Told when a task begins to wait for a signal."""
        self.on_heard: Callable[[str, Any], None] = lambda task, sent: None
        """Told when a task has heard one."""
        self.on_intent: Callable[[str], None] = lambda name: None
        """Told when the database has taken the intent of a worker of that name."""
        self._batches: dict[str, tuple[int, list[Flushed]]] = {}
        self._listeners: dict[str, list[Member]] = {}
        self._enter(self.loop.root, "world")
        # A copy, since a context cannot be entered twice and handles of the root node run in its own.
        self.database_context = self.loop.root.context.copy()
        self._rows: Any = None
        self.database: Store = self.loop.root.context.run(
            SqliteStore, self.url, executor="inline", connect=self._borrow
        )
        self.service = TicketService(self, self.loop.add_node("service"))

    url = "sqlite://:memory:"

    def _borrow(self, _: str) -> Any:
        self._rows = lend()
        return self._rows

    def random(self, purpose: str) -> Random:
        """Make a generator of its own for a purpose, from the world's seed."""
        return Random(f"{self.seed}/{purpose}")

    async def open(self) -> None:
        """Make the database; awaited on the world's own node."""
        await self.database.migrate()
        await self.database.open()

    def add(self, name: str, *, counted: bool = False, hears: Iterable[str] = ()) -> Member:
        """Add a node with its own clocks, chance and way to the database. hears: topics whose hints reach
        it."""
        node = self.loop.add_node(name, counted=counted)
        seams = self._enter(node, f"{name}/{node.index}")
        member = Member(node, seams, NodeStore(self, name))
        for topic in hears:
            if topic not in self._listeners:
                self._listeners[topic] = []
                self.start(self.loop.root, self._pass_on(topic), name=f"hints/{topic}")
            self._listeners[topic].append(member)
        return member

    def _enter(self, node: Node, purpose: str) -> NodeSeams:
        seams = NodeSeams(self.loop, partial(self.random, purpose))
        node.context.run(clock.install, seams)
        node.context.run(_world.set, self)
        return seams

    def start(self, node: Node, work: Coroutine[Any, Any, T], *, name: str | None = None) -> Any:
        """Start a coroutine on a node; answer its task."""
        return self.loop.start(node, work, name=name)

    # -- what nodes share -----------------------------------------------------------------------------------

    def note(self, line: str) -> None:
        """Write a line into the trace, with the virtual time."""
        self.lines.append(f"{self.loop.time():.6f} {line}")

    def hint(self, topic: str) -> None:
        """Hint a topic to every node, as the database would."""
        self.database.wakes.hint(topic)

    def first_answer(self, batch: Batch, verdicts: list[Flushed]) -> list[Flushed] | None:
        """Keep what a batch was answered; answer what it was answered before, None for the first time."""
        number, kept = self._batches.get(batch.writer, (0, []))
        if number < batch.number:
            self._batches[batch.writer] = (batch.number, verdicts)
            return None
        return kept if number == batch.number else []

    def accuse(self, violation: str) -> None:
        """Note that a promise was broken."""
        self.violations.append(violation)

    def accuse_failed(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Note, by their names, those who could not do what they had to."""
        for task in tasks:
            if task.done() and (error := task.exception()) is not None:
                self.accuse(f"the {task.get_name()} could not go on: {error!r}")

    async def _pass_on(self, topic: str) -> None:
        """Carry the database's hints to the nodes."""
        while True:
            if await self.database.wakes.wait(topic, 3600.0):
                for member in self._listeners[topic]:
                    if not member.node.dead:
                        member.store.ears.hear(topic)

    def look(self, view: Coroutine[Any, Any, T]) -> T:
        """Carry out a verb of the database at this very moment, for whoever judges: no await, no trace."""
        return self.database_context.run(carry_out, view)

    def read(self, sql: str, *bindings: Any) -> list[tuple[Any, ...]]:
        """Read rows at this very moment, past the store: with other eyes than its own, and at no cost."""
        found: list[tuple[Any, ...]] = self._rows.execute(sql, bindings).fetchall()
        return found

    def there_is(self, rows: str) -> bool:
        """Say whether there are rows at this very moment: what people would see who ask all the time, whom it
        spares asking in vain. rows: what follows ``from`` in SQL."""
        return bool(self.read(f"select 1 from {rows} limit 1"))

    def expect(self, seconds: float) -> None:
        """Note that something is under way, and arrives in so many virtual seconds."""
        self.arrived_at = max(self.arrived_at, self.loop.time() + seconds)

    def keep(self, seconds: float) -> None:
        """Note that a worker waits for so many virtual seconds, and is not to be stopped before."""
        self.kept_until = max(self.kept_until, self.loop.time() + seconds)

    # -- the end --------------------------------------------------------------------------------------------

    def digest(self) -> str:
        """Answer the digest of everything that happened so far: whose turn it was, and every line."""
        seen = hashlib.sha256(self.loop.trace)
        seen.update("\n".join(self.lines).encode())
        return seen.hexdigest()

    def close(self) -> None:
        """End the world: close what is left of its coroutines, then the database."""
        self.loop.close()
        self.look(self.database.close())
