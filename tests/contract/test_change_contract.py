"""Every store keeps the contract of change: undo, retry, fork, versions, verdicts, outside sessions."""

from __future__ import annotations

from outlast.testing.store_suite.changing import *  # noqa: F403
