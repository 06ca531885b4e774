"""Run one worker of the drill: ``python -m outlast.drills.effects.worker NAME POOLS steady|doomed``.

A doomed worker's lease is short, so that nobody waits long for what it leaves behind; it writes nothing but
its tasks, since on SQLite a process that is frozen inside a transaction stops every other writer of the file.
"""

from __future__ import annotations

import sys

from outlast.drills.effects.agents import Places, build
from outlast.drills.serving import serve
from outlast.engine.settings import WorkerSettings
from outlast.settings import Settings

LEASE_S = 3.0
"""Of a doomed worker."""


def settings(name: str, pools: str, fate: str) -> WorkerSettings:
    """Answer a worker's settings; a steady one must not lose its lease on a loaded machine."""
    served = tuple(pools.split(","))
    if fate == "doomed":
        return WorkerSettings(
            name=name,
            pools=served,
            lease_s=LEASE_S,
            renew_s=LEASE_S / 2,
            poll_s=0.1,
            sweep_s=60.0,
            grace_s=1.0,
        )
    return WorkerSettings(
        name=name, pools=served, lease_s=15.0, poll_s=0.1, sweep_s=0.2, linger_s=0.3, grace_s=2.0
    )


if __name__ == "__main__":
    serve(build(Settings().database_url, Places.of_environ()), settings(*sys.argv[1:4]))
