"""Whether a service that asked to be left alone is left alone, by everybody.

Purpose: what a service says with ``Retry-After`` holds for all workers, for calls as for questions, from the
moment when it is on record; and for questions of the process that was told itself, from the moment when it
was.

Identity: a wait is the provider's, and the end that the service meant; whatever a worker made of it.

State: each wait that a sender has learnt of. It is on record with the outcome of the call that was told, or
when the question that was told is put back: a wait whose bearer died before is nobody's.

Clock: the world's. The service tells the time with each wait, so that no worker's wall clock matters.

Failure by failure: a call whose intent was on disk before the wait was may still leave, and so may a question
for which its asker has looked before.

Not covered: other tenants; waits that are longer than they were asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from outlast.store.contract import Store
from outlast.store.entries import Batch, CommitIntent, Flushed, RecordOutcome
from outlast.store.reconciling import OpenState, Postponement
from outlast.testing.simulation.agents import APP
from outlast.testing.simulation.intents import Intents
from outlast.testing.simulation.loop import Node, current_node
from outlast.testing.simulation.world import World
from outlast.tools.call import ToolCall

__all__ = ["LeavingAlone"]

SLACK_S: Final = 0.001
"""Clocks of the store count microseconds."""
_Attempt = tuple[str, str, int]
"""A task, a key, and the attempt's number."""


@dataclass(slots=True)
class _Wait:
    """What a sender was told. turn: of the call that was told, None for a question. known_at: since when it
    is on record."""

    provider: str
    until: float
    attempt: _Attempt
    turn: int | None
    asker: asyncio.Task[Any] | None
    node: Node
    known_at: float | None = None


class LeavingAlone(Intents):
    """A world's database that looks whether waits are kept."""

    def __init__(self, world: World) -> None:
        super().__init__(world, self._begin)
        self._waits: list[_Wait] = []
        self._turns: dict[_Attempt, int] = {}
        self._looked: WeakKeyDictionary[asyncio.Task[Any], float] = WeakKeyDictionary()
        world.service.on_wait = self._learn
        world.service.on_question = self._ask
        world.database = self

    def _standing(self, provider: str) -> list[_Wait]:
        now = self._world.loop.time()
        return [each for each in self._waits if each.provider == provider and now < each.until - SLACK_S]

    # -- what is told ---------------------------------------------------------------------------------------

    def _learn(self, call: ToolCall, until: float) -> None:
        attempt = (call.task, _key(call), call.attempt)
        self._waits.append(
            _Wait(
                provider=self._provider_of(call),
                until=until,
                attempt=attempt,
                turn=None if call.query else self._turns.get(attempt),
                asker=asyncio.current_task() if call.query else None,
                node=current_node(),
            )
        )

    async def flush(self, batch: Batch, *, now: int | None = None) -> list[Flushed]:
        """Flush; from then on everybody can know what was told to a call whose outcome is in it."""
        verdicts = await super().flush(batch, now=now)
        for write, verdict in zip(batch.writes, verdicts, strict=True):
            refused = {place for place, _ in verdict.refusals}
            for place, entry in enumerate(write.entries):
                if isinstance(entry, RecordOutcome) and verdict.kind == "accepted" and place not in refused:
                    self._recorded(write.task, entry)
        return verdicts

    def _recorded(self, task: str, entry: RecordOutcome) -> None:
        for each in self._waits:
            if each.turn == entry.turn and each.attempt == (task, entry.key, entry.attempt):
                self._know(each)

    async def postpone(self, postponements: Sequence[Postponement], *, now: int | None = None) -> list[bool]:
        """Put back; from then on everybody can know what was told to the question that led to it."""
        answers = await self._store.postpone(postponements, now=now)
        caller = self._world.caller
        for one, done in zip(postponements, answers, strict=True):
            for each in self._waits if done else ():
                mine = each.asker is caller if caller is not None else one.wait is not None
                if each.turn is None and each.attempt[:2] == (one.task, one.key) and mine:
                    self._know(each)
        return answers

    def _know(self, wait: _Wait) -> None:
        if wait.known_at is None:
            wait.known_at = self._world.loop.time()

    # -- what is done ---------------------------------------------------------------------------------------

    async def _begin(self, _: Store, task: str, entry: CommitIntent) -> None:
        """Look whether an intent was let through while a wait is on record."""
        self._turns[task, entry.key, entry.attempt + 1] = entry.turn + 1
        for each in self._standing(APP.registry.tools[entry.name].provider):
            if each.known_at is not None:
                self._accuse(f"{task}:{entry.key} was begun", each)

    async def read_open(
        self, tenant: str, task: str, key: str, *, provider: str | None = None, now: int | None = None
    ) -> OpenState | None:
        """Read, and note who has looked when."""
        place = await self._store.read_open(tenant, task, key, provider=provider, now=now)
        caller = self._world.caller
        if caller is not None and provider is not None:
            self._looked[caller] = self._world.loop.time()
        return place

    def _ask(self, call: ToolCall) -> None:
        """Look whether a question is asked although its asker could know of a wait."""
        asker = asyncio.current_task()
        looked = self._world.loop.time() if asker is None else self._looked.get(asker, 0.0)
        for each in self._standing(self._provider_of(call)):
            told_itself = each.turn is None and each.node is current_node()
            if told_itself or (each.known_at is not None and each.known_at < looked):
                self._accuse(f"{call.idempotency_key} was asked about", each)

    def _accuse(self, what: str, wait: _Wait) -> None:
        left_s = wait.until - self._world.loop.time()
        self._world.accuse(f"{what} {left_s:.3f} s before {wait.provider} is to be left alone no more")

    def _provider_of(self, call: ToolCall) -> str:
        sql = "select name from operations where tenant = ? and task = ? and key = ?"
        [(name,)] = self._world.read(sql, call.tenant, call.task, _key(call))
        return APP.registry.tools[name].provider


def _key(call: ToolCall) -> str:
    return call.idempotency_key.partition(":")[2]
