"""Python's search for cycles, in a process that does nothing but work.

A worker makes many records that live until their batch is on disk, and that hardly ever form a cycle. As
Python is set by default it looks through them every 700, and through the modules of the whole program again
and again: up to a quarter of what a step costs. Reference counting frees what has no cycle either way.

Only a process that is Outlast's own is set so; where an app runs a worker inside its own process, that is the
app's to decide.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG: Final = 20_000
"""How many more objects than were freed are made before the youngest are looked through."""


def collect_seldom() -> None:
    """Look for cycles less often from now on, and never again in what is loaded already."""
    gc.collect()
    gc.freeze()
    _, middle, old = gc.get_threshold()
    gc.set_threshold(YOUNG, middle, old)
