"""A service on each store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.server.desk import Desk
from tests.stores import *  # noqa: F403

from outlast.store.contract import Store


@pytest.fixture(params=("sqlite-file", "postgres"))
def store_kind(request: pytest.FixtureRequest) -> str:
    """Which store this test runs on; tests that never reach one ask for SQLite in memory alone."""
    return str(request.param)


@pytest.fixture
async def desk(store: Store) -> AsyncIterator[Desk]:
    """An open app and its API over the store."""
    async with Desk(store) as made:
        yield made
