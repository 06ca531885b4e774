"""Relays that publish the outbox, and a broker that loses, repeats and delays; its log judges messages.

Purpose: every message of a task that asked to be announced leaves at least once, in the order of its task,
and none that was never committed. The relays are the world's own, on the store's verbs for them.

Identity: a message's id is its task and its number; consumers tell a repeat by it.

State: the broker's log of what it handed on. A relay knows nothing beside the outbox.

Failure by failure: a message is lost, handed on without a confirmation, twice, or after its relay gave up. A
relay dies or freezes between any two of its steps, and two of them do the same work. What the broker will
never take is parked with its reason, and holds back what comes after it in its task.

Not covered: a broker that loses what it confirmed; taking a parked message out again, which no verb does.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outlast.errors import StoreUnavailable
from outlast.store.rows import EventCursor, Message, Publication
from outlast.streams.tail import FINAL
from outlast.testing.simulation.weather import Faults
from outlast.testing.simulation.world import Member, World

__all__ = ["BROKER_FAULTS", "Relays"]

BrokerFault = Literal["none", "dropped", "unconfirmed", "late", "twice"]
BROKER_FAULTS: tuple[BrokerFault, ...] = ("dropped", "unconfirmed", "late", "twice")
PATIENCE_S = 1.0
"""How long a relay waits for a confirmation."""
LATEST_S = 8.0
POLL_S = 1.0
RESTS = 100
"""How often it is looked whether all has left, before what is there is judged."""
TAKEN = 5
"""How many messages a relay takes at once: fewer than there may be."""
REFUSED = 0.15
"""Share of messages that the broker never takes."""
STRUCK = 0.04
"""How often a relay dies or freezes between two of its steps, as long as the world has not healed."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that the broker has handed on."""

    task: str
    number: int
    topic: str
    data: str


class Broker:
    """Takes messages from relays and hands them on; keeps what it handed on, in order."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world, self._share = world, faults.broker
        self._node = world.loop.add_node("broker")
        self._fate = world.random("broker")
        self._never: dict[tuple[str, int], bool] = {}
        self.log: list[Delivery] = []

    async def publish(self, message: Message) -> str | None:
        """Hand a message over and wait for the confirmation; answer why it will never be taken, else None.

        Raises TimeoutError when nothing is confirmed; it may have been handed on, or will yet be.
        """
        world, fate = self._world, self._fate
        if self.never_takes(message.task, message.number):
            await asyncio.sleep(world.weather.way())
            return "too large"
        fault: BrokerFault = "none"
        if world.weather.stormy and fate.random() < self._share:
            fault = fate.choice(BROKER_FAULTS)
            world.weather.played.add(f"broker {fault}")
        confirmed: asyncio.Future[None] = world.loop.create_future()
        way = world.weather.way()
        if fault == "late":
            way = PATIENCE_S + fate.uniform(0.0, LATEST_S)
        if fault != "dropped":
            told = None if fault in ("unconfirmed", "late") else confirmed
            self._send(message, way, told)
        if fault == "twice":
            self._send(message, way + fate.uniform(0.0, LATEST_S), None)
        async with asyncio.timeout(PATIENCE_S):
            await confirmed
        return None

    def never_takes(self, task: str, number: int) -> bool:
        """Whether a message is one that the broker refuses, whoever brings it."""
        name = (task, number)
        if name not in self._never:
            self._never[name] = self._share > 0 and self._fate.random() < REFUSED
        return self._never[name]

    def _send(self, message: Message, way: float, confirmed: asyncio.Future[None] | None) -> None:
        self._world.expect(way)
        self._world.loop.call_later(way, self._arrive, message, confirmed, context=self._node.context)

    def _arrive(self, message: Message, confirmed: asyncio.Future[None] | None) -> None:
        world = self._world
        world.note(f"broker {message.task} {message.number} {message.topic}")
        self.log.append(Delivery(message.task, message.number, message.topic, message.data))
        cursor = EventCursor(tenant=message.tenant, task=message.task, after=message.number - 1)
        rows = world.look(world.database.read_events([cursor], 1))
        if [(row.number, row.kind) for row in rows] != [(message.number, message.topic)]:
            world.accuse(f"message {message.task}/{message.number} tells {message.topic}, which is not there")
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(None)


class Relays:
    """The relays of one world and what their broker has seen; see ``ingredients.Ingredient``."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world, self._count = world, faults.relays
        self._struck = faults.strikes > 0
        self._fate = world.random("relays")
        self.broker = Broker(world, faults)
        self._serving: dict[str, tuple[Member, asyncio.Task[None]]] = {}
        self._done = False
        world.announces = True

    # -- relays ---------------------------------------------------------------------------------------------

    def start(self) -> Sequence[asyncio.Task[Any]]:
        """Start every relay; none of them comes to an end."""
        for number in range(1, self._count + 1):
            self._boot(f"relay{number}")
        return ()

    def _boot(self, name: str) -> None:
        member = self._world.add(name)
        self._serving[name] = (member, self._world.start(member.node, self._serve(member), name=name))

    async def _serve(self, member: Member) -> None:
        while not self._done:
            try:
                if await self._publish(member):
                    continue
            except StoreUnavailable:
                pass
            await asyncio.sleep(POLL_S)

    async def _publish(self, member: Member) -> bool:
        """Publish what there is, each task's messages in their order; answer whether all of it left."""
        if not self._world.there_is("outbox where parked is null"):
            return False
        messages = await member.store.take_messages(TAKEN)
        out: list[Publication] = []
        held: set[str] = set()
        for message in messages:
            if message.task in held:
                continue
            await self._strike(member)
            parked = None
            try:
                parked = await self.broker.publish(message)
            except TimeoutError:
                # What comes after it waits for it.
                held.add(message.task)
                continue
            if parked is not None:
                held.add(message.task)
            out.append(
                Publication(tenant=message.tenant, task=message.task, number=message.number, parked=parked)
            )
        await self._strike(member)
        if out:
            await member.store.confirm_messages(out)
        for one in out:
            self._world.moves.add(("message", "pending", "publish" if one.parked is None else "park"))
        return bool(out) and not held

    async def _strike(self, member: Member) -> None:
        """Let the relay die or freeze here, if the dice say so."""
        world, fate = self._world, self._fate
        if not self._struck or not world.weather.stormy or fate.random() >= STRUCK:
            return
        root = world.loop.root.context
        if fate.random() < 0.5:
            world.weather.played.add("relay crash")
            world.note(f"{member.node.name} crash")
            world.loop.crash(member.node)
            world.loop.call_later(fate.uniform(0.0, 5.0), self._boot, member.node.name, context=root)
        else:
            world.weather.played.add("relay freeze")
            world.note(f"{member.node.name} freeze")
            world.loop.freeze(member.node)
            world.loop.call_later(fate.uniform(0.0, 8.0), world.loop.thaw, member.node, context=root)
        await asyncio.sleep(0)

    # -- the end --------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Those who are away come back by themselves."""

    async def rest(self) -> None:
        """Wait until nothing is left that can be published."""
        for _ in range(RESTS):
            if not await self._world.database.take_messages(1):
                return
            await asyncio.sleep(POLL_S / 2)

    def leave(self) -> None:
        """Stop the relays, and say which of them was not there to be stopped."""
        self._done = True
        for name, (_, task) in self._serving.items():
            if task.done() and (error := task.exception()) is not None:
                self._world.accuse(f"the {name} could not go on: {error!r}")

    def judge(self, dump: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
        """Compare what the broker handed on with the streams of those tasks that are announced."""
        announced = {row["task"] for row in dump["inputs"] if row["announce"]}
        due: dict[str, dict[int, str]] = defaultdict(dict)
        for row in dump["events"]:
            if row["task"] in announced and (row["kind"] == "task.submitted" or row["kind"] in FINAL):
                due[row["task"]][row["number"]] = row["kind"]
        parked = {(row["task"], row["number"]) for row in dump["outbox"] if row["parked"] is not None}
        first: dict[tuple[str, int], Delivery] = {}
        for delivery in self.broker.log:
            name = (delivery.task, delivery.number)
            if delivery != first.setdefault(name, delivery):
                yield f"message {delivery.task}/{delivery.number} was two things: {delivery}, {first[name]}"
        for task, topics in due.items():
            seen = [number for of, number in first if of == task]
            if seen != sorted(seen):
                yield f"the messages of {task} came as {seen}"
            stuck = min((number for of, number in parked if of == task), default=None)
            owed = [number for number in topics if stuck is None or number < stuck]
            if sorted(seen) != sorted(owed):
                yield f"of {task} the messages {sorted(owed)} were due, and {sorted(seen)} came"
        for task, _ in first:
            if task not in due:
                yield f"a message of {task} came, which asked for silence"
        for task, number in parked:
            if not self.broker.never_takes(task, number):
                yield f"message {task}/{number} was parked, and nobody had refused it"
