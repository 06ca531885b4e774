"""Run one worker of the drill: ``python -m outlast.drills.effects.worker NAME POOLS steady|doomed``."""

from __future__ import annotations

import sys

from outlast.drills.crew import settings
from outlast.drills.effects.agents import Places, build
from outlast.drills.serving import serve
from outlast.settings import Settings

if __name__ == "__main__":
    serve(build(Settings().database_url, Places.of_environ()), settings(*sys.argv[1:4]))
