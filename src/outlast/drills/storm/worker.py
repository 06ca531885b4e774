"""Run one worker of the storm: ``python -m outlast.drills.storm.worker NAME POOLS TIMERS``.

TIMERS: ``short``, or ``shipped`` for the defaults. What it claims and writes goes into a file of its own, by
which the history of leases is judged. A line ``full`` on its standard input leaves its database no room to
grow; ``room`` gives it back.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, cast

from outlast.drills.database import Disk
from outlast.drills.serving import serve
from outlast.drills.storm.agents import Place, app_of
from outlast.engine.settings import WorkerSettings
from outlast.store.contract import Store
from outlast.testing.history import HistoryFile, Witness

SHORT: Final = WorkerSettings(lease_s=3.0, renew_s=0.75, poll_s=0.2, sweep_s=0.3, linger_s=0.3, grace_s=2.0)
"""A lease has to bear a loaded machine; all else may be in a hurry."""
HISTORY: Final = "OUTLAST_DRILL_HISTORY"
"""The variable with the folder for histories."""


Timers = Literal["short", "shipped"]


def timers(name: str) -> WorkerSettings:
    """Answer the settings by the name of their timers."""
    return WorkerSettings() if name == "shipped" else SHORT


def main(name: str, pools: str, kind: str) -> None:
    """Serve until SIGTERM."""
    disk = Disk()
    path = Path(os.environ[HISTORY]) / f"leases-{name}-{os.getpid()}"
    # All processes of a machine share this clock.
    writing = HistoryFile(path, time.monotonic)
    client = f"{name} {os.getpid()}"
    app = app_of(Place.of_environ(), lambda store: cast(Store, Witness(store, writing, client)))
    serve(app, replace(timers(kind), name=name, pools=tuple(pools.split(","))), heard=disk.told)


if __name__ == "__main__":
    main(*sys.argv[1:4])
