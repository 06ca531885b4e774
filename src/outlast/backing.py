"""What the calls of an app work on, whichever app they are of."""

from __future__ import annotations

from typing import Protocol

from outlast.engine.registry import Registry
from outlast.store.contract import Store

__all__ = ["Backing"]


class Backing(Protocol):
    """An app's agents and tools, and its store."""

    registry: Registry

    @property
    def store(self) -> Store:
        """The opened store."""
        ...
