"""From a URL to a store; the only place that knows both stores."""

from __future__ import annotations

from urllib.parse import urlsplit

from outlast.errors import ConfigurationError
from outlast.store.contract import Store


def store_for(url: str) -> Store:
    """Make the store that a URL names; it is not opened yet.

    url: ``postgresql://user:password@host/database``, ``sqlite:///relative.db``, ``sqlite:////absolute.db``
    or ``sqlite://:memory:``. Raises ConfigurationError for anything else.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("postgresql", "postgres"):
        from outlast.store.postgres import PostgresStore

        return PostgresStore(url)
    if scheme == "sqlite":
        from outlast.store.sqlite import SqliteStore

        return SqliteStore(url)
    raise ConfigurationError(
        f"database URL with scheme {scheme!r} is not known; use postgresql://user@host/database or sqlite:///file.db"
    )
