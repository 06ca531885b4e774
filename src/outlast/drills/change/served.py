"""What an API process of the drill serves: ``outlast serve outlast.drills.change.served:app``.

The process leaves when its standard input ends, so that it never outlives the drill.
"""

from __future__ import annotations

import os
import threading

from outlast.drills.change.agents import Place, build
from outlast.settings import Settings

app = build(Settings().database_url, Place.of_environ())


def _leave_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


threading.Thread(target=_leave_with_parent, daemon=True).start()
