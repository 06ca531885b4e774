"""Fixtures for every test: a private PostgreSQL, a fresh database of each kind.

Tests are coroutines where they need to be (``asyncio_mode = "auto"``), on one loop in each of its processes.
``OUTLAST_TEST_POSTGRES=16`` runs them on the older of the two servers that the wheel holds.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import os
import sys
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import asyncpg
import hypothesis
import pytest
from tests import hanging, sharing, warm
from xdist.remote import Producer

from outlast.testing.servers import MEMORY, EmbeddedPostgres, has_room

# Hundreds of processes start in a run: each of them would compile all of Outlast anew, and each of the
# suite's own processes all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Whoever writes an SQLite file waits for the disk, and no test ends a machine, only processes: where there is
# room, the tests' files are in memory.
if has_room(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Examples are not timed one by one: on a shared machine that finds the neighbours, not our faults.
hypothesis.settings.register_profile("outlast", deadline=None)
hypothesis.settings.load_profile("outlast")

# ── tests that hang ──────────────────────────────────────────────────────────────────────────────


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "hangs_after", "Seconds after which a test has to be over, each of its phases; 0 for never."
    )


def _limited(item: pytest.Item) -> AbstractContextManager[None]:
    return hanging.limited(float(item.config.getini("hangs_after") or 0))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with _limited(item):
        return (yield)


# ── servers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """One PostgreSQL for the whole run, started by the first test that asks; its commits are not flushed."""
    with EmbeddedPostgres(
        durable=False, version=int(os.environ.get("OUTLAST_TEST_POSTGRES", "18"))
    ) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: EmbeddedPostgres) -> str:
    """The name of a database with the newest schema and no rows; nobody may connect to it."""
    url = postgres_server.create_database("outlast_template")
    _migrated(url)
    return "outlast_template"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed file with the newest schema and no rows; to copy it costs a tenth of making another."""
    path = tmp_path_factory.mktemp("template") / "outlast.sqlite"
    _migrated(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session", autouse=True)
def warm_connections() -> Iterator[None]:
    """Connections to shared databases outlive a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncpg, "connect", warm.lend)
        yield


@pytest.fixture(autouse=True)
def alone(request: pytest.FixtureRequest) -> None:
    """Tests share a loop, so that connections stay warm; what one leaves behind ends with it."""
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("ended_with_its_test")


@pytest.fixture
async def ended_with_its_test() -> AsyncIterator[None]:
    """End what a test leaves running, as the end of a loop would."""
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


# ── databases ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def postgres_url(postgres_server: EmbeddedPostgres, postgres_template: str) -> Iterator[str]:
    """The URL of a PostgreSQL database of this test's own, migrated and without rows."""
    yield from _database(postgres_server, postgres_template)


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_server: EmbeddedPostgres, postgres_template: str) -> str:
    """A migrated database that tests use one after the other, emptied in between: faster than new ones."""
    # One for all folders: with one for each, the first few would use up the room for warm connections.
    url = postgres_server.create_database(template=postgres_template)
    warm.shared.add(url)
    return url


@pytest.fixture
def bare_postgres_url(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """The URL of a PostgreSQL database of this test's own, without any schema."""
    yield from _database(postgres_server, None)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an SQLite database of this test's own; the file does not exist yet."""
    return f"sqlite:///{tmp_path / 'outlast.sqlite'}"


# ── stores ───────────────────────────────────────────────────────────────────────────────────────
# The place for `store`: an open store, once on each database, over `postgres_url` and `sqlite_url`.


def _database(server: EmbeddedPostgres, template: str | None) -> Iterator[str]:
    url = server.create_database(template=template)
    yield url
    server.drop_database(
        url.rpartition("/")[2]
    )  # a few megabytes each: they do not wait for the end of the run


def _migrated(url: str) -> None:
    # In a thread: a session's fixture must not disturb the loop that pytest-asyncio keeps for this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _migrate(url)).result()


async def _migrate(url: str) -> None:
    try:
        from outlast.opening import store_for
    except ModuleNotFoundError:
        return  # no store can be opened yet
    store = store_for(url)
    try:
        await store.migrate()
    finally:
        await store.close()


UPPER = ("engine", "server", "cli", "otherside", "gateway", "drills")
"""Folders above the store. In the short form of the whole suite each of their tests runs on one of the two
databases, by the same draw every time; the store's own suites always run on both."""
KINDS = ("sqlite-file", "sqlite", "postgres")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw lots in the short form of the whole suite; begin with what takes longest."""
    tests = Path(__file__).parent
    if not config.option.file_or_dir and not os.environ.get("OUTLAST_TEST_ALL"):
        kept = _drawn(items, tests)
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
        items[:] = [item for item in items if id(item) in kept]
    # Nobody waits for it at the end.
    items.sort(key=lambda item: _folder(item, tests) not in sharing.CROWDED)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> sharing.Sharing:
    """Have the suite's processes share tests by groups."""
    return sharing.Sharing(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what lives until the end, thousands of tests and their modules, out of every look for cycles."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


def _folder(item: pytest.Item, tests: Path) -> str:
    """Answer in which folder of the suite a test is, nothing where it is none of the suite's."""
    return _folder_of(item.path, tests)


@functools.cache
def _folder_of(path: Path, tests: Path) -> str:
    return path.relative_to(tests).parts[0] if path.is_relative_to(tests) else ""


def _drawn(items: list[pytest.Item], tests: Path) -> set[int]:
    """Answer which items run in the short form."""
    variants: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for item in items:
        params = (
            item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        )
        kind = next((value for value in params.values() if isinstance(value, str) and value in KINDS), None)
        drawn = _folder(item, tests) in UPPER and kind is not None
        name = item.nodeid.replace(str(kind), "*") if drawn else item.nodeid
        variants[name].append((kind or "", id(item)))
    kept: set[int] = set()
    for name, found in variants.items():
        found.sort()
        kept.add(found[zlib.crc32(name.encode()) % len(found)][1])
    return kept
