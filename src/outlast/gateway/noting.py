"""Notes of what passes, written in groups: while one is on its way to disk, the next ones collect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from outlast.core import passages, values
from outlast.store.contract import Store
from outlast.store.passing import Passage
from outlast.store.records import Evidence
from outlast.tools.passing import Pass

__all__ = ["Notes", "note_of"]

T = TypeVar("T")
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


class _Group(Generic[T]):
    """Carry out one thing for many at once."""

    def __init__(self, work: Callable[[list[Evidence]], Awaitable[Sequence[T]]]) -> None:
        self._work = work
        self._waiting: list[tuple[Evidence, asyncio.Future[T]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def one(self, note: Evidence) -> T:
        """Return when it is done for one note. Raises what the store does."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((note, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        return await done

    async def _write(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                try:
                    answers = await self._work([note for note, _ in group])
                # Whatever it is, whoever waits has to hear it.
                except Exception as error:
                    for _, done in group:
                        if not done.done():
                            done.set_exception(error)
                else:
                    for (_, done), answer in zip(group, answers, strict=True):
                        if not done.done():
                            done.set_result(answer)
        finally:
            self._writing = None


class Notes:
    """Keep notes in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._admitting = _Group(self._admit)
        self._keeping = _Group(self._keep)

    async def admit(self, note: Evidence) -> Passage | None:
        """Note a request that is about to leave, and answer what decides on it. Raises what the store
        does."""
        return await self._admitting.one(note)

    async def keep(self, note: Evidence) -> None:
        """Return when a note is on disk. Raises what the store does."""
        await self._keeping.one(note)

    async def _admit(self, notes: list[Evidence]) -> list[Passage | None]:
        return await self._store.admit(notes)

    async def _keep(self, notes: list[Evidence]) -> list[None]:
        await self._store.note(notes)
        return [None] * len(notes)
