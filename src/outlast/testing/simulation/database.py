"""Lend the databases of worlds: real SQLite in memory, whose schema and statements were made before.

Purpose: a fresh database costs more to make, in schema and prepared statements, than a schedule costs to run.

State: idle connections, each with the schema and no rows. While one is lent, everything happens inside a
transaction that is rolled back when it comes back; the borrower's own writing transactions are savepoints in
it.

Not covered: worlds in several threads.
"""

from __future__ import annotations

from typing import Any

from outlast.store.sqlite import connection as connections
from outlast.store.sqlite.migrate import migrate
from outlast.store.sqlite.transaction import Transaction

_idle: list[Any] = []


def lend() -> Any:
    """Answer a connection to an empty database in memory; it comes back when it is closed."""
    if _idle:
        connection = _idle.pop()
    else:
        connection = connections.connect(connections.MEMORY)
        connection.execute("begin immediate")
        migrate(Transaction(connection, clock=lambda: 0))
        connection.execute("commit")
    connection.execute("begin immediate")
    return _Lent(connection)


class _Undone(Exception):
    """What the driver is told where a transaction is rolled back."""


class _Lent:
    """A connection whose transactions are savepoints of a larger one."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.in_transaction = self._writing = False
        self._run = connection.execute
        self.executemany = connection.executemany
        self.changes = connection.changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, bindings: Any = None) -> Any:
        """Run a statement; what begins and ends transactions is put in terms of savepoints."""
        if bindings is not None:
            return self._run(sql, bindings)
        if sql == "begin":
            # A snapshot of the one connection that there is: nothing to undo, and nothing to run.
            self.in_transaction = True
            return None
        if sql == "begin immediate":
            self.in_transaction = self._writing = True
            # The driver's own savepoints take no place among the statements that it keeps prepared. It keeps
            # the 512 run last: what a schedule runs once has to be among them when the next one runs it.
            return self._connection.__enter__()
        if sql in ("commit", "rollback"):
            writing, self.in_transaction, self._writing = self._writing, False, False
            if writing:
                undone = _Undone() if sql == "rollback" else None
                self._connection.__exit__(None if undone is None else _Undone, undone, None)
            return None
        return self._run(sql)

    def close(self, *_: Any) -> None:
        """Undo everything and give the connection back."""
        self._connection.execute("rollback")
        _idle.append(self._connection)
