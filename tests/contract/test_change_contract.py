"""Every store keeps the contract of change: undo, retry, fork, versions, verdicts, outside sessions."""

from __future__ import annotations

from outlast.testing.store_suite.changing import *  # noqa: F403
from outlast.testing.store_suite.forking import *  # noqa: F403
from outlast.testing.store_suite.outside import *  # noqa: F403
from outlast.testing.store_suite.undoing import *  # noqa: F403
