"""What each verb of the contract does to the task in question: the parts that players are given."""

from __future__ import annotations

from tests.explorer import people_parts, worker_parts
from tests.explorer.parts import ACTS, ENTRIES, VERBS

__all__ = ["ACTS", "ENTRIES", "VERBS", "people_parts", "worker_parts"]
