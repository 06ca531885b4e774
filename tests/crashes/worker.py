"""Run one worker: ``python -m tests.crashes.worker '{"name": ..., settings}'``."""

from __future__ import annotations

import json
import os
import sys

from tests.crashes.app import TICKETS_URL, build

from outlast import WorkerSettings, telemetry
from outlast.drills.serving import say, serve
from outlast.settings import Settings

QUICK = {"lease_s": 1.0, "poll_s": 0.1, "sweep_s": 0.1, "linger_s": 0.0, "grace_s": 2.0, "slots": 20}


def _tell(signal: telemetry.Signal) -> None:
    if isinstance(signal, telemetry.SessionLost):
        say("session_lost", tasks=signal.tasks)
    elif isinstance(signal, telemetry.AttemptEnded):
        say(f"attempt_{signal.end}", task=signal.task, epoch=signal.epoch)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    given["pools"] = tuple(given.get("pools", ()))
    telemetry.subscribe(_tell)
    serve(build(Settings().database_url, os.environ[TICKETS_URL]), WorkerSettings(**{**QUICK, **given}))
