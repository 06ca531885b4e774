"""A world by hand: what its nodes share, and what a worker in it does."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from outlast import clock
from outlast.engine.worker import Worker
from outlast.errors import StoreUnavailable
from outlast.store.records import SessionRenewal
from outlast.testing.simulation import Faults, World
from outlast.testing.simulation.agents import APP
from outlast.testing.simulation.schedule import HINTED, SETTINGS
from outlast.testing.simulation.world import Member


def run(world: World, script: Any) -> Any:
    try:
        return world.loop.run(world.start(world.loop.root, script), max_steps=100_000, max_seconds=1_000)
    finally:
        world.close()


async def renew(member: Member, session: str) -> int:
    renewal = SessionRenewal(session=session, name="n", ttl_us=1_000_000)
    return (await member.store.renew(renewal)).now


def test_the_database_has_the_world_s_clock_and_nodes_have_their_own() -> None:
    world = World(1)
    one, other = world.add("one"), world.add("other")
    one.seams.step_us = int(timedelta(hours=-1) / timedelta(microseconds=1))

    async def own() -> int:
        return clock.unix_us()

    async def script() -> tuple[int, int, int, int]:
        await world.open()
        await asyncio.sleep(10)
        seen = [await world.start(member.node, own()) for member in (one, other)]
        told = [await world.start(member.node, renew(member, member.store._name)) for member in (one, other)]
        return *seen, *told

    stepped, true, told, told_too = run(world, script())
    assert true - stepped == 3600 * 1_000_000
    # Some milliseconds on the way, and nothing of the hour.
    assert abs(told - true) < 1_000_000
    assert abs(told_too - true) < 1_000_000


def test_chance_is_each_node_s_own_and_the_seed_s() -> None:
    async def ids() -> list[str]:
        return [clock.new_id("task") for _ in range(3)]

    def drawn(seed: int) -> list[list[str]]:
        world = World(seed)
        members = [world.add("one"), world.add("other")]

        async def script() -> list[list[str]]:
            return [await world.start(member.node, ids()) for member in members]

        found: list[list[str]] = run(world, script())
        return found

    assert drawn(1) == drawn(1)
    assert len({each for node in drawn(1) + drawn(2) for each in node}) == 12


def test_a_hint_of_one_node_wakes_the_others() -> None:
    world = World(1)
    one, other = world.add("one"), world.add("other", hears=("queue",))

    async def wait() -> tuple[bool, float]:
        hinted = await other.store.wakes.wait("queue", 100.0)
        return hinted, world.loop.time()

    async def script() -> tuple[bool, float]:
        await world.open()
        waiting = world.start(other.node, wait())
        await asyncio.sleep(3)
        one.store.wakes.hint("queue")
        found: tuple[bool, float] = await waiting
        return found

    hinted, at = run(world, script())
    assert hinted
    assert at < 4


def test_every_fault_of_the_store_shows_what_it_says() -> None:
    """A refused verb was not done; a lost, silent or late one is, sooner or later."""
    seen = set()
    for seed in range(60):
        world = World(seed, faults=Faults(store=1.0))
        member = world.add("node")

        async def script(world: World = world, member: Member = member) -> tuple[str, bool, bool]:
            await world.open()
            with pytest.raises(StoreUnavailable):
                await world.start(member.node, renew(member, "ses"))
            before = bool((await world.database.dump())["sessions"])
            await asyncio.sleep(30)
            return world.lines[-1].split()[-1], before, bool((await world.database.dump())["sessions"])

        seen.add(run(world, script()))
    assert seen == {
        ("refused", False, False),
        ("lost", True, True),
        ("silent", True, True),
        ("late", False, True),
    }


@pytest.mark.parametrize("seed", range(5))
def test_a_worker_can_be_told_to_stop_at_any_moment_and_twice(seed: int) -> None:
    world = World(seed)
    member = world.add("worker", hears=HINTED)

    async def serve() -> None:
        worker = Worker(APP.registry, member.store, SETTINGS)
        serving = asyncio.create_task(worker.run())
        await asyncio.sleep(seed)
        for _ in range(30):
            worker.stop()
            await asyncio.sleep(0)
        await serving

    async def script() -> float:
        await world.open()
        await world.start(member.node, serve())
        return world.loop.time()

    # An idle worker does not wait for its next poll.
    assert run(world, script()) < seed + SETTINGS.poll_s / 2
