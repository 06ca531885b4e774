"""A service on each store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.server.desk import Desk
from tests.stores import *  # noqa: F403

from outlast.store.contract import Store
from outlast.testing.recorder import Recorder


@pytest.fixture(params=("sqlite-file", "postgres"))
def store_kind(request: pytest.FixtureRequest) -> str:
    """Which store this test runs on; tests that never reach one ask for SQLite in memory alone."""
    return str(request.param)


@pytest.fixture
async def desk(store: Store) -> AsyncIterator[Desk]:
    """An open app and its API over the store."""
    async with Desk(store) as made:
        yield made


@pytest.fixture(scope="session")
def recorder_process() -> Iterator[Recorder]:
    """One ticket service for the whole run."""
    recorder = Recorder().start()
    yield recorder
    recorder.stop()


@pytest.fixture
async def recorder(recorder_process: Recorder) -> Recorder:
    """The ticket service, with nothing in it."""
    await recorder_process.reset()
    return recorder_process
