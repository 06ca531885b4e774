"""A recorded race between branches: which one was first, the same on every replay.

Purpose: agent code may wait for whichever comes first, and take the same way after a crash.

Identity: the race's own key; each branch has a scope of its own, ``<key>/<index>/``. Keys that were taken
before the branches began stay taken.

State: undecided, then decided by one record. On a replay only the branch that was first runs again; its
operations answer from the journal, and its value, or error, is made of them.

Failure by failure: a crash before the record is on disk: the branches race again. What a losing branch
recorded by then stays. The record goes before the losers are cut, so that no wait is on record as lost in a
race that is not.

Losers are cut: their waits are recorded as failed (``lost_race``), so that nothing wakes the task for them.
A call of theirs that is under way goes on, and its outcome is recorded; one that waits for its turn, for a
person or for another attempt is not made any more. A child task of theirs goes on.

Not covered: a losing branch that swallows its cancellation goes on until its next await of an operation.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any, Final

from outlast.core import canonical, values
from outlast.engine import scopes
from outlast.engine.run import Run
from outlast.engine.steps import known, recorded
from outlast.engine.wording import event
from outlast.errors import InvalidRequest
from outlast.store.records import RecordOperation

LOST: Final = "lost_race"
"""Code on the record of what was cut since another branch was first."""
NAME: Final = "first"
CUT_S: Final = 1.0
"""Seconds in which a loser has to end."""


class Race:
    """A race under way. within: the race that it is a part of."""

    __slots__ = ("over", "within")

    def __init__(self, within: Race | None) -> None:
        self.over = False
        self.within = within


_current: ContextVar[Race | None] = ContextVar("outlast_race", default=None)


def racing() -> bool:
    """Answer whether this code is a branch of a race."""
    return _current.get() is not None


def lost() -> bool:
    """Answer whether this branch, or one that it is a part of, is in a race that is over: it was cut since
    another was first."""
    race = _current.get()
    while race is not None:
        if race.over:
            return True
        race = race.within
    return False


async def first(run: Run, key: str, branches: tuple[Awaitable[Any], ...]) -> tuple[int, Any]:
    """Answer the index and the value of the branch that ends first, or raise its error."""
    try:
        if not branches:
            raise InvalidRequest("first() needs at least one branch")
        run.check()
        request = canonical.fingerprint("value", NAME, {"branches": len(branches)})
        row = known(run, key, "value", NAME, request)
        if row is not None:
            winner = int(recorded(run, row))
            return winner, await _again(key, winner, branches[winner])
        return await _race(run, key, request, branches)
    finally:
        for work in branches:
            # It never began: nobody forgot it, so nobody is to be warned of it.
            if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()


async def _again(key: str, winner: int, work: Awaitable[Any]) -> Any:
    """Run the branch that was first, in a task of its own as it had then."""
    return await asyncio.get_running_loop().create_task(_branch(key, winner, work, None))


async def _branch(key: str, number: int, work: Awaitable[Any], race: Race | None) -> Any:
    scopes.enter(scopes.Scope(path=f"{key}/{number}/", owner=asyncio.current_task()))
    if race is not None:
        _current.set(race)
    return await work


async def _race(run: Run, key: str, request: str, branches: tuple[Awaitable[Any], ...]) -> tuple[int, Any]:
    race = Race(_current.get())
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(_branch(key, number, work, race)) for number, work in enumerate(branches)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        run.check()
        # Of several that ended in one turn of the loop, the first that was named.
        winner = next(number for number, task in enumerate(tasks) if task.done())
        result, position = values.encode(winner), run.next_position()
        run.append(
            RecordOperation(
                key=key,
                position=position,
                kind="value",
                name=NAME,
                state="succeeded",
                request=request,
                result=result,
                events=(event("operation.succeeded", operation=key, kind="value", name=NAME, first=winner),),
            )
        )
        run.remember(key, position, "value", NAME, "succeeded", request, result)
        race.over = True
    finally:
        await _cut(tasks)
    return winner, tasks[winner].result()


async def _cut(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
        task.add_done_callback(_unheard)
    # So that they have put on record what they have to before the agent goes on.
    if any(not task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=CUT_S)


def _unheard(task: asyncio.Task[Any]) -> None:
    """What a loser says when it is cut is nobody's business any more."""
    if not task.cancelled():
        task.exception()
