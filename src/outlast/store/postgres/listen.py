"""Hints between processes: LISTEN and NOTIFY on one connection of their own, on one channel, the topic as
payload.

A hint wakes the waiters of this process at once. Others are told by a notification, sent outside of any
transaction (inside one it would take a lock that all committers share) and at most once every few
milliseconds for each topic. While the connection is away hints are lost, so that every topic is hinted when
it is back.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

import asyncpg

from outlast.errors import OutlastError
from outlast.store.contract import BatchRejected
from outlast.store.postgres import failures
from outlast.store.postgres.connections import LISTEN, Address, connect, is_demoted

CHANNEL = "outlast"
TOPICS = ("queue", "events", "ends", "facts", "posts")
PACE_SECONDS = 0.003
PING_SECONDS = 10.0
_BACKOFF_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)


class Listener:
    """The hints of one store; see ``Wakes``."""

    def __init__(self, address: Address, notify: str) -> None:
        self._address = address
        self._notify = notify
        self._counts = dict.fromkeys(TOPICS, 0)
        self._waiters: dict[str, set[asyncio.Future[bool]]] = {topic: set() for topic in TOPICS}
        # What a waiter has seen. A task that waits again and again has a place of its own, so that two of
        # them do not take each other's hints; one that waits for the first time begins where the last wait
        # by anybody ended.
        self._seen = dict.fromkeys(TOPICS, 0)
        self._places: WeakKeyDictionary[asyncio.Task[object], dict[str, int]] = WeakKeyDictionary()
        self._to_send: set[str] = set()
        self._something = asyncio.Event()
        self._lost = False
        """Whether the connection has ended."""
        self._pid = 0
        self._runner: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen; do nothing when that has begun."""
        if self._runner is None:
            # Of the event loop that runs now: a store may be opened again in another one.
            self._something = asyncio.Event()
            self._runner = asyncio.create_task(self._run(), name="outlast listen")

    async def close(self) -> None:
        """Stop listening, and let nobody wait any longer; idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
            await asyncio.gather(runner, return_exceptions=True)
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(False)

    async def wait(self, topic: str, timeout: float) -> bool:
        """Wait until the topic was hinted since the last wait, or ``timeout`` seconds; answer whether it
        was."""
        task = asyncio.current_task()
        place = self._places.setdefault(task, {}) if task is not None else {}
        if place.get(topic, self._seen[topic]) == self._counts[topic]:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[bool] = loop.create_future()
            self._waiters[topic].add(waiter)
            timer = loop.call_later(timeout, _give_up, waiter)
            try:
                hinted = await waiter
            finally:
                timer.cancel()
                self._waiters[topic].discard(waiter)
        else:
            hinted = True
        place[topic] = self._seen[topic] = self._counts[topic]
        return hinted

    def hint(self, topic: str) -> None:
        """Tell the waiters of this process now and every other process within a few milliseconds."""
        self._wake(topic)
        self._to_send.add(topic)
        self._something.set()

    def _wake(self, topic: str) -> None:
        if topic not in self._counts:
            return
        self._counts[topic] += 1
        for waiter in self._waiters[topic]:
            if not waiter.done():
                waiter.set_result(True)

    def _heard(self, _connection: object, pid: int, _channel: str, payload: object) -> None:
        # Our own come back to us as well; their waiters were told when they were sent.
        if pid != self._pid:
            self._wake(str(payload))

    def _lose(self) -> None:
        self._lost = True
        self._something.set()

    async def _run(self) -> None:
        failed = 0
        while True:
            connection: asyncpg.Connection[asyncpg.Record] | None = None
            try:
                connection = await connect(self._address, LISTEN)
                self._pid = connection.get_server_pid()
                self._lost = False
                connection.add_termination_listener(lambda _: self._lose())
                await connection.add_listener(CHANNEL, self._heard)
                failed = 0
                # Whatever was said while nobody listened.
                for topic in TOPICS:
                    self._wake(topic)
                await self._serve(connection)
            except (*failures.DRIVER_ERRORS, OutlastError, BatchRejected):
                # Hints are lost meanwhile; whoever waits looks by itself after its timeout.
                pass
            finally:
                if connection is not None:
                    connection.terminate()
            await asyncio.sleep(_BACKOFF_SECONDS[min(failed, len(_BACKOFF_SECONDS) - 1)])
            failed += 1

    async def _serve(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """Send hints until the connection is lost or its server takes no writes; see now and then whether it
        still is there."""
        loop = asyncio.get_running_loop()
        # What was hinted while there was no connection, and nothing that was said of the last one.
        self._something.clear()
        if self._to_send:
            self._something.set()
        while not (connection.is_closed() or is_demoted(connection)):
            ping = loop.call_later(PING_SECONDS, self._something.set)
            try:
                await self._something.wait()
            finally:
                ping.cancel()
            self._something.clear()
            if self._lost:
                return
            topics, self._to_send = sorted(self._to_send), set()
            async with asyncio.timeout(LISTEN.seconds):
                await connection.execute(self._notify, topics)
            await asyncio.sleep(PACE_SECONDS)


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
