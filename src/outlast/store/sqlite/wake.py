"""Hints: what waits is woken at once inside a process, and by looking at the file between processes.

All stores of one process on one file share a hub, whatever event loops they are used from, so a hint costs no
more than setting a future. Another process's commits show in ``pragma data_version``; the writing thread
looks at it every 20 ms, but only while somebody waits. It cannot tell topics apart, so a commit elsewhere
hints them all.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable

TOPICS = ("queue", "events", "ends", "facts", "posts")


class Hub:
    """Counts hints by topic and wakes whoever waits; safe between threads and event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = defaultdict(int)
        self._waiting: dict[str, dict[asyncio.Future[bool], asyncio.AbstractEventLoop]] = defaultdict(dict)

    def count(self, topic: str) -> int:
        """Answer how often a topic was hinted."""
        return self._counts[topic]

    def hint(self, topics: Iterable[str]) -> None:
        """Hint topics, from any thread."""
        woken: dict[asyncio.AbstractEventLoop, list[asyncio.Future[bool]]] = {}
        with self._lock:
            # In one order everywhere: a set of strings has another one in every process.
            for topic in sorted(topics):
                self._counts[topic] += 1
                waiting = self._waiting[topic]
                for future, loop in waiting.items():
                    woken.setdefault(loop, []).append(future)
                waiting.clear()
        if not woken:
            return
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for loop, futures in woken.items():
            if loop is here:
                _wake(futures)
                continue
            try:
                loop.call_soon_threadsafe(_wake, futures)
            except RuntimeError:
                # That loop is closed, and its waiters with it.
                continue

    def add(self, topic: str, seen: int, loop: asyncio.AbstractEventLoop) -> asyncio.Future[bool] | None:
        """Begin to wait for a topic; None when it was hinted since ``seen``."""
        with self._lock:
            if self._counts[topic] != seen:
                return None
            future: asyncio.Future[bool] = loop.create_future()
            self._waiting[topic][future] = loop
            return future

    def drop(self, topic: str, future: asyncio.Future[bool]) -> None:
        """Wait no longer."""
        with self._lock:
            self._waiting[topic].pop(future, None)


def _wake(futures: list[asyncio.Future[bool]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(True)


_hubs: weakref.WeakValueDictionary[str, Hub] = weakref.WeakValueDictionary()
_hubs_lock = threading.Lock()


def hub_of(path: str) -> Hub:
    """Answer the hub that all stores of this process on a file share. path: its real path."""
    with _hubs_lock:
        hub = _hubs.get(path)
        if hub is None:
            hub = _hubs[path] = Hub()
        return hub


class SqliteWakes:
    """The hints of one store; see ``Wakes``.

    look_out: called when a first wait begins, so that somebody looks for other processes' commits while
    ``watched``.
    """

    def __init__(self, hub: Hub, look_out: Callable[[], None]) -> None:
        self._hub = hub
        self._look_out = look_out
        # What a waiter has seen; see the listener of PostgreSQL, which keeps the same.
        self._seen = {topic: hub.count(topic) for topic in TOPICS}
        self._places: weakref.WeakKeyDictionary[asyncio.Task[object], dict[str, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._waiting: set[asyncio.Future[bool]] = set()

    def watched(self) -> bool:
        """Say whether anybody waits."""
        return bool(self._waiting)

    async def wait(self, topic: str, timeout: float) -> bool:
        """Wait until the topic is hinted, or ``timeout`` seconds; answer whether it was."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        place = self._places.setdefault(task, {}) if task is not None else {}
        future = self._hub.add(topic, place.get(topic, self._seen[topic]), loop)
        if future is None:
            place[topic] = self._seen[topic] = self._hub.count(topic)
            return True
        timer = loop.call_later(timeout, _give_up, future)
        self._waiting.add(future)
        if len(self._waiting) == 1:
            self._look_out()
        try:
            hinted = await future
        finally:
            timer.cancel()
            self._waiting.discard(future)
            self._hub.drop(topic, future)
        place[topic] = self._seen[topic] = self._hub.count(topic)
        return hinted

    def hint(self, topic: str) -> None:
        """Tell every waiter of this process; others see the commit itself."""
        self._hub.hint((topic,))

    def close(self) -> None:
        """Let nobody wait any longer."""
        for future in list(self._waiting):
            _give_up(future)


def _give_up(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
