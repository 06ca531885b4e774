"""submit: lanes first, then tasks; calls that arrive while one is under way go together in the next.

A submission that is executed again is accepted again (its task's id is its own), so that a lost connection
is answered by doing the same once more: the database waits for the old backend's row, or finds none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg

from outlast.errors import Busy, StoreUnavailable
from outlast.store.contract import BatchRejected
from outlast.store.postgres import failures
from outlast.store.postgres.connections import Line
from outlast.store.postgres.failures import NoSuchLane
from outlast.store.records import Submission, Submitted

_MOST_LANES = 50_000
_MOST_TOGETHER = 500
_MOST_BYTES = 8 << 20
"""Tasks of several callers, and bytes of their inputs, that go together in one transaction."""
_TASKS = 1
_PARENTS = 15
"""Where the tasks' ids stand among the arguments, and where what is said of their parents begins."""
_Lane = tuple[str, str, str, str, int]
_Waiting = tuple[Sequence[Submission], "asyncio.Future[list[Submitted]]"]


class Submitting:
    """The verb, with its connection and the lanes that it knows."""

    def __init__(self, line: Line, statements: dict[str, str]) -> None:
        self._line = line
        self._submit = statements["submit"]
        self._guarded = statements["submit_guarded"]
        self._ensure_lanes = statements["ensure_lanes"]
        self._lanes: dict[_Lane, int] = {}
        self._waiting: list[_Waiting] = []
        self._sender: asyncio.Task[None] | None = None

    async def submit(self, batch: Sequence[Submission]) -> list[Submitted]:
        """Accept a batch in a transaction of its own, or together with others that arrived meanwhile."""
        answer: asyncio.Future[list[Submitted]] = asyncio.get_running_loop().create_future()
        self._waiting.append((batch, answer))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_all(), name="outlast submit")
        return await answer

    async def submit_within(self, batch: Sequence[Submission], connection: Any) -> list[Submitted]:
        """Accept a batch in the caller's transaction; every wait is contained in a savepoint there."""
        if not isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
            raise TypeError("connection must be an asyncpg.Connection")
        if not connection.is_in_transaction():
            raise ValueError("connection has no open transaction")
        # Before, and on our own connection: a lane made in an open transaction would hold up everybody else
        # in it.
        lanes = await self._make_lanes([_lane_of(record) for record in batch])
        try:
            rows = await connection.fetch(self._guarded, *_columns(batch, lanes), True, True)
        except failures.DRIVER_ERRORS as error:
            if failures.sqlstate(error).startswith("40"):
                # Only under repeatable read or stricter, where the twin that won can never be seen.
                raise Busy("a twin of this request committed after the transaction had begun") from error
            raise failures.translate(error, self._line.shown) from error
        return verdicts_of(batch, rows)

    async def lanes_for(self, batch: Sequence[Submission], *, make: bool) -> list[int | None]:
        """Answer the numbers of the lanes that these will stand in, for those who submit by themselves.

        make: find or make all of them, whatever is known; otherwise None for one that is not known.
        """
        names = [_lane_of(record) for record in batch]
        if make:
            return await self._make_lanes(names, afresh=True)
        return [self._lanes.get(name) for name in names]

    def known(self, batch: Sequence[Submission]) -> list[Any] | None:
        """Answer the arguments for a batch without parents; None where one has a parent, or a lane is not
        known."""
        lanes = [self._lanes.get(_lane_of(record)) for record in batch]
        if None in lanes or any(record.parent is not None for record in batch):
            return None
        columns = _once(_columns(batch, lanes))
        return [*columns[:_PARENTS], *columns[-2:]]

    async def close(self) -> None:
        """Wait until nothing is under way."""
        while self._sender is not None:
            await asyncio.gather(self._sender, return_exceptions=True)

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                together: list[_Waiting] = []
                count = size = 0
                while self._waiting:
                    batch, _ = self._waiting[0]
                    count += len(batch)
                    size += sum(len(record.input) for record in batch)
                    if together and (count > _MOST_TOGETHER or size > _MOST_BYTES):
                        break
                    together.append(self._waiting.pop(0))
                await self._send(together)
        finally:
            self._sender = None

    async def _send(self, together: list[_Waiting]) -> None:
        """Accept several callers' batches in one transaction; hand each its answer."""
        try:
            answers = await self._accept([record for batch, _ in together for record in batch])
        except Exception as error:
            if isinstance(error, BatchRejected) and len(together) > 1:
                # One caller's record is at fault, and the others have nothing to do with it.
                half = len(together) // 2
                await self._send(together[:half])
                await self._send(together[half:])
                return
            for _, answer in together:
                if not answer.done():
                    answer.set_exception(error)
            return
        start = 0
        for batch, answer in together:
            if not answer.done():
                answer.set_result(answers[start : start + len(batch)])
            start += len(batch)

    async def _accept(self, batch: Sequence[Submission]) -> list[Submitted]:
        names = [_lane_of(record) for record in batch]
        lanes: list[int | None] = [self._lanes.get(name) for name in names]
        tries = 0
        while True:
            tries += 1
            arguments = _columns(batch, lanes)
            once = _once(arguments)

            async def work(
                connection: asyncpg.Connection[asyncpg.Record],
                arguments: list[Any] = arguments,
                once: list[Any] = once,
            ) -> list[asyncpg.Record]:
                try:
                    return await connection.fetch(self._submit, *once)
                except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                    # A twin of one of them is open elsewhere: item by item, so that only this one is busy.
                    return await connection.fetch(self._guarded, *arguments, False, False)

            try:
                rows = await self._line.run(work)
                if not rows or rows[0]["kind"] != "lane":
                    return verdicts_of(batch, rows)
            except StoreUnavailable:
                if tries > 1:
                    raise
                continue
            except NoSuchLane:
                # The database was put back to an earlier state, and what we know of it is wrong.
                if tries > 2:
                    raise
            # A task is about to stand in these lanes for the first time.
            lanes = await self._make_lanes(names, afresh=True)

    async def _make_lanes(self, names: Sequence[_Lane], *, afresh: bool = False) -> list[int | None]:
        """Answer the lanes' numbers; make lanes that do not exist, in a transaction of their own."""
        known = self._lanes
        missing = [name for name in dict.fromkeys(names) if afresh or name not in known]
        if missing:
            columns = list(zip(*missing, strict=True))
            rows = await self._line.run(lambda connection: connection.fetch(self._ensure_lanes, *columns))
            if len(known) + len(missing) > _MOST_LANES:
                known.clear()
            found = {missing[row["item"] - 1]: row["lane"] for row in rows}
            known.update(found)
            return [found.get(name, known.get(name)) for name in names]
        return [known[name] for name in names]


def _lane_of(record: Submission) -> _Lane:
    return (record.pool, record.agent, record.version, record.tenant, record.priority)


def submission_row(s: Submission) -> tuple[Any, ...]:
    """Write a submission in the order of submit's arguments, but for its lane."""
    return (
        s.tenant, s.task, s.key, s.request_digest, s.agent, s.version, s.pool, s.priority, s.input,
        s.user, s.deadline_us, s.run_at, s.trace, s.announce, s.origin,
    )  # fmt: skip


def _columns(batch: Sequence[Submission], lanes: Sequence[int | None]) -> list[Any]:
    rows = [submission_row(s) for s in batch]
    parents: list[Sequence[Any]] = [(), (), (), (), (), ()]
    if any(s.parent is not None for s in batch):
        spawned = [
            (None, None, None, None, None, None)
            if (p := s.parent) is None
            else (p.task, p.epoch, p.key, p.detached, p.position, p.request)
            for s in batch
        ]
        parents = list(zip(*spawned, strict=True))
    budgets = [s.budget for s in batch] if any(s.budget is not None for s in batch) else ()
    return [*zip(*rows, strict=True), *parents, budgets, lanes]


def _once(columns: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Write each column that holds one value only as that value alone.

    Most of what the tasks of a batch are is the same for all of them. Their ids stay, and say how many.
    """
    return [
        column[:1] if column and place != _TASKS and column.count(column[0]) == len(column) else column
        for place, column in enumerate(columns)
    ]


def verdicts_of(batch: Sequence[Submission], rows: Sequence[Iterable[Any]]) -> list[Submitted]:
    """Answer a verdict per item: what the rows say (item, kind, task), and accepted where none does."""
    answer = [Submitted(kind="accepted", task=record.task) for record in batch]
    for item, kind, task in rows:
        answer[item - 1] = Submitted(kind=kind, task=task)
    return answer
