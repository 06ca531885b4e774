"""A stage for each test, on a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.explorer.stage import Stage, stage

__all__ = ["on_stage"]


@pytest.fixture
async def on_stage(postgres_url: str) -> AsyncIterator[Stage]:
    """A stage without furniture."""
    async with stage(postgres_url) as made:
        yield made
