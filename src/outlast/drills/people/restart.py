"""The moment in which every worker dies: cells that go through it meet there twice."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from outlast.drills.crew import PATIENCE_S

__all__ = ["Restart"]


class Restart:
    """Let cells wait for one another before every worker dies, and before the next ones are started.

    cells: names of those that go through it.
    """

    def __init__(self, cells: Collection[str]) -> None:
        self._before, self._between = set(cells), set(cells)
        self._moved = asyncio.Event()
        self._dead, self._back = asyncio.Event(), asyncio.Event()
        self.endings: list[str] = []
        """How the workers ended."""

    # -- for cells -------------------------------------------------------------------------------------------

    async def dead(self, cell: str) -> None:
        """Say that a cell is ready, and wait until every worker is dead."""
        self._before.discard(cell)
        self._moved.set()
        async with asyncio.timeout(2 * PATIENCE_S):
            await self._dead.wait()

    async def back(self, cell: str | None = None) -> None:
        """Say that a cell has done what it does meanwhile, and wait until new workers serve.

        Without a cell: only wait.
        """
        if cell is not None:
            self._between.discard(cell)
            self._moved.set()
        async with asyncio.timeout(3 * PATIENCE_S):
            await self._back.wait()

    def leave(self, cell: str) -> None:
        """Wait no more for a cell, which did not get there."""
        self._before.discard(cell)
        self._between.discard(cell)
        self._moved.set()

    # -- for whoever kills and starts ------------------------------------------------------------------------

    async def all_ready(self) -> None:
        """Wait until every cell is ready."""
        await self._until_empty(self._before)

    async def all_done(self, endings: list[str]) -> None:
        """Say how the workers ended, and wait until every cell has done what it does meanwhile."""
        self.endings = endings
        self._dead.set()
        await self._until_empty(self._between)

    def served(self) -> None:
        """Say that new workers serve."""
        self._back.set()

    async def _until_empty(self, cells: set[str]) -> None:
        while cells:
            self._moved.clear()
            await self._moved.wait()
