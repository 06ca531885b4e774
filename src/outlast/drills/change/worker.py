"""Run one worker of the drill: ``python -m outlast.drills.change.worker NAME POOLS FATE``."""

from __future__ import annotations

import sys

from outlast.drills.change.agents import Place, build
from outlast.drills.crew import settings
from outlast.drills.serving import serve
from outlast.settings import Settings

if __name__ == "__main__":
    serve(build(Settings().database_url, Place.of_environ()), settings(*sys.argv[1:4]))
