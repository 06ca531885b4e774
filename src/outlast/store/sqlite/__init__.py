"""The store in one SQLite file.

Purpose: keep the contract of ``outlast.store.contract`` with nothing but a file, for one machine and any
number of its processes.

Identity: the file's real path. Everything that one process opens on it shares its hints.

State: the file and its write-ahead log. A writer begins as a writer (``begin immediate``), so no transaction
ever turns from reader into writer and no caller sees "database is locked".

Clock: SQLite's, read once a transaction, after the lock was taken.

What is fenced: ``flush`` compares the head's epoch and state before any entry of a task is written;
``claim``, ``settle`` and ``sweep`` read and write heads in one transaction, which nothing can come between.
What is posted from outside (signals, decisions, cancels, children's ends) needs no lease: it is judged by the
head, under the writer's lock. Triggers guard the same ground again.

Failure by failure: the lock is not to be had for 30 s, the disk is full, the file cannot be read or written:
StoreUnavailable, nothing was written, and the next verb tries anew. The process dies: the transaction under
way is gone, committed ones stand. A verb that raises undoes itself alone, not its neighbours in the same
transaction. A cancelled caller does not undo its verb. After a fork the child has to open a store of its own.

Not covered: a process that is stopped inside its write transaction blocks the file's other writers until it
goes on or dies. Network file systems. A second SQLite library in the same process breaks the locks of the
first.
"""

from outlast.store.sqlite.adapter import SqliteStore

__all__ = ["SqliteStore"]
