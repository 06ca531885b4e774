"""The stores, and a scene on each."""

from __future__ import annotations

from tests.stores import *  # noqa: F403

from outlast.testing.store_suite.scene import scene

__all__ = ["scene"]
