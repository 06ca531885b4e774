"""How the workers of a drill behave: steady ones stay, doomed ones are killed or frozen.

A doomed worker's lease is short, so that nobody waits long for what it leaves behind; it writes nothing but
its tasks, since on SQLite a process that is frozen inside a transaction stops every other writer of the file.
A steady one must not lose its lease on a loaded machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from outlast.drills.fleet import Fleet, Process
from outlast.engine.settings import WorkerSettings
from outlast.testing.probes import Trigger

__all__ = ["LEASE_S", "PATIENCE_S", "Fate", "settings", "start"]

Fate = Literal["steady", "doomed", "calm"]
"""``calm``: it is frozen for a moment only, and keeps its lease."""
LEASE_S: Final = 3.0
"""Of a doomed worker."""
PATIENCE_S: Final = 40.0
"""How long to wait for what has to come; a loaded machine is slow, a wrong engine never gets there."""


def settings(name: str, pools: str, fate: str) -> WorkerSettings:
    """Answer a worker's settings. pools: parted by commas."""
    if fate not in get_args(Fate):
        raise ValueError(f"there is no fate {fate!r}")
    steady = WorkerSettings(
        name=name,
        pools=tuple(pools.split(",")),
        lease_s=15.0,
        poll_s=0.1,
        sweep_s=0.2,
        linger_s=0.3,
        grace_s=2.0,
    )
    if fate == "doomed":
        return dataclasses.replace(
            steady, lease_s=LEASE_S, renew_s=LEASE_S / 2, sweep_s=60.0, linger_s=1.0, grace_s=1.0
        )
    if fate == "calm":
        return dataclasses.replace(steady, lease_s=60.0, sweep_s=60.0)
    return steady


async def start(
    fleet: Fleet,
    module: str,
    name: str,
    pools: Sequence[str],
    fate: Fate,
    *probe: Trigger,
    environ: Mapping[str, str],
) -> Process:
    """Start a worker process, ``python -m module NAME POOLS FATE``, and wait until it serves."""
    process = fleet.start(name, module, name, ",".join(pools), fate, probe=probe, environ=environ)
    await process.says("ready", timeout=PATIENCE_S)
    return process
