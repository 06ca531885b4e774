"""The contract of ``outlast.store.contract`` as tests, for every store there is and for one that you write.

Bind it in a test module of your own::

    from outlast.testing.store_suite import *

with ``asyncio_mode = "auto"`` of pytest-asyncio and three fixtures: ``store``, a migrated and opened store of
the test's own; ``backdoor``, raw SQL beside it (see ``Backdoor``); and ``reopen``, a function that opens one
more store on the same database (see ``Reopen``). A store whose database cannot be shared skips in ``reopen``.

This package needs pytest; nothing of Outlast imports it.
"""

from __future__ import annotations

from pkgutil import iter_modules

import pytest

# Before the modules are imported: an assert that fails should say what it compared.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from outlast.testing.store_suite.attending import (  # noqa: E402
    TestReconcile,
    TestSessions,
)
from outlast.testing.store_suite.bringing import (  # noqa: E402
    TestBroughtAlong,
)
from outlast.testing.store_suite.calling import (  # noqa: E402
    TestCommitIntent,
    TestRecordOutcome,
    TestTakeTurn,
)
from outlast.testing.store_suite.claiming import (  # noqa: E402
    TestClaim,
    TestLoad,
)
from outlast.testing.store_suite.claiming_along import TestSubmitAndClaim  # noqa: E402
from outlast.testing.store_suite.ending import (  # noqa: E402
    TestFinalEndings,
    TestReleases,
    TestSuspensions,
)
from outlast.testing.store_suite.guards import (  # noqa: E402
    TestHistoryGuards,
    TestInputGuards,
    TestOperationGuards,
    TestTaskGuards,
)
from outlast.testing.store_suite.hearing import (  # noqa: E402
    TestHeardEnds,
)
from outlast.testing.store_suite.journaling import (  # noqa: E402
    TestEventsAndNotes,
    TestFence,
    TestRecordOperation,
    TestWriters,
)
from outlast.testing.store_suite.publishing import (  # noqa: E402
    TestOutbox,
)
from outlast.testing.store_suite.scene import (  # noqa: E402
    scene,
)
from outlast.testing.store_suite.scheduling import (  # noqa: E402
    TestDueSchedules,
    TestFireSchedules,
    TestListSchedules,
    TestPutSchedule,
    TestSetSchedule,
)
from outlast.testing.store_suite.settling import (  # noqa: E402
    TestNote,
    TestSettle,
)
from outlast.testing.store_suite.submitting import (  # noqa: E402
    TestSubmit,
    TestSubmitInsideTheCallersTransaction,
)
from outlast.testing.store_suite.sweeping import (  # noqa: E402
    TestDeadlines,
    TestLostSessions,
    TestTimers,
)
from outlast.testing.store_suite.transitions import (  # noqa: E402
    TestApprovalTransitions,
    TestAttemptTransitions,
    TestCoverage,
    TestOperationTransitions,
    TestTaskTransitions,
)
from outlast.testing.store_suite.viewing import (  # noqa: E402
    TestEventViews,
    TestHealth,
    TestOperationViews,
    TestSchema,
    TestTaskViews,
    TestTenants,
)
from outlast.testing.store_suite.waking import TestWakes  # noqa: E402

__all__ = [
    "TestApprovalTransitions",
    "TestAttemptTransitions",
    "TestBroughtAlong",
    "TestClaim",
    "TestCommitIntent",
    "TestCoverage",
    "TestDeadlines",
    "TestDueSchedules",
    "TestEventViews",
    "TestEventsAndNotes",
    "TestFence",
    "TestFinalEndings",
    "TestFireSchedules",
    "TestHealth",
    "TestHeardEnds",
    "TestHistoryGuards",
    "TestInputGuards",
    "TestListSchedules",
    "TestLoad",
    "TestLostSessions",
    "TestNote",
    "TestOperationGuards",
    "TestOperationTransitions",
    "TestOperationViews",
    "TestOutbox",
    "TestPutSchedule",
    "TestReconcile",
    "TestRecordOperation",
    "TestRecordOutcome",
    "TestReleases",
    "TestSchema",
    "TestSessions",
    "TestSetSchedule",
    "TestSettle",
    "TestSubmit",
    "TestSubmitAndClaim",
    "TestSubmitInsideTheCallersTransaction",
    "TestSuspensions",
    "TestTakeTurn",
    "TestTaskGuards",
    "TestTaskTransitions",
    "TestTaskViews",
    "TestTenants",
    "TestTimers",
    "TestWakes",
    "TestWriters",
    "scene",
]
