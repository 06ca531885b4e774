"""A gateway in a process of its own.

``python -m tests.gateway.service '{"url": …, "secret": …, "allow": […]}'`` says ``ready`` with its URL, and
stops itself where ``OUTLAST_PROBE`` says.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

from outlast.drills.serving import leave_with_parent, say
from outlast.gateway import Gateway
from outlast.gateway.serving import Server
from outlast.gateway.settings import read_settings
from outlast.opening import store_for
from outlast.testing.probes import install_from_env


async def _serve(url: str, secret: str, **settings: Any) -> None:
    leave_with_parent()
    store = store_for(url)
    await store.open()
    said = read_settings(
        None, listen="127.0.0.1:0", **{k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    )
    gateway = Gateway(store, secret, said)
    server = Server(gateway, said.listen)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
    await server.run_until_stopped(lambda: say("ready", url=server.url))
    await gateway.close()
    await store.close()


if __name__ == "__main__":
    install_from_env()
    asyncio.run(_serve(**json.loads(sys.argv[1])))
