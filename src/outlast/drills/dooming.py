"""A stage on which workers die: who is doomed, who comes after them, and what is waited for meanwhile."""

from __future__ import annotations

import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from outlast.app import Outlast
from outlast.drills import crew, looking
from outlast.drills.crew import PATIENCE_S
from outlast.drills.fleet import Fleet, Process
from outlast.testing.probes import Trigger
from outlast.views import TaskView

__all__ = ["Dooming"]

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Dooming(ABC):
    """What faults are played with where workers die.

    environ: what processes need. chance: seeded; order and jitter come from it. doomed_left: groups that have
    not yet got their worker to its end. pools: theirs. patience_s: how long to wait for what has to come.
    """

    WORKER: ClassVar[str]
    """The module that is run as a worker."""

    app: Outlast
    fleet: Fleet
    chance: random.Random
    environ: dict[str, str]
    tell: Callable[[str], None]
    doomed_left: int = 0
    pools: list[str] = field(default_factory=list)
    patience_s: float = PATIENCE_S

    async def until(self, look: Callable[[], Awaitable[T | None]], otherwise: str) -> T:
        """Look until there is an answer. Raises TimeoutError."""
        return await looking.until(look, otherwise, patience_s=self.patience_s)

    async def end(self, task: str) -> TaskView:
        """Wait for a task's end. Raises TimeoutError."""
        try:
            return await self.app.wait(task, timeout=self.patience_s)
        except TimeoutError:
            view = await self.app.get(task)
            raise TimeoutError(f"its task is still {view.state} ({view.reason})") from None

    async def doomed(self, pool: str, *probe: Trigger) -> Process:
        """Start the worker of a pool of its own, to be killed or frozen, and wait until it serves."""
        self.pools.append(pool)
        return await crew.start(
            self.fleet, self.WORKER, f"doomed-{pool}", (pool,), "doomed", *probe, environ=self.environ
        )

    @contextlib.asynccontextmanager
    async def dooming(self, pool: str, *probe: Trigger) -> AsyncIterator[Process]:
        """Start a doomed worker, whose end comes within the block, and say so after it."""
        try:
            yield await self.doomed(pool, *probe)
        finally:
            await self.gone()

    async def gone(self) -> None:
        """Say that one doomed worker is dead or frozen.

        The last to say so brings in the successors, which must not find the task of one that still lives.
        """
        self.doomed_left -= 1
        if self.doomed_left == 0 and self.pools:
            self.tell("the doomed are gone; their successors begin")
            await self.succeed(*dict.fromkeys(self.pools))

    @abstractmethod
    async def succeed(self, *pools: str) -> None:
        """Start whoever comes after the doomed workers."""
