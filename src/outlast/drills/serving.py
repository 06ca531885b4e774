"""What runs inside the processes of a drill: a worker that can be stopped from outside, and reports.

The process leaves when its standard input ends, so it never outlives whoever started it, and drains on
SIGTERM as a worker in production does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from typing import Any

from outlast import telemetry
from outlast.app import Outlast
from outlast.engine.settings import WorkerSettings
from outlast.testing.probes import MARK, install_from_env

__all__ = ["leave_with_parent", "say", "serve"]


def say(word: str, **data: Any) -> None:
    """Tell whoever started this process a word, in one line of JSON."""
    mark = os.environ.get(MARK)
    if mark is not None:
        os.write(int(mark), json.dumps({"point": word, **data}).encode() + b"\n")


def leave_with_parent(heard: Callable[[str], None] | None = None) -> None:
    """End this process when its standard input ends; hand over what is written there before."""

    def read() -> None:
        data = os.read(0, 4096)
        if not data:
            os._exit(1)
        if heard is not None:
            heard(data.decode())

    asyncio.get_running_loop().add_reader(0, read)


async def _serve(app: Outlast, settings: WorkerSettings, heard: Callable[[str], None] | None) -> None:
    worker = app.worker(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    leave_with_parent(heard)
    async with app:
        say("ready")
        await worker.run()


def serve(app: Outlast, settings: WorkerSettings, *, heard: Callable[[str], None] | None = None) -> None:
    """Serve an app's agents until SIGTERM; die or freeze where ``OUTLAST_PROBE`` says.

    heard: gets what is written to the process's standard input. What the worker tells about itself goes to
    the standard error, which the drill keeps.
    """
    install_from_env()
    telemetry.subscribe(lambda signal: print(signal, flush=True))
    asyncio.run(_serve(app, settings, heard))
