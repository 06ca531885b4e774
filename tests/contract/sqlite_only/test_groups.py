"""Group commit: verbs that are pending together share one transaction, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import apsw
import pytest
from tests.contract.sqlite_only.processes import submission

from outlast.errors import StoreUnavailable
from outlast.store.contract import BatchRejected
from outlast.store.records import ClaimReply, ClaimRequest, Serves
from outlast.store.rows import TaskFilter
from outlast.store.sqlite import SqliteStore, desk
from outlast.store.sqlite import claim as claiming
from outlast.store.sqlite import connection as connections
from outlast.store.sqlite import log as logs
from outlast.store.sqlite.transaction import Transaction
from outlast.testing.store_suite.scene import Scene


@contextlib.asynccontextmanager
async def gathered(store: SqliteStore) -> AsyncIterator[None]:
    """Keep the writer busy while the block lasts, so that what is posted in it becomes one group."""
    entered, leave = threading.Event(), threading.Event()

    def stay(tx: Any) -> None:
        entered.set()
        leave.wait(30)

    staying = asyncio.ensure_future(store._desk().write(stay))
    await asyncio.to_thread(entered.wait, 30)
    try:
        yield
        # Tasks made in the block begin here.
        await asyncio.sleep(0)
    finally:
        leave.set()
        await staying


async def exists(store: SqliteStore, *numbers: int) -> list[bool]:
    """Say which of the numbered submissions were stored."""
    keys = set()
    for tenant in ("tenant-0", "tenant-1", "tenant-2"):
        keys |= {task.key for task in await store.list_tasks(TaskFilter(tenant=tenant))}
    return [f"key-{number}" in keys for number in numbers]


def commits_of(store: SqliteStore) -> Callable[[], int]:
    """Answer what counts the commits of a store's writer from now on."""
    count = 0

    def commit_hook() -> bool:
        nonlocal count
        count += 1
        return False

    writer = store._executor._desk.connection()  # type: ignore[union-attr]
    writer.set_commit_hook(commit_hook)
    return lambda: count


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let groups take as long as they like, however slow this machine is now."""
    monkeypatch.setattr(desk, "GROUP_SECONDS", 60.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every group be at its end when its second verb is."""
    monkeypatch.setattr(desk, "GROUP_SECONDS", 0.0)


@pytest.mark.usefixtures("patient")
async def test_pending_verbs_share_one_commit(store: SqliteStore) -> None:
    async with gathered(store):
        tasks = [asyncio.ensure_future(store.submit([submission(number)])) for number in range(50)]
        commits = commits_of(store)
    assert [[verdict.kind for verdict in verdicts] for verdicts in await asyncio.gather(*tasks)] == [
        ["accepted"]
    ] * 50
    # That of the verb that kept the writer busy, and one for all the rest.
    assert commits() == 2


async def test_large_verbs_do_not_become_one_transaction(store: SqliteStore) -> None:
    """Forty times eight megabytes take longer than a group may, on any machine."""
    text = f'"{"x" * 1_000_000}"'
    async with gathered(store):
        commits = commits_of(store)
        batches = [[submission(8 * number + each, input=text) for each in range(8)] for number in range(40)]
        tasks = [asyncio.ensure_future(store.submit(batch)) for batch in batches]
    assert {verdict.kind for verdicts in await asyncio.gather(*tasks) for verdict in verdicts} == {"accepted"}
    assert commits() > 3


@pytest.mark.usefixtures("impatient")
async def test_what_comes_meanwhile_goes_before_what_was_left_but_for_the_oldest_of_it(
    store: SqliteStore,
) -> None:
    executor = store._executor
    assert executor is not None
    began, posted, done = threading.Event(), threading.Event(), []

    def verb(name: str) -> Any:
        async def write() -> None:
            def carry_out(tx: Any) -> None:
                if name == "first":
                    began.set()
                    posted.wait(30)
                done.append(name)

            await executor.write(carry_out)

        return asyncio.ensure_future(write())

    async with gathered(store):
        commits = commits_of(store)
        large = [verb(name) for name in ("first", "second", "third", "fourth")]
    await asyncio.to_thread(began.wait, 30)
    small = [verb(name) for name in ("new", "newer")]
    await asyncio.sleep(0)
    posted.set()
    await asyncio.gather(*large, *small)
    assert done == ["first", "second", "third", "new", "fourth", "newer"]
    assert commits() == 1 + 3


@pytest.mark.usefixtures("impatient")
async def test_of_views_too_what_comes_meanwhile_goes_before_what_was_left(store: SqliteStore) -> None:
    """And what has been looked at is answered before all is."""
    executor = store._executor
    assert executor is not None
    entered, leave = threading.Event(), threading.Event()
    began, posted, done, answered = threading.Event(), threading.Event(), [], []

    def stay(tx: Any) -> None:
        entered.set()
        leave.wait(30)

    def view(name: str) -> Any:
        async def read() -> None:
            def look(tx: Any) -> None:
                if name == "first":
                    began.set()
                    posted.wait(30)
                if name == "third":
                    # Those of the group before have their answers.
                    told.wait(30)
                done.append(name)

            await executor.read(look)
            answered.append(name)
            if len(answered) == 2:
                told.set()

        return asyncio.ensure_future(read())

    told = threading.Event()
    staying = asyncio.ensure_future(executor.read(stay))
    await asyncio.to_thread(entered.wait, 30)
    large = [view(name) for name in ("first", "second", "third", "fourth")]
    await asyncio.sleep(0)
    leave.set()
    await asyncio.to_thread(began.wait, 30)
    small = [view(name) for name in ("new", "newer")]
    await asyncio.sleep(0)
    posted.set()
    await asyncio.gather(staying, *large, *small)
    assert done == ["first", "second", "third", "new", "fourth", "newer"]
    assert answered[:2] == ["first", "second"]


@pytest.mark.usefixtures("impatient")
async def test_what_was_not_begun_does_not_fail_with_those_before(store: SqliteStore) -> None:
    async with gathered(store):
        first, second, after = (
            asyncio.ensure_future(store.submit([submission(number)])) for number in (1, 2, 3)
        )
        writer = store._executor._desk.connection()  # type: ignore[union-attr]
        # That of the verb that keeps the writer busy is the first.
        refused = iter([False, True, False])
        writer.set_commit_hook(lambda: next(refused))
    for before in (first, second):
        with pytest.raises(BatchRejected):
            await before
    assert [verdict.kind for verdict in await after] == ["accepted"]
    assert await exists(store, 1, 2, 3) == [False, False, True]


@pytest.mark.usefixtures("impatient")
async def test_what_a_peek_answers_is_answered_though_there_is_no_time(store: SqliteStore) -> None:
    executor, order = store._executor, []
    assert executor is not None

    async def write(name: str, **more: Any) -> None:
        await executor.write(lambda tx: None, **more)
        order.append(name)

    async with gathered(store):
        commits = commits_of(store)
        tasks = [asyncio.ensure_future(write(name)) for name in ("first", "second", "third")]
        tasks.append(asyncio.ensure_future(write("peeked", peek=lambda tx: [])))
    await asyncio.gather(*tasks)
    assert (order, commits()) == (["first", "second", "peeked", "third"], 3)


@pytest.mark.usefixtures("patient")
async def test_an_event_loop_is_woken_once_for_a_group(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    woken = 0
    wake = loop.call_soon_threadsafe

    def counting(*args: Any, **named: Any) -> Any:
        nonlocal woken
        woken += 1
        return wake(*args, **named)

    async with gathered(store):
        tasks = [asyncio.ensure_future(store.submit([submission(number)])) for number in range(50)]
        waiting = asyncio.ensure_future(store.wakes.wait("queue", 30))
        monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
    await asyncio.gather(*tasks)
    assert await waiting
    # Once for the verb that kept the writer busy, and once for all the rest.
    assert woken == 2


async def test_a_bad_verb_fails_alone(store: SqliteStore) -> None:
    async with gathered(store):
        before = asyncio.ensure_future(store.submit([submission(1)]))
        bad = asyncio.ensure_future(store.submit([submission(2), submission(3, key="")]))
        worse = asyncio.ensure_future(store.submit([submission(4, input="\ud800")]))
        after = asyncio.ensure_future(store.submit([submission(5)]))
    assert [verdict.kind for verdict in await before] == ["accepted"]
    with pytest.raises(BatchRejected):
        await bad
    with pytest.raises(BatchRejected):
        await worse
    assert [verdict.kind for verdict in await after] == ["accepted"]
    assert await exists(store, 1, 2, 3, 4, 5) == [True, False, False, False, True]
    # The queue's ages and lanes went on without a gap that matters.
    dump = await store.dump()
    assert len(dump["queue"]) == len(dump["events"]) == 2
    lanes = {row["id"] for row in dump["lanes"]}
    assert {row["lane"] for row in dump["queue"]} <= lanes


async def test_a_lane_of_a_verb_that_failed_is_not_remembered(store: SqliteStore) -> None:
    async with gathered(store):
        bad = asyncio.ensure_future(
            store.submit([submission(1, pool="pool-new"), submission(2, pool="pool-new", key="")])
        )
        good = asyncio.ensure_future(store.submit([submission(3, pool="pool-other")]))
    with pytest.raises(BatchRejected):
        await bad
    await good
    await store.submit([submission(4, pool="pool-new")])
    dump = await store.dump()
    pools = {row["id"]: row["pool"] for row in dump["lanes"]}
    assert sorted(pools[row["lane"]] for row in dump["queue"]) == ["pool-new", "pool-other"]


async def test_a_cancelled_caller_does_not_undo_its_verb(store: SqliteStore) -> None:
    record = submission(1)
    async with gathered(store):
        gone = asyncio.ensure_future(store.submit([record]))
        await asyncio.sleep(0)
        gone.cancel()
        stays = asyncio.ensure_future(store.submit([submission(2)]))
    await stays
    assert gone.cancelled()
    assert await exists(store, 1, 2) == [True, True]


async def test_closing_finishes_what_is_pending(store: SqliteStore, sqlite_url: str) -> None:
    async with gathered(store):
        pending = asyncio.ensure_future(store.submit([submission(1)]))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.close())
    await closing
    assert [verdict.kind for verdict in await pending] == ["accepted"]
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.submit([submission(2)])
    await store.open()
    assert await exists(store, 1, 2) == [True, False]


async def test_a_full_disk_is_unavailable_until_there_is_room(store: SqliteStore) -> None:
    def limit(tx: Any) -> int:
        [(pages,)] = tx.execute("pragma page_count")
        tx.execute(f"pragma max_page_count = {pages + 10}")
        return int(pages)

    def free(tx: Any) -> None:
        tx.execute("pragma max_page_count = 1000000")

    await store.submit([submission(1)])
    pages = await store._desk().write(limit)
    big = "[" + ",".join(["1234567"] * 20_000) + "]"
    async with gathered(store):
        small = asyncio.ensure_future(store.submit([submission(2)]))
        large = asyncio.ensure_future(store.submit([submission(3, input=big)]))
    # A full disk may end the transaction of the whole group: whoever was told so was not stored.
    told = await asyncio.gather(small, large, return_exceptions=True)
    assert isinstance(told[1], StoreUnavailable)
    assert "no room" in str(told[1])
    assert await exists(store, 1, 2, 3) == [True, not isinstance(told[0], BaseException), False]
    assert (await store.health()).reachable
    await store._desk().write(free)
    assert [verdict.kind for verdict in await store.submit([submission(3, input=big)])] == ["accepted"]
    assert pages > 0


@pytest.mark.parametrize("fault", [apsw.IOError("disk I/O error"), apsw.CantOpenError("unable to open")])
async def test_a_broken_connection_is_opened_anew(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, fault: apsw.Error
) -> None:
    def break_(connection: apsw.Connection) -> None:
        raise fault

    await store.submit([submission(1)])
    broken = store._executor._desk.connection()  # type: ignore[union-attr]
    with monkeypatch.context() as patch:
        patch.setattr(connections, "begin", break_)
        with pytest.raises(StoreUnavailable, match=str(fault)):
            await store.submit([submission(2)])
    assert [verdict.kind for verdict in await store.submit([submission(3)])] == ["accepted"]
    assert store._executor._desk.connection() is not broken  # type: ignore[union-attr]
    assert await exists(store, 1, 2, 3) == [True, False, True]


async def test_a_view_waits_for_whoever_recovers_the_log(store: SqliteStore) -> None:
    """A reader that meets a lock asks again; only a view that raises something else is told at once."""
    times = 0

    def view(tx: Any) -> int:
        nonlocal times
        times += 1
        if times < 4:
            raise apsw.BusyError("database is locked")
        return times

    assert await store._desk().read(view) == 4
    with pytest.raises(KeyError):
        await store._desk().read(lambda tx: {}["nothing"])


async def test_a_long_reader_makes_the_log_grow_only_while_it_reads(
    store: SqliteStore, beside: apsw.Connection, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "COPY_PAGES", 50)
    monkeypatch.setattr(logs, "CUT_PAGES", 100)
    monkeypatch.setattr(logs, "RETRY_SECONDS", 0.05)
    text = "[" + ",".join(["1234567"] * 1000) + "]"
    beside.execute("begin")
    assert list(beside.execute("select count(*) from tasks")) == [(0,)]
    for number in range(100):
        await store.submit([submission(number, input=text)])
    assert log_bytes(path) > 150 * 4096
    # The reader sees what it saw.
    assert list(beside.execute("select count(*) from tasks")) == [(0,)]
    beside.execute("commit")
    # Nobody writes any more: the writer goes on trying by itself.
    async with asyncio.timeout(20):
        while log_bytes(path) > 50 * 4096:
            await store.wakes.wait("queue", 0.02)
    assert list(beside.execute("select count(*) from tasks")) == [(100,)]


def log_bytes(path: str) -> int:
    """Answer how large the write-ahead file is."""
    return os.path.getsize(f"{path}-wal")


async def test_a_claim_looks_first_but_where_something_was_just_queued_here(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, peek = list[ClaimRequest](), claiming.peek

    def seen(tx: Transaction, request: ClaimRequest, now: int | None) -> ClaimReply | None:
        looks.append(request)
        return peek(tx, request, now)

    monkeypatch.setattr(claiming, "peek", seen)
    scene = Scene(store=store, now=(await store.health()).now)
    session, record = await scene.session(), await scene.submit()
    serves = [Serves(agent=record.agent, version="version-77", default=True)]
    commits = commits_of(store)
    for claimed in (1, 0, 0):
        reply = await scene.claim(session, pools=[record.pool], serves=serves)
        assert len(reply.claims) == claimed
    assert (len(looks), commits()) == (2, 1)
