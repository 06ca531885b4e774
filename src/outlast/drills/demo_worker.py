"""Run one worker of the demo: ``python -m outlast.drills.demo_worker NAME POOL``."""

from __future__ import annotations

import os
import sys

from outlast.drills.demo_app import (
    ASKS,
    ATTACHES,
    CALM,
    EFFECT,
    TICKETS_URL,
    TIMEOUT,
    TIMEOUT_S,
    WANTED,
    build,
    demo_settings,
)
from outlast.drills.serving import serve
from outlast.settings import Settings

if __name__ == "__main__":
    app = build(
        Settings().database_url,
        os.environ[TICKETS_URL],
        timeout=float(os.environ.get(TIMEOUT, TIMEOUT_S)),
        effect=os.environ[EFFECT],  # type: ignore[arg-type]
        asks=bool(os.environ.get(ASKS)),
        wanted=os.environ.get(WANTED) or None,
        attaches=bool(os.environ.get(ATTACHES)),
    )
    serve(app, demo_settings(sys.argv[1], sys.argv[2], calm=bool(os.environ.get(CALM))))
