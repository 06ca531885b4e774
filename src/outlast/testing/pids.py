"""Whether a process lives, for those who are not its parent and cannot wait for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["lives"]


def lives(pid: int) -> bool:
    """Say whether a process still runs.

    One that has died and that its parent has not waited for counts as dead, where the system tells (Linux).
    It may end in any moment of the look itself.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if sys.platform != "linux":
        return True
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # The name before it is in brackets and may hold anything.
    return told.rpartition(")")[2].split()[0] not in "ZX"
