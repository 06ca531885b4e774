"""Deliberate faults, by name: each breaks one rule that the product keeps, from outside, one at a time.

Purpose: a judge that finds nothing is believed only if it finds what was put there. They are declared beside
others of their kind: ``working``, ``people`` and ``ingredients``.
"""

from __future__ import annotations

# Each of these declares its faults as it is imported, in the order of the table in the docs.
from tests.defects import ingredients, people, working  # noqa: F401
from tests.defects.declaring import DEFECTS, Defect, Patch

__all__ = ["DEFECTS", "NOT_CAUGHT", "Defect", "Patch"]

NOT_CAUGHT = {
    "read a limit, then write": "there are no limits in the store yet; the nearest rule, business keys, is"
    " broken above",
    "remember the highest outbox number": "SQLite has one writer, so that numbers are committed in their"
    " order: that fault needs PostgreSQL",
    "look before the lock is taken": "SQLite has one writer: that fault needs PostgreSQL, where the explorer"
    " has it in many functions (tests/explorer/faults.py) and finds each",
}
"""Faults that cannot be put into this world, and why."""
