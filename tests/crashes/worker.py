"""Run one worker: ``python -m tests.crashes.worker '{"name": ..., settings}'``."""

from __future__ import annotations

import json
import os
import sys

from tests.crashes.app import TICKETS_URL, build

from outlast import WorkerSettings, telemetry
from outlast.drills.serving import say, serve
from outlast.settings import Settings
from outlast.store.sqlite import SqliteStore

QUICK = {"lease_s": 1.0, "poll_s": 0.1, "sweep_s": 0.1, "linger_s": 0.0, "grace_s": 2.0, "slots": 20}


def _tell(signal: telemetry.Signal) -> None:
    if isinstance(signal, telemetry.SessionLost):
        say("session_lost", tasks=signal.tasks)
    elif isinstance(signal, telemetry.AttemptEnded):
        say(f"attempt_{signal.end}", task=signal.task, epoch=signal.epoch)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    given["pools"] = tuple(given.get("pools", ()))
    url, store = Settings().database_url, None
    if given.pop("calm", False) and url.startswith("sqlite:"):
        # No thread of its own for transactions, so that the process never freezes inside one: that would stop
        # every other writer of the file, which is a known bound of SQLite and not what is tested.
        store = SqliteStore(url, executor="inline")
    telemetry.subscribe(_tell)
    serve(build(url, os.environ[TICKETS_URL], store), WorkerSettings(**{**QUICK, **given}))
