"""A Recorder and a client for the tests of what tool bodies get."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from outlast import clock
from outlast.testing.recorder import Recorder
from outlast.tools.call import ToolCall
from outlast.tools.http import ToolClient, make_client


@pytest.fixture(scope="module")
def process() -> Iterator[Recorder]:
    recorder = Recorder()
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()


@pytest.fixture
async def recorder(process: Recorder) -> Recorder:
    process.start()  # a test may have killed it
    await process.reset()
    return process


@pytest.fixture
async def client() -> AsyncIterator[ToolClient]:
    async with make_client(trust_env=False) as client:
        yield client


@pytest.fixture
def make_call(client: ToolClient) -> Callable[..., ToolCall]:
    """Make a call with a deadline of five seconds from now; keywords replace what it has."""

    def make(*, within: float = 5.0, **other: object) -> ToolCall:
        settings = {
            "idempotency_key": "task_1:act-3",
            "task": "task_1",
            "tenant": "acme",
            "epoch": 7,
            "attempt": 1,
            "deadline": clock.monotonic() + within,
            "client": lambda: client,
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        }
        return ToolCall(**{**settings, **other})  # type: ignore[arg-type]

    return make
