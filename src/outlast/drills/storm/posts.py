"""Posts: where a process of a kind always stands, and another takes its place whatever happened to it."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal
from urllib.parse import urlsplit

from outlast.drills.fleet import Fleet, FleetError, Process
from outlast.drills.following import served_at
from outlast.drills.storm.agents import Place
from outlast.testing.proxy import Proxy

__all__ = ["POOL", "Death", "Kind", "Post", "Posts"]

Kind = Literal["worker", "settler", "api"]
POOL: Final = "default"
_NOBODYS: Final = "nobodys"
"""The pool of the settler: it claims nothing, and looks after everybody's timers, deadlines and unknowns."""
NEWER: Final = 2
"""The generation of the code that has every version of each agent."""
PATIENCE_S: Final = 60.0
WORKER: Final = "outlast.drills.storm.worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A worker that was killed, or frozen for longer than its lease. at: when, in seconds since 1970."""

    worker: str
    at: float


@dataclass(slots=True, eq=False)
class Post:
    """A post. count: the processes that have stood here. busy: something is being done to the one that stands
    here now. relay: before an API."""

    kind: Kind
    name: str
    relay: Proxy | None = None
    generation: int = 1
    count: int = 0
    process: Process | None = None
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def stands(self) -> bool:
        """Whether a process stands here that nobody is doing anything to."""
        return not self.busy.locked() and self.process is not None and self.process.running

    @property
    def label(self) -> str:
        """What its process calls itself."""
        return f"{self.name}-{self.count}"


class Posts:
    """All posts of a campaign.

    environ: what processes need. timers: of its workers, by their name. deaths: of workers that may have held
    leases. strange: who ended although nobody had done anything to it.
    """

    def __init__(
        self,
        fleet: Fleet,
        place: Place,
        environ: Mapping[str, str],
        *,
        workers: int,
        apis: list[Proxy],
        timers: str,
    ) -> None:
        self.all = [
            *(Post("worker", f"worker{number}") for number in range(1, workers + 1)),
            Post("settler", "settler"),
            *(Post("api", f"api{number}", relay) for number, relay in enumerate(apis, 1)),
        ]
        self.deaths: list[Death] = []
        self.strange: list[str] = []
        self._rolled = False
        self._fleet, self._place, self._environ, self._timers = fleet, place, environ, timers

    def standing(self, *kinds: Kind) -> list[Post]:
        """Answer the posts of some kinds where a process stands."""
        return [post for post in self.all if post.kind in kinds and post.stands]

    async def man(self, post: Post) -> None:
        """Start a process at a post, as often as it takes: while the store is away none begins to serve.

        Raises TimeoutError.
        """
        async with asyncio.timeout(PATIENCE_S):
            while True:
                post.count += 1
                process = self._start(post)
                try:
                    if post.kind == "api":
                        assert post.relay is not None
                        url = await served_at(process, patience_s=PATIENCE_S)
                        post.relay.port = urlsplit(url).port or 0
                    else:
                        await process.says("ready", timeout=PATIENCE_S)
                except FleetError:
                    process.kill()
                    await asyncio.sleep(0.2)
                    continue
                post.process = process
                return

    async def watch(self) -> None:
        """Look for ever whether somebody has ended without being asked to, and put another there."""
        while True:
            for post in self.all:
                if post.process is not None and not post.process.running and not post.busy.locked():
                    async with post.busy:
                        self.strange.append(
                            f"{post.label} ended by itself: {post.process.ending}; {post.process.last_words}"
                        )
                        await self.man(post)
            await asyncio.sleep(0.3)

    async def kill(self, post: Post, chance: random.Random) -> None:
        """Kill whoever stands at a post, and put another there, as a supervisor would."""
        async with post.busy:
            assert post.process is not None
            self._died(post)
            post.process.kill()
            await post.process.exited()
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            await self.man(post)

    async def freeze(self, post: Post, seconds: float) -> None:
        """Freeze whoever stands at a post, and let it go on."""
        async with post.busy:
            assert post.process is not None
            self._died(post)
            post.process.send(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            post.process.thaw()

    async def roll(self, post: Post) -> None:
        """Let whoever stands at a post leave in good order, and put the other generation there."""
        async with post.busy:
            assert post.process is not None
            post.process.send(signal.SIGTERM)
            await post.process.exited(timeout=PATIENCE_S)
            post.generation = NEWER if post.generation < NEWER else 1
            self._rolled = self._rolled or post.kind == "worker"
            await self.man(post)

    async def tell(self, line: str) -> None:
        """Write a line to whoever stands anywhere."""
        for post in self.all:
            if post.process is not None and post.process.running:
                await post.process.tell(line)

    async def settle_down(self) -> None:
        """Thaw everybody, and see that each post is manned, and that somebody has the code of every task."""
        for post in self.all:
            if post.process is not None and post.process.running:
                post.process.thaw()
            async with post.busy:
                if post.process is None or not post.process.running:
                    await self.man(post)
        workers = [post for post in self.all if post.kind == "worker"]
        if self._rolled and not any(post.generation == NEWER for post in workers):
            await self.roll(workers[0])

    async def stop(self) -> list[str]:
        """Let everybody leave in good order; answer who did not."""
        running = [post for post in self.all if post.process is not None and post.process.running]
        ended = await asyncio.gather(
            *(post.process.stop(timeout=PATIENCE_S) for post in running if post.process is not None),
            return_exceptions=True,
        )
        return [
            f"{post.label} ended with {code!r}"
            for post, code in zip(running, ended, strict=True)
            if code != 0
        ]

    def _died(self, post: Post) -> None:
        if post.kind == "worker":
            self.deaths.append(Death(worker=post.label, at=time.time()))

    def _start(self, post: Post) -> Process:
        place = replace(self._place, generation=post.generation)
        environ = {**self._environ, **place.environ()}
        if post.kind == "api":
            served = "outlast.drills.storm.served:app"
            return self._fleet.start(
                post.label, "outlast", "serve", served, "--port", "0", "--json", environ=environ
            )
        pools = POOL if post.kind == "worker" else _NOBODYS
        return self._fleet.start(post.label, WORKER, post.label, pools, self._timers, environ=environ)
