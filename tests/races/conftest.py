"""The stores, a scene on each, and the place of a blocked twin."""

from __future__ import annotations

import pytest
from tests.races.blocking import Place
from tests.stores import *  # noqa: F403

from outlast.testing.store_suite.scene import Reopen, Scene, scene

__all__ = ["place", "scene"]


@pytest.fixture
async def place(scene: Scene, database_url: str, reopen: Reopen) -> Place:
    """Where a twin is played."""
    return Place(scene=scene, url=database_url, reopen=reopen)
