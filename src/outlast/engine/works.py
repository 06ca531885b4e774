"""What a run has under way: who works at each open operation, who waits for it, and how it is cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from outlast.engine import scopes

__all__ = ["Works"]


class Works:
    """The open operations of one run.

    Each is worked at in a task of its own, which a cancelled caller does not cut.
    """

    def __init__(self) -> None:
        self.open: dict[str, asyncio.Task[None] | None] = {}
        """What works at each operation that is not over; None while its first intent is on its way."""
        self._joined: dict[str, list[asyncio.Future[Any]]] = {}
        self.stepping: set[str] = set()
        """Keys of steps and waits that are under way: a second one under the same key is refused."""
        self.critical: set[str] = set()
        """Operations that are at something which has to end, such as a call that was sent."""
        self.cuts: dict[str, Callable[[], object]] = {}
        """How to cut, at once, what is under way and changes nothing outside."""
        self.lost: set[str] = set()
        """Calls whose race was won by another branch: they are not tried again."""

    def own(
        self, key: str, work: Coroutine[Any, Any, None], context: Context | None = None
    ) -> asyncio.Task[None]:
        """Work at an operation; answer the task that does.

        work: says by ``close`` how it has ended. context: its caller's, where this is another's turn.
        """
        loop = asyncio.get_running_loop()
        task = self.open[key] = loop.create_task(work, context=context or scopes.outside_races())
        return task

    def join(self, key: str) -> asyncio.Future[Any]:
        """Answer a future of an open operation's result; to cancel it leaves the operation alone."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._joined.setdefault(key, []).append(future)
        return future

    def let_go(self, key: str) -> None:
        """Leave an open operation alone, since its race is lost: what is under way ends and is recorded, what
        is not is not begun any more."""
        if any(not future.done() for future in self._joined.get(key, ())):
            return
        self.lost.add(key)
        self.cut(key)

    def cut(self, key: str) -> None:
        """Cut an operation short, unless it is at something that has to end."""
        task = self.open.get(key)
        if task is not None and key not in self.critical:
            task.cancel()

    def cut_idle(self) -> None:
        """Cut every operation short that is not at something that has to end."""
        for key in list(self.open):
            self.cut(key)

    def cut_harmless(self) -> None:
        """Cut at once what is under way and changes nothing outside."""
        for cut in list(self.cuts.values()):
            cut()

    def close(self, key: str, result: Any, error: BaseException | None) -> None:
        """Tell whoever has joined an operation how it has ended."""
        self.open.pop(key, None)
        for future in self._joined.pop(key, ()):
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            elif isinstance(error, asyncio.CancelledError):
                future.cancel()
            else:
                future.set_exception(error)
                # Who waited for nothing but its end does not look at what it was.
                future.exception()

    async def drain(self, grace_s: float) -> None:
        """Let what has to end do so within the grace time, then cut it; what is cut records what it knows."""
        calls = {self.join(key): key for key in self.open if key in self.critical}
        self.cut_idle()
        if not calls:
            return
        _, late = await asyncio.wait(calls, timeout=grace_s)
        for future in late:
            task = self.open[calls[future]]
            if task is None:
                # Its intent is not answered: nothing was sent, and nothing will be.
                self.close(calls[future], None, asyncio.CancelledError())
            else:
                task.cancel()
        if late:
            await asyncio.wait(late, timeout=1.0)
