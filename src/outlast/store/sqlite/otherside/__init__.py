"""A service's keys, answers and inbox in an SQLite file, in tables that begin with ``outlast_otherside_``."""

from outlast.store.sqlite.otherside.inbox import SqliteInbox
from outlast.store.sqlite.otherside.shelf import SqliteShelf

__all__ = ["SqliteInbox", "SqliteShelf"]
