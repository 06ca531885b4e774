"""The journal's writer: one per worker, shared by all its tasks, committing in groups.

Purpose: every durable thing that tasks do goes to disk in as few transactions as possible. While one
transaction is under way the next batch collects; there is no timer. A batch waits a few turns of the event
loop for whoever has just been told of a verdict, since a call's outcome and the intent of the next call
belong together. Records that nobody waits for may start no batch of their own: they go with the next one, or
after a moment. Where the store works apart, verdicts are handed out once the next batch is on its way, and
those of a large batch in two halves: the tasks of one go on while the store writes for the other. Halves that
are not of one size come to be, since part of the larger one joins the smaller.

Identity: a writer has an id and numbers its batches; the store applies each (writer, number) once, so a
commit whose answer was lost is settled by sending the very same batch again.

State: per task, entries in the order in which they were made. One task occurs once in a batch; a deferred
task's entries go in front of its later ones, so order within a task never changes.

What is fenced: each task's entries compare (task, epoch) in the store. A stale verdict is told to the run,
which stops.

Barrier: whoever must not be overtaken (intent, suspension, ending) awaits its own verdict; entries before it
in its task are in the same batch or an earlier one.

Failure by failure: the store is away: the same batch is tried again until it answers. A batch that cannot be
stored is halved until the task at fault stands alone; that task fails by name, its neighbours go on. A head
locked by somebody else: that task waits for the next batch, nobody else does.

Not covered: the process dies with entries not yet committed; the tasks run again from their last committed
entry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from outlast import clock, probes, telemetry
from outlast.engine.settings import WorkerSettings
from outlast.errors import LeaseLost, StoreUnavailable
from outlast.store.contract import BatchRejected, Store
from outlast.store.entries import (
    AppendEvents,
    Batch,
    CommitIntent,
    EndAttempt,
    Entry,
    Flushed,
    Note,
    RecordOperation,
    RecordOutcome,
    TaskWrites,
)

Verdict = str | None
"""None: written or admitted; else the name of the refusal; of an ending, the state that the task has come to
where it is another one than the ending says."""
Told = Callable[[Verdict, Exception | None], None]
"""Told of a verdict, or of the error in place of it, in the journal's own asyncio task; it raises nothing."""
TURNS = 3
"""Turns of the loop from the outcome of a call to the intent of the next: the call ends, its caller goes on
and hands the next intent in, or begins an asyncio task that asks first whether the call may be made."""
HALVES = 32
"""How many tasks more than are queued a batch has whose verdicts are handed out in two parts."""
LEISURE_S = 0.03
"""How long a leisurely record waits for a batch that it can go with."""
Waiting = tuple[Entry, "asyncio.Future[Verdict] | None", Told | None, int]
"""An entry, whoever waits for its verdict, whoever is told of it, and its size in bytes."""


class Lease(Protocol):
    """What the journal knows of a run: its fence, and whom to tell."""

    tenant: str
    task: str
    epoch: int

    def fenced_out(self) -> None:
        """The store refused this lease; stop."""
        ...

    def unstorable(self, error: Exception) -> None:
        """The entries of this run cannot be stored; end it by name."""
        ...


def size_of(entry: Entry) -> int:
    """Estimate an entry's bytes on the way to the store."""
    match entry:
        case RecordOperation():
            size = len(entry.arguments or "") + len(entry.result or "") + len(entry.error or "")
        case CommitIntent():
            size = len(entry.arguments)
        case RecordOutcome() | EndAttempt():
            size = len(entry.result or "") + len(entry.error or "")
        case Note():
            return 200 + len(entry.data)
        case AppendEvents():
            size = 0
        case _:
            return 200
    for event in entry.events:
        size += len(event.data) + 60
    return 200 + size


class Journal:
    """Collect entries of all runs and flush them, batch after batch."""

    def __init__(self, store: Store, settings: WorkerSettings, writer: str) -> None:
        self._store = store
        self._settings = settings
        self._writer = writer
        self._number = 0
        self._pending: dict[Lease, deque[Waiting]] = {}
        self._awake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._waiting_bytes = 0
        self._held: list[tuple[list[Waiting], Flushed]] = []
        """Verdicts that are handed out once the next batch is on its way."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = False
        """Whether anything that is queued is to start a batch."""
        self._leisure: asyncio.TimerHandle | None = None

    def append(
        self, lease: Lease, entry: Entry, told: Told | None = None, *, leisurely: bool = False
    ) -> None:
        """Record an entry without waiting for the disk. told: called once what came of it is known.

        leisurely: it starts no batch of its own, but goes with the next, which begins within moments.
        """
        self._add(lease, (entry, None, told, size_of(entry)), leisurely=leisurely)

    def submit(self, lease: Lease, entry: Entry, told: Told | None = None) -> asyncio.Future[Verdict]:
        """Record an entry; the future ends when it is committed, with None or the name of its refusal. told:
        called with the same, also where nobody waits for the future any more.

        It raises LeaseLost when the lease was fenced out, and BatchRejected when the entry cannot be stored.
        """
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._add(lease, (entry, future, told, size_of(entry)))
        return future

    @property
    def full(self) -> bool:
        """Whether more is queued than a few batches hold."""
        return not self._room.is_set()

    async def room(self) -> None:
        """Wait while more is queued than a few batches hold, so that no run floods memory."""
        while not self._room.is_set():
            await self._room.wait()

    async def settled(self) -> None:
        """Wait until nothing is queued or under way."""
        await self._idle.wait()

    def forget(self, lease: Lease) -> None:
        """Drop what a fenced-out run still had queued; whoever waits for it is told LeaseLost."""
        self._drop(lease, LeaseLost(f"task {lease.task}: epoch {lease.epoch} is no longer current"))

    def _drop(self, lease: Lease, error: Exception) -> None:
        for _, future, told, size in self._pending.pop(lease, ()):
            self._waiting_bytes -= size
            if told is not None:
                told(None, error)
            if future is not None and not future.done():
                future.set_exception(error)
                # Whoever waited may be gone already; the run is told as well.
                future.exception()

    def _add(self, lease: Lease, waiting: Waiting, *, leisurely: bool = False) -> None:
        queue = self._pending.get(lease)
        if queue is None:
            queue = self._pending[lease] = deque()
        queue.append(waiting)
        self._waiting_bytes += waiting[3]
        if self._waiting_bytes > 4 * self._settings.batch_bytes:
            self._room.clear()
        self._idle.clear()
        if not leisurely:
            self._rouse()
        elif self._leisure is None and not self._hurry:
            self._leisure = asyncio.get_running_loop().call_later(LEISURE_S, self._rouse)

    def _rouse(self) -> None:
        """Have what is queued written now."""
        self._hurry = True
        self._awake.set()

    async def run(self) -> None:
        """Flush for ever; end by cancelling after ``settled``."""
        loop = asyncio.get_running_loop()
        while True:
            await self._awake.wait()
            if self._held or not self._all_end():
                for _ in range(TURNS):
                    await asyncio.sleep(0)
            # Verdicts that are held may be all there is to do.
            batch = self._collect() if self._hurry else []
            if not batch:
                self._release()
            else:
                # In the next turn of the loop, while the store is at work.
                loop.call_soon(self._release)
                deferred = await self._flush(batch)
                if deferred and deferred == len(batch):
                    # Everything waits for locks that others hold: do not spin.
                    await asyncio.sleep(0.005)
            if not self._held and not self._hurry:
                self._awake.clear()
                if not self._pending:
                    self._idle.set()
            if self._waiting_bytes <= 4 * self._settings.batch_bytes:
                self._room.set()

    def _all_end(self) -> bool:
        """Whether every task that has something queued comes to its end with it, so that nothing follows."""
        return all(isinstance(queue[-1][0], EndAttempt) for queue in self._pending.values())

    def _collect(self) -> list[tuple[Lease, list[Waiting]]]:
        batch: list[tuple[Lease, list[Waiting]]] = []
        entries = size = 0
        for lease in list(self._pending):
            queue, taken = self._pending[lease], []
            while queue and entries < self._settings.batch_entries and size < self._settings.batch_bytes:
                waiting = queue.popleft()
                size += waiting[3]
                entries += 1
                taken.append(waiting)
                if isinstance(waiting[0], EndAttempt):
                    # What comes after it, late, is for the store to refuse by itself.
                    break
            if taken:
                batch.append((lease, taken))
            if not queue:
                del self._pending[lease]
            if entries >= self._settings.batch_entries or size >= self._settings.batch_bytes:
                break
        self._waiting_bytes -= size
        self._hurry = bool(self._pending)
        if self._leisure is not None:
            self._leisure.cancel()
            self._leisure = None
        return batch

    async def _flush(self, batch: list[tuple[Lease, list[Waiting]]]) -> int:
        """Write a batch and hand out its verdicts; answer how many tasks were deferred."""
        writes = tuple(
            TaskWrites(
                tenant=lease.tenant,
                task=lease.task,
                epoch=lease.epoch,
                entries=tuple([entry for entry, _, _, _ in waiting]),
            )
            for lease, waiting in batch
        )
        started = clock.monotonic()
        probes.reach("journal.before_flush")
        try:
            verdicts = await self._send(Batch(writer=self._writer, number=self._number + 1, writes=writes))
        except BatchRejected as error:
            if len(batch) > 1:
                half = len(batch) // 2
                return await self._flush(batch[:half]) + await self._flush(batch[half:])
            lease, waiting = batch[0]
            # What came after it goes too: a journal has no holes. The run's ending by name comes next.
            self._put_back(lease, waiting)
            self._drop(lease, error)
            lease.unstorable(error)
            return 0
        self._number += 1
        probes.reach("journal.after_flush")
        telemetry.emit(
            telemetry.BatchFlushed(
                tasks=len(writes),
                entries=sum(len(write.entries) for write in writes),
                seconds=clock.monotonic() - started,
            )
        )
        # A store that answers at once has done so before those of the last batch were told.
        self._release()
        deferred, at_once = 0, len(batch)
        if self._store.apart and (self._pending or at_once >= HALVES):
            # Those at once go with what is queued; so the halves come to be of one size.
            more = at_once - len(self._pending)
            at_once = more // 2 if more >= HALVES else 0
        for (lease, waiting), verdict in zip(batch, verdicts, strict=True):
            if verdict.kind == "deferred":
                deferred += 1
                self._put_back(lease, waiting)
            elif verdict.kind == "stale":
                self._refuse(lease, waiting)
            elif at_once > 0:
                at_once -= 1
                self._accept(waiting, verdict)
            else:
                self._held.append((waiting, verdict))
        return deferred

    async def _send(self, batch: Batch) -> list[Flushed]:
        away = False
        while True:
            try:
                verdicts = await self._store.flush(batch)
            except StoreUnavailable as error:
                # The very same batch again, for as long as it takes: whether it was applied is the store's to
                # know.
                telemetry.emit(telemetry.StoreAway(duty="flush", detail=str(error)))
                away = True
                await asyncio.sleep(0.25)
                continue
            if away:
                telemetry.emit(telemetry.StoreBack(duty="flush"))
            return verdicts

    def _release(self) -> None:
        """Hand out the verdicts that are held."""
        held, self._held = self._held, []
        for waiting, verdict in held:
            self._accept(waiting, verdict)

    def _put_back(self, lease: Lease, waiting: list[Waiting]) -> None:
        queue = self._pending.get(lease)
        if queue is None:
            queue = self._pending[lease] = deque()
        queue.extendleft(reversed(waiting))
        self._hurry = True
        self._waiting_bytes += sum(size for _, _, _, size in waiting)

    def _refuse(self, lease: Lease, waiting: list[Waiting]) -> None:
        self._put_back(lease, waiting)
        self.forget(lease)
        lease.fenced_out()

    @staticmethod
    def _accept(waiting: list[Waiting], verdict: Flushed) -> None:
        refusals = dict(verdict.refusals) if verdict.refusals else {}
        ending = waiting[-1][0]
        if isinstance(ending, EndAttempt) and verdict.state != ending.task_state:
            refusals[len(waiting) - 1] = verdict.state
        for index, (_, future, told, _) in enumerate(waiting):
            if told is not None:
                told(refusals.get(index), None)
            if future is not None and not future.done():
                future.set_result(refusals.get(index))
