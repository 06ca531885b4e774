"""Worlds in which one ingredient is always there, for whoever looks at it alone."""

from __future__ import annotations

import dataclasses
from typing import Final

from outlast.testing.simulation import Faults

__all__ = ["KEPT", "MOVED", "RELAYED", "RULED", "SAVED", "SWITCHED"]

_SOME: Final = Faults(crashes=2, freezes=1, drains=1, store=0.05)

RELAYED: Final = dataclasses.replace(Faults.turmoil(), relays=2, broker=0.4)
"""Relays publish what tasks announce."""
KEPT: Final = dataclasses.replace(_SOME, clock_steps=1, hints=0.2, schedules=2)
"""People keep schedules."""
MOVED: Final = dataclasses.replace(_SOME, tools=0.2, retries=1, forks=1, adopts=2)
"""Code changes under its version, and people move what stops of it."""
RULED: Final = dataclasses.replace(_SOME, tools=0.2, retries=1, rules=2)
"""Policy fails and rules change."""
SWITCHED: Final = dataclasses.replace(Faults.turmoil(), switches=2)
"""People throw switches."""
SAVED: Final = dataclasses.replace(_SOME, tools=0.2, retries=1, budgets=2)
"""Tasks may only spend so much, and people try them again."""
