"""How tests wait until nothing is left of a server."""

from __future__ import annotations

import time
from pathlib import Path


def gone(folder: Path) -> bool:
    """Wait for the one sign that a supervisor gives when it has cleaned up: its folder is not there."""
    deadline = time.monotonic() + 20
    while folder.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
