"""The moments for which cells wait for one another: every worker dies, and those in a hurry are done."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from outlast.drills.crew import PATIENCE_S

__all__ = ["Restart"]


class Restart:
    """Let cells wait for one another before every worker dies, and before the next ones are started; and
    those that start processes of their own until those that have to be in time are.

    cells: names of those that go through it. hurried: of those that have to be in time.
    """

    def __init__(self, cells: Collection[str], hurried: Collection[str] = ()) -> None:
        self._before, self._between, self._hurried = set(cells), set(cells), set(hurried)
        self._moved = asyncio.Event()
        self._dead, self._back = asyncio.Event(), asyncio.Event()
        self.endings: list[str] = []
        """How the workers ended."""

    # -- for cells -------------------------------------------------------------------------------------------

    async def dead(self, cell: str) -> None:
        """Say that a cell is ready, and wait until every worker is dead."""
        self._before.discard(cell)
        self._move()
        async with asyncio.timeout(2 * PATIENCE_S):
            await self._dead.wait()

    async def back(self, cell: str | None = None) -> None:
        """Say that a cell has done what it does meanwhile, and wait until new workers serve.

        Without a cell: only wait.
        """
        if cell is not None:
            self._between.discard(cell)
            self._move()
        async with asyncio.timeout(3 * PATIENCE_S):
            await self._back.wait()

    def in_time(self, cell: str) -> None:
        """Say that a cell need not hurry any more."""
        self._hurried.discard(cell)
        self._move()

    async def calm(self) -> None:
        """Wait until nobody is in a hurry, so that starting processes makes nobody late."""
        async with asyncio.timeout(4 * PATIENCE_S):
            await self._until_empty(self._hurried)

    def leave(self, cell: str) -> None:
        """Wait no more for a cell, which did not get there."""
        for cells in (self._before, self._between, self._hurried):
            cells.discard(cell)
        self._move()

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
            await self._moved.wait()

    def _move(self) -> None:
        # An event of its own for every move: several may wait.
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
