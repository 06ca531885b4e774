"""A store's life: URLs, files that cannot be opened, processes that fork or end, connections of callers."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.contract.sqlite_only.processes import submission

from outlast import clock
from outlast.errors import ConfigurationError, SchemaOutdated, StoreUnavailable
from outlast.store.reconciling import OpenRequest
from outlast.store.records import ClaimRequest, SessionRenewal, Submitted, SweepRequest, TaskRef
from outlast.store.rows import TaskFilter
from outlast.store.scheduling import DueRequest
from outlast.store.sqlite import SqliteStore
from outlast.store.sqlite.adapter import path_of


async def test_an_sqlite_that_is_too_old_is_refused_by_its_version(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.50.4")
    with pytest.raises(ConfigurationError, match=r"SQLite 3\.51 or newer is needed, and apsw .* 3\.50\.4"):
        await SqliteStore(sqlite_url).migrate()


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////srv/outlast.db", "/srv/outlast.db"),
        ("sqlite:///outlast.db", "{cwd}/outlast.db"),
        ("sqlite:///data/outlast.db", "{cwd}/data/outlast.db"),
        ("sqlite:///a%20b.db", "{cwd}/a b.db"),
        ("sqlite://:memory:", ":memory:"),
    ],
)
def test_a_url_names_a_path(url: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert path_of(url) == path.format(cwd=os.path.realpath(tmp_path))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite:////",
        "sqlite://host/outlast.db",
        "sqlite:///folder/",
        "sqlite:///outlast.db?mode=ro",
        "sqlite:///outlast.db#x",
        "postgresql://host/db",
        "outlast.db",
    ],
)
def test_a_nonsense_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        SqliteStore(url)


def test_an_executor_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        SqliteStore("sqlite://:memory:", executor="thread")  # type: ignore[arg-type]


async def test_the_folder_is_made(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/a/b/outlast.db")
    await store.migrate()
    await store.open()
    assert (await store.health()).reachable
    await store.close()


async def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a database, " * 100)
    (tmp_path / "folder").mkdir()
    for place, why in (
        ("file", "not an SQLite database"),
        ("folder", "folder"),
        ("file/below.db", "cannot open"),
    ):
        store = SqliteStore(f"sqlite:///{tmp_path}/{place}")
        for attempt in (store.migrate, store.open):
            with pytest.raises(StoreUnavailable, match=why) as told:
                await attempt()
            assert str(tmp_path / place) in str(told.value)
        await store.close()


async def test_only_a_migration_makes_a_file(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/new/outlast.db")
    with pytest.raises(SchemaOutdated, match="there is no database at"):
        await store.open()
    assert os.listdir(tmp_path) == []
    await store.migrate()
    await store.open()
    await store.close()
    assert os.listdir(tmp_path / "new") == ["outlast.db"]


async def test_a_file_without_a_schema_is_outdated(tmp_path: Path) -> None:
    (tmp_path / "outlast.db").touch()
    store = SqliteStore(f"sqlite:///{tmp_path}/outlast.db")
    with pytest.raises(SchemaOutdated, match="outlast migrate"):
        await store.open()
    health = await store.health()
    assert (health.reachable, bool(health.detail)) == (False, True)
    await store.migrate()
    await store.open()
    await store.close()
    await store.close()


async def test_verbs_need_an_open_store(sqlite_url: str) -> None:
    with pytest.raises(StoreUnavailable, match="not open"):
        await SqliteStore(sqlite_url).submit([submission(1)])


async def test_two_migrations_at_once_are_one(sqlite_url: str) -> None:
    stores = [SqliteStore(sqlite_url) for _ in range(4)]
    names = await asyncio.gather(*(store.migrate() for store in stores))
    assert sorted(names) == [[], [], [], ["0001_begin"]]
    for store in stores:
        await store.close()


@pytest.mark.parametrize("executor", ["threaded", "inline"])
async def test_a_store_in_memory(executor: str) -> None:
    threads = threading.active_count()
    store = SqliteStore("sqlite://:memory:", executor=executor)  # type: ignore[arg-type]
    with pytest.raises(SchemaOutdated):
        await store.open()
    await store.migrate()
    await store.open()
    record = submission(1)
    await asyncio.gather(store.submit([record]), store.read_tasks([]), store.submit([submission(2)]))
    [task] = await store.read_tasks([TaskRef(tenant=record.tenant, task=record.task)])
    assert task.key == record.key
    assert threading.active_count() - threads == (1 if executor == "threaded" else 0)
    await store.close()
    assert threading.active_count() <= threads + 1  # a loop's own pool keeps one for later


async def test_a_simulation_is_inline_and_owns_the_time() -> None:
    class Simulated:
        inline = True

        def monotonic(self) -> float:
            return 5.0

        def unix_us(self) -> int:
            return 77_000_000

        def random_bits(self, bits: int) -> int:
            return 1

    clock.install(Simulated())
    try:
        threads = threading.active_count()
        store = SqliteStore("sqlite://:memory:")
        await store.migrate()
        await store.open()
        record = submission(1, deadline_us=5)
        await store.submit([record])
        [task] = await store.read_tasks([TaskRef(tenant=record.tenant, task=record.task)])
        assert (task.submitted_at, task.deadline_at) == (77_000_000, 77_000_005)
        assert (await store.health()).now == 77_000_000
        assert threading.active_count() == threads
        await store.close()
    finally:
        clock.install(None)


async def test_hints_cross_threads_and_loops_of_a_process(store: SqliteStore, sqlite_url: str) -> None:
    waiting = threading.Event()
    woken: list[bool] = []

    async def other() -> None:
        second = SqliteStore(sqlite_url)
        await second.open()
        task = asyncio.ensure_future(second.wakes.wait("queue", 30))
        await asyncio.sleep(0)
        waiting.set()
        woken.append(await task)
        await second.close()

    thread = threading.Thread(target=lambda: asyncio.run(other()))
    thread.start()
    await asyncio.to_thread(waiting.wait, 30)
    await store.submit([submission(1)])
    await asyncio.to_thread(thread.join, 30)
    assert woken == [True]


async def test_a_store_that_was_reopened_still_hears_of_other_processes(
    store: SqliteStore, beside: apsw.Connection
) -> None:
    """Waits that ended with the close do not count against the ones that follow."""
    waiting = asyncio.ensure_future(store.wakes.wait("queue", 60))
    await asyncio.sleep(0)
    await store.close()
    await store.open()
    assert await waiting is False
    for number in range(2):
        waiting = asyncio.ensure_future(store.wakes.wait("queue", 60))
        await asyncio.sleep(0)
        beside.execute("begin immediate")
        await store.submit([submission(number)], connection=beside)
        beside.execute("commit")
        assert await asyncio.wait_for(waiting, 10)


async def test_what_was_committed_elsewhere_before_the_first_wait_is_heard(
    store: SqliteStore, beside: apsw.Connection
) -> None:
    """Whoever has read and then waits misses nothing, however late anybody begins to look out."""
    await store.list_tasks(TaskFilter(tenant="tenant"))
    beside.execute("begin immediate")
    await store.submit([submission(1)], connection=beside)
    beside.execute("commit")
    assert await asyncio.wait_for(store.wakes.wait("queue", 60), 10)


async def test_closing_ends_waits(store: SqliteStore) -> None:
    waiting = asyncio.ensure_future(store.wakes.wait("queue", 60))
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.wait_for(waiting, 10) is False


FORK = """
import asyncio, os, sys
from outlast.errors import StoreUnavailable
from outlast.store.rows import TaskFilter
from outlast.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])

async def parent_before():
    await store.migrate()
    await store.open()

async def child():
    try:
        await store.list_tasks(TaskFilter(tenant="t"))
    except StoreUnavailable as error:
        assert "fork" in str(error)
    else:
        os._exit(3)
    await store.close()
    own = SqliteStore(sys.argv[1])
    await own.open()
    await own.list_tasks(TaskFilter(tenant="t"))
    await own.close()

loop = asyncio.new_event_loop()
loop.run_until_complete(parent_before())
pid = os.fork()
if pid == 0:
    try:
        asyncio.new_event_loop().run_until_complete(child())
    except BaseException:
        os._exit(4)
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
loop.run_until_complete(store.list_tasks(TaskFilter(tenant="t")))
# No close: the process must end all the same.
print("ended")
"""


def test_after_a_fork_and_without_close(sqlite_url: str) -> None:
    """The child is told to open a store of its own; the parent goes on, and ends without a close."""
    done = subprocess.run(
        [sys.executable, "-c", FORK, sqlite_url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ended"), done.stderr


async def test_a_connection_of_another_kind_is_refused(
    store: SqliteStore, beside: apsw.Connection, tmp_path: Path
) -> None:
    record = submission(1)
    with pytest.raises(ConfigurationError, match="not in a transaction"):
        await store.submit([record], connection=beside)
    elsewhere = apsw.Connection(str(tmp_path / "other.db"))
    elsewhere.execute("begin immediate")
    with pytest.raises(ConfigurationError, match="another database"):
        await store.submit([record], connection=elsewhere)
    elsewhere.execute("rollback")
    elsewhere.close()
    library = sqlite3.connect(":memory:")
    with pytest.raises(ConfigurationError, match=r"apsw\.Connection"):
        await store.submit([record], connection=library)
    library.close()
    assert await store.read_tasks([TaskRef(tenant=record.tenant, task=record.task)]) == []


async def test_a_transaction_that_cannot_become_a_writer_is_busy(
    store: SqliteStore, beside: apsw.Connection, path: str
) -> None:
    """A caller that began as a reader is told so, and its transaction stands."""
    holder = apsw.Connection(path)
    holder.execute("begin immediate")
    beside.set_busy_timeout(20)
    beside.execute("begin")
    record = submission(1)
    assert await store.submit([record], connection=beside) == [Submitted(kind="busy", task=record.task)]
    assert beside.in_transaction
    holder.execute("rollback")
    holder.close()
    [verdict] = await store.submit([record], connection=beside)
    assert verdict.kind == "accepted"
    beside.execute("commit")
    assert len(await store.read_tasks([TaskRef(tenant=record.tenant, task=record.task)])) == 1


async def test_a_task_of_a_callers_transaction_is_seen_at_once(
    store: SqliteStore, beside: apsw.Connection
) -> None:
    beside.execute("begin immediate")
    await store.submit([submission(1)], connection=beside)
    while await store.wakes.wait("queue", 0.05):
        pass
    waiting = asyncio.ensure_future(store.wakes.wait("queue", 30))
    await asyncio.sleep(0)
    assert not waiting.done()
    beside.execute("commit")
    assert await asyncio.wait_for(waiting, 10)


@pytest.mark.parametrize("look", ["sweep", "claim", "claim_open", "deliver", "due_schedules"])
async def test_a_look_that_finds_nothing_does_not_wait_for_the_writer(
    store: SqliteStore, path: str, look: str
) -> None:
    """Idle workers look every few seconds: they keep out of the way of those who write."""
    session, hour_us = "session", 3_600_000_000
    await store.renew(SessionRenewal(session=session, name="worker", ttl_us=hour_us))
    asked: dict[str, Any] = {
        "sweep": SweepRequest(),
        "claim": ClaimRequest(session=session, pools=("default",), serves=(), limit=1),
        "claim_open": OpenRequest(session=session, tools=("tool",), limit=1, lease_us=hour_us),
        "deliver": 1,
        "due_schedules": DueRequest(limit=1, lease_us=hour_us),
    }
    holder = apsw.Connection(path)
    holder.execute("begin immediate")
    # Those who wait for the lock are told that it is not to be had, later than this.
    await asyncio.wait_for(getattr(store, look)(asked[look]), 10)
    holder.execute("rollback")
    holder.close()
