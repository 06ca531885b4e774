"""Run the Recorder: ``python -m outlast.testing.recorder --port 9009``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import tempfile
from pathlib import Path

from outlast.testing.recorder.ledger import Ledger
from outlast.testing.recorder.service import Service
from outlast.testing.recorder.wire import listen


async def _run(database: str, port: int, *, until_stdin_ends: bool) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    if until_stdin_ends:
        # The other end of the pipe is held by whoever started us. It closes when that process ends, in
        # whatever way.
        loop.add_reader(0, lambda: None if os.read(0, 4096) else over.set())
    ledger = Ledger(database)
    running: set[asyncio.Task[None]] = set()
    server, bound = await listen(Service(ledger).serve, port, running)
    print(json.dumps({"url": f"http://127.0.0.1:{bound}", "port": bound, "pid": os.getpid()}), flush=True)
    await over.wait()
    server.close()
    calls = list(running)
    for task in calls:
        task.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    ledger.close()


def main() -> None:
    """Serve until SIGTERM, SIGINT or, where asked for, the end of the standard input."""
    parser = argparse.ArgumentParser(prog="python -m outlast.testing.recorder", description=__doc__)
    parser.add_argument(
        "--database", help="file of the log and the tickets; made when missing; a temporary one by default"
    )
    parser.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1; 0 lets the system choose")
    parser.add_argument("--until-stdin-ends", action="store_true", help="stop when the standard input ends")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="outlast-recorder-") as folder:
        database = options.database or str(Path(folder, "recorder.db"))
        asyncio.run(_run(database, options.port, until_stdin_ends=options.until_stdin_ends))


main()
