"""Switches that people throw and take back under way.

Purpose: no intent is committed while a switch stands for its tool; what it held back goes on when it is taken
back.

Identity: a switch is whose it is, and what for.

State: what stands is looked at with other eyes at the very moment of each intent.

Failure by failure: those that fall on workers and the store. Once the world has healed, every switch is taken
back, and every task has to come to its end.

Not covered: several tenants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from outlast.errors import StoreUnavailable
from outlast.store.contract import Store
from outlast.store.entries import CommitIntent
from outlast.store.reconciling import EVERY_TENANT, Pause
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.simulation.intents import Intents
from outlast.testing.simulation.weather import Faults
from outlast.testing.simulation.world import Member, World

__all__ = ["Switching"]

SWITCH_S: Final = 14.0
"""For how long people throw switches."""
TOOLS: Final = ("create_ticket", "put_ticket", "move_money", "withdraw_surely", "pay", "make_alone", "book")
SCOPES: Final = ("all", *(f"tool:{name}" for name in TOOLS))


class Switching:
    """Those who throw switches in one world; see ``ingredients.Ingredient``."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world, self._count = world, faults.switches
        self._fate = world.random("switching")
        self._healed = asyncio.Event()
        self._throwing: list[asyncio.Task[Any]] = []
        self._keeping: list[asyncio.Task[Any]] = []
        world.database = Intents(world, self._look)

    async def _look(self, store: Store, task: str, entry: CommitIntent) -> None:
        """Look whether a switch stands for an intent that was let through."""
        scopes = ("all", f"tool:{entry.name}")
        standing = [one for one in await store.list_pauses(DEFAULT_TENANT) if one.scope in scopes]
        if standing:
            self._world.accuse(f"{task}:{entry.key} was let through while a switch stands: {standing}")

    # -- people ---------------------------------------------------------------------------------------------

    def start(self) -> Sequence[asyncio.Task[Any]]:
        """Let people throw switches; answer those who come to an end."""
        numbers = range(1, self._count + 1)
        self._throwing = [self._begin(f"switcher{number}", self._throw) for number in numbers]
        self._keeping = [self._begin("switchkeeper", self._keep)]
        return self._throwing

    def _begin(self, name: str, work: Any) -> asyncio.Task[Any]:
        member = self._world.add(name)
        task: asyncio.Task[Any] = self._world.start(member.node, work(member, name), name=name)
        return task

    async def _throw(self, member: Member, name: str) -> None:
        """Throw a switch for a while, and take it back, again and again."""
        fate, loop = self._fate, self._world.loop
        until = loop.time() + fate.uniform(SWITCH_S / 2, SWITCH_S)
        while loop.time() < until and not self._healed.is_set():
            await asyncio.sleep(fate.uniform(0.0, 2.0))
            switch = Pause(
                tenant=fate.choice((DEFAULT_TENANT, EVERY_TENANT)),
                scope=fate.choice(SCOPES),
                reason="something is wrong",
                by=f"person:{name}",
            )
            try:
                await member.store.pause(switch)
                await asyncio.sleep(fate.uniform(0.0, 4.0))
                # Not always: somebody else, or the keeper, does it.
                if fate.random() < 0.8:
                    await member.store.resume(switch)
            except StoreUnavailable:
                continue

    async def _keep(self, member: Member, name: str) -> None:
        """When the world has healed, take back whatever stands."""
        await self._healed.wait()
        await asyncio.wait(self._throwing)
        # What nobody waits for any more may still be carried out.
        while self._world.late:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        for switch in await member.store.list_pauses(DEFAULT_TENANT):
            await member.store.resume(switch)

    # -- the end --------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Let the keeper do what is left to do."""
        self._healed.set()

    async def rest(self) -> None:
        """Wait until no switch stands."""
        await asyncio.wait(self._keeping)

    def leave(self) -> None:
        """Say who could not do what they had to."""
        self._world.accuse_failed((*self._throwing, *self._keeping))

    def judge(self, dump: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
        """Look whether no switch is left."""
        if dump["pauses"]:
            yield f"switches are left that were taken back: {dump['pauses']}"
