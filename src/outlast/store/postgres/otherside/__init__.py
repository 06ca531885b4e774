"""A service's keys, answers and inbox on PostgreSQL, in the schema ``outlast_otherside``."""

from outlast.store.postgres.otherside.inbox import PostgresInbox
from outlast.store.postgres.otherside.shelf import PostgresShelf

__all__ = ["PostgresInbox", "PostgresShelf"]
