"""Every store keeps the contract: the public suite, bound to each of them."""

from __future__ import annotations

from outlast.testing.store_suite import *  # noqa: F403
