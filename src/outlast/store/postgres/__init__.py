"""The store on PostgreSQL: functions in the database, dedicated connections, hints by LISTEN and NOTIFY."""

from outlast.store.postgres.adapter import PostgresStore

__all__ = ["PostgresStore"]
