"""Every store keeps the contract of people: signals, cancels, children, approvals, rules, resends."""

from __future__ import annotations

from outlast.testing.store_suite.approving import *  # noqa: F403
from outlast.testing.store_suite.cancelling import *  # noqa: F403
from outlast.testing.store_suite.children import *  # noqa: F403
from outlast.testing.store_suite.consenting import *  # noqa: F403
from outlast.testing.store_suite.deciding import *  # noqa: F403
from outlast.testing.store_suite.posting import *  # noqa: F403
from outlast.testing.store_suite.resending import *  # noqa: F403
