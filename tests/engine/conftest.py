"""An app on each real store, a worker in this process, and the ticket service as a process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.engine.house import House
from tests.stores import *  # noqa: F403

from outlast.store.contract import Store
from outlast.testing.recorder import Recorder


@pytest.fixture(params=("sqlite-file", "postgres"))
def store_kind(request: pytest.FixtureRequest) -> str:
    """Which store this test runs on."""
    return str(request.param)


@pytest.fixture
async def house(store: Store) -> AsyncIterator[House]:
    """An open app over the store; what its workers still do is ended afterwards."""
    made = House(store)
    async with made:
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
