"""``outlast serve``: the HTTP API."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli import options
from outlast.cli.failing import command
from outlast.cli.loading import load_app
from outlast.cli.stopping import stopped_by_signals
from outlast.observability import logs
from outlast.settings import Settings


@command
async def serve(
    target: options.Target,
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond this machine only with OUTLAST_API_KEYS.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 for any.")
    ] = options.DEFAULT_PORT,
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Serve the HTTP API of an app until SIGTERM or SIGINT; a second signal ends it at once.

    Requests under way are finished; streams end at once and are resumed by their clients elsewhere.

    Example: OUTLAST_API_KEYS=acme:s3cret outlast serve app:app --host 0.0.0.0
    """
    # Here, so that no other command pays for loading a web framework.
    from outlast.server.app import create_app
    from outlast.server.serving import Server

    options.choose_database(database_url)
    outlast = load_app(target)
    server = Server(create_app(outlast, Settings(), manage=False), host, port)
    log = logs.install(as_json=True if as_json else None)
    async with outlast:

        def ready() -> None:
            log.info("serving", app=outlast.name, url=server.url, storage=outlast.store.url)

        with stopped_by_signals(server.stop):
            await server.run_until_stopped(ready)
    log.info("stopped serving")
