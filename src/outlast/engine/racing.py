"""A recorded race between branches: which one was first, the same on every replay.

Purpose: agent code may wait for whichever comes first, and take the same way after a crash.

Identity: the race's own key; each branch has a scope of its own, ``<key>/<index>/``. Keys that were taken
before the branches began stay taken.

State: undecided, then decided by one record. On a replay only the branch that was first runs again; its
operations answer from the journal, and its value, or error, is made of them.

Failure by failure: a crash before the record is on disk: the branches race again. What a losing branch
recorded by then stays. The record goes before the losers are cut, so that no wait is on record as lost in a
race that is not.

Losers are cut in the turn of the loop in which the first one ends: their waits are recorded as failed
(``lost_race``), so that nothing wakes the task for them, and a signal that lay there stays for the next wait.
A call of theirs that is under way goes on, and its outcome is recorded; one that waits for its turn, for a
person or for another attempt is not made any more. A child task of theirs goes on.

Not covered: a losing branch that swallows its cancellation goes on until its next operation, which is
refused.
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable
from typing import Any, Final

from outlast.core import canonical, values
from outlast.engine import scopes
from outlast.engine.run import Run, Unrecorded
from outlast.engine.steps import known, recorded
from outlast.engine.wording import event
from outlast.errors import InvalidRequest
from outlast.store.entries import RecordOperation

LOST: Final = "lost_race"
"""Code on the record of what was cut since another branch was first."""
NAME: Final = "first"
CUT_S: Final = 1.0
"""Seconds in which a loser has to end."""


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

    async def branch() -> Any:
        scopes.enter(scopes.Scope(path=f"{key}/{winner}/", owner=asyncio.current_task()))
        return await work

    return await asyncio.get_running_loop().create_task(branch())


async def _race(run: Run, key: str, request: str, branches: tuple[Awaitable[Any], ...]) -> tuple[int, Any]:
    race = scopes.Race(scopes.race())
    winners: list[int] = []

    def ends(number: int) -> None:
        if race.over or run.sealed:
            return
        # In the very turn in which a branch ends, so that no other takes anything after it.
        race.over = True
        winners.append(number)
        _record(run, key, request, number)

    async def branch(number: int, work: Awaitable[Any]) -> Any:
        scopes.enter(scopes.Scope(path=f"{key}/{number}/", owner=asyncio.current_task()))
        scopes.join(race)
        try:
            result = await work
        except (asyncio.CancelledError, Unrecorded):
            raise
        # Whatever else it raises, it is over, and may be first.
        except BaseException:
            ends(number)
            raise
        ends(number)
        return result

    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(branch(number, work)) for number, work in enumerate(branches)]
    try:
        while not winners and not all(task.done() for task in tasks):
            await asyncio.wait([task for task in tasks if not task.done()], return_when=FIRST_COMPLETED)
            run.check()
    finally:
        await _cut(tasks)
    if not winners:
        # Every branch was cut by its own code.
        raise asyncio.CancelledError
    return winners[0], tasks[winners[0]].result()


def _record(run: Run, key: str, request: str, winner: int) -> None:
    result, position = values.encode(winner), run.known.next_position()
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
    run.known.remember(key, position, "value", NAME, "succeeded", request, result)


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
