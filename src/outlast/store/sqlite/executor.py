"""Where the desks stand: in threads of their own, or in place.

Threaded: one thread writes, one reads. Each takes everything that is pending, carries it out as one group,
and wakes each event loop that waits for it once. A caller that is cancelled does not undo its verb. A group
that takes long ends early, and what it has not begun goes into the next one: the oldest of it first, the rest
behind what has come meanwhile, so that large verbs neither keep small ones waiting, nor wait for ever.

Inline: everything happens in the caller's place, on one connection; nothing is ever pending. For simulations,
whose time is virtual, and for scripts.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import apsw

from outlast.errors import StoreUnavailable
from outlast.store.sqlite import connection as connections
from outlast.store.sqlite.desk import Call, Carried, Desk, Outcome, Writer
from outlast.store.sqlite.transaction import Transaction

T = TypeVar("T")
Hint = Callable[[frozenset[str]], None]

GROUP_LIMIT = 1000
"""How many verbs one transaction carries at most."""
POLL_SECONDS = 0.02
"""How often a watched file is asked whether another process has committed."""


class Executor(Protocol):
    """Carries verbs to the database."""

    async def write(
        self, verb: Callable[[Transaction], T], *, peek: Callable[[Transaction], T | None] | None = None
    ) -> T:
        """Carry out a verb in a writing transaction, together with others that are pending.

        peek: what may answer it without one; None sends it on to the verb.
        """
        ...

    async def read(self, view: Callable[[Transaction], T]) -> T:
        """Carry out a view in a snapshot."""
        ...

    def look_out(self) -> None:
        """Look for commits by other processes from now on, while somebody waits for them."""
        ...

    async def close(self) -> None:
        """Finish what is pending, then release every connection and thread; idempotent."""
        ...


class Inline:
    """Carry everything out in place, on one connection."""

    def __init__(
        self,
        path: str,
        *,
        hint: Hint,
        clock: Callable[[], int] | None = None,
        connect: Callable[[str], apsw.Connection] = connections.connect,
    ) -> None:
        self._writer = Writer(path, now=clock, connect=connect)
        self._hint = hint

    async def write(
        self, verb: Callable[[Transaction], T], *, peek: Callable[[Transaction], T | None] | None = None
    ) -> T:
        """See ``Executor``; one verb, one transaction."""
        carried = self._writer.carry_out([Call(verb, peek)])
        self._writer.tend()
        if carried.hints:
            self._hint(carried.hints)
        answer: T = _answer(carried.outcomes[0])
        return answer

    async def read(self, view: Callable[[Transaction], T]) -> T:
        """See ``Executor``."""
        answer: T = _answer(self._writer.look([view]).outcomes[0])
        return answer

    def look_out(self) -> None:
        """Do nothing: there is no thread that could look."""

    async def close(self) -> None:
        """See ``Executor``."""
        self._writer.close()


def _answer(outcome: Outcome | None) -> Any:
    assert outcome is not None, "the first verb of a group is always carried out"
    if outcome.error is not None:
        raise outcome.error
    return outcome.answer


class _Post:
    """One verb on its way, and who waits for it."""

    __slots__ = ("call", "future", "loop", "place")

    def __init__(self, call: Call, loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.loop = loop
        self.place = 0
        """In the order of arrival."""
        self.future: asyncio.Future[Any] = loop.create_future()


class _Thread:
    """A thread that carries out everything pending as one group, then wakes each waiting loop once."""

    def __init__(
        self,
        name: str,
        carry_out: Callable[[Sequence[Call]], Carried],
        *,
        close: Callable[[], None],
        hint: Hint,
        watched: Callable[[], bool] | None = None,
        look: Callable[[], None] | None = None,
        tend: Callable[[], float | None] | None = None,
    ) -> None:
        self._carry_out = carry_out
        self._close = close
        self._hint = hint
        self._watched = watched
        self._look = look
        self._tend = tend
        self._tend_in: float | None = None
        self._posts: queue.SimpleQueue[_Post | None] = queue.SimpleQueue()
        self._left: list[_Post] = []
        self._arrived = 0
        self._closing = False
        # A daemon, so that a process that forgets to close ends all the same; what is committed is committed.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def carry(self, call: Call) -> Any:
        """Post a call and wait for its answer."""
        if self._closing:
            raise StoreUnavailable("the store is closed")
        post = _Post(call, asyncio.get_running_loop())
        self._posts.put(post)
        return await post.future

    def nudge(self) -> None:
        """Let the thread see that somebody watches."""
        self._posts.put(None)

    async def close(self) -> None:
        """End the thread after everything posted before."""
        if not self._closing:
            self._closing = True
            self._posts.put(None)
        # The thread hands nothing over to a loop after this, so waiting in another thread is all there is to
        # it.
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while True:
            group = self._take()
            if group:
                self._answer(group, self._carry_out_safely([post.call for post in group]))
            elif self._closing:
                break
            elif self._look is not None and self._is_watched():
                self._look()
            if self._tend is not None and (group or self._tend_in is not None):
                self._tend_in = self._tend()
        self._close()

    def _carry_out_safely(self, calls: list[Call]) -> Carried:
        try:
            return self._carry_out(calls)
        except BaseException as error:
            told = StoreUnavailable(f"the store's thread was interrupted: {error!r}")
            return Carried([Outcome(error=told)] * len(calls))

    def _is_watched(self) -> bool:
        return self._watched is not None and self._watched()

    def _take(self) -> list[_Post]:
        """Take everything pending; wait for the first, but not for ever while somebody watches."""
        group, left = self._left[:1], self._left[1:]
        try:
            # What tells of the closing may have been taken along with the last posts.
            first = self._posts.get(
                block=not (self._closing or group),
                timeout=POLL_SECONDS if self._is_watched() else self._tend_in,
            )
            while True:
                if first is not None:
                    self._arrived += 1
                    first.place = self._arrived
                    group.append(first)
                if len(group) >= GROUP_LIMIT:
                    break
                first = self._posts.get_nowait()
        except queue.Empty:
            pass
        room = max(0, GROUP_LIMIT - len(group))
        self._left = left[room:]
        return group + left[:room]

    def _answer(self, group: list[_Post], carried: Carried) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Post, Outcome]]] = {}
        left: list[_Post] = []
        for post, outcome in zip(group, carried.outcomes, strict=True):
            if outcome is None:
                left.append(post)
            else:
                by_loop.setdefault(post.loop, []).append((post, outcome))
        if left:
            self._left = sorted(left + self._left, key=lambda post: post.place)
        hints = carried.hints
        for loop, answers in by_loop.items():
            try:
                loop.call_soon_threadsafe(self._resolve, answers, hints)
                hints = frozenset()
            except RuntimeError:
                # That loop is closed: nobody is left there to be told.
                continue
        if hints:
            self._hint(hints)

    def _resolve(self, answers: list[tuple[_Post, Outcome]], hints: frozenset[str]) -> None:
        for post, outcome in answers:
            if post.future.done():
                continue
            if outcome.error is not None:
                post.future.set_exception(outcome.error)
            else:
                post.future.set_result(outcome.answer)
        if hints:
            self._hint(hints)


class Threaded:
    """One writing and one reading thread; a memory store has one thread for both."""

    def __init__(
        self, path: str, *, hint: Hint, watched: Callable[[], bool], changed: Callable[[], None]
    ) -> None:
        self._changed = changed
        self._pid = os.getpid()
        writer = Writer(path)
        self._desk = writer
        self._writing = _Thread(
            "outlast-sqlite-writer",
            writer.carry_out,
            close=writer.close,
            hint=hint,
            watched=watched,
            look=self._look,
            tend=writer.tend,
        )
        self._reading: _Thread | None = None
        if path != connections.MEMORY:
            reader = Desk(path)
            self._reading = _Thread(
                "outlast-sqlite-reader",
                lambda calls: reader.look([call.verb for call in calls]),
                close=reader.close,
                hint=hint,
            )

    async def write(
        self, verb: Callable[[Transaction], T], *, peek: Callable[[Transaction], T | None] | None = None
    ) -> T:
        """See ``Executor``."""
        self._check_process()
        answer: T = await self._writing.carry(Call(verb, peek))
        return answer

    async def read(self, view: Callable[[Transaction], T]) -> T:
        """See ``Executor``."""
        self._check_process()
        # A memory store has one connection, and a view that its one thread can answer by a peek.
        thread, call = (self._reading, Call(view)) if self._reading else (self._writing, Call(view, view))
        answer: T = await thread.carry(call)
        return answer

    def look_out(self) -> None:
        """See ``Executor``."""
        self._writing.nudge()

    async def close(self) -> None:
        """See ``Executor``."""
        if os.getpid() != self._pid:
            return
        if self._reading is not None:
            await self._reading.close()
        await self._writing.close()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            # Neither threads nor SQLite connections live through a fork.
            raise StoreUnavailable(
                "this store was opened before the process forked; open one of its own here"
            )

    def _look(self) -> None:
        try:
            if self._desk.changed_elsewhere():
                self._changed()
        except (apsw.Error, StoreUnavailable):
            # Whoever writes or reads next is told; a hint that is lost costs time only.
            return
