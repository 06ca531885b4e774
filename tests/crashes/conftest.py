"""A scene on each database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.crashes.scene import Scene, make_app

from outlast.drills.fleet import Fleet
from outlast.testing.recorder import Recorder


@pytest.fixture(params=("sqlite", "postgres"))
def database_kind(request: pytest.FixtureRequest) -> str:
    """Which database this test runs on."""
    return str(request.param)


@pytest.fixture
async def scene(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    """A migrated database, an honest ticket service, and no worker yet; whatever is started is ended."""
    url = str(request.getfixturevalue(f"{database_kind}_url"))
    async with Recorder() as recorder, Fleet(tmp_path) as fleet:
        app = make_app(url, recorder)
        await app.open(migrate=True)
        try:
            yield Scene(url=url, recorder=recorder, fleet=fleet, app=app)
        finally:
            await app.close()
