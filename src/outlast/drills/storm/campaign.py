"""One campaign: make a world, let the storm pass over it, let it come to rest, and judge it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from outlast.app import Outlast
from outlast.drills import looking
from outlast.drills.fleet import Fleet
from outlast.drills.running import FAULTS_OF_PLAY
from outlast.drills.storm.agents import Place, Theirs
from outlast.drills.storm.asking import KEYS
from outlast.drills.storm.judge import Verdict, judge, unjudged
from outlast.drills.storm.load import Load
from outlast.drills.storm.misfortunes import MISFORTUNES, Family, Fate, Misfortune, not_played
from outlast.drills.storm.posts import Posts
from outlast.drills.storm.worker import HISTORY, Timers, timers
from outlast.drills.storm.world import World, prepare, world
from outlast.errors import StoreUnavailable
from outlast.testing.checkers.seen import Dump

__all__ = ["Plan", "Played", "play"]

WORKERS: Final = 3
MOST_TASKS: Final = 40
PATIENCE_S: Final = 150.0
"""How long a world may take to come to rest once it has healed; a loaded machine is slow."""
_AT_ONCE: Final = 4
"""Misfortunes that may be under way at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a campaign is to be.

    seed: of everything that is drawn in it. seconds: of storm. timers: ``short`` or ``shipped``. workers: how
    many there are. only: patterns of misfortunes, all for none. wanted: how many of each family are still
    wanted by the run; these are drawn more often. theirs: somebody's own app instead of the storm's.
    """

    seed: int
    seconds: float
    timers: Timers
    postgres: str | None
    workers: int = WORKERS
    only: Sequence[str] = ()
    wanted: Mapping[Family, int] = field(default_factory=dict)
    theirs: Theirs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a campaign was. happened: how often each misfortune. storm_s, calm_s: how long the storm was, and
    how long it took until all was at rest after it. not_played: misfortunes that could not be played, and
    why."""

    plan: Plan
    store: str
    happened: Counter[str]
    storm_s: float
    calm_s: float
    verdict: Verdict
    not_played: Mapping[str, str] = field(default_factory=dict)


async def play(plan: Plan, folder: Path, tell: Callable[[str, float], None]) -> Played:
    """Play a campaign in a folder of its own.

    tell: what is done now, and how far the storm is (0 to 1). Raises ConfigurationError, RecorderError,
    ServerError, StoreUnavailable when there is no world to play in.
    """
    chance = random.Random(plan.seed)
    async with world(plan.postgres, folder, by_socket=chance.random() < 0.5) as made, Fleet(folder) as fleet:
        tell("bringing up the store, the services and the processes", 0.0)
        await prepare(made.direct)
        posts = _posts(plan, made, fleet, folder)
        load = Load(
            made, f"storm-{plan.seed}", random.Random(plan.seed + 1), most=MOST_TASKS, theirs=plan.theirs
        )
        storm = _Storm(plan, made, posts, load, chance, tell)
        try:
            return await storm.play()
        finally:
            await load.close()


def _posts(plan: Plan, made: World, fleet: Fleet, folder: Path) -> Posts:
    keys, plain = (f"http://127.0.0.1:{relay.listens_on}" for relay in made.tickets)
    roles = "approver+operator+submitter"
    environ = {
        "OUTLAST_DATABASE_URL": made.url,
        "OUTLAST_SECRET": f"{random.Random(plan.seed).getrandbits(256):064x}",
        "OUTLAST_API_KEYS": ",".join(f"default:{key}:{name}:{roles}" for name, key in KEYS.items()),
        HISTORY: str(folder),
    }
    return Posts(
        fleet,
        Place(keys=keys, plain=plain, app="" if plan.theirs is None else plan.theirs.app),
        environ,
        workers=plan.workers,
        apis=list(made.apis),
        timers=plan.timers,
    )


class _Storm:
    def __init__(
        self,
        plan: Plan,
        made: World,
        posts: Posts,
        load: Load,
        chance: random.Random,
        tell: Callable[[str, float], None],
    ) -> None:
        self._plan, self._world, self._posts, self._load = plan, made, posts, load
        self._chance, self._tell = chance, tell
        self._lease_s = timers(plan.timers).lease_s
        self._happened: Counter[str] = Counter()
        self._troubles: list[str] = []

    async def play(self) -> Played:
        await asyncio.gather(*(self._posts.man(post) for post in self._posts.all))
        began = time.time()
        works = [
            asyncio.create_task(self._guard(work)) for work in (*self._load.works(), self._posts.watch())
        ]
        try:
            await self._blow()
            ended = time.time()
            self._load.calm_down()
            try:
                await self._heal()
            except FAULTS_OF_PLAY as error:
                self._troubles.append(f"the world did not heal: {type(error).__name__}: {error}")
            healed = time.time()
            self._load.heal()
            await self._rest()
            calm_s = time.time() - healed
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
        self._tell("stopping everything, and judging what is left", 1.0)
        self._troubles += await self._posts.stop()
        await self._keep_log()
        try:
            verdict = await judge(
                self._world,
                self._load,
                self._posts,
                self._troubles,
                span=(began, ended),
                judged_by_log=self._plan.theirs is None,
            )
        except StoreUnavailable as error:
            verdict = unjudged(
                self._load, self._posts, [*self._troubles, f"nothing could be judged: {error}"]
            )
        return Played(
            plan=self._plan,
            store=self._world.shown,
            happened=self._happened,
            storm_s=ended - began,
            calm_s=calm_s,
            verdict=verdict,
            not_played={name: why for name, why in not_played(self._world).items() if self._asked(name)},
        )

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Let a work go on until it is cancelled; a fault of the storm itself is a trouble."""
        try:
            await work
        except* Exception as failed:  # whatever it is, the campaign is judged with it
            self._troubles += [
                f"the storm itself failed: {type(error).__name__}: {error}" for error in failed.exceptions
            ]

    # -- the storm -------------------------------------------------------------------------------------------

    async def _blow(self) -> None:
        loop = asyncio.get_running_loop()
        began, under_way = loop.time(), set[asyncio.Task[None]]()
        pace_s = 0.7 if self._plan.timers == "short" else 2.5
        while (gone := loop.time() - began) < self._plan.seconds:
            self._show(gone / self._plan.seconds)
            if len(under_way) < _AT_ONCE:
                drawn = self._draw()
                if drawn is not None:
                    task = asyncio.create_task(self._guard(self._befall(drawn)), name=drawn.name)
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
            await asyncio.sleep(min(self._chance.expovariate(1 / pace_s), 4 * pace_s))
        if under_way:
            _, endless = await asyncio.wait(under_way, timeout=PATIENCE_S)
            self._troubles += [f"{task.get_name()} never came to its end" for task in endless]
            for task in endless:
                task.cancel()

    def _draw(self) -> Misfortune | None:
        fate = self._fate()
        fitting = [one for one in MISFORTUNES if self._asked(one.name) and one.fits(fate)]
        # What is wanted by number comes more often, until there is enough of it.
        weights = [
            one.weight * (3.0 if self._plan.wanted.get(one.family, 0) > self._count(one.family) else 1.0)
            for one in fitting
        ]
        return self._chance.choices(fitting, weights)[0] if fitting else None

    def _asked(self, name: str) -> bool:
        """Whether a misfortune is to be played."""
        return not self._plan.only or any(fnmatchcase(name, each) for each in self._plan.only)

    def _count(self, family: Family) -> int:
        return sum(self._happened[one.name] for one in MISFORTUNES if one.family == family)

    async def _befall(self, drawn: Misfortune) -> None:
        self._happened[drawn.name] += 1
        await drawn.befall(self._fate())

    def _fate(self) -> Fate:
        return Fate(world=self._world, posts=self._posts, chance=self._chance, lease_s=self._lease_s)

    def _show(self, share: float) -> None:
        happened, load = self._happened.total(), self._load
        ended = len(load.tracked) - len(load.live)
        self._tell(f"{happened} misfortunes; {len(load.tracked)} tasks accepted, {ended} ended", share)

    async def _keep_log(self) -> None:
        """Keep what the store's server wrote, where something is to be looked into: it goes with it."""
        server = self._world.server
        if self._troubles and server is not None:
            text = await asyncio.to_thread(lambda: server.log)
            await asyncio.to_thread((self._world.folder / "postgres.log").write_text, text)

    # -- after it --------------------------------------------------------------------------------------------

    async def _heal(self) -> None:
        self._tell("healing", 1.0)
        for relay in self._world.relays:
            relay.heal()
        for recorder in (self._world.keys, self._world.plain):
            await recorder.plan(instead=True)
        await self._posts.tell("room")
        await self._posts.settle_down()

    async def _rest(self) -> None:
        """Wait until every task has ended and nothing is on its way any more."""
        app = Outlast("storm", database_url=self._world.direct)

        async def opened() -> bool | None:
            try:
                await app.open()
            except StoreUnavailable:
                # A server that has just got its room back recovers first.
                return None
            return True

        try:
            await looking.until(opened, "", patience_s=PATIENCE_S, every_s=0.5)
        except TimeoutError:
            self._troubles.append("the database did not come back")
            return
        left = ""

        async def quiet() -> bool | None:
            nonlocal left
            dump = await app.store.dump()
            people = _for_people(dump) if self._plan.theirs is not None else set()
            live = Counter(
                f"{row['state']} ({row['reason']})" if row["reason"] else row["state"]
                for row in dump["tasks"]
                if row["state"] in ("queued", "running", "waiting") and row["id"] not in people
            )
            unknown = sum(row["task"] not in people for row in dump["unsettled"])
            posts = len(dump["posts"])
            # Looked at behind the dump: what was answered since is seen.
            coming = self._load.on_their_way
            left = f"{dict(live)}, {unknown} unknown, {posts} not delivered, {coming} not answered"
            self._tell(f"coming to rest: {left}", 1.0)
            seen = [one for one in self._load.live if one.task not in people]
            return None if live or unknown or posts or coming or seen else True

        try:
            await looking.until(quiet, "", patience_s=PATIENCE_S, every_s=0.5)
        except FAULTS_OF_PLAY as error:
            self._troubles.append(f"the world did not come to rest: {left or error}")
        finally:
            with contextlib.suppress(*FAULTS_OF_PLAY):
                await app.close()


def _for_people(dump: Dump) -> set[str]:
    """Answer the tasks of which a person has to say what became of a call: of somebody's own tools, the storm
    does not know, and they may wait."""
    return {row["task"] for row in dump["unsettled"] if row["ask_at"] is None and not row["resend"]}
