"""Other eyes for intents: told of each one at the very moment when it is committed.

Purpose: whoever judges what may be sent looks at what stands in the database at that moment, whatever the
worker knew.

Identity: an operation and its attempt.

State: none; the operation is read before and after the batch, so that a batch that is sent again, and an
entry that was refused, tell nothing.

Not covered: intents of the ledger alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from outlast.store.contract import Store
from outlast.store.entries import Batch, CommitIntent, Flushed
from outlast.submitting import DEFAULT_TENANT
from outlast.testing.simulation.world import World

__all__ = ["Intents"]

Told = Callable[[Store, str, CommitIntent], Awaitable[None]]
"""Called with the database, the task, and the intent."""


class Intents:
    """A world's database that tells of intents. tools: whose, None for all."""

    def __init__(self, world: World, told: Told, tools: tuple[str, ...] | None = None) -> None:
        self._world, self._told, self._tools = world, told, tools
        self._store = world.database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def flush(self, batch: Batch, *, now: int | None = None) -> list[Flushed]:
        """Flush, and tell of what was let through."""
        calls = [
            (write.task, entry, self._attempts(write.task, entry.key))
            for write in batch.writes
            for entry in write.entries
            if isinstance(entry, CommitIntent) and (self._tools is None or entry.name in self._tools)
        ]
        verdicts = await self._store.flush(batch, now=now)
        for task, entry, before in calls:
            if self._attempts(task, entry.key) == before + 1:
                await self._told(self._store, task, entry)
        return verdicts

    def _attempts(self, task: str, key: str) -> int:
        sql = "select attempt from operations where tenant = ? and task = ? and key = ?"
        rows = self._world.read(sql, DEFAULT_TENANT, task, key)
        return int(rows[0][0]) if rows else 0
