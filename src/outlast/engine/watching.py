"""What works only by luck is told to developers, once a place; in development only.

Two things that plain asyncio offers are not repeatable around operations: ``asyncio.wait`` does not record
which operation was first, and ``asyncio.timeout`` (``wait_for``, a cancelled task) cuts an operation by this
process's clock, which a replay does not see. ``task.first`` and ``timeout=`` of the waits are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from outlast.engine import scopes
from outlast.engine.run import Run

_WAIT = "_wait.<locals>._on_completion"


async def watched(run: Run, name: str, work: Coroutine[Any, Any, Any]) -> Any:
    """Await an operation, and warn if it is raced or cut by something else than its run."""
    try:
        return await work
    except asyncio.CancelledError:
        if not run.sealed and not scopes.lost():
            run.host.warn_once(
                f"{run.spec.name}: {name} was cut by the agent's own code, as by asyncio.timeout",
                "a replay may come out differently: use timeout= of the wait, or task.first()",
            )
        raise
    finally:
        if scopes.race() is None and _waited_for():
            run.host.warn_once(
                f"{run.spec.name}: {name} was awaited by asyncio.wait, which does not record what was first",
                "a replay may come out differently: use task.first(), or task.gather()",
            )


def _waited_for() -> bool:
    callbacks = getattr(asyncio.current_task(), "_callbacks", None) or ()
    return any(getattr(callback, "__qualname__", "") == _WAIT for callback, _ in callbacks)
