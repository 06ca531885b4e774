"""Logging for one test: nothing installed before it hears anything, and all is as it was afterwards."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import pytest
import structlog

from outlast import telemetry
from outlast.observability import logs

__all__ = ["logging_alone"]


@contextlib.contextmanager
def logging_alone() -> Iterator[None]:
    """Let the block install logs of its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with pytest.MonkeyPatch.context() as patch:
        # Both, or what is restored would not know what it has to take the place of.
        patch.setattr(telemetry, "_subscribers", [])
        patch.setattr(logs, "_end", logs._nothing)
        try:
            yield
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
            structlog.reset_defaults()
