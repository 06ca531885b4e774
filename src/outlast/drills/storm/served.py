"""What an API process of the storm serves: ``outlast serve outlast.drills.storm.served:app``.

The process leaves when its standard input ends, so that it never outlives the drill; what is said there
before goes to its ``Disk``.
"""

from __future__ import annotations

import os
import threading

from outlast.drills.database import Disk
from outlast.drills.storm.agents import Place, app_of

_disk = Disk()
app = app_of(Place.of_environ(), lambda store: store)


def _listen() -> None:
    while data := os.read(0, 4096):
        _disk.told(data.decode())
    os._exit(1)


threading.Thread(target=_listen, daemon=True).start()
