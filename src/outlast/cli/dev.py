"""``outlast dev``: API and worker in one process, started again whenever the code changes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from outlast.app import Outlast
from outlast.cli import options
from outlast.cli.failing import command, masked, say_error
from outlast.cli.loading import find_target, load_app
from outlast.cli.printing import say, say_json
from outlast.cli.stopping import stopped_by_signals
from outlast.engine.settings import WorkerSettings
from outlast.errors import OutlastError
from outlast.observability import logs
from outlast.settings import Settings, local_secret

if TYPE_CHECKING:
    from outlast.server.serving import Server

LOOK_S: Final = 0.5
"""Seconds between looks at the files."""
SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
AGAIN: Final = "OUTLAST_DEV_AGAIN"
"""Set in a process that took over from one with older code."""


@command
async def dev(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="Your app; that of app.py or main.py by default."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on.")] = options.DEFAULT_PORT,
    reload: Annotated[bool, typer.Option(help="Start again when a Python file changes.")] = True,
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Run everything in one process: API, worker, schema, on SQLite in .outlast/ by default.

    Example: outlast dev app:app
    """
    # Here, so that no other command pays for loading a web framework.
    from outlast.server.app import create_app
    from outlast.server.serving import Server

    again = os.environ.pop(AGAIN, "") == "1"
    chosen = options.choose_database(database_url)
    logs.install(level="warning")
    if not Settings().secret.get_secret_value():
        os.environ["OUTLAST_SECRET"] = local_secret(Path(".outlast"))
    files = snapshot(Path.cwd())
    try:
        outlast = load_app(target or find_target())
        server = Server(create_app(outlast, Settings(), manage=False), host, port)
    except OutlastError as error:
        # At the first start the command ends; later, the next change of a file is the likely repair.
        if not (again and reload):
            raise
        say_error(error.code, f"{error}; waiting for a change", as_json=as_json)
        await changed(files)
        start_again()
    await outlast.open(migrate=True)
    settings = Settings()
    worker = outlast.worker(
        WorkerSettings(name="dev", slots=settings.slots, lease_s=settings.lease_s, grace_s=3.0, dev=True)
    )

    def stop() -> None:
        worker.stop()
        server.stop()

    def ready() -> None:
        if as_json:
            say_json({"event": "ready", **_facts(outlast, server)})
        else:
            _paint(outlast, server, chosen, again=again)

    watching = asyncio.ensure_future(changed(files)) if reload else asyncio.get_running_loop().create_future()
    try:
        with stopped_by_signals(stop):
            serving = asyncio.ensure_future(server.run_until_stopped(ready))
            parts = {serving}
            # An app without agents yet has nothing to claim; the API shows what there is.
            if outlast.registry.agents:
                parts.add(asyncio.ensure_future(worker.run()))
            await asyncio.wait({*parts, watching}, return_when=asyncio.FIRST_COMPLETED)
            stop()
            await asyncio.gather(*parts)
    finally:
        await outlast.close()
    if watching.done():
        if not as_json:
            say("  changed: starting again")
        start_again()
    watching.cancel()


def start_again() -> NoReturn:
    """Put a fresh process in this one's place: same command, same number, new code."""
    os.environ[AGAIN] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "outlast", *sys.argv[1:]])


async def changed(before: Mapping[str, int]) -> None:
    """Return once a Python file below the current directory is another than in ``before``, for good.

    Waits until two looks agree, so that an editor that is still writing is not met half-way.
    """
    while True:
        await asyncio.sleep(LOOK_S)
        now = await asyncio.to_thread(snapshot, Path.cwd())
        if now != before:
            break
    while True:
        await asyncio.sleep(LOOK_S / 2)
        later = await asyncio.to_thread(snapshot, Path.cwd())
        if later == now:
            return
        now = later


def snapshot(folder: Path) -> dict[str, int]:
    """Answer when each Python file below a folder was last changed, in nanoseconds."""
    seen: dict[str, int] = {}
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in SKIPPED]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(here, name)
                try:
                    seen[path] = os.stat(path).st_mtime_ns
                except OSError:
                    # Gone between the listing and the look.
                    continue
    return seen


def _facts(outlast: Outlast, server: Server) -> dict[str, object]:
    agents = [f"{agent}@{version}" for agent, version in sorted(outlast.registry.agents)]
    return {"app": outlast.name, "url": server.url, "storage": outlast.store.url, "agents": agents}


def _paint(outlast: Outlast, server: Server, chosen: str, *, again: bool) -> None:
    facts = _facts(outlast, server)
    agents = ", ".join(facts["agents"]) if outlast.registry.agents else "none yet: add one with @app.agent"  # type: ignore[arg-type]
    say(f"Outlast dev · {outlast.name}" + (" (started again)" if again else ""))
    say(f"  API      {server.url}/v1   docs {server.url}/docs")
    say(f"  Storage  {masked(outlast.store.url)}")
    say(f"  Agents   {agents}")
    say("  Not for production: use outlast migrate, serve and worker there")
