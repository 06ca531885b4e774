"""Notes of what passed, written in groups: while one is on its way to disk, the next ones collect."""

from __future__ import annotations

import asyncio
from typing import Any

from outlast.core import passages, values
from outlast.store.contract import Store
from outlast.store.records import Evidence
from outlast.tools.passing import Pass

__all__ = ["Notes", "note_of"]

MOST = 200
"""Notes in one transaction."""


def note_of(of: Pass, proves: Any = None, **data: Any) -> Evidence:
    """Make a note of a call. proves: what it says of its attempt, if anything; None in data is left out."""
    return Evidence(
        tenant=of.tenant,
        task=of.task,
        key=of.key,
        attempt=of.attempt,
        source=passages.SOURCE,
        data=values.encode({name: value for name, value in data.items() if value is not None}),
        says=proves,
    )


class Notes:
    """Keep notes in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[Evidence, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def keep(self, note: Evidence) -> None:
        """Return when the note is on disk. Raises StoreUnavailable, and whatever else the store does."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((note, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await done

    async def _write(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                error: Exception | None = None
                try:
                    await self._store.note([note for note, _ in group])
                # Whatever it is, whoever waits has to hear it.
                except Exception as raised:
                    error = raised
                for _, done in group:
                    if done.done():
                        continue
                    if error is None:
                        done.set_result(None)
                    else:
                        done.set_exception(error)
        finally:
            self._writing = None
