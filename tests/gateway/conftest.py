"""A desk on each real store; the ticket service as a process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
from tests.gateway.desk import HOST, Desk, Other, other_side
from tests.stores import *  # noqa: F403

from outlast.store.contract import Store
from outlast.testing.recorder import Recorder
from outlast.testing.store_suite.scene import Scene, scene

__all__ = ["scene"]


@pytest.fixture(params=("sqlite-file", "postgres"))
def store_kind(request: pytest.FixtureRequest) -> str:
    """Which store this test runs on."""
    return str(request.param)


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


@pytest.fixture
async def closed_desk(store: Store, scene: Scene, recorder: Recorder) -> AsyncIterator[Desk]:
    """A desk without a gateway; a test opens one as it needs it."""
    async with httpx2.AsyncClient(timeout=30, trust_env=False) as client:
        yield Desk(store=store, scene=scene, client=client, recorder=recorder)


@pytest.fixture
async def desk(closed_desk: Desk) -> AsyncIterator[Desk]:
    """A desk whose gateway lets requests through to the Recorder."""
    async with closed_desk.open(allow=(f"http://{HOST}:{closed_desk.recorder.port}",)):
        yield closed_desk


@pytest.fixture
async def other() -> AsyncIterator[Other]:
    """Another side, on 127.0.0.1."""
    async with other_side() as made:
        yield made
