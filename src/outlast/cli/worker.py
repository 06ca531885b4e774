"""``outlast worker``: claim tasks and run them."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli import options
from outlast.cli.collecting import collect_seldom
from outlast.cli.failing import command
from outlast.cli.loading import load_app
from outlast.cli.stopping import stopped_by_signals
from outlast.engine.settings import WorkerSettings
from outlast.errors import ConfigurationError
from outlast.observability import logs
from outlast.settings import Settings


@command
async def worker(
    target: options.Target,
    slots: Annotated[int | None, typer.Option(min=1, help="Tasks run at once. [OUTLAST_SLOTS, 100]")] = None,
    pool: Annotated[
        list[str] | None, typer.Option(help="Serve this pool; may be repeated. Default: your agents' pools.")
    ] = None,
    name: Annotated[str, typer.Option(help="A label for people.")] = "worker",
    lease: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds without renewal after which others take over. [15]")
    ] = None,
    database_url: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
) -> None:
    """Run tasks of an app's agents until SIGTERM or SIGINT; a second signal ends it at once.

    The first signal drains: no new tasks, running ones stop at their next boundary and are given back.

    Example: outlast worker app:app --slots 50 --database-url postgresql://outlast@db/outlast
    """
    options.choose_database(database_url)
    outlast = load_app(target)
    if not outlast.registry.agents:
        raise ConfigurationError(f"{target} has no agents; register one with @app.agent")
    settings = Settings()
    behaviour = WorkerSettings(
        name=name,
        slots=settings.slots if slots is None else slots,
        pools=tuple(pool or ()),
        lease_s=settings.lease_s if lease is None else lease,
    )
    log = logs.install(as_json=True if as_json else None)
    async with outlast:
        serving = outlast.worker(behaviour)
        collect_seldom()
        with stopped_by_signals(serving.stop):
            log.info(
                "worker started",
                app=outlast.name,
                storage=outlast.store.url,
                slots=behaviour.slots,
                agents=[f"{agent}@{version}" for agent, version in outlast.registry.agents],
            )
            await serving.run()
    log.info("worker stopped")
