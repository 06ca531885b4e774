"""Every store keeps the contract of effects: gates, business keys, reconciliation, the audit trail."""

from __future__ import annotations

from outlast.testing.store_suite.believing import *  # noqa: F403
from outlast.testing.store_suite.contradicting import *  # noqa: F403
from outlast.testing.store_suite.counting import *  # noqa: F403
from outlast.testing.store_suite.doubting import *  # noqa: F403
from outlast.testing.store_suite.effects import *  # noqa: F403
from outlast.testing.store_suite.holding import *  # noqa: F403
from outlast.testing.store_suite.keying import *  # noqa: F403
from outlast.testing.store_suite.passing import *  # noqa: F403
from outlast.testing.store_suite.reconciling import *  # noqa: F403
