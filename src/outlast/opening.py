"""From a URL, or a caller's connection, to a store; the only place that knows both stores."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from outlast.errors import ConfigurationError
from outlast.store.contract import Store
from outlast.store.shelf import Inbox, Shelf


def store_for(url: str) -> Store:
    """Make the store that a URL names; it is not opened yet.

    url: ``postgresql://user:password@host/database``, ``sqlite:///relative.db``, ``sqlite:////absolute.db``
    or ``sqlite://:memory:``. Raises ConfigurationError for anything else.
    """
    if _is_postgres(url):
        from outlast.store.postgres import PostgresStore

        return PostgresStore(url)
    from outlast.store.sqlite import SqliteStore

    return SqliteStore(url)


def shelf_for(url: str) -> Shelf:
    """Make the shelf for a service's keys in the database that a URL names; see ``store_for``.

    Nothing is opened before it is needed, and no table is made before ``prepare``.
    """
    if _is_postgres(url):
        from outlast.store.postgres.otherside import PostgresShelf

        return PostgresShelf(url)
    from outlast.store.sqlite.otherside import SqliteShelf

    return SqliteShelf(url)


def inbox_for(connection: Any) -> Inbox:
    """Answer the inbox that works on a caller's connection: asyncpg's, or an ``apsw.Connection``.

    Raises ConfigurationError for any other.
    """
    drivers = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    if "asyncpg" in drivers:
        from outlast.store.postgres.otherside import PostgresInbox

        return PostgresInbox()
    if "apsw" in drivers:
        from outlast.store.sqlite.otherside import SqliteInbox

        return SqliteInbox()
    raise ConfigurationError(f"a connection of asyncpg or apsw is needed, not {type(connection).__name__}")


def _is_postgres(url: str) -> bool:
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        # Of what is no URL at all; only its beginning is looked at here.
        scheme = url.partition("://")[0]
    if scheme not in ("postgresql", "postgres", "sqlite"):
        raise ConfigurationError(
            f"database URL with scheme {scheme!r} is not known; "
            "use postgresql://user@host/database or sqlite:///file.db"
        )
    return scheme != "sqlite"
