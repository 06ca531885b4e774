"""``outlast migrate``: bring the schema up to date."""

from __future__ import annotations

from outlast.cli import options
from outlast.cli.failing import command
from outlast.cli.printing import say, say_json
from outlast.opening import store_for


@command
async def migrate(database_url: options.DatabaseUrl = None, as_json: options.AsJson = False) -> None:
    """Bring the database's schema up to date; safe to repeat and to run from several places at once.

    Example: outlast migrate --database-url postgresql://outlast@db/outlast
    """
    store = store_for(options.choose_database(database_url))
    try:
        applied = await store.migrate()
    finally:
        await store.close()
    if as_json:
        say_json({"database": store.url, "applied": applied})
    elif applied:
        say(f"{store.url}: applied {', '.join(applied)}")
    else:
        say(f"{store.url}: up to date")
