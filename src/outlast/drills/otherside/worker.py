"""Run one worker of the drill: ``python -m outlast.drills.otherside.worker NAME POOLS FATE``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from outlast.drills.crew import settings
from outlast.drills.otherside.agents import FOLDER, TICKETS_URL, build
from outlast.drills.serving import serve
from outlast.settings import Settings

if __name__ == "__main__":
    app = build(Settings().database_url, os.environ[TICKETS_URL], Path(os.environ[FOLDER]))
    serve(app, settings(*sys.argv[1:4]))
