"""``outlast gateway``: an HTTP proxy before tools."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli import options
from outlast.cli.direct import database
from outlast.cli.failing import command
from outlast.cli.stopping import stopped_by_signals
from outlast.gateway import Gateway
from outlast.gateway.serving import Server
from outlast.gateway.settings import DEFAULT_LISTEN, read_settings
from outlast.observability import logs


@command
async def gateway(
    listen: Annotated[
        str | None, typer.Option(help=f"Address to listen on, host:port. [{DEFAULT_LISTEN}]")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Let requests through to a host, or to scheme://host:port/path; may be repeated."),
    ] = None,
    allow_range: Annotated[
        list[str] | None,
        typer.Option(help="Connect to private addresses of this range all the same; may be repeated."),
    ] = None,
    config: Annotated[str | None, typer.Option(help="A TOML file with these and further settings.")] = None,
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Pass on requests of running tool calls, for sandboxes and foreign code, until SIGTERM or SIGINT.

    A request needs the token of a call whose lease, epoch, intent and approval stand at that moment. Tokens
    are signed with the app's secret: set OUTLAST_SECRET to the same one.

    Example: outlast gateway --allow https://api.example.com/v1/ --database-url
    postgresql://outlast@db/outlast
    """
    settings = read_settings(config, listen=listen, allow=tuple(allow or ()), ranges=tuple(allow_range or ()))
    async with database(database_url) as app:
        log = logs.install(as_json=True if as_json else None)
        passing = Gateway(app.store, app.secret, settings)
        server = Server(passing, settings.listen)
        if not settings.allow:
            log.warning("nothing is let through: name hosts with --allow or in the file")

        def ready() -> None:
            log.info("gateway listening", url=server.url, allow=settings.allow, storage=app.store.url)

        try:
            with stopped_by_signals(server.stop):
                await server.run_until_stopped(ready)
        finally:
            await passing.close()
    log.info("gateway stopped")
