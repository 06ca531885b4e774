"""The contract of ``outlast.store.contract`` as tests, for every store there is and for one that you write.

Bind it in a test module of your own::

    from outlast.testing.store_suite import *

with ``asyncio_mode = "auto"`` of pytest-asyncio and three fixtures: ``store``, a migrated and opened store of
the test's own; ``backdoor``, raw SQL beside it (see ``Backdoor``); and ``reopen``, a function that opens one
more store on the same database (see ``Reopen``). A store whose database cannot be shared skips in ``reopen``.

This package needs pytest; nothing of Outlast imports it.
"""

from __future__ import annotations

import pytest

# Before the modules are imported: an assert that fails should say what it compared.
pytest.register_assert_rewrite(__name__)

from outlast.testing.store_suite.claiming import TestClaim, TestLoad, TestSessions  # noqa: E402
from outlast.testing.store_suite.journaling import (  # noqa: E402
    TestCommitIntent,
    TestEventsAndNotes,
    TestFence,
    TestRecordOperation,
    TestRecordOutcome,
    TestTakeTurn,
    TestWriters,
)
from outlast.testing.store_suite.scene import scene  # noqa: E402
from outlast.testing.store_suite.submitting import (  # noqa: E402
    TestSubmit,
    TestSubmitInsideTheCallersTransaction,
)

__all__ = [
    "TestClaim",
    "TestCommitIntent",
    "TestEventsAndNotes",
    "TestFence",
    "TestLoad",
    "TestRecordOperation",
    "TestRecordOutcome",
    "TestSessions",
    "TestSubmit",
    "TestSubmitInsideTheCallersTransaction",
    "TestTakeTurn",
    "TestWriters",
    "scene",
]
