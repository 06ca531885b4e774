"""What may happen in a storm: each misfortune by its name, where it can happen, and how often it is drawn."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

from outlast.drills.storm.agents import TIMEOUT_S
from outlast.drills.storm.posts import Kind, Post, Posts
from outlast.drills.storm.world import World
from outlast.testing.cramped import CrampedPostgres
from outlast.testing.proxy import Loss, Proxy
from outlast.testing.recorder import Rule
from outlast.testing.servers import EmbeddedPostgres, ServerError, Shutdown
from outlast.testing.small_disks import Room

__all__ = ["MISFORTUNES", "Family", "Fate", "Misfortune", "not_played"]

Family = Literal["kills", "pauses", "restarts", "network", "tickets", "disk", "upgrades", "promotions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """Whom a misfortune may meet, and what it draws from. lease_s: of the workers."""

    world: World
    posts: Posts
    chance: random.Random
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfortune:
    """Something that happens. weight: how often it is drawn. fits: whether it can happen at this moment.
    befall: lets it happen, and ends with it."""

    name: str
    family: Family
    weight: float
    fits: Callable[[Fate], bool]
    befall: Callable[[Fate], Awaitable[None]]


# -- processes -----------------------------------------------------------------------------------------------


def _kill(kind: Kind, weight: float) -> Misfortune:
    async def befall(fate: Fate) -> None:
        await fate.posts.kill(fate.chance.choice(fate.posts.standing(kind)), fate.chance)

    return Misfortune(name=f"kill_{kind}", family="kills", weight=weight, fits=_standing(kind), befall=befall)


def _freeze(kind: Kind, weight: float) -> Misfortune:
    async def befall(fate: Fate) -> None:
        post = fate.chance.choice(fate.posts.standing(kind))
        await fate.posts.freeze(post, fate.lease_s * fate.chance.uniform(1.05, 1.6))

    return Misfortune(
        name=f"freeze_{kind}", family="pauses", weight=weight, fits=_standing(kind), befall=befall
    )


def _standing(*kinds: Kind) -> Callable[[Fate], bool]:
    def fits(fate: Fate) -> bool:
        # One worker is left to work, and one API process to ask.
        standing: list[Post] = fate.posts.standing(*kinds)
        return len(standing) > (0 if kinds == ("settler",) else 1)

    return fits


async def _roll(fate: Fate) -> None:
    await fate.posts.roll(fate.chance.choice(fate.posts.standing("worker", "api")))


# -- databases -----------------------------------------------------------------------------------------------


def _restart(how: Shutdown, name: str) -> Misfortune:
    async def befall(fate: Fate) -> None:
        server = fate.world.server
        assert server is not None
        async with fate.world.tending:
            await asyncio.to_thread(server.crash, how)
            await asyncio.sleep(fate.chance.uniform(0.0, 0.5))
            await asyncio.to_thread(server.recover)

    return Misfortune(name=name, family="restarts", weight=0.7, fits=_tended, befall=befall)


def _tended(fate: Fate) -> bool:
    return fate.world.server is not None and not fate.world.tending.locked()


async def _promote(fate: Fate) -> None:
    """Make a standby, let the primary take no more writes but be there, and go on with the other one.

    As in any hand-over that loses nothing: what is acknowledged is on both, and no write is under way at the
    moment when the standby takes over. Whoever is still connected to the old one has to find out.
    """
    old = fate.world.server
    assert old is not None
    async with fate.world.tending:
        new = await asyncio.to_thread(type(old), follows=old)
        fate.world.stack.push_async_callback(asyncio.to_thread, new.stop)
        await asyncio.to_thread(_demote, old)
        await asyncio.to_thread(new.promote)
        fate.world.promoted(new)


def _demote(server: EmbeddedPostgres) -> None:
    """Let a server take no more writes, and wait until none can be under way. Raises ServerError."""
    server.sql("alter system set default_transaction_read_only = on")
    server.sql("select pg_reload_conf()")
    deadline = time.monotonic() + _PATIENCE_S
    while not _at_rest(server):
        if time.monotonic() > deadline:
            raise ServerError("writes never came to rest before the promotion")


_PATIENCE_S: Final = 60.0
"""Longer than any process is frozen, in the middle of a transaction too."""
_LAST: Final = "select pg_snapshot_xmax(pg_current_snapshot())"
_MAY_WRITE: Final = (
    "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
    " and (backend_xid is not null or xact_start < clock_timestamp() - interval '0.2 s')"
)
"""Who writes, and whose transaction is old enough to have begun when that was still allowed."""


def _at_rest(server: EmbeddedPostgres) -> bool:
    """Whether no transaction writes or could begin to, and none has written for a moment."""
    before = server.sql(_LAST)
    server.sql("select pg_sleep(0.3)")
    return server.sql(_MAY_WRITE) == "0" and server.sql(_LAST) == before


def _can_promote(fate: Fate) -> bool:
    return _tended(fate) and not fate.world.before


# -- disks ---------------------------------------------------------------------------------------------------


_DISK_FULL, _LOG_FULL = "disk_full", "log_full"


async def _fill_disk(fate: Fate) -> None:
    """Leave a store no room to grow for a while: a file may not, a server's tables cannot."""
    if fate.world.server is not None:
        await _fill(fate, "data")
        return
    await fate.posts.tell("full")
    await asyncio.sleep(fate.chance.uniform(0.5, 1.5))
    await fate.posts.tell("room")


async def _fill_log(fate: Fate) -> None:
    """Leave a server's log no room: it stops by itself, and does not come back before there is some."""
    await _fill(fate, "log")


async def _fill(fate: Fate, room: Room) -> None:
    server = fate.world.server
    assert isinstance(server, CrampedPostgres)
    async with fate.world.tending:
        loop = asyncio.get_running_loop()
        until = loop.time() + fate.chance.uniform(0.5, 2.0)
        try:
            await asyncio.to_thread(server.fill, room)
            if room == "log":
                # What is left of its segment would last too long.
                with contextlib.suppress(ServerError):
                    await asyncio.to_thread(server.sql, "select pg_switch_wal()")
            while (left := until - loop.time()) > 0:
                await asyncio.sleep(min(left, 0.1))
                await asyncio.to_thread(server.fill, room)
        finally:
            await asyncio.to_thread(server.empty)


def _can_be_full(fate: Fate) -> bool:
    return isinstance(fate.world.server, CrampedPostgres) and not fate.world.tending.locked()


def not_played(world: World) -> dict[str, str]:
    """Answer which misfortunes a world has not although its store would bear them, and why."""
    why = world.full_is_not_played
    return {_DISK_FULL: why, _LOG_FULL: why} if why else {}


# -- networks ------------------------------------------------------------------------------------------------


def _network(name: str, do: Callable[[Proxy, random.Random], float]) -> list[Misfortune]:
    """Make a misfortune of each relay. do: begins it; answers how many seconds it lasts."""

    def of(where: str, relays: Callable[[World], list[Proxy]]) -> Misfortune:
        async def befall(fate: Fate) -> None:
            relay = fate.chance.choice(relays(fate.world))
            seconds = do(relay, fate.chance)
            await asyncio.sleep(seconds)
            if seconds:
                relay.heal()

        def fits(fate: Fate) -> bool:
            return bool(relays(fate.world))

        return Misfortune(name=f"{where}_{name}", family="network", weight=0.35, fits=fits, befall=befall)

    return [
        of("store", lambda world: [] if world.store is None else [world.store]),
        of("api", lambda world: list(world.apis)),
        of("tickets", lambda world: list(world.tickets)),
    ]


def _cut(relay: Proxy, _: random.Random) -> float:
    relay.cut()
    return 0.0


def _halve(relay: Proxy, chance: random.Random) -> float:
    relay.halve()
    return chance.uniform(0.5, 2.0)


def _hush(relay: Proxy, chance: random.Random) -> float:
    relay.hush()
    return chance.uniform(0.3, 2.0)


def _slow(relay: Proxy, chance: random.Random) -> float:
    relay.slow(chance.uniform(0.02, 0.1))
    return chance.uniform(0.5, 2.0)


def _refuse(relay: Proxy, chance: random.Random) -> float:
    relay.cut()
    relay.refuse()
    return chance.uniform(0.2, 1.0)


async def _lose_commit(fate: Fate) -> None:
    """Lose the answer to a call that commits: the next one of a duty."""
    relay = fate.world.store
    assert relay is not None
    duty = fate.chance.choice(("flush", "flush", "flush", "claim", "submit", "sweep", "control", "people"))
    # A statement that is run, not one that is only prepared, begins with a Bind.
    relay.lose_answer(Loss(label=duty, begins=b"B"))
    await asyncio.sleep(0)


async def _lose_answer(fate: Fate) -> None:
    """Lose the answer of an API process or of a ticket service to the next request that changes something."""
    relay = fate.chance.choice([*fate.world.apis, *fate.world.tickets])
    relay.lose_answer(Loss(begins=b"POST"))
    await asyncio.sleep(0)


async def _misbehave(fate: Fate) -> None:
    """Let a ticket service do to the next calls what such services do."""
    rules = (
        Rule.hang(),
        Rule.act_then_hang(),
        Rule.act_then_reset(),
        Rule.act_then_close(),
        Rule.act_then_half(),
        Rule.act_then_garbage(),
        Rule.act_then_late(int(TIMEOUT_S * 1_500)),
        Rule.act_then_answer(502),
        Rule.refuse(503, retry_after="1"),
        Rule.reset_before_acting(),
    )
    recorder = fate.chance.choice((fate.world.keys, fate.world.plain))
    with contextlib.suppress(OSError):
        await recorder.plan(*fate.chance.sample(rules, 3))


MISFORTUNES: Final[tuple[Misfortune, ...]] = (
    _kill("worker", 3.0),
    _kill("api", 1.0),
    _kill("settler", 0.7),
    _freeze("worker", 2.5),
    _freeze("api", 0.7),
    _freeze("settler", 0.5),
    _restart("fast", "database_fast"),
    _restart("immediate", "database_immediate"),
    _restart("kill", "database_killed"),
    Misfortune(name="promotion", family="promotions", weight=1.5, fits=_can_promote, befall=_promote),
    Misfortune(
        name=_DISK_FULL,
        family="disk",
        weight=0.8,
        fits=lambda fate: fate.world.is_file or _can_be_full(fate),
        befall=_fill_disk,
    ),
    Misfortune(name=_LOG_FULL, family="disk", weight=0.8, fits=_can_be_full, befall=_fill_log),
    Misfortune(
        name="rolling_upgrade", family="upgrades", weight=0.8, fits=_standing("worker", "api"), befall=_roll
    ),
    *_network("cut", _cut),
    *_network("half_open", _halve),
    *_network("silent", _hush),
    *_network("slow", _slow),
    *_network("refused", _refuse),
    Misfortune(
        name="commit_lost",
        family="network",
        weight=2.0,
        fits=lambda fate: fate.world.store is not None,
        befall=_lose_commit,
    ),
    Misfortune(name="answer_lost", family="network", weight=1.5, fits=lambda _: True, befall=_lose_answer),
    Misfortune(
        name="tickets_misbehave", family="tickets", weight=2.0, fits=lambda _: True, befall=_misbehave
    ),
)
"""Every misfortune."""
