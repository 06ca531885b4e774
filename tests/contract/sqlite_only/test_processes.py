"""Several processes on one file."""

from __future__ import annotations

import asyncio
import signal
import time

import apsw
import pytest
from tests.contract.sqlite_only.conftest import Start
from tests.contract.sqlite_only.processes import submission
from tests.contract.sqlite_only.test_groups import log_bytes

from outlast.errors import StoreUnavailable
from outlast.store.records import TaskRef
from outlast.store.rows import EventCursor, OperationFilter
from outlast.store.sqlite import SqliteStore
from outlast.store.sqlite import connection as connections
from outlast.store.sqlite import log as logs


async def test_a_commit_wakes_a_waiter_in_another_process(store: SqliteStore, start: Start) -> None:
    for topic in ("queue", "events"):
        other = await start("wait", topic)
        assert await other.line() == "waiting"
        answer = asyncio.create_task(other.answer())
        number = 0
        while not answer.done():
            # It may not have looked yet when the first one is committed; it has when a later one is.
            number += 1
            await store.submit([submission(number, key=None)])
            await asyncio.wait({answer}, timeout=1.0)
        assert answer.result() is True


async def test_an_idle_worker_costs_nearly_nothing(start: Start) -> None:
    other = await start("idle", 3)
    assert await other.answer() < 0.01


async def test_many_processes_and_a_long_reader(
    store: SqliteStore, start: Start, path: str, beside: apsw.Connection
) -> None:
    """Scenario O23: no lock error reaches anybody, intake stays quick, nothing is lost, the log is
    bounded."""
    count = 400
    workers = [await start("work", f"worker-{n}") for n in range(4)]
    relay = await start("relay")
    # A reader takes a snapshot and holds it all the while; a backup is made from it half-way.
    beside.execute("begin")
    assert list(beside.execute("select count(*) from tasks")) == [(0,)]
    commit_seconds = raw_commit(path)
    seconds = await (await start("submit", count)).answer()
    copy = apsw.Connection(":memory:")
    with copy.backup("main", beside, "main") as backup:
        backup.step(-1)
    assert list(copy.execute("pragma integrity_check")) == [("ok",)]
    assert list(copy.execute("select count(*) from tasks")) == [(0,)]
    copy.close()

    def left(table: str) -> int:
        [(number,)] = counter.execute(f"select count(*) from {table}")
        return int(number)

    counter = apsw.Connection(path)
    counter.set_busy_timeout(10_000)
    try:
        async with asyncio.timeout(100):
            while left("tasks where state <> 'succeeded'") or left("outbox"):
                await store.wakes.wait("events", 0.1)
        assert log_bytes(path) > logs.LIMIT_BYTES
        beside.execute("commit")
        for one in (*workers, relay):
            one.send(signal.SIGTERM)
        assert sum([await one.answer() for one in workers]) == count
        assert await relay.answer() == 2 * count
        assert left("events where kind = 'operation.succeeded'") == 5 * count
        assert left("events where kind = 'task.succeeded'") == count
        assert list(counter.execute("pragma integrity_check")) == [("ok",)]
    finally:
        counter.close()
    assert len(seconds) == count
    # A quarter of a second where the disk is this test's own; on a busy one, in proportion to one commit.
    assert seconds[int(count * 0.99)] < max(0.25, 40 * commit_seconds)
    # Whoever writes next finds that the reader is gone, copies the log back and begins it anew.
    async with asyncio.timeout(60):
        while log_bytes(path) > logs.LIMIT_BYTES:
            await store.submit([submission(10_000, key=None)])
            await store.wakes.wait("events", 0.1)


def raw_commit(path: str) -> float:
    """Answer how many seconds one commit takes beside what goes on in the file, in the middle of 21."""
    connection = apsw.Connection(f"{path}.raw")
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.execute("create table rows (number integer)")
    seconds = []
    for number in range(21):
        began = time.perf_counter()
        connection.execute("insert into rows (number) values (?)", (number,))
        seconds.append(time.perf_counter() - began)
    connection.close()
    return sorted(seconds)[10]


async def test_a_process_killed_at_any_moment_leaves_whole_transactions(
    store: SqliteStore, start: Start, beside: apsw.Connection
) -> None:
    for told in (3, 41, 160):
        record = submission(told)
        await store.submit([record])
        other = await start("calls", record.task)
        while int(await other.line()) < told:
            pass
        other.send(signal.SIGKILL)
        await other.end()
        assert list(beside.execute("pragma integrity_check")) == [("ok",)]
        rows = await store.list_operations(
            OperationFilter(tenant=record.tenant, task=record.task, limit=1_000_000)
        )
        # What was told is there; what was under way is there as a whole or not at all.
        assert len(rows) >= told
        assert {(row.state, row.attempt, row.turn) for row in rows} == {("succeeded", 1, 2)}
        assert [row.position for row in rows] == list(range(1, len(rows) + 1))
        events = await store.read_events(
            [EventCursor(tenant=record.tenant, task=record.task)], limit=1_000_000
        )
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert len(events) == 2 + 2 * len(rows)
        [task] = await store.read_tasks([TaskRef(tenant=record.tenant, task=record.task)])
        assert task.last_event == len(events)


async def test_a_process_killed_inside_its_transaction_frees_the_file(
    store: SqliteStore, start: Start
) -> None:
    other = await start("hold")
    assert await other.line() == "holding"
    async with asyncio.timeout(20):
        while not other.is_stopped():
            await store.read_tasks([])
    waiting = asyncio.ensure_future(store.submit([submission(1)]))
    # Readers are not in its way.
    assert await store.read_tasks([]) == []
    assert not waiting.done()
    other.send(signal.SIGKILL)
    [verdict] = await asyncio.wait_for(waiting, 20)
    assert verdict.kind == "accepted"


async def test_a_lock_that_is_not_to_be_had_is_named_after_a_bound(
    store: SqliteStore, beside: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BUSY_SECONDS", 0.3)
    beside.execute("begin immediate")
    with pytest.raises(StoreUnavailable, match="held the write lock"):
        await store.submit([submission(1)])
    beside.execute("rollback")
    [verdict] = await store.submit([submission(1)])
    assert verdict.kind == "accepted"
